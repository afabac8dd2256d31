"""Compiled functions of a program: made once for equal programs and shapes, kept, and shared out to a mesh's devices.

``program.py`` says what the functions compute. ``self_test.py`` tests what the compiler made of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, PartitionSpec

from dpmcmc.engine.hardware import (
    BATCHES,
    CHAIN,
    DATA,
    DRAWN_STEPS,
    MOST_WORK,
    STEPS,
    hardware,
    sizes,
)
from dpmcmc.engine.program import Cells, DeviceCalls, DrawnRandomness, Program, rung
from dpmcmc.privacy.query.exact_sums import traced_for
from dpmcmc.privacy.query.per_record_gradients import (
    GRADIENT_BYTES,
    LINEAR_ROWS,
    MICROBATCH,
)
from dpmcmc.privacy.query.query import StepRandomness
from dpmcmc.storage.compiled_programs import RUN_ONCE
from dpmcmc.storage.fingerprint import usable_cores
from dpmcmc.storage.pytree import PyTree, num_bytes
from dpmcmc.storage.structure import hashable

# ----------------------------------------------------------------------------------------------------
# Sizes of what the engine computes at a time: cells of a block, lanes of a block, steps of a device call.

#: Most steps in one device call; fewer where the draws of a chunk would not fit (``hardware.py``), and a quarter where
#: it would read more than ``_CHUNK_READ``, for progress is reported between calls.
_CHUNK_STEPS = 1024
_CHUNK_READ = 1 << 30
#: Compiler options of a CPU's program. XLA keeps to vectors of half this length by default, where the core has them.
VECTORS: dict[str, str | bool] = {"xla_cpu_prefer_vector_width": "512"}
#: Options of a program that does not share an operation out to threads.
ONE_THREAD = VECTORS | {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}


class Sizes(NamedTuple):
    """How much is computed at a time.

    Attributes:
        block: cells of a block.
        lanes: parts of a block that are computed in parallel, each on a core of its own.
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


