"""Rényi divergence of one noisy step, for one record whose clipped gradient is known.

In units of the clip norm C the record moves the sum by w <= 1, and the noise has std z. Given the other records'
selection, which has one law on both sides:

* ``add_remove`` and ``zero_out``: a Gaussian step of noise multiplier z/w, sampled as the plan's: the accountant's own
  (``accounting/rdp.py``).
* ``replace_one``: the record that takes its place is arbitrary, so of norm at most C. At rate 1 the distance is at most
  1 + w. Under Poisson the pair is P = (1−q)N(0,I) + qN(u,I), P' = (1−q)N(0,I) + qN(u',I), ‖u‖ <= w/z, ‖u'‖ <= 1/z. The
  three steps by which ``accounting/rdp.py`` shows that its pair dominates keep the two norms apart: antiparallel is the
  worst direction, and on that line the hockey-stick divergence increases with either norm, and with q. So

      A = (1−q)N(0,1) + qN(w/z,1),      B = (1−q)N(0,1) + qN(−1/z,1)

  dominates, in both orders. At w = 1 it is the accountant's pair.

Fixed-size batches are refused: a record that takes part keeps another one out, which may move the sum by 2C whatever
this record's norm is.

*Quadrature* is the accountant's trapezoid rule with its spacing: the denominators' components are at most 1/z apart, as
there, and |A(x+ia)| is at most A(x) times what the normal density grows by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.stages import Private
from dpmcmc.privacy.accounting import Event, UnsupportedCombination, rdp
from dpmcmc.privacy.accounting.events import KAPPA, Adjacency, bucket_down
from dpmcmc.privacy.query.exact_sums import row_norms
from dpmcmc.privacy.query.metric import PublicMatrix, SecondMoment, multiples
from dpmcmc.privacy.query.per_record_gradients import (
    PerRecordGradients,
    label_blind_weight,
)
from dpmcmc.storage.pytree import PyTree, size_of
from dpmcmc.targets.base import Target, shared_by_equal_targets, target_offers
from dpmcmc.targets.glm import LinearRegression, LogisticRegression, SoftmaxRegression
from dpmcmc.targets.transformed import Tempered

#: As in the accountant: an order beyond these is left to the unsampled bound.
_LARGEST_SHIFT = 60.0
_MOST_POINTS = 6000


def check(mechanism: str) -> None:
    """Raise UnsupportedCombination for a step without a derivation."""
    if mechanism not in ("gaussian", "poisson_gaussian"):
        raise UnsupportedCombination(
            "per-record accounting has no derivation for fixed_size sampling, where a record that takes part keeps "
            "another one out; use poisson or full."
        )


def distance(moved: np.ndarray, adjacency: Adjacency) -> np.ndarray:
    """Return the largest distance between neighbours' clipped sums, in units of C: w, or w + 1 under replace_one."""
    return moved + 1 if adjacency == Adjacency.REPLACE_ONE else moved


def renyi(
    moved: np.ndarray,
    z: float,
    rate: float,
    mechanism: str,
    adjacency: Adjacency,
    orders: Sequence[float],
) -> np.ndarray:
    """Return D_α of one step, (w, orders).

    Args:
        moved: w in (0, 1], (n,).
        z: charged noise multiplier.
        rate: charged rate.
        mechanism: ``gaussian`` | ``poisson_gaussian``.
        adjacency: see ``accounting``.
        orders: α > 1.

    Raises:
        UnsupportedCombination: another mechanism.
    """
    check(mechanism)
    alpha = np.asarray(orders, np.float64)
    unsampled = np.multiply.outer((distance(moved, adjacency) / z) ** 2, alpha / 2)
    if mechanism == "gaussian":
        return unsampled
    if adjacency != Adjacency.REPLACE_ONE:
        return np.array([rdp.one_step(Event(mechanism, z / w, rate, 1), adjacency, orders) for w in moved])
    sampled = np.stack([_unequal_pair(moved / z, 1 / z, rate, float(a)) for a in alpha], axis=1)
    value = np.minimum(sampled, unsampled)
    # The accountant's own value, so that both agree to the last digit.
    value[moved == 1] = rdp.one_step(Event(mechanism, z, rate, 1), adjacency, orders)
    return value


