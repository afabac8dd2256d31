r"""Exact sums of clipped gradients that are outer products, without a matrix per record.

Where a record sends ONE vector a through a product y = a·W, its gradient is ∂ℓ/∂W = a ⊗ b with b = ∂ℓ/∂y, so

    ‖a ⊗ b‖ = ‖a‖·‖b‖,    Σ_i clip(a_i ⊗ b_i)_jk = Σ_i round(a_ij · (b_ik f_i 2^p)),    f_i = min(1/C, (1 − η)/‖g_i‖)

in units of the grid C·2^-p, over all leaves g_i of the record's gradient. Every product is rounded by itself and added
as an integer, as in ``exact_sums.py``; a matrix product of floats would round differently on neighbouring data.

* a and b are materialised once (``exact_sums``): the numbers whose norms are taken are the numbers that are multiplied.
* Rounding to the nearest is twice as fast as truncation, and may lengthen a row: by ½√P grid steps where P entries are
  rounded, so η = ½√P·2^-p is taken off first (2e-5 for 10⁴ entries). Beyond ``_MOST_TAKEN_OFF`` products are truncated,
  which only shortens, and η = 0.
* ``KAPPA`` covers the float32 norm. The squares of a and of b are added in a balanced tree of d <= 2^24 leaves, with
  a relative error of at most (24 + 2)u. Two such sums, their product, and the smallest normal number that covers its
  underflow make 54u, and the root halves that; leaves that are formed row by row are allowed 385u. The leaves add in a
  balanced tree as there. η and the product with a cost three more roundings, for which there is room.

A row with ‖a‖² or ‖b‖² beyond float32 contributes zero, as one whose gradient is not finite.

Claim: A sum of outer products moves by no more than the sum of the rows that it stands for.
Proof: every product is rounded by itself, and what rounding to the nearest may add is taken off the norm first.
Held by: test_ghost_norms.py::test_neighbours_differ_by_at_most_the_sensitivity,
test_the_norm_of_every_product_is_within_kappa, test_rounding_to_the_nearest_does_not_lengthen_a_row
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.query import exact_sums, rows_in_place
from dpmcmc.privacy.query.exact_sums import BLOCK_ROWS, Clip, FixedPoint
from dpmcmc.privacy.query.platforms import by_platform
from dpmcmc.storage.pytree import PyTree

_TINY = np.float32(np.finfo(np.float32).tiny)
#: η beyond which products are truncated instead: coarse grids, and more than 10⁷ entries.
_MOST_TAKEN_OFF = 2.0**-10
#: x + _INTEGER is rounded to an integer, |x| < 2^22, and its bits are those of _INTEGER plus that integer.
_INTEGER = np.float32(1.5 * 2**23)
_INTEGER_BITS = int(_INTEGER.view(np.int32))
#: Rows added in one pass over a matrix.
_ROWS_AT_ONCE = 4

#: (n, j) and (n, k).
Pair = tuple[jax.Array, jax.Array]


class Outer(NamedTuple):
    """One matrix a ⊗ b per row: a leaf of a gradient that is not formed.

    Attributes:
        a: (n, j).
        b: (n, k).
        squares: :func:`squared_norm` of each row of a, (n,), where a is read from memory and not computed; else None.
    """

    a: jax.Array
    b: jax.Array
    squares: jax.Array | None = None


def clipped_sum(gradients: list[jax.Array | Outer], mask: jax.Array, clip: Clip, bits: int) -> FixedPoint:
    """Σ over unmasked rows of the row clipped to norm ``clip``.

    Args:
        gradients: leaves of one vector per record: arrays (n, ...), and matrices (n, j, k) as ``Outer``.
        mask: (n,) bool.
        clip: C.
        bits: grid exponent p of ``grid.fraction_bits``.

    Returns:
        FixedPoint of lists in the order of ``gradients``, leaves (...) and (j, k).
    """
    gradients = _held(gradients)
    off = taken_off(gradients, bits)
    norm = jnp.sqrt(squared_norms(gradients)) * np.float32(1 / (1 - off))
    factor = exact_sums.unit_factor(norm, mask, clip)
    keep = (factor > 0)[:, None]
    scale = np.float32(2.0**bits)
    # 0 · NaN is NaN, so both sides of a rejected row are replaced rather than multiplied away.
    pairs = [
        (jnp.where(keep, g.a, 0.0), jnp.where(keep, g.b * factor[:, None] * scale, 0.0))
        for g in gradients
        if isinstance(g, Outer)
    ]
    products = FixedPoint([], [])
    if pairs:
        add = [lambda pairs, sum_of=sum_of: sum_of(pairs, off > 0) for sum_of in (_row_by_row, _all_rows)]
        products = by_platform(pairs, cpu=add[0], default=add[1])
    formed = exact_sums.scaled_sum([g for g in gradients if not isinstance(g, Outer)], factor, bits)
    found = {True: zip(*products, strict=True), False: zip(*formed, strict=True)}
    limbs = [next(found[isinstance(g, Outer)]) for g in gradients]
    return FixedPoint([high for high, _ in limbs], [low for _, low in limbs])


def _held(gradients: list[jax.Array | Outer]) -> list[jax.Array | Outer]:
    """The same numbers, computed once; those that are read from memory are not copied for it."""
    computed = [g.b if isinstance(g, Outer) and g.squares is not None else g for g in gradients]
    kept = exact_sums.materialised(computed)
    return [
        g._replace(b=b) if isinstance(g, Outer) and g.squares is not None else b
        for g, b in zip(gradients, kept, strict=True)
    ]


def taken_off(gradients: list[jax.Array | Outer], bits: int) -> float:
    """η: what rounding to the nearest may add to a row's norm, relative to C; 0 where products are truncated."""
    entries = sum(g.a.shape[1] * g.b.shape[1] for g in gradients if isinstance(g, Outer))
    most = 0.5 * math.sqrt(entries) * 2.0**-bits
    return most if most <= _MOST_TAKEN_OFF else 0.0


