"""Bayesian logistic regression.

    θ ~ N(0, prior_scale² I),   P(y = 1 | x, θ) = σ(x·θ),   y in {0, 1}

One record's gradient is (σ(x·θ) − y)·x, so its norm is |σ(x·θ) − y|·‖x‖ <= ‖x‖: with rows of norm at most 1 the
gradient bound is L = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np

from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.labels import check_labels
from dpmcmc.targets.linear_predictor import LinearPredictor

if TYPE_CHECKING:
    from jaxtyping import Float, Num


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class LogisticRegression(LinearPredictor):
    """Logistic regression with a Gaussian prior on every coefficient.

    Records are ``{"x": (d,), "y": ()}`` with y in {0, 1}. Give the intercept as a constant column.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, for ``gradient_bound``.

    Raises:
        ValueError: prior_scale not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(prior_scale=2.0, num_features=2, row_bound=1.0)
        >>> target.gradient_bound
        1.0
        >>> target.predict(jnp.zeros(2), jnp.ones((3, 2)))
        Array([0.5, 0.5, 0.5], dtype=float32)
    """

    num_classes = 2
    #: ``|σ − y| <= 1`` for y in {0, 1}, and σ(1 − σ) <= 1/4.
    residual_bound = 1.0
    curvature_bound = 1 / 4
    bounded_labels = True

    def check_records(self, records: PyTree) -> None:
        """Raise ValueError unless every label is 0 or 1, and offsets and weights are within their bounds."""
        super().check_records(records)
        check_labels(records["y"], 2, "logistic_regression")

    def longest_labels(self, predictor: jax.Array, whitened: bool = False) -> jax.Array:
        """The less likely label, (1, ...): its residual has size max(σ, 1 − σ)."""
        return (predictor < 0).astype(np.int32)[None]

    def log_density(self, margin: Float[jax.Array, ""], y: Num[jax.Array, ""]) -> Float[jax.Array, ""]:
        """y·m − log(1 + e^m)."""
        return y * margin - jax.nn.softplus(margin)

    def residual(self, margin: Float[jax.Array, " n"], y: Num[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """σ(m) − y."""
        return jax.nn.sigmoid(margin) - y

    def mean(self, margin: Float[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """P(y = 1) = σ(m)."""
        return jax.nn.sigmoid(margin)

    def loss_bounds(self, radius: float) -> tuple[float, float]:
        """(largest loss of a record, difference between any two records' losses) on ‖θ‖ <= radius.

        ``|x·θ + o|`` is at most r R + offset_bound.

        Raises:
            ValueError: no row_bound.
        """
        margin = self._needed_row_bound * radius + (self.offset_bound or 0.0)
        largest, difference = self._loss_range(0.0, float(np.logaddexp(0.0, margin)))
        return largest, margin if self.weight_scale is None else difference
