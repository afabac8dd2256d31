"""Bayesian linear regression with known noise.

    θ ~ N(0, prior_scale² I),   y = x·θ + N(0, noise_scale²)

One record's gradient is ((x·θ − y)/noise_scale²)·x. The residual has no public bound, so neither has the gradient.
The posterior is Gaussian (Bishop 2006, eqs. 3.53–3.54):

    Σ⁻¹ = I/prior_scale² + XᵀX/noise_scale²,   mean = Σ Xᵀy/noise_scale²
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.storage.pytree import STATIC, PyTree
from dpmcmc.targets.base import Positive, require_bound
from dpmcmc.targets.linear_predictor import LinearPredictor

if TYPE_CHECKING:
    from jaxtyping import Float, Num


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class LinearRegression(LinearPredictor):
    """Linear regression with a Gaussian prior on every coefficient and Gaussian noise of known size.

    Records are ``{"x": (d,), "y": ()}``. Give the intercept as a constant column.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        noise_scale: standard deviation of y given x, a public constant.
        label_bound: public bound on ``|y|``, for one-shot mechanisms, which refuse more; no prediction is larger.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, for one-shot mechanisms.

    Raises:
        ValueError: a scale that is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import LinearRegression
        >>> target = LinearRegression(noise_scale=0.5, num_features=2)
        >>> target.predict(jnp.array([1.0, 2.0]), jnp.ones((3, 2)))
        Array([3., 3., 3.], dtype=float32)
    """

    noise_scale: Positive = 1.0
    label_bound: Positive | None = dataclasses.field(default=None, metadata=STATIC)

    def log_density(self, margin: Float[jax.Array, ""], y: Num[jax.Array, ""]) -> Float[jax.Array, ""]:
        """log N(y; m, noise_scale²), normalised."""
        return jax.scipy.stats.norm.logpdf(y, margin, self.noise_scale)

    def residual(self, margin: Float[jax.Array, " n"], y: Num[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """(m − y)/noise_scale²."""
        return (margin - y) / self.noise_scale**2

    def mean(self, margin: Float[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """E[y] = m, within the public bound of labels where one is declared."""
        if self.label_bound is None:
            return margin
        return jnp.clip(margin, -self.label_bound, self.label_bound)

    @property
    def curvature_bound(self) -> float:
        """1/noise_scale²."""
        return 1 / self.noise_scale**2

    def gradient_bound_within(self, radius: float) -> float | None:
        """L on ‖θ‖ <= radius: row_bound·(row_bound·radius + label_bound)/noise_scale²; None without the bounds.

        An offset adds its bound to label_bound, and a weight multiplies all by its scale.
        """
        if self.row_bound is None or self.label_bound is None or not np.isfinite(radius):
            return None
        farthest = self.row_bound * radius + self.label_bound + (self.offset_bound or 0.0)
        return self._strength * self.row_bound * farthest / self.noise_scale**2

    def loss_bounds(self, radius: float) -> tuple[float, float]:
        """(largest ``|log-likelihood|`` of a record, difference between any two records') on ‖θ‖ <= radius.

        Raises:
            ValueError: no row_bound or no label_bound.
        """
        label_bound = require_bound(self.label_bound, "label_bound", type(self).__name__)
        farthest = self._needed_row_bound * radius + label_bound
        worst = (farthest + (self.offset_bound or 0.0)) ** 2 / (2 * self.noise_scale**2)
        constant = 0.5 * np.log(2 * np.pi * self.noise_scale**2)
        largest, difference = self._loss_range(constant, constant + worst)
        return largest, worst if self.weight_scale is None else difference

    def posterior(self, records: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """The exact posterior. Reads every record WITHOUT privacy: for tests and confidential diagnostics.

        Args:
            records: ``{"x": (N, d), "y": (N,)}``, with offsets and weights where the target declares them.

        Returns:
            (mean (d,), covariance (d, d)), float64.
        """
        x = np.asarray(records["x"], np.float64)
        y = np.asarray(records["y"], np.float64)
        if self.offset_bound is not None:
            y = y - np.asarray(records["offset"], np.float64)
        if self.weight_scale is not None:
            weight = self.weight_scale * np.asarray(records["weight"], np.float64)
            root = np.sqrt(weight)
            x, y = x * root[:, None], y * root
        precision = np.eye(x.shape[1]) / self.prior_scale**2 + x.T @ x / self.noise_scale**2
        covariance = np.linalg.inv(precision)
        covariance = (covariance + covariance.T) / 2
        return covariance @ (x.T @ y) / self.noise_scale**2, covariance
