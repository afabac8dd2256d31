"""Runs plans, chunk by chunk, a block of cells at a time, a cell being one chain of one plan.

A chunk's computation is compiled once per :class:`Program` (``program.py``). Between chunks the host keeps the
thinned draws, moves the progress bar and gives up a cell that has diverged. Padding steps at the end of the last chunk
leave the state as it is and are not released.

``life.py`` runs one plan with its numbers compiled in; ``sweep.py`` runs many that differ in numbers as one program.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine import lanes, sizing
from dpmcmc.engine.charged_again import with_charged_again
from dpmcmc.engine.mesh import CHAIN, DATA, spread
from dpmcmc.engine.program import Cells, Compiled, Executable, Options, Program, compiled, num_bytes
from dpmcmc.engine.result import Result
from dpmcmc.engine.rows_on_disk import Supply
from dpmcmc.engine.self_test import check_steps
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.checkpoint import Checkpoint
from dpmcmc.storage.commit_point import Point
from dpmcmc.storage.plain_keys import restored
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.row_blocks import on_disk
from dpmcmc.targets.base import Target


class DivergedError(RuntimeError):
    """A chain left the range of floats. Every step up to then was released, so its cost is spent."""

    def __init__(self, step: int, norm: float, guarantee: Guarantee | None) -> None:
        self.step = step
        spent = "" if guarantee is None else f" The run still spent {guarantee}."
        super().__init__(
            f"the chain diverged by step {step}{f' (last norm {norm:.3g})' if norm else ''}: lower "
            f"sampler.step_size, or privacy.clip so that less noise is needed.{spent}"
        )


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
    target: Target
    streams: Streams
    secret: bool
    numbers: dict[str, dict[str, np.float32]] = {}  # noqa: RUF012  # never changed
    starts: PyTree = None


def run_together(
    program: Program,
    runs: Sequence[BoundPlan],
    records: PyTree,
    report: Callable[[int], None] | None = None,
    kept: Checkpoint | None = None,
    begin: Callable[[], None] = lambda: None,
) -> list[Result | DivergedError]:
    """Run plans of one program, as many chains at a time as is fastest.

    Args:
        program: of every run, with at least the slots of each.
        runs: what to run.
        records: from :func:`check_records`.
        report: called with the steps done, summed over runs.
        kept: checkpoint of the one run; it goes on from there.
        begin: called when the program is compiled and has passed its self-test, before a step is taken on the records.
            An error of it ends the run.

    Returns:
        Per run its Result, whose wall time is its share by steps, or a DivergedError.
    """
    started = time.perf_counter()
    together = _Together(program, runs, records, None if kept is None else kept.point())
    executable = together.compiled_and_tested()
    compile_seconds = time.perf_counter() - started
    begin()
    run_seconds = together.take(executable, report, kept)
    return _outcomes(runs, together.traces_by_run(), {"compile": compile_seconds, "run": run_seconds}, kept)


def compile_and_test(program: Program, runs: Sequence[BoundPlan], records: PyTree) -> None:
    """Compile what :func:`run_together` will run, and test it, so that it finds both done.

    Raises:
        MiscompiledError: the self-test failed.
    """
    _Together(program, runs, records, None).compiled_and_tested()


class _Sizes(NamedTuple):
    """How much is computed at a time.

    Attributes:
        block: cells of a block.
        lanes: parts of a block that are computed beside each other.
        steps: of a chunk.
        room: kept draws that a chunk has room for.
        work: bytes that a block works on at a time.
    """

    block: int
    lanes: int
    steps: int
    room: int
    work: int

    @property
    def lane(self) -> int:
        """Cells of a lane."""
        return self.block // self.lanes


class _Together:
    """Runs of one program, ready to take their steps.

    Args:
        program, runs, records: as of :func:`run_together`.
        point: last commit of the one run, or None where it begins.
    """

    def __init__(self, program: Program, runs: Sequence[BoundPlan], records: PyTree, point: Point | None) -> None:
        self._program = dataclasses.replace(program, supplied=on_disk(records))
        self._runs, self._point = runs, point
        # Chains that end together stand side by side, so that none waits for another.
        numbered = (i for i, run in enumerate(runs) for _ in range(run.plan.chains))
        self._owners = sorted(numbered, key=lambda i: runs[i].plan.steps)
        self._traces = [lanes.Trace(runs[i].plan) for i in self._owners]
        self._cells = _cells(runs, self._owners)
        self._sizes = self._measured(records)
        size = self._sizes
        shapes = (size.block, size.lanes, size.room, _facts((self._cells, records)))
        self._functions = compiled(self._program, size.steps, shapes)
        self._shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), records)
        self._first = self._started(0)
        mesh = self._program.mesh
        self._supply: Supply | None = None
        if self._program.supplied:
            self._records, self._supply = records, Supply(records, self._functions.draw, mesh)
        else:
            self._records = self._functions.prepared(records if mesh is None else spread(records, mesh, DATA))

    def _measured(self, records: PyTree) -> _Sizes:
        """Sizes of the blocks and chunks; those of its checkpoint where the run goes on."""
        program, runs = self._program, self._runs
        shapes = jax.eval_shape(jax.vmap(program.start), self._cells).position
        block = sizing.cells_at_once(program, shapes, records)
        step_bytes = num_bytes(shapes) // len(self._owners)
        if program.supplied:
            step_bytes = max(step_bytes, program.slots * num_bytes(records) // program.num_records)
        work = block * sizing.cell_bytes(program, shapes, records)
        steps = sizing.chunk_steps(runs[self._owners[-1]].plan.steps, step_bytes * block, work)
        if self._point is not None:
            block, steps = self._point.shape
        room = steps // min(run.plan.thin for run in runs) + 1
        return _Sizes(block, sizing.lanes_beside(block, program.mesh), steps, room, work)

    def _started(self, start: int) -> list[tuple[Cells, PyTree]]:
        """Per lane of the block that begins at this cell: (its cells, their first states)."""
        size = self._sizes
        blocks = [_block(self._cells, start + k * size.lane, size.lane, self._program.mesh) for k in range(size.lanes)]
        return [(block, self._functions.start(block)) for block in blocks]

    def _arguments(self) -> tuple[PyTree, ...]:
        """Arguments of a lane's first chunk."""
        size, (block, states) = self._sizes, self._first[0]
        schedules = lanes.schedules(self._traces[: size.lane], size.lane, 0, size.steps, size.room)
        records = self._records if self._supply is None else self._supply.shapes(block, schedules[0])
        return states, block, np.int32(0), *schedules, records

    def compiled_and_tested(self) -> Executable:
        """Executable of a chunk, which has passed its self-test where a run has a guarantee.

        Raises:
            MiscompiledError: it has not.
        """
        size, arguments = self._sizes, self._arguments()
        options = sizing.compiler_options(size.work // size.lanes, size.lanes)
        executable, option = _executable(self._functions, arguments, options)
        if option not in self._functions.tested and any(r.secret and r.plan.guarantee is not None for r in self._runs):
            block, noise = arguments[1], arguments[3]
            check_steps(self._program, self._functions, executable, block, noise, size.room, self._shapes)
            self._functions.tested.add(option)
        return executable

    def take(self, executable: Executable, report: Callable[[int], None] | None, kept: Checkpoint | None) -> float:
        """Take the steps of all blocks; the seconds that took, those before the run was stopped included."""
        began, point = time.perf_counter(), self._point
        if kept is not None and point is None:
            point = kept.start((self._sizes.block, self._sizes.steps), len(self._owners))
        elif point is not None:
            began -= point.seconds
            lanes.restore(self._traces, point, self._functions.chunk, self._arguments())
        done = 0.0
        # Threads, for a CPU computes a call in the thread that makes it.
        with ThreadPoolExecutor(self._sizes.lanes, "lane") as workers:
            for start in range(0 if point is None else point.block, len(self._owners), self._sizes.block):
                rows = self._traces[start : start + self._sizes.block]
                if self._all_failed(start):
                    continue
                first = point.step if point is not None and start == point.block else 0
                abreast = self._abreast(start, first)
                for at in range(first, rows[-1].plan.steps, self._sizes.steps):
                    self._take_chunk(executable, workers, abreast, at)
                    done += self._chains_done(rows, at)
                    if report is not None:
                        report(round(done))
                    if self._all_failed(start):
                        break
                    if kept is not None and point is not None and not self._failed():
                        self._commit(kept, point, abreast, at, rows[-1].plan.steps, time.perf_counter() - began)
        return time.perf_counter() - began

    def _abreast(self, start: int, first: int) -> list[lanes.Lane]:
        """Lanes of the block that begins at cell ``start``, about to take step ``first``."""
        size, mesh = self._sizes, self._program.mesh
        begun = self._started(start) if start else self._first
        blocks, states = [block for block, _ in begun], [state for _, state in begun]
        if first and self._point is not None and self._point.states is not None:
            states = lanes.split(restored(self._point.states, states[0]), size.lanes)
            states = states if mesh is None else [spread(states[0], mesh, CHAIN)]
        rows = self._traces[start : start + size.block]
        firsts = range(first, rows[-1].plan.steps, size.steps)
        found = []
        for k, (block, state) in enumerate(zip(blocks, states, strict=True)):
            lane = lanes.Lane(rows[k * size.lane :][: size.lane], block, state, size.lane, size.steps, size.room)
            lane.supplies = itertools.repeat(self._records)
            if self._supply is not None:
                lane.supplies = self._supply.chunks(block, firsts, lane.noise)
            found.append(lane)
        return found

    def _take_chunk(
        self, executable: Executable, workers: ThreadPoolExecutor, abreast: list[lanes.Lane], first: int
    ) -> None:
        outputs = list(workers.map(lambda lane: lane.take(executable, first), abreast))
        for lane, output in zip(abreast, outputs, strict=True):
            lanes.hand_out(lane.rows, first, self._sizes.steps, *output)

    def _chains_done(self, rows: Sequence[lanes.Trace], first: int) -> float:
        """Steps of a chunk, each chain's divided by the chains of its plan."""
        return sum(min(self._sizes.steps, max(row.plan.steps - first, 0)) / row.plan.chains for row in rows)

    def _commit(
        self, kept: Checkpoint, point: Point, abreast: list[lanes.Lane], first: int, steps: int, seconds: float
    ) -> None:
        """Commit the chunk that began at step ``first``, where that is due or the block is done."""
        after = first + self._sizes.steps
        if after >= steps or kept.due(point, after):
            joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(lane.states for lane in abreast))
            kept.commit(point, after, joined, self._traces, steps, seconds)

    def _failed(self) -> set[int]:
        """Runs of which a chain has diverged."""
        return {i for i, trace in zip(self._owners, self._traces, strict=True) if trace.failure is not None}

    def _all_failed(self, start: int) -> bool:
        """Whether every run of the block that begins at this cell has a chain that has diverged."""
        return self._failed().issuperset(self._owners[start : start + self._sizes.block])

    def traces_by_run(self) -> list[list[lanes.Trace]]:
        """Traces of the chains of each run."""
        pairs = list(zip(self._owners, self._traces, strict=True))
        return [[trace for owner, trace in pairs if owner == i] for i in range(len(self._runs))]


def _facts(tree: PyTree) -> tuple:
    """Structure, shapes and dtypes of a pytree: a key for what is compiled for them."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _executable(functions: Compiled, arguments: tuple, options: dict[str, str | bool]) -> tuple[Executable, Options]:
    """(executable of a chunk, by what it is kept)."""
    option = tuple(sorted(options.items()))
    if option not in functions.executables:
        functions.executables[option] = functions.chunk.lower(*arguments).compile(options)
    return functions.executables[option], option


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


def _outcomes(
    runs: Sequence[BoundPlan], traces: list[list[lanes.Trace]], seconds: dict[str, float], kept: Checkpoint | None
) -> list[Result | DivergedError]:
    total = sum(run.plan.steps * run.plan.chains for run in runs)
    constrain: dict[int, Callable[[PyTree], PyTree]] = {}
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
