"""Network protocol: what a Flax target needs of a module, Linen or NNX."""

from __future__ import annotations

from typing import Protocol

import jax

from dpmcmc.storage.pytree import PyTree


class Network(Protocol):
    """A network without state of its own."""

    def init(self, key: jax.Array, row: jax.ShapeDtypeStruct) -> PyTree:
        """Nested dict of parameters for rows of this shape."""

    def apply(self, params: PyTree, x: jax.Array) -> PyTree:
        """Outputs for a batch of rows, (n, ...)."""

    def __hash__(self) -> int:
        """Equal networks compile once."""
