"""Draws the records of a step, in fixed shapes inside jit, at a cost that does not grow with N.

:func:`selector` gives ``key -> (indices, mask)`` for a sampling scheme; :func:`shard_selector` does so for one of the
shards of a data mesh axis. The schemes, and the proof of the rate that each is charged, are in
``accounting/sampling.py``; this file draws from the integer tables that the proof is about.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy.accounting.sampling import (
    WORD,
    FixedSize,
    Full,
    GapTables,
    Poisson,
    Sampling,
    gap_tables,
    shard_rows,
)

Selection = tuple[jax.Array, jax.Array]
#: For one shard of the records; the indices are None where every row of the shard takes part that the mask leaves.
ShardSelector = Callable[[jax.Array, jax.Array], tuple[jax.Array | None, jax.Array]]
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
    return functools.partial(_draw_poisson, tables=tables, num_records=num_records, slots=slots)


@selector.register
def _(sampling: FixedSize, num_records: int, slots: int) -> Callable[[jax.Array], Selection] | None:
    size = int(sampling.batch_size)
    if size == num_records:
        return None
    if 2 * size > num_records:
        return functools.partial(_draw_complement, num_records=num_records, size=size)
    return lambda key: (_draw_distinct(key, num_records, size), jnp.ones(size, bool))


def shard_selector(sampling: Sampling, num_records: int, shards: int, slots: int) -> ShardSelector:
    """Function (key, shard) -> (indices within the shard, mask of the rows that take part).

    Under Poisson sampling each shard draws by a key of its own at the same rate; its charged rate is no larger than
    that of all records, because fewer restarts fit in. Under fixed size every shard draws the one batch and takes the
    rows that are its own.

    Args:
        sampling: scheme.
        num_records: N.
        shards: devices along the records.
        slots: rows that a batch of one shard has room for, from ``sampling.shard_slots``.
    """
    rows = shard_rows(num_records, shards)
    if sampling.rate(num_records) == 1:
        return lambda key, shard: (None, jnp.arange(rows, dtype=jnp.int32) < num_records - shard * rows)
    if isinstance(sampling, Poisson):
        return _poisson_shard(sampling, num_records, rows, slots)
    return _fixed_size_shard(sampling, num_records, rows, shards, slots)


def _poisson_shard(sampling: Poisson, num_records: int, rows: int, slots: int) -> ShardSelector:
    tables = gap_tables(sampling.rate(num_records), rows)

    def select(key: jax.Array, shard: jax.Array) -> tuple[jax.Array, jax.Array]:
        own = jax.random.fold_in(key, shard)
        indices, mask = _draw_poisson(own, tables=tables, num_records=rows, slots=slots)
        return indices, mask & (indices < num_records - shard * rows)

    return select


def _fixed_size_shard(
    sampling: FixedSize | Full, num_records: int, rows: int, shards: int, slots: int
) -> ShardSelector:
    select = selector(sampling, num_records, slots)
    assert select is not None

    def chosen(key: jax.Array, shard: jax.Array) -> tuple[jax.Array | None, jax.Array]:
        indices, mask = select(key)
        if slots == num_records:  # a complement, whose indices are all there are
            every = jnp.pad(mask, (0, shards * rows - num_records))
            return None, jax.lax.dynamic_slice(every, (shard * rows,), (rows,))
        within = indices - shard * rows
        mask = mask & (within >= 0) & (within < rows)
        return jnp.where(mask, within, 0), mask

    return chosen


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


def _draw_poisson(key: jax.Array, *, tables: GapTables, num_records: int, slots: int) -> Selection:
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


def _draw_distinct(key: jax.Array, num_records: int, size: int) -> jax.Array:
    """A uniform subset of ``size`` of ``num_records``, in the order drawn, for size <= num_records / 2."""
    bits = max(1, (num_records - 1).bit_length())
    accept = num_records / (1 << bits)
    # Expected words until ``size`` distinct values are seen (coupon collector), and six deviations more.
    expected = num_records * -math.log1p(-size / num_records) / accept
    words = int(expected + 6 * math.sqrt(expected / accept) + 16)

    def attempt(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = (jax.random.bits(key, (words,), jnp.uint32) >> (32 - bits)).astype(jnp.int32)
        order = jnp.argsort(values, stable=True)
        ordered = values[order]
        first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]]) & (ordered < num_records)
        fresh = jnp.zeros(words, bool).at[order].set(first)
        chosen = jnp.nonzero(fresh, size=size, fill_value=0)[0]
        return values[chosen], jnp.sum(fresh) >= size

    def again(carry: tuple) -> tuple:
        key, _, _ = carry
        key, this = jax.random.split(key)
        return (key, *attempt(this))

    start = (key, jnp.zeros(size, jnp.int32), jnp.zeros((), bool))
    return jax.lax.while_loop(lambda carry: ~carry[2], again, start)[1]


def _draw_complement(key: jax.Array, *, num_records: int, size: int) -> Selection:
    left_out = _draw_distinct(key, num_records, num_records - size)
    mask = jnp.ones(num_records, bool).at[left_out].set(False)
    return jnp.arange(num_records, dtype=jnp.int32), mask
