"""Python integers as words, which JAX carries from process to process.

A total of N records is below 2^62 N, and N below 2^64.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dpmcmc.privacy.query.record_sums import (
    Total,
)

_BITS = 32
WORDS = 4
_MODULUS = 1 << (_BITS * WORDS)


def flat(total: Total) -> Iterable[int]:
    """Yield the numbers of a total, one by one."""
    for part in total:
        yield from map(int, part.ravel())


def words_of(number: int) -> np.ndarray:
    """Return the two's complement of an integer, the lowest word first."""
    return np.frombuffer((number % _MODULUS).to_bytes(_BITS * WORDS // 8, "little"), np.uint32)


def number_of(words: np.ndarray) -> int:
    """Return the integer that words are the two's complement of."""
    number = int.from_bytes(words.astype("<u4").tobytes(), "little")
    return number - _MODULUS if number >= _MODULUS // 2 else number


def shaped_like(numbers: list[int], like: Total) -> Total:
    """Return numbers in the shapes of a total."""
    left = iter(numbers)
    parts = []
    for part in like:
        shaped = np.empty(part.shape, object)
        shaped.ravel()[:] = [next(left) for _ in range(part.size)]
        parts.append(shaped)
    return tuple(parts)
