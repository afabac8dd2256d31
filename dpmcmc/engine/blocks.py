"""Runs plans, chunk by chunk, a block of cells at a time, a cell being one chain of one plan.

What a chunk computes is compiled once per :class:`Program` (``program.py``). Between chunks the host keeps the thinned
draws, moves the progress bar and gives up a cell that has diverged. Padding steps at the end of the last chunk leave
the state as it is and are not released.

``sample`` runs one plan with its numbers compiled in; ``sweep.py`` runs many that differ in numbers as one program.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.engine.charged_again import with_charged_again
from dpmcmc.engine.mesh import CHAIN, DATA, checked, on_host, sizes, spread
from dpmcmc.engine.processes import agreed, check_alone, check_not_forked
from dpmcmc.engine.program import DRAWN_STEPS, Cells, Compiled, Program, compiled, num_bytes
from dpmcmc.engine.reservation import Reservation, reserved
from dpmcmc.engine.result import Result
from dpmcmc.engine.rows_on_disk import Supply
from dpmcmc.engine.self_test import check_steps
from dpmcmc.engine.template import template
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.charging import charged_again
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.sampling import FixedSize
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.privacy.query.query import LINEAR_ROWS, MICROBATCH
from dpmcmc.privacy.query.randomness import SecretKey, Streams, is_secret, streams_of
from dpmcmc.privacy.query.second_moment import multiples
from dpmcmc.storage.checkpoint import Checkpoint, Point, opened, restored
from dpmcmc.storage.compiled_programs import refuse_unsafe_caches
from dpmcmc.storage.row_blocks import on_disk
from dpmcmc.storage.run_folder import today

#: Most steps in one device call; fewer where the draws of a chunk would not fit ``_CHUNK_BYTES``, and a quarter where
#: it would read more than ``_CHUNK_READ``, for progress is reported between calls.
_CHUNK_STEPS = 1024
_CHUNK_BYTES = 32 << 20
_CHUNK_READ = 1 << 30
#: What the cells of a block may work on at a time: a CPU is fastest within its cache, an accelerator when it is full.
_CACHE_BYTES = 1 << 20
_DEVICE_BYTES = 512 << 20
#: Even beyond the cache, so many cells share what they have in common: up to twice as fast as one by one.
_CELLS_ON_CPU = 4
#: Compiler options of a CPU's program that does not share an operation out to threads.
ONE_THREAD = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}

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
    mesh: Mesh | None = None,
) -> Result:
    """Run a plan on records.

    Args:
        plan: from :func:`dpmcmc.plan`.
        data: pytree of arrays with leading axis N = ``plan.num_records``.
        key: None or a ``SecretKey``: fresh OS entropy, and the run carries its guarantee. A JAX key or an int
            makes the run reproducible, and anybody who knows it can subtract the noise: no guarantee.
        starts: where the chains start, a pytree like the target's parameters with leaves (chains, ...): a private
            release whose guarantee the plan was made ``after``. None: the target's own start.
        out: folder to save the result in, made before anything is charged; as :meth:`Result.save` does of records that
            are not public.
        progress: called on the host with (steps done, steps in all).
        checkpoint: folder of what a run that is stopped needs to go on; called again with the same plan and records,
            the run goes on there. It holds keys until the run is done: confidential. Remove it once the draws are
            saved.
        ledger: budget ledger to charge: the whole guarantee before a record is read. Whoever has reserved it already
            gives the Reservation, and settles it.
        mesh: devices that share the work, from :func:`dpmcmc.mesh`; None: one device. The guarantee is the same.

    Returns:
        Result, with draws of shape (chains, draws, ...).

    Raises:
        OSError: ``out`` cannot be made.
        ValueError: wrong N or shapes, or rows that are not finite (before anything is computed from them); a checkpoint
            or a ledger in one of several processes; a process forked from one that has run.
        UnsafeCache: somebody else can change what is in a cache folder, compiled programs among it.
        MiscompiledError: the compiled program failed its self-test; no step was taken on the records.
        LedgerError: the run is over the ledger's budget.
        CheckpointError: the checkpoint is of another plan or other records.
        DivergedError: a chain left the range of floats.
    """
    day = today()
    guarantee, label = plan.guarantee if is_secret(key) else None, type(plan.sampler).__name__
    mesh = checked(mesh)
    refuse_unsafe_caches()
    check_not_forked()
    check_alone(checkpoint=checkpoint, ledger=ledger)
    if out is not None and jax.process_index() == 0:
        Path(out).mkdir(parents=True, exist_ok=True)
    with opened(checkpoint) as kept, reserved(ledger, guarantee, label, kept, plan.num_records) as held:
        check_on_disk(plan, data)
        records = check_records(plan, data, host=mesh is not None)
        target = targets.bind(plan.target, targets.record_shapes(records))
        begun = checked_starts(plan, target, starts)
        if held is not None and held is not ledger:
            held.identify(data)
        streams, secret = streams_of(key, plan.hardened)
        program = Program.of(plan, template(target), template(plan.sampler), mesh=mesh)
        run = BoundPlan(plan, target, agreed(streams, secret, plan, (records, begun), mesh), secret, starts=begun)
        if kept is not None:
            run = _resumed(run, kept, (data, starts), held, mesh)
        if held is not None:
            held.start(plan.guarantee)
        report = None if progress is None else lambda done: progress(done, plan.steps)
        (outcome,) = run_together(program, [run], records, report, kept)
        if isinstance(outcome, DivergedError):
            raise outcome
        if held is not None:
            outcome = dataclasses.replace(outcome, receipt=held.receipt)
        if out is not None and jax.process_index() == 0:
            _save(outcome, out, day)
    return outcome


def _save(result: Result, out: str | Path, day: datetime.date) -> None:
    """Save a result whose cost is spent; where that fails, the caller still gets it."""
    try:
        result.save(out, day=day)
    except OSError as error:
        warnings.warn(
            f"out: the result could not be saved ({error.filename or out}: {error.strerror or error}); it is returned, "
            "so save it elsewhere with result.save(folder).",
            stacklevel=3,
        )


def _resumed(run: BoundPlan, kept: Checkpoint, data: Any, held: Reservation | None, mesh: Mesh | None) -> BoundPlan:
    """The run with the keys that its checkpoint has, or with its own where it begins or comes from elsewhere."""
    streams, moved = kept.begin(run.plan, data, run.streams, run.secret, None if mesh is None else sizes(mesh))
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
        with_charged_again(plan.guarantee, kept, again)  # raises where nothing covers both
    if held is not None and again:
        held.extend(again, f"steps {first} to {until} taken again on another platform")
    kept.moved([event.to_json() for event in again], run.streams)
    return run


class BoundPlan(NamedTuple):
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


def run_together(
    program: Program,
    runs: Sequence[BoundPlan],
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
    supplied = on_disk(records)
    if supplied:
        program = dataclasses.replace(program, supplied=True)
    owners = sorted((i for i, run in enumerate(runs) for _ in range(run.plan.chains)), key=lambda i: runs[i].plan.steps)
    cells = _cells(runs, owners)
    shapes = jax.eval_shape(jax.vmap(program.start), cells).position
    size = _cells_at_once(program, shapes, records)
    step_bytes = num_bytes(shapes) // len(owners)
    if supplied:
        step_bytes = max(step_bytes, program.slots * num_bytes(records) // program.num_records)
    work = size * _cell_bytes(program, shapes, records)
    width = _chunk_steps(runs[owners[-1]].plan.steps, step_bytes * size, work)
    point = None if kept is None else kept.point()
    if point is not None:
        size, width = point.shape
    room = width // min(run.plan.thin for run in runs) + 1
    beside = _lanes(size, program.mesh)
    functions = compiled(program, width, (size, beside, room, _facts((cells, records))))
    traces = [_Trace(runs[i].plan) for i in owners]
    each = size // beside
    blocks = [_block(cells, k * each, each, program.mesh) for k in range(beside)]
    states = [functions.start(block) for block in blocks]
    given = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), records)
    if not supplied:
        records = functions.prepared(records if program.mesh is None else spread(records, program.mesh, DATA))
    schedules = _schedules(traces[:each], each, 0, width, room)
    supply = Supply(records, functions.draw, program.mesh) if supplied else None
    wanted = records if supply is None else supply.shapes(blocks[0], schedules[0])
    arguments = (states[0], blocks[0], np.int32(0), *schedules, wanted)
    steps_of_chunk, option = _executable(functions, arguments, _compiler_options(work // beside, beside))
    if option not in functions.tested and any(run.secret and run.plan.guarantee is not None for run in runs):
        check_steps(program, functions, steps_of_chunk, blocks[0], schedules[0], room, given)
        functions.tested.add(option)
    compile_seconds = time.perf_counter() - started
    started = time.perf_counter()
    if kept is not None and point is None:
        point = kept.start((size, width), len(owners))
    elif point is not None:
        started -= point.seconds
        _restore(traces, point, functions.chunk, arguments)
    done = 0.0
    failed: set[int] = set()
    # Threads, for a CPU computes a call in the thread that makes it.
    with ThreadPoolExecutor(beside, "lane") as workers:
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
                blocks = [_block(cells, start + k * each, each, program.mesh) for k in range(beside)]
                states = [functions.start(block) for block in blocks]
            if begin and point is not None and point.states is not None:
                states = _split(restored(point.states, states[0]), beside)
                if program.mesh is not None:
                    states = [spread(states[0], program.mesh, CHAIN)]
            firsts = range(begin, rows[-1].plan.steps, width)
            lanes = []
            for k, (block, state) in enumerate(zip(blocks, states, strict=True)):
                lane = _Lane(rows[k * each : (k + 1) * each], block, state, each, width, room)
                lane.supplies = itertools.repeat(records)
                if supply is not None:
                    lane.supplies = supply.chunks(block, firsts, lane.noise)
                lanes.append(lane)
            for first in firsts:
                outputs = list(workers.map(lambda lane: lane.take(steps_of_chunk, first), lanes))  # noqa: B023
                for lane, output in zip(lanes, outputs, strict=True):
                    _hand_out(lane.rows, first, width, *output)
                done += sum(min(width, max(row.plan.steps - first, 0)) / row.plan.chains for row in rows)
                if report is not None:
                    report(round(done))
                failed |= {i for i, row in zip(members, rows, strict=True) if row.failure is not None}
                if failed.issuperset(members):
                    break
                if kept is not None and point is not None and not failed:
                    after, steps = first + width, rows[-1].plan.steps
                    if after >= steps or kept.due(point, after):
                        joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(lane.states for lane in lanes))
                        kept.commit(point, after, joined, traces, steps, time.perf_counter() - started)
    seconds = {"compile": compile_seconds, "run": time.perf_counter() - started}
    return _outcomes(
        runs, [[t for t, i in zip(traces, owners, strict=True) if i == j] for j in range(len(runs))], seconds, kept
    )


def _facts(tree: Any) -> tuple:
    """Structure, shapes and dtypes of a pytree: a key for what is compiled for them."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _executable(functions: Compiled, arguments: tuple, options: dict[str, Any]) -> tuple[Any, Any]:
    """(executable of a chunk, by what it is kept)."""
    option = tuple(sorted(options.items()))
    if option not in functions.executables:
        functions.executables[option] = functions.chunk.lower(*arguments).compile(options)
    return functions.executables[option], option


