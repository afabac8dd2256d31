"""Pytrees: arrays, and containers of arrays nested in any way, as JAX's tree functions take them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import jax
import numpy as np

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
    return not isinstance(number, jax.core.Tracer | jax.ShapeDtypeStruct) and bool(number == 0)


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


# ----------------------------------------------------------------------------------------------------
# States and JAX keys as plain arrays, and back.


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


# ----------------------------------------------------------------------------------------------------
# A sampler or a target in two parts: its numbers, which a compiled program takes as arguments, and its structure.
#
# Numbers are the leaves of a pytree (``jax.tree_util.register_dataclass``). Fields with the metadata ``static`` and all
# that is no number stay in the structure, which a program is compiled for. An object of a type that JAX does not know
# is one leaf, and stays as it is. So does 0, for code may take another branch there.

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


# ----------------------------------------------------------------------------------------------------
# A target or a sampler of your own, with a default in the place of everything that it does not offer.
#
# All that a target may offer stands in ``TargetOffers`` (``targets/base.py``), and all that a sampler may offer in
# ``SamplerOffers`` (``samplers/base.py``). Those of this library inherit the defaults. Yours may inherit nothing: it is
# completed, and nobody else asks an object whether it has an attribute.

#: A class of optional attributes, each with its default.
Offers = TypeVar("Offers")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Completed:
    """An object of a class of your own, completed with the defaults of another class.

    Attributes:
        own: the object; its numbers are leaves where JAX knows its class.
        kind: class whose attributes are the defaults.
    """

    own: Any
    kind: type = dataclasses.field(metadata=STATIC)

    def __getattr__(self, name: str) -> Any:
        if name in ("own", "kind"):  # not set yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.own if hasattr(self.own, name) else self.kind(), name)

    def __repr__(self) -> str:
        return repr(self.own)


def completed(item: object, kind: type[Offers]) -> Offers:
    """Return an object with all that a class offers: itself where it inherits that, or it with defaults."""
    return item if isinstance(item, kind) else cast(Offers, Completed(item, kind))
