"""Sum over steps of what each cost a record: norms on a grid, and the divergence of a step at each place of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.diagnostics.per_record import divergence
from dpmcmc.diagnostics.per_record.norms import Norms
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import bucket_down
from dpmcmc.privacy.accounting.float_excess import KAPPA
from dpmcmc.privacy.query.second_moment import SecondMoment, multiples
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target

#: Log-spacing and size of the grid of norms; below the last one, at C/1000, it is charged that.
STEP, _GRID = 0.0136, 512
#: Norms are enlarged by it, for the rounding of float32 norms and logarithms.
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
        lambda leaf: (plan.chains, plan.steps, *leaf.shape), jax.eval_shape(target.init, jax.random.key(0))
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
    to_before, to_after = _distances(flat, before), _distances(flat, after)
    check = np.where(to_after < to_before, after, before)
    size = _distances(flat, None)
    # Upward, for it becomes a float32.
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

    def __init__(self, plan: Plan, orders: np.ndarray) -> None:
        assert plan.privacy is not None
        assert plan.noise_multipliers is not None
        self.orders = orders
        self._clip, self._adjacency = plan.privacy.clip, Adjacency(plan.privacy.adjacency)
        self._mechanism = plan.sampling.mechanism(plan.num_records)
        self._rate = plan.sampling.charged_rate(plan.num_records)
        # As the plan's events have them: a long schedule's rounded down within groups.
        charged, asks = plan.schedule.charged, plan.schedule.asks
        values = bucket_down(charged, np.ones(charged.size))[0]
        each = np.multiply.outer(multiples(plan.second), plan.noise_multipliers / (1 + KAPPA))
        each[:, ~asks] = plan.noise_multipliers[~asks] / (1 + KAPPA)
        group = np.searchsorted(values, each, side="right") - 1
        kinds, self._kind = np.unique(np.vstack([asks, group]), axis=1, return_inverse=True)
        # A step that does not ask for the second moment has one query, of the gradient.
        self._seconds = [plan.second if asked else None for asked in kinds[0]]
        self._noise = [values[kind[1:] if kind[0] else kind[1:2]] for kind in kinds.T]
        self._grid = np.exp(-STEP * np.arange(_GRID))
        self._tables: dict[tuple[int, int], np.ndarray] = {}

    def of(self, norms: Norms, rows: PyTree, trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
        """(R_i(α) (n, K), steps at which the norm reached C (n,)) of n records."""
        count = jax.tree.leaves(rows)[0].shape[0]
        loss, clipped = np.zeros((count, len(self.orders))), np.zeros(count)
        kind = self._kind.reshape(-1)[trajectory.step]
        for k, noise in enumerate(self._noise):
            times = np.zeros(count * _GRID if self._mechanism != "gaussian" else 0)
            squares = np.zeros((len(noise), count))
            for share, place, reached in self._relative_norms(norms, rows, trajectory, np.flatnonzero(kind == k)):
                clipped += reached
                if self._mechanism == "gaussian":
                    for query, moved in enumerate(sensitivities(share.astype(np.float64), self._seconds[k])):
                        squares[query] += np.square(divergence.distance(moved, self._adjacency)).sum(axis=1)
                else:
                    times += np.bincount(place.ravel(), minlength=len(times))
            if self._mechanism == "gaussian":
                loss += np.multiply.outer((squares / noise[:, None] ** 2).sum(axis=0), self.orders / 2)
                continue
            often = times.reshape(count, _GRID)
            used = np.flatnonzero(often.any(axis=0))
            for query in range(len(noise)):
                loss += often[:, used] @ self._table(k, query, used)
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
            share, place = np.asarray(share)[:, : len(block)], np.asarray(place)[:, : len(block)]
            yield share, place, (share >= 1).sum(axis=1)

    def _table(self, kind: int, query: int, used: np.ndarray) -> np.ndarray:
        """D_α of one step at these places of the grid, (used, K)."""
        table = self._tables.setdefault((kind, query), np.full((_GRID, len(self.orders)), np.nan))
        new = used[np.isnan(table[used, 0])]
        if len(new):
            moved = sensitivities(self._grid[new], self._seconds[kind])[query]
            step = (float(self._noise[kind][query]), self._rate, self._mechanism, self._adjacency)
            table[new] = divergence.renyi(moved, *step, tuple(self.orders))
        return table[used]


@jax.jit
def _placed(upper: jax.Array, clip: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(norm over C, at most 1; place on the grid, whose value is at least it), (n, S); places go on from row to row."""
    share = jnp.where(jnp.isfinite(upper), jnp.minimum(upper * (1 + _SLACK) / clip, 1.0), 1.0)
    place = jnp.floor(-jnp.log(share) / STEP).astype(jnp.int32)
    return share, jnp.clip(place, 0, _GRID - 1) + _GRID * jnp.arange(share.shape[0], dtype=jnp.int32)[:, None]


def sensitivities(share: np.ndarray, second: SecondMoment | None) -> list[np.ndarray]:
    """How far a record of norm ``share``·C moves each query of a step, relative to one of norm C.

    The second moment moves by the square of the norm; from the same batch, the two are one query
    (``second_moment.py``).
    """
    if second is None:
        return [share]
    if second.own_batch:
        return [share, share**2]
    ratio = second.ratio / (1 + KAPPA)
    return [np.sqrt((share**2 + share**4 / ratio**2) / (1 + 1 / ratio**2))]
