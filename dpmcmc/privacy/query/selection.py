"""Draws the records of a step, in fixed shapes inside jit, at a cost that does not grow with N.

:func:`selector` gives ``key -> (indices, mask)`` for a sampling scheme, and :func:`shard_selector` for one shard of the
records. The schemes, and the proof of the rate that
each is charged, are in ``accounting/sampling.py``; this file draws from the integer tables that the proof is about.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpmcmc.privacy.accounting.sampling import (
    FixedSize,
    Full,
    GapTables,
    Poisson,
    Sampling,
    gap_tables,
    shard_rows,
)
from dpmcmc.privacy.query.per_record_gradients import Batch
from dpmcmc.privacy.query.platforms import by_platform
from dpmcmc.privacy.query.ranks import rank


def draw_distinct(key: jax.Array, num_records: int, size: int) -> jax.Array:
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


def draw_complement(key: jax.Array, *, num_records: int, size: int) -> tuple[jax.Array, jax.Array]:
    """All records, with a mask that leaves out a uniform subset; for sizes beyond N / 2."""
    left_out = draw_distinct(key, num_records, num_records - size)
    mask = jnp.ones(num_records, bool).at[left_out].set(False)
    return jnp.arange(num_records, dtype=jnp.int32), mask


Selection = tuple[jax.Array, jax.Array]


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
    tables = gap_tables(rate)
    return functools.partial(draw_poisson, tables=tables, num_records=num_records, slots=slots)


@selector.register
def _(sampling: FixedSize, num_records: int, slots: int) -> Callable[[jax.Array], Selection] | None:
    size = int(sampling.batch_size)
    if size == num_records:
        return None
    if 2 * size > num_records:
        return functools.partial(draw_complement, num_records=num_records, size=size)
    return lambda key: (draw_distinct(key, num_records, size), jnp.ones(size, bool))


def draw_poisson(key: jax.Array, *, tables: GapTables, num_records: int, slots: int) -> Selection:
    """A Poisson batch by its gaps: the cumulative sum of independent gaps is an independent choice of each record."""
    words = jax.random.bits(key, (2, slots), jnp.uint32)
    coarse = rank(tables.coarse, words[0])
    fine = rank(tables.fine, words[1])
    restart = coarse >= len(tables.coarse)
    # A selection advances past itself; a restart advances by L exactly and selects nobody.
    # Anything beyond the data is as good as the end of it, and stays within int32.
    blocks = jnp.minimum(coarse, num_records // tables.block + 1)
    advance = jnp.where(restart, min(tables.reach, num_records + 1), blocks * tables.block + fine + 1)
    advance = jnp.minimum(advance, num_records + 1)
    position = _running_sum(advance, num_records + 1) - 1
    mask = ~restart & (position < num_records)
    return jnp.where(mask, position, 0), mask


def _running_sum(values: jax.Array, most: int) -> jax.Array:
    """Cumulative sum that stays at ``most`` once it is there, so that int32 does not wrap; values lie in [0, most]."""

    def in_vectors(values: jax.Array) -> jax.Array:
        done = 1
        while done < values.shape[0]:  # each place has the sum of its last ``done`` values
            values = values.at[done:].set(jnp.minimum(values[done:] + values[:-done], most))
            done *= 2
        return values

    def in_pairs(values: jax.Array) -> jax.Array:
        if values.shape[0] * most < 1 << 31:
            return jnp.minimum(jnp.cumsum(values), most)
        return jax.lax.associative_scan(lambda a, b: jnp.minimum(a + b, most), values)

    return by_platform(values, cpu=in_vectors, default=in_pairs)


#: (key, shard) -> (indices, mask); the indices are None where every row of the shard takes part that the mask leaves.
ShardSelector = Callable[[jax.Array, jax.Array], Batch]


def shard_selector(sampling: Sampling, num_records: int, shards: int, slots: int) -> ShardSelector:
    """Function (key, shard) -> (indices within the shard, mask of the rows that take part).

    Under Poisson sampling each shard draws by a key of its own, from the same tables, which are charged at one rate for
    any number of records. Under fixed size every shard draws the one batch and takes the
    rows that are its own.

    Args:
        sampling: scheme.
        num_records: N.
        shards: devices along the records.
        slots: rows that a batch of one shard has room for, from ``sampling.shard_slots``.
    """
    rows = shard_rows(num_records, shards)
    if sampling.rate(num_records) == 1:
        return lambda key, shard: (
            None,
            jnp.arange(rows, dtype=jnp.int32) < num_records - shard * rows,
        )
    if isinstance(sampling, Poisson):
        return _poisson_shard(sampling, num_records, rows, slots)
    return _fixed_size_shard(sampling, num_records, rows, shards, slots)


def _poisson_shard(sampling: Poisson, num_records: int, rows: int, slots: int) -> ShardSelector:
    tables = gap_tables(sampling.rate(num_records))

    def select(key: jax.Array, shard: jax.Array) -> tuple[jax.Array, jax.Array]:
        own = jax.random.fold_in(key, shard)
        indices, mask = draw_poisson(own, tables=tables, num_records=rows, slots=slots)
        return indices, mask & (indices < num_records - shard * rows)

    return select


def _fixed_size_shard(
    sampling: FixedSize | Full,
    num_records: int,
    rows: int,
    shards: int,
    slots: int,
) -> ShardSelector:
    select = selector(sampling, num_records, slots)
    assert select is not None

    def chosen(key: jax.Array, shard: jax.Array) -> Batch:
        indices, mask = select(key)
        if slots == num_records:  # a complement, whose indices are all there are
            every = jnp.pad(mask, (0, shards * rows - num_records))
            return None, jax.lax.dynamic_slice(every, (shard * rows,), (rows,))
        within = indices - shard * rows
        mask = mask & (within >= 0) & (within < rows)
        return jnp.where(mask, within, 0), mask

    return chosen


def select_by(
    sampling: Sampling, num_records: int, slots: int, shards: int, axis: str
) -> Callable[[jax.Array], Batch] | None:
    """Return the selector of a query: :func:`selector`, or on a mesh that of the shard a device holds.

    Args:
        sampling: scheme.
        num_records: N.
        slots: rows that a batch of all records has room for.
        shards: devices along the records.
        axis: their mesh axis.
    """
    if shards == 1:
        return selector(sampling, num_records, slots)
    slots = sampling.shard_slots(num_records, shards, slots)
    select = shard_selector(sampling, num_records, shards, slots)
    return lambda key: select(key, jax.lax.axis_index(axis))
