"""Sizes that suit the device that a program is compiled for.

A CPU is fastest within its cache, an accelerator when it is full. A CPU leaves out work on a condition for nothing; an
accelerator waits for the host to read the condition, longer than a step takes.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

#: Most steps whose random numbers are drawn together.
DRAWN_STEPS = 32
#: Most bytes that a block's cells may work on at a time on any device.
MOST_WORK = 512 << 20


class Hardware(NamedTuple):
    """Sizes for one kind of device.

    Attributes:
        work: bytes within which one core is faster than several.
        lane: bytes that the cells of a lane should work on at a time.
        cells: so many cells make a lane even where they work on more, unless each reads rows of its own alone.
        drawn: most bytes of random numbers that are drawn together.
        chunk: most bytes of positions that a device call leaves behind.
        branches: whether a group of steps may depend on a condition: left out, or taken in fewer slots.
        overlaps: whether a chunk is computed while the host takes the draws of the one before.
    """

    work: int
    lane: int
    cells: int
    drawn: int
    chunk: int
    branches: bool
    overlaps: bool


#: By the name that JAX gives to a device's platform. On a CPU four cells beyond the cache are up to twice as fast
#: together as one by one.
KINDS = {
    "cpu": Hardware(
        work=1 << 20,
        lane=5 << 16,
        cells=4,
        drawn=1 << 20,
        chunk=32 << 20,
        branches=True,
        overlaps=False,
    )
}
#: Any other device. With 1,024 chains of logistic regression these sizes need less than 256 MB beside the records
#: (docs/performance.md).
ACCELERATOR = Hardware(
    work=MOST_WORK,
    lane=MOST_WORK,
    cells=1,
    drawn=96 << 20,
    chunk=56 << 20,
    branches=False,
    overlaps=True,
)


def hardware(platform: str) -> Hardware:
    """Return the sizes for a platform."""
    return KINDS.get(platform, ACCELERATOR)


def platform_of(mesh: Mesh | None) -> str:
    """Return the platform that programs are compiled for: of a mesh, or without one of JAX's default device."""
    devices = jax.device_put(np.float32(0)).devices() if mesh is None else set(mesh.devices.flat)
    return next(iter(devices)).platform
