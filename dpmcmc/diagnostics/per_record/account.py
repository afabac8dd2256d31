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

**Norms.** The gradient of every record is computed at every position, as the run clips it: N gradients a step, N/b
times as many as a run with batches of b computes. Each norm is enlarged by a part in 2^15 of C, for rounding in
float32.

**Grid.** D_α increases with the norm (``step.py``). Under sampling, norms are rounded UP to a geometric grid of
ratio e^-``STEP``, and a record's account holds how often its norm fell on each point. At rate 1 norms are not rounded.

A record whose gradient is not finite contributes nothing to the run, and is charged C.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from dpmcmc import targets
from dpmcmc.diagnostics.per_record import step
from dpmcmc.engine.chain_checks import check_records
from dpmcmc.engine.life import Key, reserved
from dpmcmc.engine.program import Chain, Program
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import Result
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.verdict import with_verdict
from dpmcmc.privacy.accounting import overflow_probability, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.deviations import with_deviations
from dpmcmc.privacy.accounting.events import KAPPA, bucket_down
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.privacy.query.exact_sums import row_norms
from dpmcmc.privacy.query.metric import PublicMatrix
from dpmcmc.privacy.query.per_record_gradients import PerRecordGradients
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.second_moment import SecondMoment, multiples
from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree, size_of
from dpmcmc.targets.base import Target, shared_by_equal_targets

#: Bytes of a block of records' gradients at one position, and most records of a block.
_BLOCK_BYTES = 32 << 20
_MOST_ROWS = 2048
#: Steps taken together.
_STEPS = 512
#: Log-spacing and size of the grid of norms. A norm below the smallest, C/1000, is charged as C/1000.
STEP = 0.0136
_GRID = 512
#: Factor that enlarges norms, for the rounding of float32 norms and logarithms.
_SLACK = 2.0**-14
#: Stride in the accountant's orders, and the largest order as a multiple of the worst case's.
_EVERY_ORDER = 5
_REACH = {"replace_one": 8.0, "add_remove": 1000.0, "zero_out": 1000.0}
#: Columns of the table of an account.
COLUMNS = ("record", "epsilon", "clipped_share", "worst_case", "delta")


