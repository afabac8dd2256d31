"""Sizes of what the engine computes at a time: chains side by side, steps of a device call, threads of an operation.

A CPU is fastest within its cache, an accelerator when it is full.
"""

from __future__ import annotations

import math

from dpmcmc.engine.program import Program, rung
from dpmcmc.privacy.query.per_record_gradients import GRADIENT_BYTES, LINEAR_ROWS, MICROBATCH
from dpmcmc.storage.fingerprint import usable_cores
from dpmcmc.storage.pytree import PyTree, num_bytes

#: Most steps in one device call; a quarter where it would read more than ``_CHUNK_READ`` bytes, for progress is
#: reported between calls.
_CHUNK_STEPS = 1024
_CHUNK_READ = 1 << 30
#: Most bytes that the steps of a call leave behind. With 1,024 chains of logistic regression on an accelerator a call
#: needs less than 256 MB beside the records (docs/performance.md).
_CHUNK_KEPT = 56 << 20
#: Most steps, and most bytes of random numbers, that are drawn together.
DRAWN_STEPS = 32
_DRAWN_BYTES = {"cpu": 1 << 20}
_DRAWN_BYTES_OF_ACCELERATOR = 96 << 20
#: Bytes within which one core is faster than several.
_WORK_OF_ONE_CORE = 1 << 20
#: Compiler options of a CPU's program. XLA keeps to vectors of half this length by default, where the core has them.
VECTORS: dict[str, str | bool] = {"xla_cpu_prefer_vector_width": "512"}
#: Options of a program that does not share an operation out to threads.
ONE_THREAD = VECTORS | {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}


def chain_bytes(program: Program, position: PyTree, records: PyTree) -> int:
    """Bytes that one chain works on at a time: rows, or gradients of their own.

    Args:
        program: of the chain.
        position, records: arrays or shapes.
    """
    rows = min(program.slots, LINEAR_ROWS) * num_bytes(records) // program.num_records
    one = num_bytes(position)
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
    return VECTORS if idle and lane_work > _WORK_OF_ONE_CORE else ONE_THREAD


def draws_ahead(lane_work: int, lanes: int, platform: str, sums_rows: bool = True) -> bool:
    """Whether so many lanes leave a core idle, on which the randomness of their next steps can be drawn."""
    return lanes < cores(platform) and compiler_options(lane_work, lanes, platform, sums_rows) == ONE_THREAD


def cores(platform: str) -> int:
    """Cores that one CPU device computes on; an accelerator is one."""
    return usable_cores() if platform == "cpu" else 1


def chunk_steps(steps: int, step_bytes: int, work: int) -> int:
    """Steps per device call: as even as possible, in few sizes, so that runs of nearly as many steps share a program.

    A run takes no step beyond its own last one, and is charged for none.

    Args:
        steps: of the run.
        step_bytes: what a step leaves behind until the call ends.
        work: what a step reads, bytes.
    """
    most = _CHUNK_STEPS if work * _CHUNK_STEPS <= _CHUNK_READ else _CHUNK_STEPS // 4
    most = max(1, min(most, _CHUNK_KEPT // max(step_bytes, 1)))
    even = rung(math.ceil(steps / math.ceil(steps / most)))
    return even if even <= most else next(size for size in range(most, 0, -1) if rung(size) == size)


def random_bytes(program: Program, position: PyTree) -> int:
    """Bytes of the random numbers of one step of one chain: places and masks of its batches, and noise."""
    batches = 2 if program.second is not None and program.second.own_batch else 1
    places = program.slots if program.slots < program.num_records else 0
    return batches * 5 * places + 2 * num_bytes(position)


def drawn_steps(width: int, step_bytes: int, platform: str) -> int:
    """Steps of a group: whole groups of a chunk of so many steps, whose randomness suits the device.

    Args:
        width: steps of the chunk.
        step_bytes: random numbers of a step.
        platform: that the program is compiled for.
    """
    most = _DRAWN_BYTES.get(platform, _DRAWN_BYTES_OF_ACCELERATOR) // max(step_bytes, 1)
    return max(size for size in range(1, max(1, min(DRAWN_STEPS, most)) + 1) if width % size == 0)
