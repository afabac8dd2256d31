"""Sums over records in float64, in blocks of rows, so that no more than a block is held at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.storage.pytree import PyTree, length_of
from dpmcmc.targets.base import Target, bind, record_shapes


def float64() -> AbstractContextManager[Any]:
    """Return the context for ``with float64(): ...``. JAX moved this switch, so both places are tried."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return importlib.import_module("jax.experimental").enable_x64()


#: (parameters, record) -> loss.
Loss = Callable[[PyTree, PyTree], jax.Array]


def in_float64(records: PyTree) -> PyTree:
    """Return records on the device, floats in float64; call it where ``float64()`` holds."""

    def leaf_in_float64(leaf: np.ndarray) -> jax.Array:
        leaf = np.asarray(leaf)
        return jnp.asarray(leaf, jnp.float64 if np.issubdtype(leaf.dtype, np.floating) else None)

    return jax.tree.map(leaf_in_float64, records)


def check_losses(target: Target, records: PyTree) -> None:
    """Refuse a target whose losses, or gradients, fail in float64; only shapes are evaluated.

    Raises:
        InputError: naming the target, and the reason.
    """
    check_loss(
        lambda params, record: -target.log_likelihood(params, record),
        target,
        records,
        differentiated=True,
    )


def check_loss(loss: Loss, target: Target, records: PyTree, *, differentiated: bool = False) -> None:
    """Refuse a loss that fails in float64, or is no single number; only shapes are evaluated.

    Args:
        loss: (params, record) -> number.
        target: whose parameters it takes.
        records: pytree of NumPy arrays, leaves (N, ...).
        differentiated: whether its gradient is needed, too.

    Raises:
        InputError: naming the reason.
    """

    def shape(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        real = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.ShapeDtypeStruct(leaf.shape, jnp.float64 if real else leaf.dtype)

    record = record_shapes(records)
    params = jax.eval_shape(bind(target, record).init, jax.random.key(0))
    with float64():
        params, record = jax.tree.map(shape, (params, record))
        try:
            found = jax.eval_shape(loss, params, record)
            if differentiated:
                jax.eval_shape(jax.grad(loss), params, record)
        except Exception as error:  # a user's code may raise anything
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"loss: that of {type(target).__name__} fails in float64 ({type(error).__name__}: {reason})",
                "loss",
            ) from error
    if not isinstance(found, jax.ShapeDtypeStruct) or found.shape != ():
        raise InputError("loss: must be one number of parameters and a record", "loss")


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