def cells_at_once(program: Program, positions: PyTree, records: PyTree) -> int:
    """Cells in a block, all blocks alike; ``positions`` are the shapes of every cell's.

    A block has as many parts as there are cores, or devices along the mesh's chains, each of as many cells as fit.
    """
    count = jax.tree.leaves(positions)[0].shape[0]
    each = cell_bytes(program, positions, records)
    suited = hardware(program.platform)
    # Cells that read rows of their own, in place, have nothing in common but the program.
    alone = program.slots < program.num_records and model_sums_rows(program)
    few = 1 if alone else suited.cells
    most = max(suited.lane // each, min(few, MOST_WORK // each), 1)
    parts = sizes(program.mesh)[0] if program.mesh is not None else min(cores(program.platform), count)
    even = math.ceil(count / math.ceil(count / (most * parts)))
    return math.ceil(even / parts) * parts


def cell_bytes(program: Program, positions: PyTree, records: PyTree) -> int:
    """Bytes that one cell works on at a time: rows, or gradients of their own."""
    rows = min(program.slots, LINEAR_ROWS) * num_bytes(records) // program.num_records
    one = num_bytes(positions) // jax.tree.leaves(positions)[0].shape[0]
    return max(rows, one, min(MICROBATCH * one, GRADIENT_BYTES), 1)


def model_sums_rows(program: Program) -> bool:
    """Whether the model sums its rows itself, as a linear one does; gradients of networks are of each record."""
    return program.target.without().clipped_gradient_sum is not None


def compiler_options(lane_work: int, lanes: int, platform: str, sums_rows: bool = True) -> dict[str, str | bool]:
    """Return options of a platform's compiler for so many lanes, each of which works on so many bytes at a time.

    On a CPU the compiler shares an operation out to threads. Work within a core's cache is done before the others
    have woken up, and where there is a lane to each core they have work of their own. To sums of rows a second core
    brings less than threads cost: with it they take 1.0 to 1.5 times as long, from 2 to 40 MB.
    """
    if platform != "cpu":
        return {}
    idle = cores(platform) > (2 if sums_rows else 1) and lanes < cores(platform)
    return VECTORS if idle and lane_work > hardware(platform).work else ONE_THREAD


def draws_ahead(lane_work: int, lanes: int, platform: str, sums_rows: bool = True) -> bool:
    """Whether so many lanes leave a core idle, on which the randomness of their next steps can be drawn."""
    return lanes < cores(platform) and compiler_options(lane_work, lanes, platform, sums_rows) == ONE_THREAD


def lanes_of(size: int, program: Program) -> int:
    """Lanes of a block of so many cells: no more than there are cores."""
    most = 1 if program.mesh is not None else cores(program.platform)
    return max(lanes for lanes in range(1, most + 1) if size % lanes == 0)


def cores(platform: str) -> int:
    """Cores that one CPU device computes on; an accelerator is one."""
    return usable_cores() if platform == "cpu" else 1


def chunk_steps(steps: int, step_bytes: int, work: int, platform: str) -> int:
    """Steps per device call: as even as possible, in few sizes, so that runs of nearly as many steps share a program.

    A run takes no step beyond its own last one, and is charged for none.

    Args:
        steps: of the run.
        step_bytes: what a step leaves behind until the call ends.
        work: what a step reads, bytes.
        platform: that the program is compiled for.
    """
    most = _CHUNK_STEPS if work * _CHUNK_STEPS <= _CHUNK_READ else _CHUNK_STEPS // 4
    most = max(1, min(most, hardware(platform).chunk // max(step_bytes, 1)))
    calls = math.ceil(steps / most)
    even = rung(math.ceil(steps / calls), 4)
    if even <= most:
        return even
    if most <= DRAWN_STEPS:
        return most
    # Groups of steps that are drawn together divide a call.
    return min(math.ceil(most / size) * size for size in range(DRAWN_STEPS // 2, DRAWN_STEPS + 1))


#: Compiler options, sorted: by them an executable is kept.
Options = tuple[tuple[str, str | bool], ...]
#: A compiled chunk.
Executable = jax.stages.Compiled


class Compiled(NamedTuple):
    """Jitted functions of a program.

    Attributes:
        prepared: records -> records, once a run.
        start: cells -> states.
        draw: (cells, first step, noise (cells, steps)) -> (StepRandomness, keys), leaves (steps, cells, ...).
        chunk: (states, cells, first step, noise (cells, steps), offsets of the steps to keep (cells, room), records) ->
            (states, kept positions and infos (room, cells, ...), finite (cells,), norms of the positions (cells,)). In
            the place of records, where it is drawn ahead: (records, what ``draw`` gave), or of records on disk
            (rows (steps, cells, slots, ...), what ``draw`` gave).
        ahead: whether ``chunk`` is given what ``draw`` gave, on one device.
        executables: of ``chunk``, by compiler options: what was compiled, or came from a cache.
        tested: options of those that passed the self-test (``self_test.py``).
    """

    prepared: Callable[[PyTree], PyTree]
    start: Callable[[Cells], PyTree]
    draw: Callable[..., DrawnRandomness]
    chunk: jax.stages.Wrapped
    ahead: bool
    executables: dict[Options, Executable]
    tested: set[Options]


def compiled(program: Program, width: int, ahead: bool, shapes: Hashable = None) -> Compiled:
    """A program's functions for chunks of so many steps, shared by runs of equal programs.

    Args:
        program: what to compile.
        width: steps.
        ahead: whether a chunk is given its randomness.
        shapes: of what they are called with, hashable: the functions serve these alone, so that of many shapes the
            oldest can be let go.
    """
    cached = _compile_cached if _steady(program) else _compile_cached.__wrapped__
    return cached(program, width, ahead, shapes)


def state_shapes(program: Program, cells: PyTree) -> tuple[PyTree, DrawnRandomness]:
    """Shapes of the positions of cells, and of the randomness of one step of one of them; traced once.

    Args:
        program: of the cells.
        cells: shapes of :class:`Cells`, leaves (cells, ...).
    """
    leaves, structure = jax.tree.flatten(cells)
    traced = _shapes_cached if _steady(program) else _shapes_cached.__wrapped__
    return traced(program, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))


def _steady(program: Program) -> bool:
    """Whether equal programs compute the same: no target nor sampler may change behind its hash, or has none."""
    return hashable(program) and program.target.steady and program.sampler.steady


#: Most programs, each of one set of shapes, that a process keeps: some 17 MiB and 180 memory maps each on a CPU, of the
#: 65530 maps that Linux gives a process. One that is let go is compiled again where it is needed again.
KEPT_PROGRAMS = 32


@functools.lru_cache(maxsize=4 * KEPT_PROGRAMS)
def _shapes_cached(
    program: Program, structure: jax.tree_util.PyTreeDef, leaves: tuple
) -> tuple[PyTree, DrawnRandomness]:
    cells = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    # On a mesh the randomness is that of all its shards together.
    whole = program if program.mesh is None else dataclasses.replace(program, mesh=None)
    return jax.eval_shape(jax.vmap(program.traced.start), cells).position, whole.traced.drawn(cells)


@functools.lru_cache(maxsize=KEPT_PROGRAMS)
def _compile_cached(program: Program, width: int, ahead: bool, shapes: Hashable) -> Compiled:
    calls = DeviceCalls(program, width, ahead)
    draw: Callable[..., DrawnRandomness] = calls.draw
    chunk: Callable[..., tuple] = calls.chunk
    if program.mesh is not None:
        draw, chunk = _shared_out(calls, program.mesh, program.supplied)
    here = traced_for(program.platform)
    ahead = ahead and program.mesh is None
    return Compiled(
        prepared=jax.jit(program.prepared),
        start=jax.jit(jax.vmap(program.traced.start), compiler_options=RUN_ONCE),
        # Drawn on one core, while steps have another.
        draw=jax.jit(
            here(draw),
            compiler_options=ONE_THREAD if ahead and not program.supplied else None,
        ),
        chunk=jax.jit(here(chunk), donate_argnums=(0,)),
        ahead=ahead,
        executables={},
        tested=set(),
    )


def _shared_out(
    calls: DeviceCalls, mesh: Mesh, supplied: bool
) -> tuple[Callable[..., DrawnRandomness], Callable[..., tuple]]:
    """``draw`` and ``chunk`` on the devices of a mesh."""
    chains = PartitionSpec(CHAIN)
    whole = PartitionSpec()
    rows: Any = PartitionSpec(DATA)
    draw: Callable[..., DrawnRandomness] = calls.draw
    if supplied:
        batch: Any = BATCHES
        drawn = StepRandomness((batch, batch), None, STEPS, STEPS), STEPS
        draw = jax.shard_map(
            draw,
            mesh=mesh,
            in_specs=(chains, whole, chains),
            out_specs=drawn,
            check_vma=False,
        )
        rows = batch, (drawn[0]._replace(batch=(None, batch)), STEPS)
    chunk = jax.shard_map(
        calls.chunk,
        mesh=mesh,
        in_specs=(chains, chains, whole, chains, chains, rows),
        out_specs=(chains, STEPS, chains, chains),
        # The sums and the noise are the same on every shard of the data, which types cannot show.
        check_vma=False,
    )
    return draw, chunk
