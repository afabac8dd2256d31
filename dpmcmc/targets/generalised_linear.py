"""Prior, shapes and public bounds that generalised linear models share.

    θ ~ N(0, prior_scale² I),   log p(y | x, θ) = −s·w·ℓ(x·θ + o, y)

A record is ``{"x": (d,), "y": ()}``. Its offset o is the leaf ``"offset"``, (), or 0 where the target states no
``offset_bound``. Its weight w in [0, 1] is the leaf ``"weight"``, and s is the public ``weight_scale``; where the
target states none, s·w is 1. The gradient is the residual ∂ℓ(m, y)/∂m at m = x·θ + o, times s·w, times x. A family
states two public constants, which hold for the labels that its ``check_records`` lets pass: a bound on the residual
and one on the curvature ∂²ℓ/∂m². With rows of norm at most R, one record's gradient is at most s · R · residual, and
its curvature at most s · R² · curvature.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Gt

from dpmcmc.data.checks import Marked
from dpmcmc.errors import InputError, check_fields
from dpmcmc.storage.pytree import STATIC, PyTree, rebuilt
from dpmcmc.storage.record_blocks import blocks
from dpmcmc.targets.base import Positive, TargetError, features_of, require_bound
from dpmcmc.targets.gaussian_prior import GaussianPrior

#: Leaf of a record -> the public fact by which a target declares it.
LEAVES = {"offset": "offset_bound", "weight": "weight_scale"}


@dataclass(frozen=True)
class GeneralisedLinear(GaussianPrior):
    """A family is a frozen dataclass with these fields and its own; see the module for what it states.

    Attributes:
        prior_scale: prior standard deviation of each coefficient.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, or None.
        offset_bound: public bound on the size of a record's offset; None: records have no offset.
        weight_scale: public constant s that weights in [0, 1] are multiplied by; None: records have no weight.
        residual_bound: largest size of the residual; None where it has no bound.
        bounded_labels: whether ``longest_labels`` is there, which label-blind clipping needs.
        zeros_are_absent: whether a record of zeros adds zero to every sum, at all parameters (``targets/checks.py``).
    """

    prior_scale: Positive = 1.0
    num_features: Annotated[int, Gt(0)] | None = dataclasses.field(default=None, kw_only=True, metadata=STATIC)
    row_bound: Positive | None = dataclasses.field(default=None, kw_only=True, metadata=STATIC)
    offset_bound: Positive | None = dataclasses.field(default=None, kw_only=True, metadata=STATIC)
    weight_scale: Positive | None = dataclasses.field(default=None, kw_only=True, metadata=STATIC)
    residual_bound: ClassVar[float | None] = None
    zeros_are_absent = True
    log_concave = True

    def __post_init__(self) -> None:
        if not rebuilt(self):
            check_fields(self)

    def __repr__(self) -> str:
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.repr}
        said = (
            f"{name}={value!r}" for name, value in values.items() if name not in LEAVES.values() or value is not None
        )
        return f"{type(self).__qualname__}({', '.join(said)})"

    @property
    def curvature_bound(self) -> float:
        """Largest curvature of a record's loss in m, at s·w = 1; infinite where it has no bound."""
        raise NotImplementedError

    def predictor(self, params: jax.Array, record: PyTree) -> jax.Array:
        """x·θ of one record, with its offset."""
        return self.with_offset(record["x"] @ params, record.get("offset"))

    def with_offset(self, predictor: jax.Array, offset: jax.Array | np.ndarray | None) -> jax.Array:
        """Return x·θ + offset.

        Raises:
            TargetError: an offset that the target does not declare, or none where it declares one.
        """
        if (offset is None) != (self.offset_bound is None):
            raise TargetError(_mismatch(type(self).__name__, "offset", offset is not None))
        return predictor if offset is None else predictor + offset

    def weighted(self, value: jax.Array, records: PyTree) -> jax.Array:
        """Return a value of each record, or of one, times s·w."""
        if self.weight_scale is None:
            return value
        return value * (self.weight_scale * records["weight"])

    def check_records(self, records: PyTree) -> None:
        """Raise DataError on an offset beyond its bound, or a weight outside [0, 1]; its ``rows`` say which."""
        if self.offset_bound is not None:
            _check_within(records, "offset", -self.offset_bound, self.offset_bound)
        if self.weight_scale is not None:
            _check_within(records, "weight", 0.0, 1.0)

    def longest_labels(self, predictor: jax.Array, whitened: bool = False) -> jax.Array:
        """Labels one of which has the longest gradient that a record may have, (k, ...).

        Args:
            predictor: x·θ, of one record or of several.
            whitened: whether in any norm, and not in the identity's alone.
        """
        raise NotImplementedError

    def bind(self, record_shapes: PyTree) -> Self:
        """Fix ``num_features`` from one record's shapes.

        Raises:
            TargetError: records with an offset or weight that the target does not declare, or without one that it does.
        """
        for leaf, fact in LEAVES.items():
            there = leaf in record_shapes
            if there != (getattr(self, fact) is not None):
                raise TargetError(_mismatch(type(self).__name__, leaf, there))
        features = features_of(record_shapes, self.num_features)
        return dataclasses.replace(self, num_features=features)

    @property
    def gradient_bound(self) -> float | None:
        """L = residual_bound · row_bound, times ``weight_scale`` where there is one."""
        if self.row_bound is None or self.residual_bound is None:
            return None
        return self._strength * self.residual_bound * self.row_bound

    def gradient_bound_within(self, radius: float) -> float | None:
        """L on ‖θ‖ <= radius: the same everywhere."""
        return self.gradient_bound

    @property
    def smoothness(self) -> float | None:
        """Largest curvature of one record's loss in θ, s · curvature_bound · row_bound²; None where none is known."""
        if self.row_bound is None or not math.isfinite(self.curvature_bound):
            return None
        return self._strength * self.curvature_bound * self.row_bound**2

    def init(self, key: jax.Array) -> jax.Array:
        """The prior mean. The first steps forget it; it holds no record."""
        if self.num_features is None:
            name = type(self).__name__
            raise InputError(
                f"{name} needs num_features before init: give it, or let dpmcmc.sample bind it",
                "num_features",
            )
        return jnp.zeros(self._shape(self.num_features), jnp.float32)

    def _shape(self, features: int) -> tuple[int, ...]:
        """Shape of θ."""
        return (features,)

    @property
    def _strength(self) -> float:
        """Largest s·w of a record."""
        return 1.0 if self.weight_scale is None else self.weight_scale

    def _loss_range(self, low: float, high: float) -> tuple[float, float]:
        """(largest size of a loss, largest difference of two), of losses within [low, high] at s·w = 1.

        A weight of 0 makes a loss 0, which may lie outside that interval.
        """
        if self.weight_scale is not None:
            low = min(0.0, self.weight_scale * low)
            high = max(0.0, self.weight_scale * high)
        return float(max(abs(low), abs(high))), float(high - low)

    @property
    def _needed_row_bound(self) -> float:
        """The bound on rows, which is needed.

        Raises:
            ValueError: it was not given.
        """
        return require_bound(self.row_bound, "row_bound", type(self).__name__)


def _mismatch(target: str, leaf: str, there: bool) -> str:
    fact = LEAVES[leaf]
    if there:
        return (
            f"records have the array {leaf!r}, and {target} states no {fact}: give it, plan with the table's schema, "
            "or leave the array out"
        )
    return f"{target} states {fact}, and records have no array {leaf!r}: give it, or leave {fact} out"


def _check_within(records: PyTree, leaf: str, low: float, high: float) -> None:
    beyond = Marked()
    for start, part in blocks(records[leaf]):
        inside = (part >= low) & (part <= high)
        beyond.add(start, ~np.asarray(inside))
    beyond.refuse(f"data[{leaf!r}]: some records lie outside the public range [{low:g}, {high:g}]; clip them to it.")
