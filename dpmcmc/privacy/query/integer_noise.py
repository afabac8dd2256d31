"""Gaussian noise in integers alone, drawn from the tables whose proof is in ``accounting/discrete_gaussian.py``."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy.accounting.discrete_gaussian import BASE, HALF, INDEX_BITS, RATIO, SLACK, table
from dpmcmc.privacy.query.randomness import unraveled
from dpmcmc.storage.pytree import PyTree, size_of


def coefficients(std: jax.Array, levels: int) -> jax.Array:
    """c_2, …, c_L for a noise of at least this std.

    Args:
        std: any shape, float32, in grid units, at most ``reach(levels)``.
        levels: L.

    Returns:
        (levels − 1, *shape) int32.
    """
    share = np.float32(math.sqrt(1 - RATIO**-2))
    asked = std * np.float32((1 + SLACK) / BASE)
    # From the largest down, each as large as leaves the ones before it wide enough to smooth it.
    top = jnp.floor(asked * share)
    # a² − c² without cancellation; a − c is exact.
    rest = (asked - top) * (asked + top)
    found = [top]
    for _ in range(levels - 3):
        here = jnp.floor(jnp.sqrt(rest) * share)
        rest = jnp.maximum(rest - here * here, 0)
        found.append(here)
    last = jnp.floor(jnp.sqrt(rest))
    found.append(jnp.where(last * last < rest, last + 1, last))
    return jnp.stack(found[::-1]).astype(jnp.int32)


def draw(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent draws of the table, int32."""
    found = jnp.asarray(table().words)
    words = jax.random.bits(key, (3, *shape), jnp.uint32)
    column = words[0] & np.uint32((1 << INDEX_BITS) - 1)
    first, middle, last = (row[column] for row in found)
    top = words[0] >> np.uint32(INDEX_BITS)
    kept = first >> np.uint32(INDEX_BITS)
    # Below the threshold of 83 bits? All three words are compared, whichever decides.
    below = (top < kept) | ((top == kept) & ((words[1] < middle) | ((words[1] == middle) & (words[2] < last))))
    alias = first & np.uint32((1 << INDEX_BITS) - 1)
    return jnp.where(below, column, alias).astype(jnp.int32) - HALF


def noise(key: jax.Array, size: int, std: jax.Array, levels: int) -> tuple[jax.Array, jax.Array]:
    """Integer noise of at least this std, as ``high·2^16 + low``.

    Args:
        key: used for nothing else.
        size: number of coordinates.
        std: (), or (size,), float32, in grid units.
        levels: of :func:`levels_for`.

    Returns:
        (high, low), (size,) int32 each; |low| < 2^28.
    """
    each = draw(key, (levels, size))
    factors = coefficients(std, levels)
    factors = jnp.broadcast_to(factors.reshape(levels - 1, -1), (levels - 1, size))
    # A product may have 37 bits: the factor's upper bits, then its lower twelve.
    upper, lower = each[1:] * (factors >> 12), each[1:] * (factors & 0xFFF)
    high = jnp.sum(upper >> 4, axis=0)
    low = jnp.sum(((upper & 0xF) << 12) + lower, axis=0) + each[0]
    return high, low


def tree_noise(
    key: jax.Array, like: PyTree, std: jax.Array, scale: float | np.ndarray, levels: int
) -> tuple[PyTree, PyTree]:
    """Integer noise shaped like a pytree, from one draw, so that no two leaves share a key.

    Args:
        key: used for nothing else.
        like: pytree of arrays.
        std: (), float32, in grid units.
        scale: factor on ``std``: a number, or a NumPy array like the only leaf.
        levels: of :func:`levels_for`.

    Returns:
        (high, low), pytrees of int32, value ``high·2^16 + low``.
    """
    if np.ndim(scale):
        values, which = np.unique(np.ravel(scale), return_inverse=True)
        stds = (std * jnp.asarray(values))[which]
    else:
        stds = std * np.float32(scale)
    high, low = noise(key, size_of(like), stds, levels)
    return unraveled(like, high), unraveled(like, low)