class _Lane:
    """Cells of a block that are computed beside the others, on a core of their own.

    Attributes:
        rows: traces of its cells; fewer than there are cells where these are padded.
        states: where its cells are.
        supplies: what its chunks find in the place of records, one after another.
    """

    def __init__(self, rows: list[_Trace], block: Cells, states: Any, size: int, width: int, room: int) -> None:
        self.rows, self.states = rows, states
        self.supplies: Iterator[Any] = iter(())
        self._block, self._shape = block, (size, width, room)

    def schedules(self, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Noise and places to keep of the chunk that begins at this step."""
        size, width, room = self._shape
        return _schedules(self.rows, size, first, width, room)

    def noise(self, first: int) -> np.ndarray:
        """Of the chunk that begins at this step."""
        return self.schedules(first)[0]

    def take(self, steps_of_chunk: Any, first: int) -> Any:
        """Compute a chunk; what it gives beside the states."""
        arguments = (self.states, self._block, np.int32(first), *self.schedules(first), next(self.supplies))
        self.states, *output = jax.block_until_ready(steps_of_chunk(*arguments))
        return output


def check_on_disk(plan: Plan, data: Any) -> None:
    """Refuse what memory-mapped records cannot be run with; nothing is read.

    Raises:
        ValueError: full batches, or of a fixed size beyond half the records, which are drawn as what they leave out; a
            second moment from a batch of its own.
    """
    if not on_disk(data):
        return
    rate = plan.sampling.rate(plan.num_records)
    if rate == 1 or (isinstance(plan.sampling, FixedSize) and rate > 0.5):
        raise InputError(
            "sampling: memory-mapped records need minibatches, full ones would read the whole file in every step; use "
            "Poisson, or arrays in memory"
        )
    if plan.second is not None and plan.second.own_batch:
        raise InputError("own_batch: not with memory-mapped records; set it to false, or use arrays in memory")


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
        raise InputError(
            "starts need a plan whose guarantee covers them: plan(..., after=the guarantee of their release); a public "
            "start belongs in the target's init"
        )
    wanted = jax.eval_shape(target.init, jax.random.key(0))
    shapes = jax.tree.map(lambda leaf: (plan.chains, *leaf.shape), wanted)
    found = jax.tree.map(np.shape, starts)
    structure: Any = jax.tree.structure(wanted)
    if jax.tree.structure(starts) != structure or found != shapes:
        raise InputError(f"starts must have shapes {shapes}, one start for each chain, got {found}")
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(starts)):
        raise InputError("starts must be finite")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), starts)


def _cells(runs: Sequence[BoundPlan], owners: Sequence[int]) -> Cells:
    """One cell per entry of ``owners``, the runs that they are chains of.

    Arranged on the host: what JAX computes outside a function of its own stays compiled as long as the process lives.
    """
    chain = np.zeros(len(owners), np.int32)
    for i, run in enumerate(runs):
        chain[np.array(owners) == i] = np.arange(run.plan.chains)
    at = np.array(owners)
    numbers = jax.tree.map(lambda *values: np.array(values)[at], *(run.numbers for run in runs))
    streams = Streams(*(_keys_at(keys, at) for keys in zip(*(run.streams for run in runs), strict=True)))
    steps = jnp.asarray(np.array([runs[i].plan.steps for i in owners], np.int32))
    start = None
    if runs[0].starts is not None:
        each = [
            jax.tree.map(lambda leaf, c=c: np.asarray(leaf)[c], runs[i].starts)
            for i, c in zip(owners, chain, strict=True)
        ]
        start = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *each)
    return Cells(numbers, streams, jnp.asarray(chain), steps, start)


def _keys_at(keys: Sequence[jax.Array] | jax.Array, at: np.ndarray) -> jax.Array:
    """Those of several JAX keys of one kind, or of an array of them, that are at these places."""
    each = [keys] if isinstance(keys, jax.Array) else keys
    words = np.stack([np.asarray(jax.random.key_data(key)) for key in each])
    words = words[0] if isinstance(keys, jax.Array) else words
    return jax.random.wrap_key_data(jnp.asarray(words[at]), impl=jax.random.key_impl(each[0]))


def _block(cells: Cells, start: int, size: int, mesh: Mesh | None) -> Cells:
    """Cells [start, start + size), on their devices; beyond the last one, copies of it that take no step."""
    count = len(cells.steps)
    at = np.arange(start, start + size)
    near = np.minimum(at, count - 1)
    streams = Streams(*(_keys_at(keys, near) for keys in cells.streams))
    own = cells.numbers, cells.chain, cells.steps, cells.start
    numbers, chain, steps, begin = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[near]), own)
    steps = jnp.asarray(np.where(at < count, np.asarray(steps), 0).astype(np.int32))
    block = Cells(numbers, streams, chain, steps, begin)
    return block if mesh is None else spread(block, mesh, CHAIN)


def _cells_at_once(program: Program, positions: Any, records: Any) -> int:
    """Cells in a block, all blocks alike; ``positions`` are the shapes of every cell's.

    A block has as many parts as there are cores, or devices along the mesh's chains, each of as many cells as fit.
    """
    count = jax.tree.leaves(positions)[0].shape[0]
    each = _cell_bytes(program, positions, records)
    if jax.default_backend() == "cpu":
        most = max(_CACHE_BYTES // each, min(_CELLS_ON_CPU, _DEVICE_BYTES // each), 1)
    else:
        most = max(_DEVICE_BYTES // each, 1)
    parts = sizes(program.mesh)[0] if program.mesh is not None else min(_cores(), count)
    even = math.ceil(count / math.ceil(count / (most * parts)))
    return math.ceil(even / parts) * parts


def _cell_bytes(program: Program, positions: Any, records: Any) -> int:
    """What one cell works on at a time: rows, or gradients of their own."""
    rows = min(program.slots, LINEAR_ROWS) * num_bytes(records) // program.num_records
    return max(rows, MICROBATCH * num_bytes(positions) // jax.tree.leaves(positions)[0].shape[0], 1)


def _compiler_options(lane_work: int, lanes: int) -> dict[str, Any]:
    """For so many lanes, each of which works on so many bytes at a time.

    On a CPU the compiler shares an operation out to threads. What is within a core's cache is done before the others
    have woken up, and where there is a lane to each core they have work of their own.
    """
    if jax.default_backend() != "cpu" or (lanes < _cores() and lane_work > _CACHE_BYTES):
        return {}
    return ONE_THREAD


def _lanes(size: int, mesh: Mesh | None) -> int:
    """Parts of a block of so many cells that are computed beside each other: no more than there are cores."""
    return 1 if mesh is not None else max(lanes for lanes in range(1, _cores() + 1) if size % lanes == 0)


def _split(states: Any, parts: int) -> list[Any]:
    """States of a block as those of its parts, one after another."""
    every = [jnp.split(leaf, parts) for leaf in jax.tree.leaves(states)]
    structure = jax.tree.structure(states)
    return [jax.tree.unflatten(structure, [leaf[k] for leaf in every]) for k in range(parts)]


def _cores() -> int:
    """Cores that one CPU device computes on; an accelerator is one."""
    if jax.default_backend() != "cpu":
        return 1
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _chunk_steps(steps: int, step_bytes: int, work: int) -> int:
    """Steps per device call, as even as possible, and of groups that can be drawn together.

    Args:
        steps: of the run.
        step_bytes: what a step leaves behind until the call ends.
        work: what a step reads, bytes.
    """
    most = _CHUNK_STEPS if work * _CHUNK_STEPS <= _CHUNK_READ else _CHUNK_STEPS // 4
    most = max(1, min(most, _CHUNK_BYTES // max(step_bytes, 1), steps))
    even = math.ceil(steps / math.ceil(steps / most))
    if even <= DRAWN_STEPS:
        return even
    return min(math.ceil(even / size) * size for size in range(DRAWN_STEPS // 2, DRAWN_STEPS + 1))


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
    host = on_host(output) if any(counts) else None
    for at, (row, count, good, norm) in enumerate(zip(rows, counts, *on_host((finite, norms)), strict=False)):
        if count:
            # A copy, so that the rest of the chunk can go.
            row.pieces.append(jax.tree.map(lambda leaf, at=at, count=count: leaf[:count, at].copy(), host))
        if not good and row.failure is None:
            row.failure = min(first + width, row.plan.steps), row.norm
        row.norm = float(norm)


def _outcomes(
    runs: Sequence[BoundPlan], traces: list[list[_Trace]], seconds: dict[str, float], kept: Checkpoint | None
) -> list[Result | DivergedError]:
    total = sum(run.plan.steps * run.plan.chains for run in runs)
    constrain: dict[int, Any] = {}
    outcomes: list[Result | DivergedError] = []
    for run, chains in zip(runs, traces, strict=True):
        plan, target = run.plan, run.target
        guarantee = plan.guarantee if run.secret else None
        if guarantee is not None and kept is not None:
            guarantee = with_charged_again(guarantee, kept)
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


def check_records(plan: Plan, data: Any, host: bool = False) -> Any:
    """Arrays of the right length, finite, float32 or int32, and of the values the target is for.

    Args:
        plan: its N and target.
        data: as of :func:`sample`.
        host: NumPy arrays, that a mesh takes its parts of; else on the device.

    Raises:
        ValueError: they are not.
    """
    targets.check_rows(data, plan.num_records, np.float32)

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, np.memmap):
            return leaf
        array = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
        if host:
            dtype = jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else jnp.asarray(array[:0]).dtype
            return np.asarray(array, dtype)
        return jnp.asarray(array, jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else None)

    targets.check(plan.target, data)
    return jax.tree.map(convert, data)
