r"""Worst-case neighbours: synthetic records between which a release moves as far as its sensitivity allows.

A sampler is audited on a probe, a target whose log-likelihood is −θ·x. The gradient of a record is x at every position,
so one record moves EVERY step by the sensitivity, C or 2C. Records are ten times longer than the clip norm, so a
missing clip is detected. With batches of a fixed size the other records pull in the opposite direction, since a
selected record takes the place of one of them; with other batches they contribute nothing.

A one-shot mechanism needs its own target: two labels of one row of the greatest length. On logistic regression their
gradients differ by L, where 2L is charged.

No training record is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.mechanisms.sufficient import SufficientStatistics
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.sampling import FixedSize
from dpmcmc.privacy.query import exact_sums, outer_products
from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.privacy.query.metric import PublicMatrix
from dpmcmc.privacy.query.outer_products import Outer
from dpmcmc.storage.pytree import PyTree, length_of
from dpmcmc.targets.base import TargetOffers
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.softmax import SoftmaxRegression
from dpmcmc.targets.tempered import untempered

#: Length of a probe's records in clip norms.
_BEYOND = 10.0
#: Bounds on rows and labels of a target that states none.
_LONG = 10.0
#: Targets whose strongest records are known, with the labels of a record and of its replacement; empty: real labels.
_LABELS: dict[type, tuple[int, ...]] = {
    LogisticRegression: (1, 0),
    SoftmaxRegression: (0, 1),
    LinearRegression: (),
}


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Data sets that differ in their first m records, each of which is one of two; neighbours have m = 1.

    Attributes:
        inside: the records as they are on one side, pytree of NumPy arrays, leaves (m, ...).
        outside: their replacements, likewise; absent where adjacency is zero_out or add_remove, so that they add zero.
        background: what every other record is, leaves (...).
        num_records: N.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.audit import Neighbours
        >>> row = {"x": np.array([[1.0, 0.0]]), "y": np.array([1])}
        >>> other = {"x": np.array([[1.0, 0.0]]), "y": np.array([0])}
        >>> pair = Neighbours(row, other, {"x": np.zeros(2), "y": np.array(0)}, num_records=3)
        >>> pair.data(np.array([True]))["y"]
        array([1, 0, 0])
        >>> pair.data(np.array([False]))["y"]
        array([0, 0, 0])
    """

    inside: PyTree
    outside: PyTree
    background: PyTree
    num_records: int

    @property
    def canaries(self) -> int:
        """Number of records that differ, m."""
        return length_of(self.inside)

    def data(self, coins: np.ndarray) -> PyTree:
        """Return records, leaves (N, ...): canary i is as ``inside`` where coins[i], and as ``outside`` elsewhere."""

        def rows(inside: np.ndarray, outside: np.ndarray, background: np.ndarray) -> np.ndarray:
            chosen = np.where(coins.reshape(-1, *[1] * (inside.ndim - 1)), inside, outside)
            others = np.broadcast_to(background, (self.num_records - len(chosen), *np.shape(background)))
            return np.concatenate([chosen, others]).astype(inside.dtype)

        return jax.tree.map(rows, self.inside, self.outside, self.background)


@dataclass(frozen=True)
class Probe(TargetOffers):
    """log p(x|θ) = −θ·x, flat prior: records ``{"x": (d,)}`` that are their own gradients.

    Args:
        num_features: d.
    """

    num_features: int = field()

    def init(self, key: jax.Array) -> jax.Array:
        """Return zero, (d,)."""
        return jnp.zeros(self.num_features, jnp.float32)

    def log_prior(self, params: jax.Array) -> jax.Array:
        """Return 0, a flat prior."""
        return jnp.float32(0) * jnp.sum(params)

    def log_likelihood(self, params: jax.Array, record: PyTree) -> jax.Array:
        """Return −θ·x."""
        return -(record["x"] @ params)

    def predict(self, params: jax.Array, x: jax.Array) -> jax.Array:
        """Return θ·x."""
        return x @ params


@dataclass(frozen=True)
class LinearProbe(Probe):
    """A probe that takes the query's way for models of one linear predictor."""

    def clipped_gradient_sum(
        self, params: jax.Array, batch: PyTree, mask: jax.Array, clip: float, bits: int
    ) -> FixedPoint:
        """Return Σ clip(x), exactly summed."""
        return exact_sums.linear_sum(jnp.ones(mask.shape, jnp.float32), batch["x"], mask, clip, bits)