def _unequal_pair(a: np.ndarray, b: float, q: float, alpha: float) -> np.ndarray:
    """Return the larger of D_α(A‖B) and D_α(B‖A), (n,).

    A = (1−q)N(0,1) + qN(a,1) and B = (1−q)N(0,1) + qN(−b,1), 0 <= a <= b.
    """
    grid = rdp.quadrature_grid(b, alpha)
    if grid is None:
        return np.full(len(a), np.inf)
    x, h = grid
    log_phi = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(h)
    log_keep = math.log1p(-q)
    log_q = math.log(q)
    log_b = np.logaddexp(log_keep, log_q - b * x - b * b / 2)
    log_a = np.logaddexp(log_keep, log_q + np.multiply.outer(a, x) - (a * a / 2)[:, None])
    ratio = alpha * (log_a - log_b)
    forward = _log_sum(log_phi + log_b + ratio)
    backward = _log_sum(log_phi + log_a - ratio)
    # A part in 1e12 for the rounding of the sum, on the private side.
    return (np.maximum(np.maximum(forward, backward), 0.0) + 1e-12) / (alpha - 1)


def _log_sum(terms: np.ndarray) -> np.ndarray:
    top = terms.max(axis=1)
    return top + np.log(np.exp(terms - top[:, None]).sum(axis=1))


# ------------------------------------------------------------------------------------
# Upper bounds on the norm of every record's gradient at every step, from checks every few steps.
#
# At a check the gradient is computed. At a step in between, whose position lies D from the check's,
#
#     ‖g(θ')‖ <= ‖g(θ)‖ + L_i D,
#
# L_i the largest curvature of the record's loss; D = 0 at the check itself. For a linear predictor m = x·θ only the
# residual changes, and |m' − m| <= ‖x‖D bounds the change:
#
# * logistic: |σ(m) − y| = σ(s), s = ±m, so at most σ(s + ‖x‖D); never above the bound by L_i = ‖x‖²/4;
#   Label-blind weights make the norm min(σ(s)‖x‖, C) for s >= 0 and min(σ(s)‖x‖, C e^s) for s < 0, since
#   σ(s)/σ(−s) = e^s; it increases with s too;
# * linear: |m − y|/σ² at most (|m − y| + ‖x‖D)/σ², the bound by L_i = ‖x‖²/σ².
#
# Softmax regression has L_i = ‖x‖²/2 (diag(p) − ppᵀ <= 1/2), another target its ``smoothness``. In a public metric F
# the gradient is F⁻¹g, and L_i is divided by the smallest singular value of F. A weight only shortens a gradient, so a
# bound between checks is that without weights.
#
# *Rounding.* The run computed its margins in float32, and so does this. Each is within 2dU‖x‖‖θ‖ of x·θ, U the unit
# roundoff, in whatever order it is summed, so D is enlarged by 2dU(‖θ‖ + ‖θ'‖). The norm of another target is enlarged
# by a part in 2^15 of C; that this covers the rounding of two gradients is not proved.


_UNIT = 2.0**-24
#: Relative rounding error of a matrix product on an accelerator, which may round to 10 bits.
_PRODUCT = 2.0**-10
#: Rounding error of a sigmoid or of a difference, in float32.
_ELEMENT = 2.0**-21


class Norms(NamedTuple):
    """The functions that bound norms; both functions are jitted and take the records as an argument.

    Attributes:
        check: (positions (J, ...), rows (n, ...)) -> what is kept of each check, (n, J).
        bound: (kept (n, S), rows (n, ...), D (S,)) -> upper bounds on the norms, (n, S).
        rounding: what D is enlarged by, per unit of ‖θ‖ at the check and at the step.
        row_bytes: memory that one record takes in a check.
    """

    check: Callable[[PyTree, PyTree], jax.Array]
    bound: Callable[[jax.Array, PyTree, jax.Array], jax.Array]
    rounding: float
    row_bytes: int


def norms_of(
    target: Target,
    metric: PublicMatrix | None,
    clip: float,
    every: int,
    label_blind: bool = False,
) -> Norms:
    """Return the sharpest bounds known of a target.

    Args:
        target: bound to the records' shapes.
        metric: in which gradients are clipped, or None.
        clip: C.
        every: steps between checks.
        label_blind: whether the run weights gradients before it clips them.

    Raises:
        ValueError: steps without a check, and no bound on the target's curvature.
    """
    return _norms_of(target, metric, clip, every > 1, label_blind)


