"""Draws the records of a step that lie in one shard of a data mesh axis."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpmcmc.privacy.accounting.sampling import FixedSize, Full, Poisson, Sampling, gap_tables, shard_rows
from dpmcmc.privacy.query.per_record_gradients import Batch
from dpmcmc.privacy.query.selection import draw_poisson, selector

#: (key, shard) -> (indices, mask); the indices are None where every row of the shard takes part that the mask leaves.
ShardSelector = Callable[[jax.Array, jax.Array], Batch]


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
        indices, mask = draw_poisson(own, tables=tables, num_records=rows, slots=slots)
        return indices, mask & (indices < num_records - shard * rows)

    return select


def _fixed_size_shard(
    sampling: FixedSize | Full, num_records: int, rows: int, shards: int, slots: int
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
