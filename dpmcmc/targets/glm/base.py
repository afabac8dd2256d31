r"""Prior, shapes and public bounds that generalised linear models share.

    θ ~ N(0, prior_scale² I),   log p(y | x, θ) = −ℓ(x·θ, y)

A record is ``{"x": (d,), "y": ()}``, and its gradient is the residual ∂ℓ(m, y)/∂m at m = x·θ, times x. A family states
two public constants, which hold for the labels that its ``check_records`` lets pass: a bound on the residual and one on
the curvature ∂²ℓ/∂m². With rows of norm at most R, one record's gradient is at most R · residual, and its curvature at
most R² · curvature.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import jax
import jax.numpy as jnp
from annotated_types import Gt

from dpmcmc.errors import InputError, check_fields
from dpmcmc.storage.pytree import STATIC, PyTree, rebuilt
from dpmcmc.targets.base import Positive, features_of, require_bound
from dpmcmc.targets.gaussian_prior import GaussianPrior


@dataclass(frozen=True)
class GeneralisedLinear(GaussianPrior):
    """A family is a frozen dataclass with these fields and its own; see the module for what it states.

    Attributes:
        prior_scale: prior standard deviation of each coefficient.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, or None.
        residual_bound: largest size of the residual; None where it has no bound.
        bounded_labels: whether ``longest_labels`` is there, which label-blind clipping needs.
        zeros_are_absent: whether a record of zeros adds zero to every sum, at all parameters (``targets/absent.py``).
    """

    prior_scale: Positive = 1.0
    num_features: Annotated[int, Gt(0)] | None = dataclasses.field(default=None, kw_only=True, metadata=STATIC)
    row_bound: Positive | None = dataclasses.field(default=None, kw_only=True, metadata=STATIC)
    residual_bound: ClassVar[float | None] = None
    bounded_labels: ClassVar[bool] = False
    zeros_are_absent: ClassVar[bool] = True
    log_concave = True

    def __post_init__(self) -> None:
        if not rebuilt(self):
            check_fields(self)

    @property
    def curvature_bound(self) -> float:
        """Largest curvature of a record's loss in m; infinite where it has no bound."""
        raise NotImplementedError

    def predictor(self, params: jax.Array, record: PyTree) -> jax.Array:
        """x·θ of one record."""
        return record["x"] @ params

    def longest_labels(self, predictor: jax.Array, whitened: bool = False) -> jax.Array:
        """Labels one of which has the longest gradient that a record may have, (k, ...).

        Args:
            predictor: x·θ, of one record or of several.
            whitened: whether in any norm, and not in the identity's alone.
        """
        raise NotImplementedError

    def bind(self, record_shapes: PyTree) -> Self:
        """Fix ``num_features`` from one record's shapes."""
        features = features_of(record_shapes, self.num_features)
        return dataclasses.replace(self, num_features=features)

    @property
    def gradient_bound(self) -> float | None:
        """L = residual_bound · row_bound."""
        if self.row_bound is None or self.residual_bound is None:
            return None
        return self.residual_bound * self.row_bound

    def gradient_bound_within(self, radius: float) -> float | None:
        """L on ‖θ‖ <= radius: the same everywhere."""
        return self.gradient_bound

    @property
    def smoothness(self) -> float | None:
        """Largest curvature of one record's loss in θ, curvature_bound · row_bound²; None where none is known."""
        known = self.row_bound is not None and math.isfinite(self.curvature_bound)
        return self.curvature_bound * self._bound("row_bound") ** 2 if known else None

    def init(self, key: jax.Array) -> jax.Array:
        """The prior mean. The first steps forget it; it holds no record."""
        if self.num_features is None:
            name = type(self).__name__
            raise InputError(
                f"{name} needs num_features before init: give it, or let dpmcmc.sample bind it", "num_features"
            )
        return jnp.zeros(self._shape(self.num_features), jnp.float32)

    def _shape(self, features: int) -> tuple[int, ...]:
        """Shape of θ."""
        return (features,)

    def _bound(self, name: str) -> float:
        """A public bound that is needed.

        Raises:
            ValueError: it was not given.
        """
        return require_bound(getattr(self, name), name, type(self).__name__)