def squared_norms(gradients: list[jax.Array | Outer]) -> jax.Array:
    """Squared l2 norm (n,) of each row over all leaves, rounded as ``KAPPA`` assumes.

    Raises:
        ValueError: no leaf.
    """
    if not gradients:
        raise InputError("a gradient needs at least one array leaf")

    def of(leaf: jax.Array | Outer) -> jax.Array:
        if not isinstance(leaf, Outer):
            return exact_sums.squared_norms_of(leaf)
        return (squared_norm(leaf.a) if leaf.squares is None else leaf.squares) * squared_norm(leaf.b) + _TINY

    return exact_sums.sum_in_pairs([of(leaf) for leaf in gradients])


def squared_norm(rows: jax.Array) -> jax.Array:
    """Squared norm of each row (n, d), by a tree that is spelt out, so that no compiler sums in another order."""
    squares = jnp.square(exact_sums.as_float(rows)) + _TINY
    while squares.shape[1] > 1:
        if squares.shape[1] % 2:
            squares = jnp.pad(squares, ((0, 0), (0, 1)))
        half = squares.shape[1] // 2
        squares = squares[:, :half] + squares[:, half:]
    return squares[:, 0]


def _row_by_row(pairs: list[Pair], nearest: bool) -> FixedPoint:
    """Σ_i round(a_i ⊗ w_i), adding a few matrices at a time to a sum that stays in a CPU's cache."""

    @jax.custom_batching.custom_vmap
    def cells(pairs: list[Pair]) -> list[jax.Array]:
        return _block_sums(pairs, nearest)

    @cells.def_vmap  # JAX's own rule makes gathers and scatters of slices
    def _(size: int, batched: list[PyTree], pairs: list[Pair]) -> tuple[list[jax.Array], list[bool]]:
        def merged(leaf: jax.Array, has_axis: bool) -> jax.Array:
            every = leaf if has_axis else jnp.broadcast_to(leaf, (size, *leaf.shape))
            return every.reshape(-1, *leaf.shape[-2:])

        totals = cells(jax.tree.map(merged, pairs, batched[0]))
        return [t.reshape(size, -1, *t.shape[1:]) for t in totals], [True] * len(totals)

    # The longer side last: that is the loop which a compiler makes vectors of.
    turned = [w.shape[1] < a.shape[1] for a, w in pairs]
    pairs = [(w, a) if turn else (a, w) for turn, (a, w) in zip(turned, pairs, strict=True)]
    totals = cells(jax.tree.map(lambda leaf: leaf[None], pairs))
    return exact_sums.sum_blocks([t[0].mT if turn else t[0] for turn, t in zip(turned, totals, strict=True)])


