r"""Individual Rényi accounting of a run (Feldman and Zrnic 2021), for every record along the realised trajectory.

    R_i(α) = Σ_t D_α(one step for a record whose clipped gradient has norm min(‖g_i(θ_t)‖, C))

θ_t is the position BEFORE step t, and every step counts, whether its batch held the record or not. A norm is a
function of the record and of what was released before, so D_α bounds the step's divergence given the past.

**The claim.** R_i is the *realised individual Rényi loss*: exact where every norm is, else an upper bound. It is random
and depends on the record. It is no guarantee: another trajectory could have cost more, so the run is not (α,
R_i(α))-RDP. Showing R_i as an odometer does not change that.

An individual *filter* gives a guarantee. Fix α and B before the run, and leave record i out from the step on at which
its sum would exceed B. Then the run is (α, B)-RDP for record i, because its sum is at most B along every path and each
term is known from the past, so that

    L_t = Π_{s<=t} (P_s/Q_s)^α · exp(−(α−1) Σ_{s<=t} D_α,s)

is a supermartingale under Q that starts at 1, and E_Q[(P/Q)^α] <= e^{(α−1)B}. Under replace_one each neighbour's
record has such a filter, whose terms are against the largest possible counterpart. Until the LATER of the two records
is left out, its terms bound those of the pair; afterwards the two runs do not differ.

ε_i is the least over α of the ε at δ that (α, R_i(α))-RDP gives (Canonne, Kamath and Steinke 2020, Proposition 12). It
is therefore the *smallest budget whose filter would have let the record through the whole run*: with that ε and that
order fixed before the run, the filter would have changed nothing for this record. No run here applies a filter. A run's
guarantee to everybody is its plan's.

**Grid.** D_α increases with the norm (``norms.py``). Under sampling, norms are rounded UP to a geometric grid of
ratio e^-``STEP``, and a record's account holds how often its norm fell on each point. At rate 1 norms are not rounded.

A record whose gradient is not finite contributes nothing to the run, and is charged C.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc import targets
from dpmcmc.diagnostics.per_record import norms as divergence
from dpmcmc.diagnostics.per_record.norms import Tally, norms_of, trajectory
from dpmcmc.engine.chains import check_records
from dpmcmc.engine.life import Key, Life
from dpmcmc.engine.program import Cells, Program
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import Result
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.stages import Private
from dpmcmc.planning.verdict import with_verdict
from dpmcmc.privacy.accounting import overflow_probability, rdp
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree

#: Bytes of a block of records' gradients at one position, and most records of a block.
_BLOCK_BYTES = 32 << 20
_MOST_ROWS = 2048
#: Approximate bytes of a step's Info on disk, and of what files hold beside their numbers.
_INFO_BYTES = 64
_FILE_BYTES = 1 << 18
#: Stride in the accountant's orders, and the largest order as a multiple of the worst case's.
_EVERY_ORDER = 5
_REACH = {"replace_one": 8.0, "add_remove": 1000.0, "zero_out": 1000.0}


@dataclass(frozen=True, eq=False, repr=False)
class PerRecord:
    """Cost of a run to each record. CONFIDENTIAL.

    Attributes:
        epsilon: ε_i at ``delta``, (N,) float64, from above.
        clipped_share: share of steps at which the record's norm (its upper bound, where ``every`` > 1) reached C, (N,).
        orders: α, (K,).
        renyi: realised individual Rényi loss at each order, (N, K), from above.
        worst_case: ε of a record that is clipped at every step, by the same accountant.
        delta: total, that of the plan.
        adjacency: of the plan; under ``replace_one`` the record that comes in its place is arbitrary.
        every: steps between checks; 1: every norm was computed.

    Example:
        >>> import dpmcmc
        >>> import numpy as np
        >>> from dpmcmc.diagnostics.per_record import sample_and_account
        >>> plan = dpmcmc.plan(
        ...     dpmcmc.targets.LogisticRegression(),
        ...     num_records=100,
        ...     sampler=dpmcmc.SGLD(step_size=1.0),
        ...     steps=10,
        ...     privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5),
        ... )
        >>> records = {"x": np.linspace(-1, 1, 200).reshape(100, 2), "y": np.zeros(100, int)}
        >>> result, account = sample_and_account(plan, records)
        >>> account.epsilon.shape
        (100,)
        >>> bool(account.epsilon.max() <= account.worst_case)
        True
    """

    epsilon: np.ndarray
    clipped_share: np.ndarray
    orders: np.ndarray
    renyi: np.ndarray
    worst_case: float
    delta: float
    adjacency: str
    every: int

    def __repr__(self) -> str:
        return f"PerRecord(<confidential: {len(self.epsilon)} records, every={self.every}>)"

    def save(self, path: Path) -> None:
        """Write an .npz that only its owner can read."""
        arrays: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                np.savez(file, **arrays)

        write_atomically(path, write, 0o600)


def sample_and_account(
    plan: Plan,
    data: PyTree,
    *,
    key: Key = None,
    every: int = 1,
    ledger: Reservation | Ledger | str | Path | None = None,
) -> tuple[Result, PerRecord]:
    """Run a plan, and account for every record along the way that the run took.

    Args:
        plan: from :func:`dpmcmc.plan`.
        data, key, ledger: as of :func:`dpmcmc.sample`.
        every: as of :func:`per_record_epsilon`.

    Returns:
        (Result with EVERY step's draw, PerRecord). The result is covered by the plan's guarantee; the account is
        confidential. All positions are kept in memory.

    Raises:
        ValueError, UnsupportedCombination: see :func:`per_record_epsilon`; before anything is charged.
        DivergedError, LedgerError: as of :func:`dpmcmc.sample`.
    """
    account = Account(plan, data, every)
    with Life(every_step(plan), key=key, ledger=ledger) as life:
        life.read(data)
        start = account.start(life.streams)
        result = life.carry_out()
    return result, account.of(data, before_each_step(start, result.positions))


def every_step(plan: Plan) -> Plan:
    """Return the plan with every step's draw kept; noise and guarantee are the same."""
    return with_verdict(dataclasses.replace(plan, burn_in=0, thin=1))


def before_each_step(start: PyTree, after: PyTree) -> PyTree:
    """Positions before each step, from those that chains start in and those after each step."""

    def before(first: jax.Array, following: np.ndarray) -> np.ndarray:
        return np.concatenate([np.asarray(first)[:, None], following[:, :-1]], axis=1)

    return jax.tree.map(before, start, after)


@on_one_blas_thread
def per_record_epsilon(plan: Plan, data: PyTree, positions: PyTree, *, every: int = 1) -> PerRecord:
    """Realised individual Rényi loss of every record, and the ε read off it. CONFIDENTIAL.

    Args:
        plan: private, with Poisson or full batches, from its own start.
        data: pytree of arrays with leading axis N.
        positions: of every step of every chain BEFORE the step was taken, leaves (chains, steps, ...): the start first,
            the last position left out. ``sample_and_account`` makes them.
        every: norms of all records are computed at every so many step, at most the plan's steps, and bounded in between
            (``norms.py``).

    Raises:
        ValueError: a plan without privacy, or after a private start; positions of another shape; records that
            :func:`dpmcmc.sample` would refuse; ``every`` > 1 without a bound on the target's curvature.
        UnsupportedCombination: fixed-size batches.
    """
    return Account(plan, data, every).of(data, positions)


class Account:
    """The account of a plan, made before the run is charged, so that every refusal comes before the charge.

    Args:
        plan, every: as of :func:`per_record_epsilon`.
        data: records, of which only shapes and types are looked at.

    Raises:
        ValueError, UnsupportedCombination: as of :func:`per_record_epsilon`.

    Example:
        >>> import dpmcmc
        >>> import numpy as np
        >>> from dpmcmc.diagnostics.per_record import Account
        >>> plan = dpmcmc.plan(
        ...     dpmcmc.targets.LogisticRegression(),
        ...     num_records=100,
        ...     sampler=dpmcmc.SGLD(step_size=1.0),
        ...     steps=10,
        ...     privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5),
        ... )
        >>> records = {"x": np.linspace(-1, 1, 200).reshape(100, 2), "y": np.zeros(100, int)}
        >>> Account(plan, records).num_bytes > 0
        True
    """

    def __init__(self, plan: Plan, data: PyTree, every: int = 1) -> None:
        check_not_forked()
        private = check(plan, every)
        guarantee = private.guarantee
        self._guarantee = guarantee
        self.plan = plan
        self.every = every
        self._target = targets.bind(plan.target, targets.record_shapes(data))
        metric = plan.sampler_offers.metric
        self._norms = norms_of(self._target, metric, private.promise.clip, every, plan.label_blind)
        self._worst = Guarantee.from_events(
            guarantee.events,
            delta=guarantee.delta,
            adjacency=guarantee.adjacency,
            accountant="rdp",
            release=guarantee.release,
        ).epsilon
        self._tally = Tally(plan, private, _orders(guarantee, self._worst))

    @property
    def num_bytes(self) -> int:
        """Approximate size on disk of the kept draws, of the account, and of all positions in a checkpoint."""
        shapes = jax.eval_shape(self._target.init, jax.random.key(0))
        draw = sum(4 * int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes)) + _INFO_BYTES
        record = 8 * (len(self._tally.orders) + 2)
        kept = (self.plan.num_draws + self.plan.steps) * self.plan.chains
        return kept * draw + self.plan.num_records * record + _FILE_BYTES

    def start(self, streams: Streams) -> PyTree:
        """Return the position that the engine starts each chain from under these keys, leaves (chains, ...)."""
        program = Program.of(self.plan, self._target, open_numbers=False)

        def of_chain(chain: jax.Array) -> PyTree:
            return program.start(Cells({}, streams, chain, jnp.int32(self.plan.steps))).position

        return jax.jit(jax.vmap(of_chain))(jnp.arange(self.plan.chains, dtype=jnp.int32))

    def of(self, data: PyTree, positions: PyTree) -> PerRecord:
        """Return the cost to each record of the run that was in these positions; see :func:`per_record_epsilon`."""
        plan = self.plan
        records = check_records(plan, data, host=True)
        return self._of(records, plan.num_records, positions)

    def of_one(self, record: PyTree, positions: PyTree) -> PerRecord:
        """Return what :meth:`of` returns of one record, which is all that it reads.

        A record's loss depends on the positions and on the record alone, not on the others. The numbers are the same
        bit for bit, since the record is computed in a block of the same shape as theirs (``_of``).

        Args:
            record: leaves (1, ...).
            positions: as of :func:`per_record_epsilon`.

        Raises:
            ValueError: as :func:`per_record_epsilon`.
        """
        alone = dataclasses.replace(self.plan, num_records=1)
        return self._of(check_records(alone, record, host=True), 1, positions)

    def _of(self, records: PyTree, num_records: int, positions: PyTree) -> PerRecord:
        """Return the cost to checked records, leaves (num_records, ...), block by block.

        The last bits of a compiled product depend on the shape of the block, and as ``tests/test_receipt.py`` checks
        not on a row's place in it. All blocks have one shape, that of the plan, whoever computes: the last row is
        repeated to fill one up.
        """
        plan = self.plan
        tally = self._tally
        norms = self._norms
        guarantee = self._guarantee
        steps = trajectory(plan, self._target, positions, self.every, norms.rounding)
        count = min(plan.num_records, max(1, min(_MOST_ROWS, _BLOCK_BYTES // norms.row_bytes)))
        losses = []
        clipped = []
        for first in range(0, num_records, count):
            places = np.minimum(np.arange(first, first + count), num_records - 1)
            rows = jax.tree.map(lambda leaf, places=places: _on_device(leaf[places]), records)
            loss, reached = tally.of(norms, rows, steps)
            losses.append(loss)
            clipped.append(reached)
        renyi = np.concatenate(losses)[:num_records]
        return PerRecord(
            _epsilon(
                tally.orders,
                renyi,
                guarantee.delta,
                overflow_probability(guarantee.events),
            ),
            np.concatenate(clipped)[:num_records] / (plan.steps * plan.chains),
            tally.orders,
            renyi,
            self._worst,
            guarantee.delta,
            str(guarantee.adjacency),
            self.every,
        )


def check(plan: Plan, every: int) -> Private:
    """Refuse a plan without an account, and return its private part.

    See :func:`per_record_epsilon`.
    """
    if isinstance(every, bool) or not isinstance(every, (int, np.integer)) or not 1 <= every <= plan.steps:
        raise InputError(f"every: must be a whole number of steps from 1 to the plan's {plan.steps}, got {every!r}")
    private = plan.private
    if private is None:
        raise InputError("plan: has no privacy, so there is no noise that a loss could be computed from; plan with one")
    if plan.starts is not None:
        raise InputError("plan: begins at a private start, whose release this does not account for; plan without after")
    if plan.metric is not None:
        raise InputError("plan: releases a metric, whose cost this does not account for; plan without metric")
    divergence.check(plan.sampling.mechanism(plan.num_records))
    return private


def _on_device(leaf: np.ndarray) -> jax.Array:
    return jnp.asarray(leaf, jnp.float32 if np.issubdtype(leaf.dtype, np.floating) else None)


def _orders(guarantee: Guarantee, worst: float) -> np.ndarray:
    """Return the best order of the worst case and a thinned list of larger orders, which are best for smaller
    losses."""
    composed = rdp.compose(guarantee.events, guarantee.adjacency)
    assert composed is not None
    orders, loss = composed
    left = guarantee.delta - (1 + math.exp(min(worst, 700))) * overflow_probability(guarantee.events)
    best = int(np.argmin(_converted(orders, loss[None], np.array([max(left, 0.0)]))[0]))
    end = np.searchsorted(orders, _REACH[guarantee.adjacency] * orders[best])
    return orders[best : max(end, best + 1) : _EVERY_ORDER]


def _epsilon(orders: np.ndarray, renyi: np.ndarray, delta: float, beta: float) -> np.ndarray:
    """Smallest ε of each record with δ_base(ε) + (1 + e^ε)β <= δ, from below, as ``deviations.with_deviations``."""
    epsilon = _converted(orders, renyi, np.full(len(renyi), delta)).min(axis=1)
    for _ in range(100 if beta > 0 else 0):
        left = delta - (1 + np.exp(np.minimum(epsilon, 700))) * beta
        following = _converted(orders, renyi, np.maximum(left, 0.0)).min(axis=1)
        if np.all(following <= epsilon * (1 + 1e-12)):
            return np.maximum(epsilon, following)
        epsilon = np.maximum(epsilon, following)
    return epsilon if beta == 0 else np.full(len(renyi), math.inf)


def _converted(orders: np.ndarray, renyi: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """ε at δ that each order gives, (n, K): Canonne, Kamath and Steinke 2020, Proposition 12; 0 by Pinsker's bound.

    Args:
        orders: (K,).
        renyi: (n, K).
        delta: (n,); 0 gives infinity.
    """
    with np.errstate(divide="ignore"):
        log_delta = np.log(delta)[:, None]
    value = np.where(
        orders > 1.01,
        renyi + np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1),
        math.inf,
    )
    return np.where(delta[:, None] ** 2 + np.expm1(-renyi) > 0, 0.0, np.maximum(value, 0.0))
