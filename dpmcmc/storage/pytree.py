"""Pytrees: arrays, and containers of arrays nested in any way, as JAX's tree functions take them."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import jax

#: An array, or a tuple, list, dict or dataclass of them. Python's types cannot say which; docstrings name the leaves.
PyTree: TypeAlias = Any


def length_of(tree: PyTree) -> int:
    """Length of the leading axis, which all leaves share: N for records."""
    return len(jax.tree.leaves(tree)[0])


def size_of(tree: PyTree) -> int:
    """How many numbers the leaves hold together; leaves may be ``jax.ShapeDtypeStruct``."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def num_bytes(tree: PyTree) -> int:
    """Bytes of a pytree of arrays or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
