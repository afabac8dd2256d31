"""Sums over records in float64, in blocks of rows, so that no more than a block is held at once."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.storage.pytree import PyTree, length_of
from dpmcmc.targets.base import Target


def in_float64(records: PyTree) -> PyTree:
    """Return records on the device, floats in float64; call it where ``float64()`` holds."""

    def leaf_in_float64(leaf: np.ndarray) -> jax.Array:
        leaf = np.asarray(leaf)
        return jnp.asarray(leaf, jnp.float64 if np.issubdtype(leaf.dtype, np.floating) else None)

    return jax.tree.map(leaf_in_float64, records)


def summed_in_blocks(of_block: Callable[[PyTree], jax.Array], records: PyTree, like: jax.Array, rows: int) -> jax.Array:
    """Return the sum of ``of_block`` over blocks of ``rows`` records and what is left beside them.

    Args:
        of_block: sum over some records; shaped as ``like``.
        records: pytree, leaves (N, ...).
        like: for shape and dtype.
        rows: of a block.
    """
    count = length_of(records)
    whole = count // rows * rows
    total = of_block(jax.tree.map(lambda leaf: leaf[whole:], records)) if whole < count else jnp.zeros_like(like)
    if whole:
        blocks = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, rows, *leaf.shape[1:]), records)
        total = jax.lax.scan(lambda sum_so_far, block: (sum_so_far + of_block(block), None), total, blocks)[0]
    return total


def loss_gradient(target: Target, unravel: Callable[[jax.Array], PyTree], flat: jax.Array, block: PyTree) -> jax.Array:
    """Return Σ −∇ log p(record | θ) over a block of records, at the flat parameters, (d,)."""

    def loss(p: jax.Array) -> jax.Array:
        return -jnp.sum(jax.vmap(lambda record: target.log_likelihood(unravel(p), record))(block))

    return jax.grad(loss)(flat)
