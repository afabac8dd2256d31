"""Rows of a batch, read where they are used: on a CPU without a copy of them.

A CPU that copies the rows of a batch and multiplies the copy twice moves them through its cache three times. Read in
place, a row is in the cache from its margin on until its weighted sum. An accelerator reads them where they are for the
margin and again for the sum, and keeps no copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    from jaxtyping import Float, Num
from dpmcmc.privacy.query.platforms import by_platform

#: Numbers that one vector instruction takes.
LANES = 8
#: Lengths of rows whose margins are written out lane by lane. LLVM unrolls the lanes of shorter rows and adds number by
#: number, at half the speed of a library's product; a longer row pays for that product too.
_WRITTEN_OUT = range(104, 513)
#: Most rows of a block that an accelerator adds up. Its compiler makes such a sum of rows where they are. The products
#: of more rows it would write to memory before it adds them up: three times the bytes.
IN_PLACE = 64
#: Most rows that a CPU takes at a time. LLVM makes no vectors of lanes of 512 rows or more, which then take six times
#: as long; and so many of a common length stay within a core's cache.
_BLOCK = 256
#: Blocks that are written out one after another: a CPU's loop over each of them takes as long as their work.
_UNROLLED = 4


class Rows(NamedTuple):
    """Rows of a table.

    Attributes:
        table: (N, w), or (N, ...) where rows are only read.
        at: places of the rows, (n,), all within the table; None for all rows.
    """

    table: Num[jax.Array, "N ..."]
    at: jax.Array | None = None

    def taken(self, indices: jax.Array) -> Rows:
        """The rows at these places of a whole table."""
        return Rows(self.table, indices)

    def read(self, part: slice = slice(None)) -> Num[jax.Array, "m ..."]:
        """Some of the rows, as an array."""
        # Without the fill of places outside, a masked copy of the whole batch.
        return self.table[part] if self.at is None else jnp.asarray(self.table).at[self.at[part]].get(mode="clip")

    def margins(self, params: Float[jax.Array, " d"]) -> Float[jax.Array, " n"]:
        """x·θ of every row, whose columns beyond the length of θ are left out, (n,)."""
        theta = jnp.pad(params, (0, self.table.shape[1] - params.shape[0]))
        if self.at is None or theta.size % LANES:
            return self.read() @ theta
        return by_platform(self.table, self.at, theta, cpu=_by_lanes, default=_product)


def arrays(batch: PyTree) -> PyTree:
    """Return a batch whose rows are read, for what takes one record at a time."""
    return jax.tree.map(
        lambda leaf: leaf.read() if isinstance(leaf, Rows) else leaf,
        batch,
        is_leaf=lambda node: isinstance(node, Rows),
    )


def _product(table: jax.Array, at: jax.Array, theta: jax.Array) -> jax.Array:
    return Rows(table, at).read() @ theta


@jax.custom_batching.custom_vmap
def _by_lanes(table: jax.Array, at: jax.Array, theta: jax.Array) -> jax.Array:
    """x·θ of rows; they are read in place, a vector of each at a time, where that is fastest."""
    if theta.size not in _WRITTEN_OUT:
        return _product(table, at, theta)

    def block(at: jax.Array) -> jax.Array:
        x = Rows(table, at).read()
        total = x[:, :LANES] * theta[:LANES]
        for first in range(LANES, theta.size, LANES):
            total += x[:, first : first + LANES] * theta[first : first + LANES]
        return total.sum(axis=1)

    size = at.shape[0]
    if size <= _BLOCK:
        return block(at)
    margins = jax.lax.scan(lambda _, at: (None, block(at)), None, in_blocks(at), unroll=_UNROLLED)[1]
    return margins.reshape(-1)[:size]


@_by_lanes.def_vmap
def _(cells: int, batched: list[bool], *arguments: jax.Array) -> tuple[jax.Array, bool]:
    """One cell alone by lanes; of several XLA makes no vectors, and a library's product is faster."""
    axes = [0 if each else None for each in batched]
    if cells > 1:
        return jax.vmap(_product, axes)(*arguments), True
    return _by_lanes(*(leaf[0] if axis == 0 else leaf for leaf, axis in zip(arguments, axes, strict=True)))[None], True


def truncated(x: Float[jax.Array, "n d"], weight: Float[jax.Array, " n"]) -> Num[jax.Array, "n d"]:
    """Rows times their weights, truncated; those of weight zero are left out, NaN or not."""
    weight = weight[:, None]
    return jnp.where(weight != 0, x * weight, 0.0).astype(jnp.int32)


def in_blocks(leaf: jax.Array) -> jax.Array:
    """Return (n, ...) as (blocks, rows, ...): even blocks that suit a CPU, the last one filled up with zeros."""
    size = leaf.shape[0]
    blocks = -(-size // _BLOCK)
    width = -(-size // (blocks * LANES)) * LANES
    short = blocks * width - size
    return jnp.pad(leaf, ((0, short),) + ((0, 0),) * (leaf.ndim - 1)).reshape(blocks, width, *leaf.shape[1:])


def over_blocks(rows: Rows, weight: jax.Array, summed: Callable[..., PyTree], total: PyTree) -> PyTree:
    """Return ``total`` plus the sums of a batch's blocks, taken one after another.

    A table of a whole batch in integers would leave a CPU's cache between its making and its sum.

    Args:
        rows, weight: of the batch, (n,).
        summed: (rows and weights of a block, parts that it is added up in) -> their sum.
        total: zero.
    """
    places = jnp.arange(weight.shape[0]) if rows.at is None else rows.at

    def add(total: PyTree, block: tuple[jax.Array, jax.Array]) -> tuple[PyTree, None]:
        at, weight = block
        return total + summed(Rows(rows.table, at), weight, parts_on_cpu(weight.shape[0])), None

    return jax.lax.scan(add, total, (in_blocks(places), in_blocks(weight)), unroll=_UNROLLED)[0]


def parts_on_cpu(rows: int) -> int:
    """Parts of a batch that a CPU adds up side by side, in vectors: of equal size, too many rows for one loop of it."""
    parts = 1
    while parts < 8 and rows % (2 * parts) == 0 and rows // (2 * parts) > 32:
        parts *= 2
    return parts
