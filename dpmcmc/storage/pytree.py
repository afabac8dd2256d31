"""Pytrees: arrays, and containers of arrays nested in any way, as JAX's tree functions take them; their sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax

#: An array, or a tuple, list, dict or dataclass of them. Python's types cannot say which; docstrings name the leaves.
PyTree: TypeAlias = Any


#: Metadata of a dataclass's field that decides structure, which ``jax.tree_util.register_dataclass`` makes no leaf of.
STATIC = {"static": True}


def rebuilt(module: PyTree) -> bool:
    """Whether JAX made a registered dataclass again, around numbers that are not known while a program is traced.

    They were checked where the dataclass was made first, and its ``__post_init__`` has nothing to look at.
    """
    return any(isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(module))


def is_zero(number: float | jax.Array) -> bool:
    """Whether a number is 0. One that a program takes as an argument is not: 0 takes other branches, and is static."""
    return not rebuilt(number) and bool(number == 0)


def length_of(tree: PyTree) -> int:
    """Length of the leading axis, which all leaves share: N for records."""
    return len(jax.tree.leaves(tree)[0])


def size_of(tree: PyTree) -> int:
    """How many numbers the leaves hold together; leaves may be ``jax.ShapeDtypeStruct``."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def num_bytes(tree: PyTree) -> int:
    """Bytes of a pytree of arrays or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def map_in_groups(function: Callable[[PyTree], PyTree], rows: PyTree, size: int) -> PyTree:
    """Return what a function of ``size`` rows makes of each group of them in turn, as one; sizes divide the rows."""
    groups = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), rows)
    made = jax.lax.map(function, groups)
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * size, *leaf.shape[2:]), made)
