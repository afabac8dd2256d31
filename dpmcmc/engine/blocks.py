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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine import lanes, sizing
from dpmcmc.engine.charged_again import with_charged_again
from dpmcmc.engine.mesh import CHAIN, DATA, spread
from dpmcmc.engine.program import Cells, Compiled, Program, compiled, num_bytes
from dpmcmc.engine.result import Result
from dpmcmc.engine.rows_on_disk import Supply
from dpmcmc.engine.self_test import check_steps
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.checkpoint import Checkpoint, restored
from dpmcmc.storage.row_blocks import on_disk


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
    size = sizing.cells_at_once(program, shapes, records)
    step_bytes = num_bytes(shapes) // len(owners)
    if supplied:
        step_bytes = max(step_bytes, program.slots * num_bytes(records) // program.num_records)
    work = size * sizing.cell_bytes(program, shapes, records)
    width = sizing.chunk_steps(runs[owners[-1]].plan.steps, step_bytes * size, work)
    point = None if kept is None else kept.point()
    if point is not None:
        size, width = point.shape
    room = width // min(run.plan.thin for run in runs) + 1
    beside = sizing.lanes_beside(size, program.mesh)
    functions = compiled(program, width, (size, beside, room, _facts((cells, records))))
    traces = [lanes.Trace(runs[i].plan) for i in owners]
    each = size // beside
    blocks = [_block(cells, k * each, each, program.mesh) for k in range(beside)]
    states = [functions.start(block) for block in blocks]
    given = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), records)
    if not supplied:
        records = functions.prepared(records if program.mesh is None else spread(records, program.mesh, DATA))
    schedules = lanes.schedules(traces[:each], each, 0, width, room)
    supply = Supply(records, functions.draw, program.mesh) if supplied else None
    wanted = records if supply is None else supply.shapes(blocks[0], schedules[0])
    arguments = (states[0], blocks[0], np.int32(0), *schedules, wanted)
    steps_of_chunk, option = _executable(functions, arguments, sizing.compiler_options(work // beside, beside))
    if option not in functions.tested and any(run.secret and run.plan.guarantee is not None for run in runs):
        check_steps(program, functions, steps_of_chunk, blocks[0], schedules[0], room, given)
        functions.tested.add(option)
    compile_seconds = time.perf_counter() - started
    started = time.perf_counter()
    if kept is not None and point is None:
        point = kept.start((size, width), len(owners))
    elif point is not None:
        started -= point.seconds
        lanes.restore(traces, point, functions.chunk, arguments)
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
                states = lanes.split(restored(point.states, states[0]), beside)
                if program.mesh is not None:
                    states = [spread(states[0], program.mesh, CHAIN)]
            firsts = range(begin, rows[-1].plan.steps, width)
            abreast = []
            for k, (block, state) in enumerate(zip(blocks, states, strict=True)):
                lane = lanes.Lane(rows[k * each : (k + 1) * each], block, state, each, width, room)
                lane.supplies = itertools.repeat(records)
                if supply is not None:
                    lane.supplies = supply.chunks(block, firsts, lane.noise)
                abreast.append(lane)
            for first in firsts:
                outputs = list(workers.map(lambda lane: lane.take(steps_of_chunk, first), abreast))  # noqa: B023
                for lane, output in zip(abreast, outputs, strict=True):
                    lanes.hand_out(lane.rows, first, width, *output)
                done += sum(min(width, max(row.plan.steps - first, 0)) / row.plan.chains for row in rows)
                if report is not None:
                    report(round(done))
                failed |= {i for i, row in zip(members, rows, strict=True) if row.failure is not None}
                if failed.issuperset(members):
                    break
                if kept is not None and point is not None and not failed:
                    after, steps = first + width, rows[-1].plan.steps
                    if after >= steps or kept.due(point, after):
                        joined = jax.tree.map(
                            lambda *leaves: jnp.concatenate(leaves), *(lane.states for lane in abreast)
                        )
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
