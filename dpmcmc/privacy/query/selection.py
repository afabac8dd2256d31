"""Draws the records of a step, in fixed shapes inside jit, at a cost that does not grow with N.

:func:`selector` gives ``key -> (indices, mask)`` for a sampling scheme (``shard_selection.py`` for one shard of the
records). The schemes, and the proof of the rate that each is charged, are in ``accounting/sampling.py``; this file
draws from the integer tables that the proof is about.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy.accounting.sampling import WORD, FixedSize, Full, GapTables, Poisson, Sampling, gap_tables
from dpmcmc.privacy.query.fixed_size_selection import draw_complement, draw_distinct

Selection = tuple[jax.Array, jax.Array]
#: A table is looked up by a word's leading bits, and then by bisection among the thresholds that share them.
_GUIDE_BITS = 13


@functools.singledispatch
def selector(sampling: Sampling, num_records: int, slots: int) -> Callable[[jax.Array], Selection] | None:
    """Function key -> (indices (slots,), mask (slots,)); None where every record takes part.

    Args:
        sampling: scheme.
        num_records: N.
        slots: rows that a batch has room for, from ``sampling.capacity``.
    """
    raise TypeError(f"sampling must be Poisson, FixedSize or Full, got {sampling!r}")


@selector.register
def _(sampling: Full, num_records: int, slots: int) -> None:
    return None


@selector.register
def _(sampling: Poisson, num_records: int, slots: int) -> Callable[[jax.Array], Selection] | None:
    rate = sampling.rate(num_records)
    if rate == 1:
        return None
    tables = gap_tables(rate, num_records)
    return functools.partial(draw_poisson, tables=tables, num_records=num_records, slots=slots)


@selector.register
def _(sampling: FixedSize, num_records: int, slots: int) -> Callable[[jax.Array], Selection] | None:
    size = int(sampling.batch_size)
    if size == num_records:
        return None
    if 2 * size > num_records:
        return functools.partial(draw_complement, num_records=num_records, size=size)
    return lambda key: (draw_distinct(key, num_records, size), jnp.ones(size, bool))


def _rank(thresholds: np.ndarray, words: jax.Array) -> jax.Array:
    """How many thresholds are <= each word."""
    below, most, shift = _guide(thresholds.tobytes())
    rank = jnp.asarray(below)[words >> shift]
    for step in (1 << k for k in reversed(range(most.bit_length()))):
        further = rank + step
        last = jnp.asarray(thresholds).at[further - 1].get(mode="clip")
        rank = jnp.where((further <= len(thresholds)) & (last <= words), further, rank)
    return rank


@functools.lru_cache(maxsize=128)
def _guide(thresholds: bytes) -> tuple[np.ndarray, int, np.uint32]:
    """(thresholds <= the least word of each bucket, most thresholds within a bucket, shift from word to bucket)."""
    values = np.frombuffer(thresholds, np.uint32)
    bits = min(len(values).bit_length() + 5, _GUIDE_BITS)
    shift = np.uint32(32 - bits)
    starts = np.arange(1 << bits, dtype=np.uint32) << shift
    below = np.searchsorted(values, starts, side="right").astype(np.int32)
    through = np.append(below[1:], np.int32(np.searchsorted(values, WORD - 1, side="right")))
    # A threshold on the least word of the next bucket counts there; looked at here too, it is above every word.
    return below, int(np.max(through - below, initial=0)), shift


def draw_poisson(key: jax.Array, *, tables: GapTables, num_records: int, slots: int) -> Selection:
    """A Poisson batch by its gaps: the cumulative sum of independent gaps is an independent choice of each record."""
    words = jax.random.bits(key, (2, slots), jnp.uint32)
    coarse = _rank(tables.coarse, words[0])
    fine = _rank(tables.fine, words[1])
    restart = coarse >= len(tables.coarse)
    # A selection advances past itself; a restart advances by L exactly and selects nobody.
    # Anything beyond the data is as good as the end of it, and stays within int32.
    blocks = jnp.minimum(coarse, num_records // tables.block + 1)
    advance = jnp.where(restart, min(tables.reach, num_records + 1), blocks * tables.block + fine + 1)
    advance = jnp.minimum(advance, num_records + 1)
    if slots * (num_records + 1) < 1 << 31:
        end = jnp.cumsum(advance)
    else:
        # int32 would wrap; a sum that saturates beyond the data is associative.
        end = jax.lax.associative_scan(lambda a, b: jnp.minimum(a + b, num_records + 1), advance)
    position = end - 1
    mask = ~restart & (position < num_records)
    return jnp.where(mask, position, 0), mask
