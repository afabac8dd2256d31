"""Sizes of what the engine computes at a time: cells of a block, lanes beside each other, steps of a device call."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from dpmcmc.engine.mesh import sizes
from dpmcmc.engine.program import DRAWN_STEPS, Program
from dpmcmc.privacy.query.per_record_gradients import LINEAR_ROWS, MICROBATCH
from dpmcmc.storage.pytree import PyTree, num_bytes

#: Most steps in one device call; fewer where the draws of a chunk would not fit ``_CHUNK_BYTES``, and a quarter where
#: it would read more than ``_CHUNK_READ``, for progress is reported between calls.
_CHUNK_STEPS = 1024
_CHUNK_BYTES = 32 << 20
_CHUNK_READ = 1 << 30
#: Bytes that a block's cells may work on at a time: a CPU is fastest within its cache, an accelerator when it is full.
_CACHE_BYTES = 1 << 20
_DEVICE_BYTES = 512 << 20
#: Even beyond the cache, so many cells share what they have in common: up to twice as fast as one by one.
_CELLS_ON_CPU = 4
#: Compiler options of a CPU's program that does not share an operation out to threads.
ONE_THREAD: dict[str, str | bool] = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}


class Sizes(NamedTuple):
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


def cells_at_once(program: Program, positions: PyTree, records: PyTree) -> int:
    """Cells in a block, all blocks alike; ``positions`` are the shapes of every cell's.

    A block has as many parts as there are cores, or devices along the mesh's chains, each of as many cells as fit.
    """
    count = jax.tree.leaves(positions)[0].shape[0]
    each = cell_bytes(program, positions, records)
    most = max(_DEVICE_BYTES // each, 1)
    if jax.default_backend() == "cpu":
        most = max(_CACHE_BYTES // each, min(_CELLS_ON_CPU, most))
    parts = sizes(program.mesh)[0] if program.mesh is not None else min(cores(), count)
    even = math.ceil(count / math.ceil(count / (most * parts)))
    return math.ceil(even / parts) * parts


def cell_bytes(program: Program, positions: PyTree, records: PyTree) -> int:
    """Bytes that one cell works on at a time: rows, or gradients of their own."""
    rows = min(program.slots, LINEAR_ROWS) * num_bytes(records) // program.num_records
    return max(rows, MICROBATCH * num_bytes(positions) // jax.tree.leaves(positions)[0].shape[0], 1)


def compiler_options(lane_work: int, lanes: int) -> dict[str, str | bool]:
    """Return options of the compiler for so many lanes, each of which works on so many bytes at a time.

    On a CPU the compiler shares an operation out to threads. Work within a core's cache is done before the others
    have woken up, and where there is a lane to each core they have work of their own.
    """
    if jax.default_backend() != "cpu" or (lanes < cores() and lane_work > _CACHE_BYTES):
        return {}
    return ONE_THREAD


def draws_ahead(lane_work: int, lanes: int) -> bool:
    """Whether so many lanes leave a core idle, on which the randomness of their next steps can be drawn."""
    return lanes < cores() and compiler_options(lane_work, lanes) == ONE_THREAD


def lanes_beside(size: int, mesh: Mesh | None) -> int:
    """Parts of a block of so many cells that are computed beside each other: no more than there are cores."""
    return 1 if mesh is not None else max(lanes for lanes in range(1, cores() + 1) if size % lanes == 0)


def cores() -> int:
    """Cores that one CPU device computes on; an accelerator is one."""
    if jax.default_backend() != "cpu":
        return 1
    # Not every system says which cores a process may run on.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chunk_steps(steps: int, step_bytes: int, work: int) -> int:
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
