"""Records read block by block, so that a memory-mapped file never has to fit in memory.

The rows that a step of a sampler reads are read elsewhere (``engine/rows_on_disk.py``).
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Iterator

import jax
import numpy as np

from dpmcmc.storage.pytree import PyTree

_BLOCK_BYTES = 64 << 20


def on_disk(data: PyTree) -> bool:
    """Whether some of the records are memory-mapped."""
    return any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(data))


def blocks(records: PyTree) -> Iterator[tuple[int, PyTree]]:
    """Yield (first row, rows) of a pytree of arrays, block by block; pages of a map are released after each."""
    leaves = jax.tree.leaves(records)
    if not on_disk(leaves):
        yield 0, jax.tree.map(np.asarray, records)
        return
    row = max(sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])) for leaf in leaves), 1)
    rows = max(_BLOCK_BYTES // row, 1)
    jax.tree.map(lambda leaf: advise(leaf, "MADV_NORMAL"), records)
    for start in range(0, max(len(leaves[0]), 1), rows):
        part = slice(start, start + rows)
        block = jax.tree.map(functools.partial(_part, part=part), records)
        yield start, block
        jax.tree.map(give_back, records)


def _part(leaf: np.ndarray, part: slice) -> np.ndarray:
    return np.asarray(leaf[part])


def give_back(array: np.ndarray) -> None:
    """Tell the system that the pages read through a map are not needed any more."""
    advise(array, "MADV_DONTNEED")


def advise(array: np.ndarray, advice: str) -> None:
    """Tell the system how a map is read, if it takes such advice; an array in memory is left alone."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    number = getattr(mmap, advice, None)
    if isinstance(base, mmap.mmap) and number is not None:
        base.madvise(number)
