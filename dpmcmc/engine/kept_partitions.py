"""Encoded partitions that a worker keeps between passes, prepared as far as the last pass needed them.

Preparations round to few bits, so most of their float64 arrays fit into float32, number by number, and some hold one
number alone: they are kept so, and become what they were when they are used. ``partitions.py`` asks for sums of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.engine.shares import Share
from dpmcmc.privacy.query.record_sums import blocks_of
from dpmcmc.storage.pytree import PyTree

#: Environment variable, and its default: MiB of encoded records that a process keeps between passes.
KEEP_MB = "DPMCMC_KEEP_MB"
_KEEP = 480


class Packed(NamedTuple):
    """An array in the narrowest type that holds its numbers.

    Attributes:
        numbers: of its shape, or of none where all are one number.
        shape, dtype: of the array.
    """

    numbers: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, array: np.ndarray) -> Packed:
        """Pack an array; no number of it changes."""
        numbers = array
        if array.size and _alike(array):
            numbers = np.array(array.flat[0])
        elif array.dtype == np.float64:
            narrow = array.astype(np.float32)
            numbers = narrow if np.array_equal(narrow, array) else array.copy()
        return cls(numbers, array.shape, array.dtype)

    @property
    def array(self) -> np.ndarray:
        """The array, made anew."""
        return np.broadcast_to(self.numbers, self.shape).astype(self.dtype)


def _alike(array: np.ndarray) -> bool:
    """Return whether all numbers are one, to the sign of a zero, which digests of records tell."""
    first = array.flat[0]
    if not np.all(array == first):
        return False
    return bool(first != 0 or np.all(np.signbit(array) == np.signbit(first)))


def packed(records: PyTree) -> PyTree:
    """Return records whose arrays are packed."""
    return jax.tree.map(Packed.of, records)


def unpacked(records: PyTree) -> PyTree:
    """Return records as they were."""
    return jax.tree.map(lambda one: one.array, records, is_leaf=lambda node: isinstance(node, Packed))


def _size(block: PyTree) -> int:
    """Bytes of packed records."""
    leaves = jax.tree.leaves(block, is_leaf=lambda node: isinstance(node, Packed))
    return sum(one.numbers.nbytes for one in leaves)


class _Held(NamedTuple):
    """Records of one partition: their digest, preparations that made these of them, packed blocks, and their bytes."""

    digest: str
    steps: tuple[str, ...]
    blocks: list[PyTree]
    bytes: int


class _Kept:
    """Partitions that this process keeps.

    Those that come first stay, since a pass that begins anew would find none of the last ones. Those of another run
    give way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[str, int], _Held] = {}
        self._bytes = 0

    @property
    def _most(self) -> int:
        given = os.environ.get(KEEP_MB, "")
        return (int(given) if given.isdigit() else _KEEP) << 20

    def of(self, share: Share) -> _Held | None:
        """Return what is kept of a partition as it was checked, if no preparation made it that the share has not."""
        found = self._held.get((share.run, share.number))
        tokens = tuple(token for token, _ in share.steps)
        if found is None or found.digest != share.digest:
            return None
        if found.steps != tokens[: len(found.steps)]:
            return None
        return found

    def room(self, share: Share) -> int:
        """Return the bytes that may be kept of a partition: all beside those of the run's others."""
        with self._lock:
            others = sum(
                held.bytes for key, held in self._held.items() if key[0] == share.run and key[1] != share.number
            )
        return self._most - others

    def keep(self, share: Share, digest: str, blocks: list[PyTree], size: int) -> None:
        """Keep a partition in the place of what was kept of it, where there is room."""
        key = (share.run, share.number)
        with self._lock:
            self._drop(key)
            others = [other for other in self._held if other[0] != share.run]
            while others and self._bytes + size > self._most:
                self._drop(others.pop(0))
            if self._bytes + size <= self._most:
                tokens = tuple(token for token, _ in share.steps)
                self._held[key] = _Held(digest, tokens, blocks, size)
                self._bytes += size

    def forget(self, run: str) -> None:
        """Keep nothing of a run."""
        with self._lock:
            for key in [key for key in self._held if key[0] == run]:
                self._drop(key)

    def _drop(self, key: tuple[str, int]) -> None:
        held = self._held.pop(key, None)
        self._bytes -= 0 if held is None else held.bytes


#: Partitions that this process keeps.
KEPT = _Kept()


class Keeping:
    """Blocks of a partition that are gathered to be kept, as long as there is room for them."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._room = KEPT.room(share)
        self._blocks: list[PyTree] | None = []
        self._bytes = 0

    def add(self, block: PyTree) -> None:
        """Gather a block."""
        if self._blocks is None:
            return
        self._blocks.append(packed(block))
        self._bytes += _size(self._blocks[-1])
        if self._bytes > self._room:
            self._blocks = None

    def end(self, digest: str) -> None:
        """Keep the partition, whose encoded records have this digest."""
        if self._blocks is not None:
            KEPT.keep(self._share, digest, self._blocks, self._bytes)


def prepared_batches(share: Share) -> Iterator[PyTree]:
    """Yield the prepared records of a share, from what this process keeps of it or read anew and kept.

    Raises:
        DataError: as of :meth:`Share.read`.
    """
    kept = KEPT.of(share)
    batches: Iterator[PyTree]
    if kept is None:
        left = share.steps
        batches = (records for _, records in share.read())
    else:
        left = share.steps[len(kept.steps) :]
        batches = map(unpacked, kept.blocks)
    keeping = Keeping(share) if left or kept is None else None
    for records in batches:
        for block in blocks_of(records):
            for _, prepare in left:
                block = prepare(block)
            if keeping is not None:
                keeping.add(block)
            yield block
    if keeping is not None:
        keeping.end(share.digest)
