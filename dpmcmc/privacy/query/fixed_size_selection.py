"""Draws minibatches of a fixed size: uniform subsets, in fixed shapes, at a cost that does not grow with N."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


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
