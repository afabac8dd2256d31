"""Runs plans: a chunked ``lax.scan`` over steps, ``vmap`` over cells, a cell being one chain of one plan.

A chunk is one device call of a fixed number of steps for a block of cells, compiled once per :class:`Program`: noise,
keys and records are its arguments, so another seed compiles nothing, nor does another ε that leaves the batch's room
as it is. Between chunks the host keeps the thinned draws, moves the progress bar and gives up a cell that has diverged.
Padding steps at the end of the last chunk leave the state as it is and are not released.

``sample`` runs one plan with its numbers compiled in; ``sweep.py`` runs many that differ in numbers as one program.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc import targets
from dpmcmc.checkpoint import Checkpoint, Point, opened, restored
from dpmcmc.planning import Plan
from dpmcmc.privacy import Event, Guarantee, Ledger
from dpmcmc.privacy.charging import charged_again
from dpmcmc.privacy.query import LINEAR_ROWS, MICROBATCH, GradientQuery
from dpmcmc.privacy.randomness import SecretKey, Streams, secret_key, streams_of
from dpmcmc.privacy.second_moment import SecondMoment, multiples
from dpmcmc.reservation import Reservation, reserved
from dpmcmc.result import Result
from dpmcmc.template import Template, template

#: Most steps in one device call; fewer where the draws of a chunk would not fit ``_CHUNK_BYTES``.
_CHUNK_STEPS = 256
_CHUNK_BYTES = 32 << 20
#: What the cells of a block may work on at a time: a CPU is fastest within its cache, an accelerator when it is full.
_CACHE_BYTES = 1 << 20
_DEVICE_BYTES = 512 << 20
#: Even beyond the cache, so many cells share what they have in common: up to twice as fast as one by one.
_CELLS_ON_CPU = 4

Progress = Callable[[int, int], None]


class DivergedError(RuntimeError):
    """A chain left the range of floats. Every step up to then was released, so its cost is spent."""

    def __init__(self, step: int, norm: float, guarantee: Guarantee | None) -> None:
        self.step = step
        spent = "" if guarantee is None else f" The run still spent {guarantee}."
        super().__init__(
            f"the chain diverged by step {step}{f' (last norm {norm:.3g})' if norm else ''}: lower "
            f"sampler.step_size, or privacy.clip so that less noise is needed.{spent}"
        )


def sample(
    plan: Plan,
    data: Any,
    *,
    key: SecretKey | jax.Array | int | None = None,
    starts: Any = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | str | Path | None = None,
    ledger: Reservation | Ledger | str | Path | None = None,
) -> Result:
    """Run a plan on records.

    Args:
        plan: from :func:`dpmcmc.plan`.
        data: pytree of arrays with leading axis N = ``plan.num_records``.
        key: None or a ``SecretKey``: fresh OS entropy, and the run carries its guarantee. A JAX key or an int
            makes the run reproducible, and anybody who knows it can subtract the noise: no guarantee.
        starts: where the chains start, a pytree like the target's parameters with leaves (chains, ...): a private
            release whose guarantee the plan was made ``after``. None: the target's own start.
        out: folder to save the result in.
        progress: called on the host with (steps done, steps in all).
        checkpoint: folder of what a run that is stopped needs to go on; called again with the same plan and records,
            the run goes on there. It holds keys until the run is done: confidential. Remove it once the draws are
            saved.
        ledger: budget ledger to charge: the whole guarantee before a record is read. Whoever has reserved it already
            gives the Reservation, and settles it.

    Returns:
        Result, with draws of shape (chains, draws, ...).

    Raises:
        ValueError: wrong N or shapes, or rows that are not finite (before anything is computed from them).
        LedgerError: the run is over the ledger's budget.
        CheckpointError: the checkpoint is of another plan or other records.
        DivergedError: a chain left the range of floats.
    """
    guarantee, label = plan.guarantee if secret_key(key) else None, type(plan.sampler).__name__
    with opened(checkpoint) as kept, reserved(ledger, guarantee, label, kept, plan.num_records) as held:
        records = check_records(plan, data)
        target = targets.bind(plan.target, targets.record_shapes(records))
        begun = checked_starts(plan, target, starts)
        if held is not None and held is not ledger:
            held.identify(data)
        streams, secret = streams_of(key, plan.hardened)
        program = Program.of(plan, template(target), template(plan.sampler))
        run = Run(plan, target, streams, secret, starts=begun)
        if kept is not None:
            run = _resumed(run, kept, (data, starts), held)
        if held is not None:
            held.start(plan.guarantee)
        report = None if progress is None else lambda done: progress(done, plan.steps)
        (outcome,) = run_together(program, [run], records, report, kept)
        if isinstance(outcome, DivergedError):
            raise outcome
        if out is not None:
            outcome.save(out)
    return outcome


def _resumed(run: Run, kept: Checkpoint, data: Any, held: Reservation | None) -> Run:
    """The run with the keys that its checkpoint has, or with its own where it begins or comes from elsewhere."""
    streams, moved = kept.begin(run.plan, data, run.streams, run.secret)
    if not moved:
        return run._replace(streams=streams)
    again: tuple[Event, ...] = ()
    plan, point = run.plan, kept.point()
    if plan.guarantee is not None:
        assert plan.noise_multipliers is not None
        # Without a commit to say how far the run may have got, as far as it goes.
        first, until, chains = 0, plan.steps, plan.chains
        if point is not None and point.sure:
            first, until = point.step, min(point.until, plan.steps)
            chains = min(point.shape[0], max(plan.chains - point.block, 0))
        again = charged_again(
            plan.guarantee,
            plan.noise_multipliers[first:until],
            plan.sampling,
            plan.num_records,
            chains,
            multiples(plan.second),
        )
        kept.guarantee(plan.guarantee, again)  # raises where nothing covers both
    if held is not None and again:
        held.extend(again, f"steps {first} to {until} taken again on another platform")
    kept.moved(again, run.streams)
    return run


class Run(NamedTuple):
    """A plan about to run.

    Attributes:
        plan: what to run.
        target: its target, bound to the records' shapes.
        streams: its keys.
        secret: whether they are, so that it carries its guarantee.
        numbers: what its program leaves open, by role (``target``, ``sampler``, ``query``) and name.
        starts: of its chains, leaves (chains, ...), or None for the target's own.
    """

    plan: Plan
    target: Any
    streams: Streams
    secret: bool
    numbers: dict[str, dict[str, np.float32]] = {}  # noqa: RUF012  # never changed
    starts: Any = None


class Cells(NamedTuple):
    """What the device is told about one chain of one plan, or, with a leading axis, about several."""

    numbers: dict[str, dict[str, jax.Array]]
    streams: Streams
    chain: jax.Array
    steps: jax.Array
    start: Any = None


@dataclass(frozen=True)
class Program:
    """What is compiled for a cell. Runs with equal programs share one, whatever their noise, keys and open numbers.

    Attributes:
        target, sampler: with the numbers taken out that runs may differ in.
        sampling, num_records, batch_size, slots: which records a step reads, and into how many places.
        clip: C, None without privacy, or traced where runs may differ in it.
        bits: grid exponents of the gradient's sum and the second moment's.
        second: what is released beside the gradient.
        levels: draws per coordinate of integer noise on each; 0 where noise is from floats.
        coordinates: numbers with integer noise that a step is charged for, or None.
    """

    target: Template
    sampler: Template
    sampling: Any
    num_records: int
    batch_size: float
    slots: int
    clip: float | Literal["traced"] | None
    bits: tuple[int, int]
    second: SecondMoment | None
    levels: tuple[int, int]
    coordinates: int | None = None

    @classmethod
    def of(cls, plan: Plan, target: Template, sampler: Template, trace_clip: bool = False) -> Program:
        """The program of a plan."""
        clip: Any = None if plan.privacy is None else "traced" if trace_clip else plan.privacy.clip
        bits = (plan.bits, plan.second_bits)
        size = (plan.num_records, plan.batch_size, plan.slots)
        return cls(target, sampler, plan.sampling, *size, clip, bits, plan.second, plan.levels, plan.coordinates)

    def start(self, cell: Cells) -> Any:
        """A cell's first state; depends on its keys, and on its start where it has one."""
        key, dynamics = jax.random.split(cell.streams.at(cell.chain, 0).init)
        position = cell.start
        if position is None:
            position = self.target.fill(cell.numbers.get("target", {})).init(key)
        return self.sampler.fill(cell.numbers.get("sampler", {})).init(dynamics, position)

    def step(self, cell: Cells, state: Any, t: jax.Array, noise_std: jax.Array, records: Any) -> tuple[Any, Any]:
        """(state after step t, info); the state as it was where the cell has done all its steps."""
        sampler = self.sampler.fill(cell.numbers.get("sampler", {}))
        query = GradientQuery(
            self.target.fill(cell.numbers.get("target", {})),
            self.num_records,
            self.batch_size,
            cell.numbers["query"]["clip"] if self.clip == "traced" else self.clip,
            self.sampling.selector(self.num_records, self.slots),
            self.bits[0],
            second=self.second,
            second_bits=self.bits[1],
            metric=getattr(sampler, "metric", None),
            levels=self.levels,
            coordinates=self.coordinates,
        )
        keys = cell.streams.at(cell.chain, t)
        gradient = query(state.position, records, keys.batch, keys.noise, noise_std)
        following, info = sampler.step(keys.dynamics, state, gradient, t)
        return jax.tree.map(lambda new, old: jnp.where(t < cell.steps, new, old), following, state), info


