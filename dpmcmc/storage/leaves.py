"""Pytrees as plain arrays, and back: states of a sampler for a file, and JAX keys for JSON.

Where they are written is for ``checkpoint.py`` to say.
"""

from __future__ import annotations

import jax
import numpy as np

from dpmcmc.storage.pytree import PyTree


def plain(leaf: jax.Array) -> jax.Array:
    """A key of a sampler's state as numbers; anything else as it is."""
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def restored(leaves: list[np.ndarray], like: PyTree) -> PyTree:
    """A pytree of states from what :meth:`Checkpoint.commit` kept of one, ``like`` it in structure and types."""
    wanted, structure = jax.tree.flatten(like)

    def one(leaf: np.ndarray, shape: jax.Array) -> jax.Array:
        if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jax.numpy.asarray(leaf), impl=jax.random.key_impl(shape))
        return jax.numpy.asarray(leaf, shape.dtype)

    return jax.tree.unflatten(structure, [one(a, b) for a, b in zip(leaves, wanted, strict=True)])


def to_text(streams: PyTree) -> list[list[int]]:
    """Return the words of JAX keys, as JSON takes them."""
    return [np.asarray(plain(key)).tolist() for key in jax.tree.leaves(streams)]


def from_text(values: list[list[int]], like: PyTree) -> PyTree:
    """Return JAX keys of these words, ``like`` others in structure and kind."""
    return restored([np.asarray(value, np.uint32) for value in values], like)