def _block_sums(pairs: list[Pair], nearest: bool) -> list[jax.Array]:
    """Per cell and block of rows, of (cells, n, j) and (cells, n, k): (cells, blocks, j, k)."""
    pairs = jax.tree.map(_split, pairs)
    cells, blocks, passes = pairs[0][0].shape[:3]
    begin = _wrapped(-_ROWS_AT_ONCE * passes * _INTEGER_BITS) if nearest else np.int32(0)
    zeros = [jnp.full((cells, blocks, a.shape[4], w.shape[4]), begin) for a, w in pairs]

    def add(totals: list[jax.Array], step: jax.Array) -> tuple[list[jax.Array], None]:
        block = step // passes
        at = step % passes

        def row(leaf: jax.Array, r: int) -> jax.Array:
            # Indexed here: what a scan hands out is copied first.
            return jax.lax.dynamic_slice(leaf, (0, block, at, r, 0), (cells, 1, 1, 1, leaf.shape[4]))[:, 0, 0]

        def added(total: jax.Array, pair: Pair) -> jax.Array:
            block_sum = jax.lax.dynamic_slice(total, (0, block, 0, 0), (cells, 1, *total.shape[2:]))
            for r in range(_ROWS_AT_ONCE):
                a, w = (row(leaf, r) for leaf in pair)
                block_sum += _bits(a[:, :, :, None] * w[:, :, None, :], nearest)
            # An update in place is not split over threads, which here would wait for each other at every step.
            return jax.lax.dynamic_update_slice(total, block_sum, (0, block, 0, 0))

        return [added(total, pair) for total, pair in zip(totals, pairs, strict=True)], None

    return jax.lax.scan(add, zeros, jnp.arange(blocks * passes, dtype=jnp.int32))[0]


def _all_rows(pairs: list[Pair], nearest: bool) -> FixedPoint:
    """The same in one reduction, which an accelerator fuses; on a CPU it is 20 times slower."""
    off = np.int32(_INTEGER_BITS if nearest else 0)
    return exact_sums.sum_rows(
        [_bits(a[:, :, None] * w[:, None, :], nearest) - off for a, w in pairs],
        most=rows_in_place.IN_PLACE,
    )


def _bits(x: jax.Array, nearest: bool) -> jax.Array:
    """Integers next to x, int32, plus ``_INTEGER_BITS``; or x truncated."""
    return jax.lax.bitcast_convert_type(x + _INTEGER, jnp.int32) if nearest else x.astype(jnp.int32)


def _split(leaf: jax.Array) -> jax.Array:
    """(cells, n, d) as (cells, blocks of at most ``BLOCK_ROWS``, passes, ``_ROWS_AT_ONCE``, d), filled with zeros."""
    cells, n, d = leaf.shape
    # Two at least: a compiler takes an update of the only block for one of the whole array.
    blocks = max(-(-n // BLOCK_ROWS), 2)
    passes = -(-n // (blocks * _ROWS_AT_ONCE))
    short = blocks * passes * _ROWS_AT_ONCE - n
    return jnp.pad(leaf, ((0, 0), (0, short), (0, 0))).reshape(cells, blocks, passes, _ROWS_AT_ONCE, d)


def _wrapped(number: int) -> np.int32:
    """A whole number modulo 2^32, as sums of int32 wrap around."""
    return np.uint32(number % 2**32).view(np.int32)