@shared_by_equal_targets(maxsize=8)
def _norms_of(
    target: Target,
    metric: PublicMatrix | None,
    clip: float,
    between: bool,
    label_blind: bool,
) -> Norms:
    inner, temper = (target.target, target.temper) if isinstance(target, Tempered) else (target, 1.0)
    if isinstance(inner, (LogisticRegression, LinearRegression)):
        return _linear_predictor(inner, temper, metric, clip if label_blind else None)
    rows = PerRecordGradients(target, 1, 1, clip, None, metric=metric, label_blind=label_blind and not between)
    return _any_target(rows, target, inner, temper, between)


def _linear_predictor(
    inner: LogisticRegression | LinearRegression,
    temper: float,
    metric: PublicMatrix | None,
    weighted: float | None,
) -> Norms:
    """Bounds of a linear predictor; ``weighted`` is C where weights are label-blind."""
    assert inner.num_features is not None
    variance = inner.noise_scale**2 if isinstance(inner, LinearRegression) else None

    @jax.jit
    def check(positions: PyTree, rows: PyTree) -> jax.Array:
        margin = jnp.matmul(rows["x"], positions.T, precision="highest")
        if inner.offset_bound is not None:
            margin += rows["offset"][:, None]
        y = rows["y"][:, None]
        kept = jnp.where(y > 0, -margin, margin) if variance is None else jnp.abs(margin - y)
        # Rounding of the sum with the offset, here and in the run.
        return kept + 4 * _UNIT * (inner.offset_bound or 0.0)

    @jax.jit
    def bound(kept: jax.Array, rows: PyTree, moved: jax.Array) -> jax.Array:
        length = row_norms(rows["x"])
        farthest = kept + length[:, None] * moved
        residual = jax.nn.sigmoid(farthest) + _ELEMENT if variance is None else farthest * (1 + _ELEMENT) / variance
        outer = inner.weighted(
            length if metric is None else row_norms(jax.vmap(metric.whiten)(rows["x"])),
            rows,
        )
        norm = temper * residual * outer[:, None]
        if weighted is None:
            return norm
        longest = temper * (jax.nn.sigmoid(jnp.abs(farthest)) - _ELEMENT) * outer[:, None]
        return norm * label_blind_weight(longest, weighted)

    unit = _UNIT * inner.num_features + (0.0 if jax.default_backend() == "cpu" else _PRODUCT)
    return Norms(check, bound, 2 * unit, 4 * inner.num_features)


def _any_target(
    rows_of: PerRecordGradients,
    target: Target,
    inner: Target,
    temper: float,
    between: bool,
) -> Norms:
    metric = rows_of.metric
    clip = rows_of.clip
    assert clip is not None
    softmax = type(inner) is SoftmaxRegression  # a subclass may transform its rows
    smoothness = None if softmax else target_offers(target).smoothness
    if between and not softmax and smoothness is None:
        raise InputError(
            f"every: {type(target).__name__} states no bound on its curvature (smoothness), so nothing is known of a "
            "norm between two checks; use every=1"
        )
    stretch = 1.0 if metric is None else metric.stretch()

    @jax.jit
    def check(positions: PyTree, rows: PyTree) -> jax.Array:
        def at(params: PyTree) -> jax.Array:
            return row_norms(rows_of.scores(params, rows))

        return jax.lax.map(at, positions).T

    @jax.jit
    def bound(kept: jax.Array, rows: PyTree, moved: jax.Array) -> jax.Array:
        curvature: float | jax.Array = smoothness or 0.0
        if softmax:
            squares = jnp.square(row_norms(rows["x"]))
            curvature = temper * inner.weighted(squares, rows) / 2  # type: ignore[attr-defined]
        drift = jnp.broadcast_to(jnp.asarray(curvature / stretch, jnp.float32), kept.shape[:1])
        return kept + drift[:, None] * moved + KAPPA * clip

    size = size_of(jax.eval_shape(target.init, jax.random.key(0)))
    return Norms(check, bound, 0.0, 8 * size)