def run_together(
    program: Program,
    runs: Sequence[Run],
    records: Any,
    report: Callable[[int], None] | None = None,
    kept: Checkpoint | None = None,
) -> list[Result | DivergedError]:
    """Run plans of one program, as many chains at a time as is fastest.

    Args:
        program: of every run, with at least the slots of each.
        runs: what to run.
        records: from :func:`check_records`.
        report: called with the steps done, summed over runs.
        kept: checkpoint of the one run; it goes on from there.

    Returns:
        Per run its Result, whose wall time is its share by steps, or a DivergedError.
    """
    started = time.perf_counter()
    # Chains that end together side by side, so that none waits for another.
    owners = sorted((i for i, run in enumerate(runs) for _ in range(run.plan.chains)), key=lambda i: runs[i].plan.steps)
    cells = _cells(runs, owners)
    shapes = jax.eval_shape(jax.vmap(program.start), cells).position
    size = _cells_at_once(program, shapes, records)
    width = _chunk_steps(runs[owners[-1]].plan.steps, _bytes(shapes) * size // len(owners))
    point = None if kept is None else kept.point()
    if point is not None:
        size, width = point.shape
    room = width // min(run.plan.thin for run in runs) + 1
    initial, chunk = _compile(program, width)
    traces = [_Trace(runs[i].plan) for i in owners]
    block = _block(cells, 0, size)
    states = _initial_states(initial, block)
    arguments = (states, block, np.int32(0), *_schedules(traces[:size], size, 0, width, room), records)
    compiled = chunk.lower(*arguments).compile()
    compile_seconds = time.perf_counter() - started
    started = time.perf_counter()
    if kept is not None and point is None:
        point = kept.start((size, width), len(owners))
    elif point is not None:
        started -= point.seconds
        _restore(traces, point, chunk, arguments)
    done = 0.0
    failed: set[int] = set()
    for start in range(0, len(owners), size):
        members, rows = owners[start : start + size], traces[start : start + size]
        if failed.issuperset(members):
            continue
        begin = 0
        if point is not None and start <= point.block:
            if start < point.block:
                continue
            begin = point.step
        if start:
            block = _block(cells, start, size)
            states = _initial_states(initial, block)
        if begin and point is not None and point.states is not None:
            states = restored(point.states, states)
        for first in range(begin, rows[-1].plan.steps, width):
            schedules = _schedules(rows, size, first, width, room)
            states, *output = compiled(states, block, np.int32(first), *schedules, records)
            _hand_out(rows, first, width, *output)
            done += sum(min(width, max(row.plan.steps - first, 0)) / row.plan.chains for row in rows)
            if report is not None:
                report(round(done))
            failed |= {i for i, row in zip(members, rows, strict=True) if row.failure is not None}
            if failed.issuperset(members):
                break
            if kept is not None and point is not None and not failed:
                after, steps = first + width, rows[-1].plan.steps
                if after >= steps or kept.due(point, after):
                    kept.commit(point, after, states, traces, steps, time.perf_counter() - started)
    seconds = {"compile": compile_seconds, "run": time.perf_counter() - started}
    return _outcomes(
        runs, [[t for t, i in zip(traces, owners, strict=True) if i == j] for j in range(len(runs))], seconds, kept
    )


def _restore(traces: list[_Trace], point: Point, chunk: Any, arguments: Any) -> None:
    """Give every chain the draws that its run has committed."""
    structure = jax.tree.structure(jax.eval_shape(chunk, *arguments)[1])
    for trace, pieces, norm in zip(traces, point.pieces, point.norms, strict=True):
        trace.pieces = [jax.tree.unflatten(structure, leaves) for leaves in pieces]
        trace.norm = norm


class _Trace:
    """What is kept of one chain.

    Attributes:
        plan: what it runs.
        pieces: kept (positions, info) of each chunk, leaves (draws, ...).
        norm: of the last position seen.
        failure: (step it was found to have diverged by, last finite norm), or None.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.pieces: list[Any] = []
        self.norm = 0.0
        self.failure: tuple[int, float] | None = None

    def joined(self) -> Any:
        """(positions, info), leaves (draws, ...)."""
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *self.pieces)


def checked_starts(plan: Plan, target: Any, starts: Any) -> Any:
    """float32 starts of the right shapes, or None.

    Raises:
        ValueError: a private plan that does not cover them; another structure or shape than the target's parameters
            with a leading axis of chains; numbers that are not finite.
    """
    if starts is None:
        return None
    if plan.privacy is not None and plan.after is None:
        raise ValueError(
            "starts need a plan whose guarantee covers them: plan(..., after=the guarantee of their release); a public "
            "start belongs in the target's init"
        )
    wanted = jax.eval_shape(target.init, jax.random.key(0))
    shapes = jax.tree.map(lambda leaf: (plan.chains, *leaf.shape), wanted)
    found = jax.tree.map(np.shape, starts)
    structure: Any = jax.tree.structure(wanted)
    if jax.tree.structure(starts) != structure or found != shapes:
        raise ValueError(f"starts must have shapes {shapes}, one start for each chain, got {found}")
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(starts)):
        raise ValueError("starts must be finite")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), starts)


def _cells(runs: Sequence[Run], owners: Sequence[int]) -> Cells:
    """One cell per entry of ``owners``, the runs that they are chains of."""
    chain = np.zeros(len(owners), np.int32)
    for i, run in enumerate(runs):
        chain[np.array(owners) == i] = np.arange(run.plan.chains)
    at = np.array(owners)
    numbers = jax.tree.map(lambda *values: np.array(values)[at], *(run.numbers for run in runs))
    streams = jax.tree.map(lambda *keys: jnp.stack(keys)[at], *(run.streams for run in runs))
    steps = jnp.array([runs[i].plan.steps for i in owners], jnp.int32)
    start = None
    if runs[0].starts is not None:
        each = [jax.tree.map(lambda leaf, c=c: leaf[c], runs[i].starts) for i, c in zip(owners, chain, strict=True)]
        start = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    return Cells(numbers, streams, jnp.asarray(chain), steps, start)


def _block(cells: Cells, start: int, size: int) -> Cells:
    """Cells [start, start + size); beyond the last one, copies of it that take no step."""
    count = len(cells.steps)
    at = np.arange(start, start + size)
    block = jax.tree.map(lambda leaf: leaf[np.minimum(at, count - 1)], cells)
    return block._replace(steps=jnp.where(at < count, block.steps, 0))


def _cells_at_once(program: Program, positions: Any, records: Any) -> int:
    """Cells in a block, all blocks alike; ``positions`` are the shapes of every cell's."""
    count = jax.tree.leaves(positions)[0].shape[0]
    rows = min(program.slots, LINEAR_ROWS) * _bytes(records) // program.num_records
    each = max(rows, MICROBATCH * _bytes(positions) // count, 1)
    if jax.default_backend() == "cpu":
        most = max(_CACHE_BYTES // each, min(_CELLS_ON_CPU, _DEVICE_BYTES // each), 1)
    else:
        most = max(_DEVICE_BYTES // each, 1)
    return math.ceil(count / math.ceil(count / most))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _initial_states(initial: Any, block: Cells) -> Any:
    """One state per cell, on the device."""
    return initial(block)


def _chunk_steps(steps: int, step_bytes: int) -> int:
    """Steps per device call, as even as possible."""
    most = max(1, min(_CHUNK_STEPS, _CHUNK_BYTES // max(step_bytes, 1), steps))
    return math.ceil(steps / math.ceil(steps / most))


def _kept_steps(plan: Plan, first: int, width: int) -> np.ndarray:
    """Indices of the steps in [first, first + width) whose result is a kept draw."""
    steps = np.arange(first, min(first + width, plan.steps))
    since = steps + 1 - plan.burn_in
    return steps[(since > 0) & (since % plan.thin == 0)]


def _schedules(rows: list[_Trace], size: int, first: int, width: int, room: int) -> tuple[np.ndarray, np.ndarray]:
    """(noise of every cell and step, (size, width); offsets of the steps to keep, (size, room))."""
    noise, kept = np.zeros((size, width), np.float32), np.zeros((size, room), np.int32)
    for at, row in enumerate(rows):
        own = row.plan.noise_std
        # A chain that has done its steps does not move, whatever the noise.
        noise[at] = own[np.minimum(np.arange(first, first + width), len(own) - 1)]
        keep = _kept_steps(row.plan, first, width)
        kept[at, : len(keep)] = keep - first
    return noise, kept


def _hand_out(rows: list[_Trace], first: int, width: int, output: Any, finite: Any, norms: Any) -> None:
    """Give every chain what it keeps of a chunk."""
    counts = [len(_kept_steps(row.plan, first, width)) for row in rows]
    host = jax.tree.map(np.asarray, output) if any(counts) else None
    for at, (row, count, good, norm) in enumerate(
        zip(rows, counts, np.asarray(finite), np.asarray(norms), strict=False)
    ):
        if count:
            # A copy, so that the rest of the chunk can go.
            row.pieces.append(jax.tree.map(lambda leaf, at=at, count=count: leaf[:count, at].copy(), host))
        if not good and row.failure is None:
            row.failure = min(first + width, row.plan.steps), row.norm
        row.norm = float(norm)


def _outcomes(
    runs: Sequence[Run], traces: list[list[_Trace]], seconds: dict[str, float], kept: Checkpoint | None
) -> list[Result | DivergedError]:
    total = sum(run.plan.steps * run.plan.chains for run in runs)
    constrain: dict[int, Any] = {}
    outcomes: list[Result | DivergedError] = []
    for run, chains in zip(runs, traces, strict=True):
        plan, target = run.plan, run.target
        guarantee = plan.guarantee if run.secret else None
        if guarantee is not None and kept is not None:
            guarantee = kept.guarantee(guarantee)
        failures = [trace.failure for trace in chains if trace.failure is not None]
        if failures:
            outcomes.append(DivergedError(*min(failures), guarantee))
            continue
        positions, info = jax.tree.map(lambda *leaves: np.stack(leaves), *(trace.joined() for trace in chains))
        draws = positions
        if hasattr(target, "constrain"):
            # Draws in the model's own coordinates; repeats of a target share what is compiled for it.
            call = constrain.setdefault(id(target), jax.jit(jax.vmap(jax.vmap(target.constrain))))
            draws = jax.tree.map(np.asarray, call(positions))
        share = {name: value * plan.steps * plan.chains / total for name, value in seconds.items()}
        outcomes.append(Result(plan, draws, positions, info, guarantee, share))
    return outcomes


def _compile(program: Program, width: int) -> Any:
    """(jitted start of cells, jitted chunk), shared by runs of equal programs."""
    # What may change behind its hash, or has none, is compiled anew.
    steady = all(t.whole is None or targets.immutable(t.whole) for t in (program.target, program.sampler))
    try:
        if steady:
            return _compile_cached(program, width)
        return _compile_cached.__wrapped__(program, width)
    except TypeError:
        return _compile_cached.__wrapped__(program, width)


@functools.lru_cache(maxsize=32)
def _compile_cached(program: Program, width: int) -> Any:
    every_cell = jax.vmap(program.step, in_axes=(0, 0, None, 0, None))

    def chunk(states, cells, first, noise_std, kept, records):  # type: ignore[no-untyped-def]
        def body(states, inputs):  # type: ignore[no-untyped-def]
            t, s = inputs
            states, info = every_cell(cells, states, t, s, records)
            return states, (states.position, info)

        steps = first + jnp.arange(width, dtype=jnp.int32)
        states, output = jax.lax.scan(body, states, (steps, noise_std.T))
        leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(states.position)]
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf), axis=1) for leaf in leaves]), axis=0)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf), axis=1) for leaf in leaves))
        at = jnp.arange(kept.shape[0])
        return states, jax.tree.map(lambda leaf: leaf[kept.T, at], output), finite, norm

    return jax.jit(jax.vmap(program.start)), jax.jit(chunk, donate_argnums=(0,))


def check_records(plan: Plan, data: Any) -> Any:
    """Device arrays of the right length, finite, float32 or int32, and of the values the target is for.

    Raises:
        ValueError: they are not.
    """
    targets.check_rows(data, plan.num_records, np.float32)

    def convert(leaf: Any) -> jax.Array:
        array = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
        return jnp.asarray(array, jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else None)

    targets.check(plan.target, data)
    return jax.tree.map(convert, data)