@dataclass(frozen=True)
class OuterProbe(Probe):
    """A probe that takes the query's way for gradients that are outer products."""

    def clipped_gradient_sum(
        self, params: jax.Array, batch: PyTree, mask: jax.Array, clip: float, bits: int
    ) -> FixedPoint:
        """Return Σ clip(x), exactly summed."""
        rows = Outer(batch["x"], jnp.ones((len(mask), 1), jnp.float32))
        (high,), (low,) = outer_products.clipped_sum([rows], mask, clip, bits)
        return FixedPoint(high[:, 0], low[:, 0])


def probe(plan: Plan, canaries: int = 1) -> tuple[Probe, Neighbours]:
    """Return a probe in place of a plan's target, and the strongest records for it.

    Args:
        plan: private.
        canaries: m, along as many directions.

    Raises:
        ValueError: more canaries than records, or than directions a sampler's public matrices have.
    """
    assert plan.privacy is not None
    if not 1 <= canaries <= plan.num_records:
        raise InputError(f"canaries: must lie in 1..{plan.num_records}, the number of records, got {canaries}")
    size = _matrix_size(plan.sampler) or canaries
    if canaries > size:
        raise InputError(f"canaries: the sampler's public matrices have {size} directions; take at most so many")
    metric = plan.sampler_run.offers.metric
    directions = np.eye(size, dtype=np.float32)[:canaries]
    if metric is not None:
        # In whitened units each is along an axis.
        directions = np.asarray(jax.vmap(metric.times)(jnp.asarray(directions)), np.float32)
    longest = np.linalg.norm(np.atleast_1d(metric.array), ord=2) if metric is not None and metric.array.ndim else 1.0
    x = np.float32(_BEYOND * plan.privacy.clip * max(1.0, float(longest))) * directions
    zero = np.zeros(size, np.float32)
    replaced = Adjacency(plan.privacy.adjacency) == Adjacency.REPLACE_ONE
    pull = isinstance(plan.sampling, FixedSize) and plan.batch_size < plan.num_records and canaries == 1
    outside = -x if replaced else np.zeros_like(x)
    chosen: type[Probe] = Probe
    if plan.target_offers.clipped_gradient_sum is not None:
        chosen = OuterProbe if isinstance(untempered(plan.target), SoftmaxRegression) else LinearProbe
    others = {"x": -x[0] if pull else zero}
    return chosen(size), Neighbours({"x": x}, {"x": outside}, others, plan.num_records)


def _matrix_size(sampler: object) -> int:
    """Return the number of parameters of a sampler's public matrices; 0 where there are none, or they are numbers."""
    values = [value for value in vars(sampler).values() if isinstance(value, PublicMatrix)]
    return max((value.array.shape[0] for value in values if value.array.ndim), default=0)


def strongest(plan: Plan, canaries: int = 1) -> Neighbours:
    """Return the strongest records that a mechanism's target admits, if it is one of this library.

    Args:
        plan: what is audited, on a target that is bound to its number of features.
        canaries: m, along as many features.

    Raises:
        UnsupportedCombination: another target.
        ValueError: more canaries than features or records.
    """
    target = plan.target
    kind = type(target)
    n = plan.num_records
    # A subclass may have other losses.
    if kind not in _LABELS:
        raise UnsupportedCombination(
            f"which records of {kind.__name__} are strongest is not known; in Python neighbours= takes your own.",
            "target",
        )
    model = cast("LogisticRegression | LinearRegression | SoftmaxRegression", target)
    if model.offset_bound is not None or model.weight_scale is not None:
        raise UnsupportedCombination(
            "target: which records with an offset or a weight are strongest is not known; leave offset_bound and "
            "weight_scale out, or give neighbours= of your own in Python.",
            "target",
        )
    d = model.num_features
    if d is None or not 1 <= canaries <= min(d, n):
        raise InputError(f"canaries: must lie in 1..{min(d or 0, n)} (features, records), got {canaries}")
    # Rows within this bound are not scaled by a release.
    bound = float(model.row_bound or _LONG) * (1 - 1e-12)
    x = bound * np.eye(d)[:canaries]
    if isinstance(model, LinearRegression):
        largest = float(model.label_bound or _LONG)
        y_in = np.full(canaries, largest)
        y_out = np.full(canaries, -largest)
    else:
        y_in, y_out = (np.full(canaries, label, np.int32) for label in _LABELS[kind])
    others = np.zeros(d)
    if isinstance(plan.mechanism, SufficientStatistics):
        # Information so large that noise on it hardly changes the release.
        others = bound * np.ones(d) / math.sqrt(d)
    nobody = {"x": np.zeros_like(x), "y": np.zeros_like(y_in)}
    assert plan.guarantee is not None
    outside = {"x": x, "y": y_out} if plan.guarantee.adjacency == Adjacency.REPLACE_ONE else nobody
    return Neighbours({"x": x, "y": y_in}, outside, {"x": others, "y": np.zeros_like(y_in[0])}, n)
