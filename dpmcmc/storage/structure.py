"""A sampler or a target in two parts: its numbers, which a compiled program takes as arguments, and its structure.

Numbers are the leaves of a pytree (``jax.tree_util.register_dataclass``). Fields with the metadata ``static`` and all
that is no number stay in the structure, which a program is compiled for. An object of a type that JAX does not know
is one leaf, and stays as it is. So does 0, for code may take another branch there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpmcmc.storage.completed import Completed
from dpmcmc.storage.pytree import PyTree

#: Numbers beyond these stay in the structure: float32 would lose their squares.
_SMALLEST, _LARGEST = 1e-12, 1e12


#: A number, or an array of them, as a program gets it, or what stands for it in a trace.
Number = np.ndarray | np.float32 | jax.Array


@dataclass(frozen=True)
class Structure:
    """An object without its numbers; equal where only those differ.

    Attributes:
        tree: of the object's leaves.
        leaves: those that stay; None in the place of a number.
    """

    tree: jax.tree_util.PyTreeDef
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, item: PyTree, open_numbers: bool = True) -> Structure:
        """Return the structure of an object.

        Args:
            item: a sampler or a target.
            open_numbers: False keeps the numbers in the structure.
        """
        leaves, tree = jax.tree.flatten(item)
        if open_numbers and any(map(_is_number, leaves)):
            return cls(tree, tuple(None if _is_number(leaf) else leaf for leaf in leaves))
        return cls(jax.tree.structure(0), (item,))

    def numbers(self, item: PyTree) -> tuple[Number, ...]:
        """Return the numbers of an object of this structure, float32."""
        if self.whole:
            return ()
        leaves = zip(self.leaves, jax.tree.leaves(item), strict=True)
        return tuple(np.float32(leaf) for stays, leaf in leaves if stays is None)

    def fill(self, numbers: Sequence[Any]) -> Any:
        """Return the object with these numbers, which may be traced."""
        left = iter(numbers)
        return jax.tree.unflatten(self.tree, [next(left) if leaf is None else leaf for leaf in self.leaves])

    def without(self) -> Any:
        """Return the object for what needs none of its numbers."""
        return self.fill([jax.ShapeDtypeStruct((), np.float32) for leaf in self.leaves if leaf is None])

    @property
    def whole(self) -> bool:
        """Whether the object stays as it is."""
        return None not in self.leaves

    @property
    def steady(self) -> bool:
        """Whether equal structures stay the same, so that a program compiled for one serves the other."""
        parts = self.leaves if self.whole else [leaf for leaf in self.leaves if hasattr(leaf, "init")]
        return hashable(self) and all(immutable(part) for part in parts)


def immutable(item: object) -> bool:
    """Whether equal targets or samplers stay the same, so that a program compiled for one serves the other."""
    if isinstance(item, Completed):
        return immutable(item.own)
    parameters = getattr(type(item), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and hashable(item)


def hashable(item: object) -> bool:
    """Whether an object has a hash."""
    try:
        hash(item)
    except TypeError:
        return False
    return True


def _is_number(leaf: object) -> bool:
    """Whether a leaf is an argument of the program."""
    if isinstance(leaf, np.ndarray):
        return leaf.dtype == np.float32
    if isinstance(leaf, (bool, np.bool_)) or not isinstance(leaf, (int, float, np.integer, np.floating)):
        return False
    return _SMALLEST <= abs(float(leaf)) <= _LARGEST
