"""Rows of a batch, read where they are used: on a CPU without a copy of them.

A CPU that copies the rows of a batch and multiplies the copy twice moves them through its cache three times. Read in
place, a row is in the cache from its margin on until its weighted sum. An accelerator copies them once, since a second
reading would go through its memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxtyping import Float, Num

#: Numbers that one vector instruction takes.
LANES = 8
#: Longest rows whose margins are written out lane by lane; a longer one pays for a library's product.
_WRITTEN_OUT = 512


class Rows(NamedTuple):
    """Rows of a table.

    Attributes:
        table: (N, w).
        at: places of the rows, (n,), all within the table; None for all rows.
    """

    table: Num[jax.Array, "N w"]
    at: jax.Array | None = None

    def taken(self, indices: jax.Array) -> Rows:
        """The rows at these places of a whole table."""
        return Rows(self.table, indices)

    def read(self, part: slice = slice(None)) -> Num[jax.Array, "m w"]:
        """Some of the rows, as an array."""
        # Without the fill of places outside, a masked copy of the whole batch.
        return self.table[part] if self.at is None else self.table.at[self.at[part]].get(mode="clip")

    def margins(self, params: Float[jax.Array, " d"]) -> Float[jax.Array, " n"]:
        """x·θ of every row, whose columns beyond the length of θ are left out, (n,)."""
        width = self.table.shape[1]
        theta = jnp.pad(params, (0, width - params.shape[0]))

        def product(rows: Rows, theta: jax.Array) -> jax.Array:
            return rows.read() @ theta

        def by_lanes(rows: Rows, theta: jax.Array) -> jax.Array:
            x = rows.read()
            total = x[:, :LANES] * theta[:LANES]
            for first in range(LANES, width, LANES):
                total += x[:, first : first + LANES] * theta[first : first + LANES]
            return total.sum(axis=1)

        if width % LANES or width > _WRITTEN_OUT:
            return product(self, theta)
        return jax.lax.platform_dependent(self, theta, cpu=by_lanes, default=product)


def truncated(x: Float[jax.Array, "n d"], weight: Float[jax.Array, " n"]) -> Num[jax.Array, "n d"]:
    """Rows times their weights, truncated; those of weight zero are left out, NaN or not."""
    weight = weight[:, None]
    return jnp.where(weight != 0, x * weight, 0.0).astype(jnp.int32)


def parts_on_cpu(rows: int) -> int:
    """Parts of a batch that a CPU adds up side by side, in vectors: of equal size, too many rows for one loop of it."""
    parts = 1
    while parts < 8 and rows % (2 * parts) == 0 and rows // (2 * parts) > 32:
        parts *= 2
    return parts
