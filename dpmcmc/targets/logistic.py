r"""Bayesian logistic regression.

    θ ~ N(0, prior_scale² I),   P(y = 1 | x, θ) = σ(x·θ),   y in {0, 1}

One record's gradient is (σ(x·θ) − y)·x, so its norm is |σ(x·θ) − y|·‖x‖ <= ‖x‖: with rows of norm at most 1 the
gradient bound is L = 1.
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
from dpmcmc.targets.labels import check_labels


@dataclass(frozen=True)
class LogisticRegression(GaussianPrior):
    """Logistic regression with a Gaussian prior on every coefficient.

    Records are ``{"x": (d,), "y": ()}`` with y in {0, 1}. Give the intercept as a constant column.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, for ``gradient_bound``.

    Raises:
        ValueError: prior_scale not positive.
    """

    prior_scale: Positive = 1.0
    num_features: Annotated[int, Gt(0)] | None = dataclasses.field(default=None, kw_only=True)
    row_bound: Positive | None = dataclasses.field(default=None, kw_only=True)

    num_classes = 2
    log_concave = True
    linear_predictor = True

    def __post_init__(self) -> None:
        check_fields(self)

    def bind(self, record_shapes: Any) -> LogisticRegression:
        """Fix ``num_features`` from one record's shapes."""
        return dataclasses.replace(self, num_features=features_of(record_shapes, self.num_features))

    def check_records(self, records: Any) -> None:
        """Raise ValueError unless every label is 0 or 1: |σ − y| <= 1 rests on it."""
        check_labels(records["y"], 2, "logistic_regression")

    @property
    def gradient_bound(self) -> float | None:
        """L = row_bound, since |σ − y| <= 1."""
        return self.row_bound

    def gradient_bound_within(self, radius: float) -> float | None:
        """L on ‖θ‖ <= radius: the same everywhere."""
        return self.gradient_bound

    @property
    def smoothness(self) -> float | None:
        """Largest curvature of one record's loss, row_bound²/4."""
        return None if self.row_bound is None else self.row_bound**2 / 4

    def loss_bounds(self, radius: float) -> tuple[float, float]:
        """(largest loss of a record, difference between any two records' losses) on ‖θ‖ <= radius: |x·θ| <= r R.

        Raises:
            ValueError: no row_bound.
        """
        margin = require_bound(self.row_bound, "row_bound", "LogisticRegression") * radius
        return float(np.logaddexp(0.0, margin)), margin

    def init(self, key: jax.Array) -> jax.Array:
        """The prior mean, (d,). The first steps forget it; it holds no record."""
        if self.num_features is None:
            raise InputError(
                "LogisticRegression needs num_features before init: give it, or let dpmcmc.sample bind it",
                "num_features",
            )
        return jnp.zeros(self.num_features, jnp.float32)

    def log_likelihood(self, params: jax.Array, record: Any) -> jax.Array:
        """y·m − log(1 + e^m), m = x·θ."""
        margin = record["x"] @ params
        return record["y"] * margin - jax.nn.softplus(margin)

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
            return jax.nn.sigmoid(margin) - y

        return linear_rows.clipped_gradient_sum(residual, params, batch, mask, clip, bits)

    def predict(self, params: jax.Array, x: jax.Array) -> jax.Array:
        """P(y = 1 | x, θ), (n,)."""
        return jax.nn.sigmoid(x @ params)
