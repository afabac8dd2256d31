"""Functions of rows that are batched as functions of more rows."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpmcmc.storage.pytree import PyTree


def in_one_row(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return a function of several rows whose batches under ``vmap`` are one longer row.

    Args:
        function: arrays of n rows -> arrays of n rows, each row by itself.
    """
    called = jax.custom_batching.custom_vmap(function)

    @called.def_vmap
    def _(size: int, batched: list[bool], *rows: jax.Array) -> tuple[PyTree, PyTree]:
        each = [x if own else jnp.broadcast_to(x, (size, *x.shape)) for x, own in zip(rows, batched, strict=True)]
        found = called(*(x.reshape(-1, *x.shape[2:]) for x in each))
        apart = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), found)
        return apart, jax.tree.map(lambda _: True, apart)

    return called