# ----------------------------------------------------------------------------------------------------
# Sum over steps of a record's loss: norms on a grid, and the divergence of a step at each point of it.

#: Log-spacing and size of the grid of norms. A norm below the smallest, C/1000, is charged as C/1000.
STEP = 0.0136
_GRID = 512
#: Factor that enlarges norms, for the rounding of float32 norms and logarithms.
_SLACK = 2.0**-14
#: Steps taken together.
STEPS = 512


class Trajectory(NamedTuple):
    """Positions of all chains one after another, T of them in all.

    Attributes:
        positions: leaves (T, ...).
        step: of the plan, (T,).
        check: which position stands for each, (T,).
        moved: how far from it each lies at most, rounding included, (T,) float32.
    """

    positions: PyTree
    step: np.ndarray
    check: np.ndarray
    moved: np.ndarray


def trajectory(plan: Plan, target: Target, positions: PyTree, every: int, rounding: float) -> Trajectory:
    """Every step given the nearer of the checks before and after it.

    Raises:
        ValueError: positions of another shape.
    """
    wanted = jax.tree.map(
        lambda leaf: (plan.chains, plan.steps, *leaf.shape),
        jax.eval_shape(target.init, jax.random.key(0)),
    )
    found = jax.tree.map(np.shape, positions)
    if wanted != found:
        raise InputError(f"positions: must have shapes {wanted}, one of each chain before each step, got {found}")
    total = plan.chains * plan.steps
    joined = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(total, *leaf.shape[2:]), positions)
    flat = np.concatenate([leaf.reshape(total, -1) for leaf in jax.tree.leaves(joined)], axis=1)
    step = np.tile(np.arange(plan.steps), plan.chains)
    before = np.arange(total) - step % every
    after = np.where(step - step % every + every < plan.steps, before + every, before)
    to_before = _distances(flat, before)
    to_after = _distances(flat, after)
    check = np.where(to_after < to_before, after, before)
    size = _distances(flat, None)
    # Rounded up, since it becomes a float32.
    moved = (np.minimum(to_before, to_after) + rounding * (size + size[check])) * (1 + 1e-6)
    return Trajectory(joined, step, check, moved.astype(np.float32))


def _distances(flat: np.ndarray, others: np.ndarray | None) -> np.ndarray:
    """‖θ_t − θ_other(t)‖, or ‖θ_t‖, (T,) float64, a block at a time."""
    out = np.zeros(len(flat))
    for first in range(0, len(flat), STEPS):
        at = slice(first, first + STEPS)
        here = flat[at].astype(np.float64)
        out[at] = np.linalg.norm(here if others is None else here - flat[others[at]], axis=1)
    return out


