r"""Bayesian softmax (multinomial logistic) regression.

    θ_jk ~ N(0, prior_scale²),   P(y = k | x, θ) = p_k = exp(x·θ_k) / Σ_l exp(x·θ_l),   y in 0..K−1

One record's gradient is x ⊗ (p − e_y), so its norm is ‖x‖·‖p − e_y‖ and ‖p − e_y‖² <= 2(1 − p_y)²: with rows of norm
at most R the gradient bound is L = √2·R. All K columns are free; the prior decides between the θ that differ by a
constant across classes.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Gt

from dpmcmc.errors import InputError, check_fields
from dpmcmc.targets.base import Positive, TargetError, features_of, require_bound
from dpmcmc.targets.gaussian_prior import GaussianPrior
from dpmcmc.targets.labels import check_labels


@dataclass(frozen=True)
class SoftmaxRegression(GaussianPrior):
    """Softmax regression with a Gaussian prior on every coefficient.

    Records are ``{"x": (d,), "y": ()}`` with y in 0..K−1. Give the intercept as a constant column.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        num_classes: K, a public constant, never counted in the records; a registered data set brings its own.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, for ``gradient_bound``.

    Raises:
        ValueError: prior_scale not positive, or fewer than two classes.
    """

    prior_scale: Positive = 1.0
    num_classes: Annotated[int, Ge(2)] | None = None
    num_features: Annotated[int, Gt(0)] | None = dataclasses.field(default=None, kw_only=True)
    row_bound: Positive | None = dataclasses.field(default=None, kw_only=True)

    log_concave = True

    def __post_init__(self) -> None:
        check_fields(self)

    def bind(self, record_shapes: Any) -> SoftmaxRegression:
        """Fix ``num_features`` from one record's shapes; ``num_classes`` is no shape, and must be known."""
        self._classes()
        return dataclasses.replace(self, num_features=features_of(record_shapes, self.num_features))

    def check_records(self, records: Any) -> None:
        """Raise ValueError unless every label is in 0..K−1."""
        check_labels(records["y"], self._classes(), "softmax_regression")

    @property
    def gradient_bound(self) -> float | None:
        """L = √2·row_bound, since ‖p − e_y‖ <= √2."""
        return None if self.row_bound is None else math.sqrt(2) * self.row_bound

    def gradient_bound_within(self, radius: float) -> float | None:
        """L on ‖θ‖ <= radius: the same everywhere."""
        return self.gradient_bound

    @property
    def smoothness(self) -> float | None:
        """Largest curvature of one record's loss, row_bound²/2, since diag(p) − ppᵀ <= 1/2."""
        return None if self.row_bound is None else self.row_bound**2 / 2

    def loss_bounds(self, radius: float) -> tuple[float, float]:
        """(largest loss of a record, difference between any two records' losses) on ‖θ‖ <= radius.

        Two logits differ by at most √2·row_bound·radius, and no loss is negative.

        Raises:
            ValueError: no row_bound.
        """
        gap = math.sqrt(2) * require_bound(self.row_bound, "row_bound", "SoftmaxRegression") * radius
        largest = float(np.logaddexp(0.0, math.log(self._classes() - 1) + gap))
        return largest, largest

    def init(self, key: jax.Array) -> jax.Array:
        """The prior mean, (d, K). The first steps forget it; it holds no record."""
        if self.num_features is None:
            raise InputError(
                "SoftmaxRegression needs num_features before init: give it, or let dpmcmc.sample bind it",
                "num_features",
            )
        return jnp.zeros((self.num_features, self._classes()), jnp.float32)

    def log_likelihood(self, params: jax.Array, record: Any) -> jax.Array:
        """log p_y."""
        logits = record["x"] @ params
        chosen = jax.nn.one_hot(record["y"].astype(jnp.int32), params.shape[1])
        return chosen @ jax.nn.log_softmax(logits)

    def predict(self, params: jax.Array, x: jax.Array) -> jax.Array:
        """P(y = k | x, θ), (n, K)."""
        return jax.nn.softmax(x @ params)

    def _classes(self) -> int:
        if self.num_classes is None:
            raise TargetError(
                "num_classes is not known: declare the public number of classes, for example "
                "SoftmaxRegression(num_classes=10)"
            )
        return self.num_classes
