"""Sizes of what the engine computes at a time: chains of a block, lanes of a block, steps of a device call.

``hardware.py`` says what suits a kind of device; this says what follows for one program.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax

from dpmcmc.engine.hardware import DRAWN_STEPS, MOST_WORK, hardware
from dpmcmc.engine.mesh import sizes
from dpmcmc.engine.program import Program, rung
from dpmcmc.privacy.query.per_record_gradients import GRADIENT_BYTES, LINEAR_ROWS, MICROBATCH
from dpmcmc.storage.fingerprint import usable_cores
from dpmcmc.storage.pytree import PyTree, num_bytes

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
