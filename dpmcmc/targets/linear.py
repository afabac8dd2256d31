r"""Bayesian linear regression with known noise.

    θ ~ N(0, prior_scale² I),   y = x·θ + N(0, noise_scale²)

One record's gradient is ((x·θ − y)/noise_scale²)·x. The residual has no public bound, so neither has the gradient.
The posterior is Gaussian (Bishop 2006, eqs. 3.53–3.54):

    Σ⁻¹ = I/prior_scale² + XᵀX/noise_scale²,   mean = Σ Xᵀy/noise_scale²
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Gt

from dpmcmc.errors import InputError, check_fields
from dpmcmc.privacy.query.fixed_point import FixedPoint
from dpmcmc.targets import linear_rows
from dpmcmc.targets.base import Positive, features_of, require_bound
from dpmcmc.targets.gaussian_prior import GaussianPrior


@dataclass(frozen=True)
class LinearRegression(GaussianPrior):
    """Linear regression with a Gaussian prior on every coefficient and Gaussian noise of known size.

    Records are ``{"x": (d,), "y": ()}``. Give the intercept as a constant column.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        noise_scale: standard deviation of y given x, a public constant.
        label_bound: public bound on |y|, for one-shot mechanisms; labels beyond it are refused there.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, for one-shot mechanisms.

    Raises:
        ValueError: a scale that is not positive.
    """

    prior_scale: Positive = 1.0
    noise_scale: Positive = 1.0
    label_bound: Positive | None = None
    num_features: Annotated[int, Gt(0)] | None = dataclasses.field(default=None, kw_only=True)
    row_bound: Positive | None = dataclasses.field(default=None, kw_only=True)

    log_concave = True
    linear_predictor = True

    def __post_init__(self) -> None:
        check_fields(self)

    def bind(self, record_shapes: Any) -> LinearRegression:
        """Fix ``num_features`` from one record's shapes."""
        return dataclasses.replace(self, num_features=features_of(record_shapes, self.num_features))

    @property
    def gradient_bound(self) -> None:
        """None: residuals are unbounded."""
        return None

    def gradient_bound_within(self, radius: float) -> float | None:
        """L on ‖θ‖ <= radius: row_bound·(row_bound·radius + label_bound)/noise_scale²; None without the bounds."""
        if self.row_bound is None or self.label_bound is None or not np.isfinite(radius):
            return None
        return self.row_bound * (self.row_bound * radius + self.label_bound) / self.noise_scale**2

    @property
    def smoothness(self) -> float | None:
        """Largest curvature of one record's loss, row_bound²/noise_scale²."""
        return None if self.row_bound is None else self.row_bound**2 / self.noise_scale**2

    def loss_bounds(self, radius: float) -> tuple[float, float]:
        """(largest |log-likelihood| of a record, difference between any two records') on ‖θ‖ <= radius.

        Raises:
            ValueError: no row_bound or no label_bound.
        """
        row = require_bound(self.row_bound, "row_bound", "LinearRegression")
        label = require_bound(self.label_bound, "label_bound", "LinearRegression")
        worst = (row * radius + label) ** 2 / (2 * self.noise_scale**2)
        constant = 0.5 * np.log(2 * np.pi * self.noise_scale**2)
        return float(max(abs(constant), abs(constant + worst))), worst

    def init(self, key: jax.Array) -> jax.Array:
        """The prior mean, (d,). The first steps forget it; it holds no record."""
        if self.num_features is None:
            raise InputError(
                "LinearRegression needs num_features before init: give it, or let dpmcmc.sample bind it", "num_features"
            )
        return jnp.zeros(self.num_features, jnp.float32)

    def log_likelihood(self, params: jax.Array, record: Any) -> jax.Array:
        """log N(y; x·θ, noise_scale²), normalised."""
        return jax.scipy.stats.norm.logpdf(record["y"], record["x"] @ params, self.noise_scale)

    def prepared(self, records: Any) -> Any:
        """Records with norms and aligned copies of their rows: :func:`linear_rows.prepared`."""
        return linear_rows.prepared(records)

    def clipped_gradient_sum(
        self, params: jax.Array, batch: Any, mask: jax.Array, clip: float, bits: int = 21
    ) -> FixedPoint:
        """Σ clip(−∇ log-likelihood) over unmasked rows, exactly summed.

        Args:
            params: (d,).
            batch: ``{"x": (n, d), "y": (n,)}``, or what :meth:`prepared` makes of it.
            mask: (n,) bool.
            clip: C.
            bits: grid exponent; ``result.to_float(clip, bits)`` has shape (d,).
        """

        def residual(margin: jax.Array, y: jax.Array) -> jax.Array:
            return (margin - y) / self.noise_scale**2

        return linear_rows.clipped_gradient_sum(residual, params, batch, mask, clip, bits)

    def predict(self, params: jax.Array, x: jax.Array) -> jax.Array:
        """E[y | x, θ], (n,)."""
        return x @ params

    def posterior(self, records: Any) -> tuple[np.ndarray, np.ndarray]:
        """The exact posterior. Reads every record WITHOUT privacy: for tests and confidential diagnostics.

        Args:
            records: ``{"x": (N, d), "y": (N,)}``.

        Returns:
            (mean (d,), covariance (d, d)), float64.
        """
        x, y = np.asarray(records["x"], np.float64), np.asarray(records["y"], np.float64)
        precision = np.eye(x.shape[1]) / self.prior_scale**2 + x.T @ x / self.noise_scale**2
        covariance = np.linalg.inv(precision)
        covariance = (covariance + covariance.T) / 2
        return covariance @ (x.T @ y) / self.noise_scale**2, covariance
