"""Lanes of a CPU: chains that one core computes, few enough at a time for its cache, beside those of other cores.

XLA takes a scan of small steps on one thread, so chains on one lane leave the other cores idle; and rows of many chains
side by side do not fit a core's cache. 64 chains of logistic regression (N 32,561, d 109, batch 180) on two cores take
so much of 64 times one chain's time:

    a lane for each core, three chains at a time    0.66
    a lane for each core, all of its chains         1.25
    one lane, all chains                            1.85

An accelerator has one lane, and takes all chains side by side; so does each device of a mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.engine import sizes
from dpmcmc.engine.mesh import CHAIN
from dpmcmc.engine.program import Chain, Program
from dpmcmc.storage.pytree import PyTree

#: Bytes that the chains of a lane should work on at a time.
_CACHE = 5 << 16
#: So many chains side by side are up to twice as fast as one by one even where they work on more, unless each reads
#: rows of its own alone.
_FEW = 4
#: Most bytes that chains side by side may work on.
_MOST_WORK = 512 << 20


class Layout(NamedTuple):
    """How the chains of a run are laid out.

    Attributes:
        lanes: number of lanes.
        chains: of a lane; a place beyond the last chain holds a copy of that one, which is not kept.
        together: chains of a lane that take a chunk of steps side by side.
    """

    lanes: int
    chains: int
    together: int

    @property
    def places(self) -> int:
        """Places for chains in all."""
        return self.lanes * self.chains


def layout_of(program: Program, count: int, each: int, places: int | None = None) -> Layout:
    """Return the layout of so many chains.

    Args:
        program: of the chains.
        count: number of chains.
        each: bytes that one works on at a time (``sizes.chain_bytes``).
        places: for chains, of a run that goes on; None: as many as suit.
    """
    if program.platform != "cpu" or program.mesh is not None:
        devices = 1 if program.mesh is None else program.mesh.shape[CHAIN]
        if places is None:
            places = math.ceil(count / devices) * devices
        return Layout(1, places, places // devices)
    # Chains that read rows of their own, in place, have nothing in common but the program.
    alone = program.slots < program.num_records and sizes.model_sums_rows(program)
    most = max(_CACHE // each, min(1 if alone else _FEW, _MOST_WORK // each), 1)
    if program.supplied:  # the rows of a chunk are read for all chains of a lane
        most = count
    if places is None:
        lanes = min(sizes.cores(program.platform), count)
        chains = math.ceil(count / lanes)
        together = math.ceil(chains / math.ceil(chains / most))
        places = lanes * math.ceil(chains / together) * together
    lanes = _largest_part(places, sizes.cores(program.platform))
    return Layout(lanes, places // lanes, _largest_part(places // lanes, most))


def _largest_part(whole: int, most: int) -> int:
    """Return the largest divisor that is no larger than ``most``."""
    return max(part for part in range(1, min(whole, most) + 1) if whole % part == 0)


@dataclass
class Lane:
    """Chains that one core computes.

    Attributes:
        chains: what the device is given about them.
        states: where they are.
        given: (chains, first step, noise of the steps) -> what a chunk is given in the place of records.
    """

    chains: Chain
    states: PyTree
    given: Callable[[Chain, int, np.ndarray], PyTree]


def take_chunk(
    workers: Executor,
    executable: jax.stages.Compiled,
    lanes: list[Lane],
    first: int,
    noise: np.ndarray,
    kept: np.ndarray,
) -> list[tuple]:
    """Take the steps of a chunk on all lanes; return what each keeps of it.

    Args:
        workers: a thread for each lane: a CPU computes a call in the thread that makes it.
        executable: of a chunk.
        lanes: the lanes.
        first: first step.
        noise: of each step.
        kept: offsets of the steps to keep.
    """

    def take(lane: Lane) -> tuple:
        given = lane.given(lane.chains, first, noise)
        lane.states, *output = executable(lane.states, lane.chains, np.int32(first), noise, kept, given)
        return tuple(output)

    if len(lanes) == 1:  # an accelerator computes it while the host goes on
        return [take(lanes[0])]
    return list(workers.map(lambda lane: jax.block_until_ready(take(lane)), lanes))
