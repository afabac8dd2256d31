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

from dpmcmc.privacy.accounting.sampling import FixedSize, Full, GapTables, Poisson, Sampling, gap_tables
from dpmcmc.privacy.query.by_platform import by_platform
from dpmcmc.privacy.query.fixed_size_selection import draw_complement, draw_distinct
from dpmcmc.privacy.query.table_lookup import rank
from dpmcmc.privacy.query.words import random_words

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


def draw_poisson(key: jax.Array, *, tables: GapTables, num_records: int, slots: int) -> Selection:
    """A Poisson batch by its gaps: the cumulative sum of independent gaps is an independent choice of each record."""
    words = random_words(key, 2, slots)
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