@dataclass(frozen=True, eq=False, repr=False)
class PerRecord:
    """Cost of a run to each record. CONFIDENTIAL.

    Attributes:
        epsilon: ε_i at ``delta``, (N,) float64, from above.
        clipped_share: share of steps at which the record's norm reached C, (N,).
        orders: α, (K,).
        renyi: realised individual Rényi loss at each order, (N, K), from above.
        worst_case: ε of a record that is clipped at every step, by the same accountant.
        delta: total, that of the plan.
        adjacency: of the plan; under ``replace_one`` the record that comes in its place is arbitrary.

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

    def __repr__(self) -> str:
        return f"PerRecord(<confidential: {len(self.epsilon)} records>)"

    def save(self, path: Path) -> None:
        """Write a table (CSV) that only its owner can read: a row a record, in the order of the data."""

        def write(temporary: Path) -> None:
            with temporary.open("w", newline="", encoding="utf-8") as file:
                table = csv.writer(file)
                table.writerow(COLUMNS)
                for record, cost in enumerate(zip(self.epsilon, self.clipped_share, strict=True)):
                    table.writerow([record, *map(float, cost), self.worst_case, self.delta])

        write_atomically(path, write, 0o600)


def sample_and_account(
    plan: Plan,
    data: PyTree,
    *,
    key: Key = None,
    ledger: Reservation | Ledger | str | Path | None = None,
) -> tuple[Result, PerRecord]:
    """Run a plan, and account for every record along the way that the run took.

    Args:
        plan: from :func:`dpmcmc.plan`.
        data, key, ledger: as of :func:`dpmcmc.sample`.

    Returns:
        (Result with EVERY step's draw, PerRecord). The result is covered by the plan's guarantee; the account is
        confidential. All positions are kept in memory.

    Raises:
        ValueError, UnsupportedCombination: see :func:`per_record_epsilon`; before anything is charged.
        DivergedError, LedgerError: as of :func:`dpmcmc.sample`.
    """
    account = Account(plan, data)
    with reserved(every_step(plan), key=key, ledger=ledger) as life:
        life.read(data)
        start = account.start(life.streams)
        result = life.carry_out()
    return result, account.of(data, before_each_step(start, result.positions))


def every_step(plan: Plan) -> Plan:
    """Return the plan with every step's draw kept; noise and guarantee are the same."""
    return with_verdict(plan.with_last(burn_in=0, thin=1))


def before_each_step(start: PyTree, after: PyTree) -> PyTree:
    """Positions before each step, from those that chains start in and those after each step."""

    def before(first: jax.Array, following: np.ndarray) -> np.ndarray:
        return np.concatenate([np.asarray(first)[:, None], following[:, :-1]], axis=1)

    return jax.tree.map(before, start, after)


@on_one_blas_thread
def per_record_epsilon(plan: Plan, data: PyTree, positions: PyTree) -> PerRecord:
    """Realised individual Rényi loss of every record, and the ε read off it. CONFIDENTIAL.

    Args:
        plan: private, with Poisson or full batches, from its own start.
        data: pytree of arrays with leading axis N.
        positions: of every step of every chain BEFORE the step was taken, leaves (chains, steps, ...): the start first,
            the last position left out. ``sample_and_account`` makes them.

    Raises:
        ValueError: a plan without privacy, or after a private start; positions of another shape; records that
            :func:`dpmcmc.sample` would refuse.
        UnsupportedCombination: fixed-size batches.
    """
    return Account(plan, data).of(data, positions)


class Account:
    """The account of a plan, made before the run is charged, so that every refusal comes before the charge.

    Args:
        plan: as of :func:`per_record_epsilon`.
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
        >>> positions = np.zeros((1, 10, 2), np.float32)
        >>> Account(plan, records).of(records, positions).epsilon.shape
        (100,)
    """

    def __init__(self, plan: Plan, data: PyTree) -> None:
        check_not_forked()
        promise, guarantee = check(plan)
        self._guarantee = guarantee
        self.plan = plan
        self._target = targets.bind(plan.target, targets.record_shapes(data))
        self._position = jax.eval_shape(self._target.init, jax.random.key(0))
        self._norms = _norms_of(self._target, plan.sampler_run.offers.metric, promise.clip, plan.label_blind)
        self._worst = Guarantee.from_events(
            guarantee.events,
            delta=guarantee.delta,
            adjacency=guarantee.adjacency,
            accountant="rdp",
            release=guarantee.release,
        ).epsilon
        self._orders = _orders(guarantee, self._worst)
        self._losses, self._kind_of_step = _losses(plan, guarantee.adjacency, self._orders)

    def start(self, streams: Streams) -> PyTree:
        """Return the position that the engine starts each chain from under these keys, leaves (chains, ...)."""
        program = Program.of(self.plan, self._target, open_numbers=False)

        def of_chain(chain: jax.Array) -> PyTree:
            return program.start(Chain({}, streams, jnp.int32(self.plan.steps), chain)).position

        return jax.jit(jax.vmap(of_chain))(jnp.arange(self.plan.chains, dtype=jnp.int32))

    def of(self, data: PyTree, positions: PyTree) -> PerRecord:
        """Return the cost to each record of the run that was in these positions; see :func:`per_record_epsilon`."""
        return self._of(data, self.plan, positions)

    def of_one(self, record: PyTree, positions: PyTree) -> PerRecord:
        """Return what :meth:`of` returns of one record, leaves (1, ...), which is all that it reads.

        A record's loss depends on the positions and on the record alone, not on the others. The numbers are the same
        bit for bit, since the record is computed in a block of the same shape as theirs (``_of``).
        """
        return self._of(record, dataclasses.replace(self.plan, num_records=1), positions)

    def _of(self, data: PyTree, held: Plan, positions: PyTree) -> PerRecord:
        """Return the cost to the records that a plan may hold, block by block.

        The last bits of a compiled product depend on the shape of the block, and as ``test_receipt.py`` checks
        not on a row's place in it. All blocks have one shape, that of the plan, whoever computes: the last row is
        repeated to fill one up.
        """
        records = check_records(held, data, host=True)
        num_records = held.num_records
        plan = self.plan
        guarantee = self._guarantee
        joined = self._joined(positions)
        row_bytes = 8 * size_of(self._position)
        count = min(plan.num_records, max(1, min(_MOST_ROWS, _BLOCK_BYTES // row_bytes)))
        losses = []
        clipped = []
        for first in range(0, num_records, count):
            places = np.minimum(np.arange(first, first + count), num_records - 1)
            rows = jax.tree.map(lambda leaf, places=places: _on_device(leaf[places]), records)
            loss, reached = self._of_block(rows, count, joined)
            losses.append(loss)
            clipped.append(reached)
        renyi = np.concatenate(losses)[:num_records]
        return PerRecord(
            _epsilon(self._orders, renyi, guarantee),
            np.concatenate(clipped)[:num_records] / (plan.steps * plan.chains),
            self._orders,
            renyi,
            self._worst,
            guarantee.delta,
            str(guarantee.adjacency),
        )

    def _joined(self, positions: PyTree) -> PyTree:
        """Return positions of all chains one after another, leaves (chains·steps, ...).

        Raises:
            ValueError: positions of another shape.
        """
        plan = self.plan
        wanted = jax.tree.map(lambda leaf: (plan.chains, plan.steps, *leaf.shape), self._position)
        found = jax.tree.map(np.shape, positions)
        if wanted != found:
            raise InputError(f"positions: must have shapes {wanted}, one of each chain before each step, got {found}")
        return jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[2:])), positions)

    def _of_block(self, rows: PyTree, count: int, joined: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Return (R_i(α) (count, K), steps at which the norm reached C (count,)) of a block of records."""
        kind_of_each = np.tile(self._kind_of_step, self.plan.chains)
        loss = np.zeros((count, len(self._orders)))
        clipped = np.zeros(count)
        for kind, loss_of in enumerate(self._losses):
            steps = np.flatnonzero(kind_of_each == kind)
            # Blocks of one size, so that they share what is compiled.
            size = min(_STEPS, len(steps))
            for first in range(0, len(steps), size):
                here = steps[first : first + size]
                padded = np.resize(here, size)
                norms = self._norms(jax.tree.map(lambda leaf, padded=padded: leaf[padded], joined), rows)
                share = np.asarray(norms, np.float64)[:, : len(here)]
                clipped += (share >= 1).sum(axis=1)
                loss += loss_of(share)
        return loss, clipped


@shared_by_equal_targets(maxsize=8)
def _norms_of(
    target: Target, metric: PublicMatrix | None, clip: float, label_blind: bool
) -> Callable[[PyTree, PyTree], jax.Array]:
    """Return the function (positions (S, ...), rows (n, ...)) -> norms over C, at most 1, from above, (n, S)."""
    gradients = PerRecordGradients(target, 1, 1, clip, None, metric=metric, label_blind=label_blind)

    @jax.jit
    def norms(positions: PyTree, rows: PyTree) -> jax.Array:
        each = jax.lax.map(lambda params: row_norms(gradients.scores(params, rows)), positions).T
        share = (each / clip + KAPPA) * (1 + _SLACK)
        return jnp.where(jnp.isfinite(share), jnp.minimum(share, 1.0), 1.0)

    return norms


def _losses(plan: Plan, adjacency: Adjacency, orders: np.ndarray) -> tuple[list[_StepLoss], np.ndarray]:
    """Return the loss of each kind of step of a plan, and the kind of each step, (steps,)."""
    # As the plan's events have them: a long schedule's rounded down within groups.
    charged = plan.schedule.charged
    asks = plan.schedule.asks
    values = bucket_down(charged, np.ones(charged.size))[0]
    noise = plan.schedule.noise_multipliers / (1 + KAPPA)
    each = np.where(asks, np.multiply.outer(multiples(plan.sampler_run.second), noise), noise)
    group = np.searchsorted(values, each, side="right") - 1
    kinds, of_step = np.unique(np.vstack([asks, group]), axis=1, return_inverse=True)
    full = plan.sampling.mechanism(plan.num_records) == "gaussian"
    rate = plan.sampling.charged_rate(plan.num_records)
    losses = []
    for asked, *groups in kinds.T:
        # A step without a second moment has one query, of the gradient.
        queries = values[groups if asked else groups[:1]]
        losses.append(_StepLoss(plan.sampler_run.second if asked else None, queries, full, rate, adjacency, orders))
    return losses, of_step.reshape(-1)


@dataclass(frozen=True, eq=False)
class _StepLoss:
    """Sum of D_α over steps that cost alike.

    Attributes:
        second: the second moment that they ask for, or None.
        noise: charged noise multiplier of each of their queries, (queries,).
        full: whether every record takes part.
        rate, adjacency, orders: as ``step.renyi`` takes them.
    """

    second: SecondMoment | None
    noise: np.ndarray
    full: bool
    rate: float
    adjacency: Adjacency
    orders: np.ndarray

    def __call__(self, share: np.ndarray) -> np.ndarray:
        """Return the sum for records whose norms over C are ``share`` (n, S), (n, K)."""
        if self.full:
            moved = step.sensitivities(share, self.second)
            apart = [step.distance(w, self.adjacency) / z for w, z in zip(moved, self.noise, strict=True)]
            return np.multiply.outer(np.square(apart).sum(axis=(0, 2)), self.orders / 2)
        count = len(share)
        place = np.clip(np.floor(-np.log(share) / STEP), 0, _GRID - 1).astype(np.int64)
        place += _GRID * np.arange(count)[:, None]
        often = np.bincount(place.ravel(), minlength=count * _GRID).reshape(count, _GRID)
        table = np.zeros((_GRID, len(self.orders)))
        for used in np.flatnonzero(often.any(axis=0)):
            table[used] = self._at(int(used))
        # Sparse, so that a record's sum has its own terms in one order, whatever the others' terms are.
        total: np.ndarray = csr_array(often) @ table
        return total

    @functools.cache  # noqa: B019
    def _at(self, place: int) -> np.ndarray:
        """Return D_α of one step at a place of the grid, (K,)."""
        moved = step.sensitivities(np.exp(-STEP * np.array([place])), self.second)
        each = zip(moved, self.noise, strict=True)
        return np.sum([step.renyi(float(w[0]), z, self.rate, self.adjacency, self.orders) for w, z in each], axis=0)


def check(plan: Plan) -> tuple[Privacy, Guarantee]:
    """Refuse a plan without an account, and return its promise and its guarantee.

    See :func:`per_record_epsilon`.
    """
    if plan.privacy is None or plan.guarantee is None:
        raise InputError("plan: has no privacy, so there is no noise that a loss could be computed from; plan with one")
    if plan.starts is not None:
        raise InputError("plan: begins at a private start, whose release this does not account for; plan without after")
    if plan.metric is not None:
        raise InputError("plan: releases a metric, whose cost this does not account for; plan without metric")
    step.check(plan.sampling.mechanism(plan.num_records))
    return plan.privacy, plan.guarantee


def _on_device(leaf: np.ndarray) -> jax.Array:
    return jnp.asarray(leaf, jnp.float32 if np.issubdtype(leaf.dtype, np.floating) else None)


def _orders(guarantee: Guarantee, worst: float) -> np.ndarray:
    """Return the best order of the worst case and a thinned list of larger orders, which are best for smaller
    losses."""
    composed = rdp.compose(guarantee.events, guarantee.adjacency)
    assert composed is not None
    orders, loss = composed
    left = guarantee.delta - (1 + math.exp(min(worst, 700))) * overflow_probability(guarantee.events)
    best = int(np.argmin([rdp.certified(*one, left) for one in zip(orders[:, None], loss[:, None], strict=True)]))
    end = np.searchsorted(orders, _REACH[guarantee.adjacency] * orders[best])
    return orders[best : max(end, best + 1) : _EVERY_ORDER]


def _epsilon(orders: np.ndarray, renyi: np.ndarray, guarantee: Guarantee) -> np.ndarray:
    """Return the accountant's ε of each record, (N,), from its Rényi losses (N, K)."""
    beta = overflow_probability(guarantee.events)

    def of_one(loss: np.ndarray) -> float:
        return with_deviations(lambda delta: rdp.certified(orders, loss, delta), beta, guarantee.delta)

    return np.array([of_one(loss) for loss in renyi])