class Tally:
    """Sums the loss of a block of records over the steps.

    Attributes:
        orders: α.
    """

    def __init__(self, plan: Plan, private: Private, orders: np.ndarray) -> None:
        self.orders = orders
        self._clip = private.promise.clip
        self._adjacency = Adjacency(private.promise.adjacency)
        self._mechanism = plan.sampling.mechanism(plan.num_records)
        self._rate = plan.sampling.charged_rate(plan.num_records)
        # As the plan's events have them: a long schedule's rounded down within groups.
        charged = plan.schedule.charged
        asks = plan.schedule.asks
        values = bucket_down(charged, np.ones(charged.size))[0]
        each = np.multiply.outer(multiples(plan.second), private.noise_multipliers / (1 + KAPPA))
        each[:, ~asks] = private.noise_multipliers[~asks] / (1 + KAPPA)
        group = np.searchsorted(values, each, side="right") - 1
        kinds, self._kind = np.unique(np.vstack([asks, group]), axis=1, return_inverse=True)
        # A step without a second moment has one query, of the gradient.
        self._seconds = [plan.second if asked else None for asked in kinds[0]]
        self._noise = [values[kind[1:] if kind[0] else kind[1:2]] for kind in kinds.T]
        self._grid = np.exp(-STEP * np.arange(_GRID))
        self._tables: dict[tuple[int, int], np.ndarray] = {}

    def of(self, norms: Norms, rows: PyTree, trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
        """(R_i(α) (n, K), steps at which the norm reached C (n,)) of n records."""
        count = jax.tree.leaves(rows)[0].shape[0]
        loss = np.zeros((count, len(self.orders)))
        clipped = np.zeros(count)
        kind = self._kind.reshape(-1)[trajectory.step]
        for k, noise in enumerate(self._noise):
            times = np.zeros(count * _GRID if self._mechanism != "gaussian" else 0)
            squares = np.zeros((len(noise), count))
            for share, place, reached in self._relative_norms(norms, rows, trajectory, np.flatnonzero(kind == k)):
                clipped += reached
                if self._mechanism == "gaussian":
                    for query, moved in enumerate(sensitivities(share.astype(np.float64), self._seconds[k])):
                        squares[query] += np.square(distance(moved, self._adjacency)).sum(axis=1)
                else:
                    times += np.bincount(place.ravel(), minlength=len(times))
            if self._mechanism == "gaussian":
                loss += np.multiply.outer((squares / noise[:, None] ** 2).sum(axis=0), self.orders / 2)
                continue
            often = times.reshape(count, _GRID)
            used = np.flatnonzero(often.any(axis=0))
            # Sparse, so that a record's sum has its own terms in one order, whatever the others' terms are.
            sparse = csr_array(often)
            for query in range(len(noise)):
                loss += sparse @ self._table(k, query, used)
        return loss, clipped

    def _relative_norms(
        self, norms: Norms, rows: PyTree, trajectory: Trajectory, steps: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield for each block of steps: norm over C (n, S), its place (n, S), how many reach 1 (n,)."""
        blocks = [steps[first : first + STEPS] for first in range(0, len(steps), STEPS)]
        found = [np.unique(trajectory.check[block], return_inverse=True) for block in blocks]
        room = max(len(checks) for checks, _ in found)
        for block, (checks, at) in zip(blocks, found, strict=True):
            # Blocks of one size, so that they share what is compiled.
            checks = np.resize(checks, room)
            kept = norms.check(jax.tree.map(lambda leaf, c=checks: leaf[c], trajectory.positions), rows)
            padded = np.resize(np.arange(len(block)), min(STEPS, len(steps)))
            upper = norms.bound(kept[:, at.reshape(-1)[padded]], rows, trajectory.moved[block][padded])
            share, place = _placed(upper, np.float32(self._clip))
            share = np.asarray(share)[:, : len(block)]
            place = np.asarray(place)[:, : len(block)]
            yield share, place, (share >= 1).sum(axis=1)

    def _table(self, kind: int, query: int, used: np.ndarray) -> np.ndarray:
        """D_α of one step, (grid, K): at these places of the grid at least, and NaN at those never asked for."""
        table = self._tables.setdefault((kind, query), np.full((_GRID, len(self.orders)), np.nan))
        new = used[np.isnan(table[used, 0])]
        if len(new):
            moved = sensitivities(self._grid[new], self._seconds[kind])[query]
            step = (
                float(self._noise[kind][query]),
                self._rate,
                self._mechanism,
                self._adjacency,
            )
            table[new] = renyi(moved, *step, tuple(self.orders))
        return table


@jax.jit
def _placed(upper: jax.Array, clip: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(norm over C, at most 1; place on the grid, whose value is at least it), (n, S); places go on from row to row."""
    share = jnp.where(jnp.isfinite(upper), jnp.minimum(upper * (1 + _SLACK) / clip, 1.0), 1.0)
    place = jnp.floor(-jnp.log(share) / STEP).astype(jnp.int32)
    return share, jnp.clip(place, 0, _GRID - 1) + _GRID * jnp.arange(share.shape[0], dtype=jnp.int32)[:, None]


def sensitivities(share: np.ndarray, second: SecondMoment | None) -> list[np.ndarray]:
    """How far a record of norm ``share``·C moves each query of a step, relative to one of norm C.

    The second moment moves by the square of the norm; from the same batch, the two are one query
    (``metric.py``).
    """
    if second is None:
        return [share]
    if second.own_batch:
        return [share, share**2]
    ratio = second.ratio / (1 + KAPPA)
    return [np.sqrt((share**2 + share**4 / ratio**2) / (1 + 1 / ratio**2))]
