"""Exact sums of clipped vectors.

A float32 sum of n clipped gradients rounds differently on neighbouring datasets: measured replays moved by
1e-6 (512 rows) to 1e-2 (10⁶ rows) of the clip norm beyond the sensitivity, and a worst-case bound for
unknown summation order is far larger. Here each clipped coordinate is truncated toward zero to a multiple
of the grid C·2^-p and added as an integer, so the sum is exact in any order, on any device, over any mesh.

* The numbers whose norm is taken are the numbers that are scaled (:func:`materialised`).
* Truncation toward zero only shortens a vector, so the float32 norm and factor are left to prove. Sums of squares
  are taken in blocks of at most 256 (three levels reach 1.6e7 coordinates), so their relative error is at most
  (3·256 + 2)u in ANY order within a block, u = 2^-24. The leaves of a pytree add log₂ of their number. The square
  root halves this, and nine roundings of scalars and of the noise scale come to it: below ``KAPPA`` = 2^-15. The
  smallest normal number, added per coordinate, covers squares that underflow.
* Noise is integers on the same grid (``gaussian.py``), added BEFORE anything is rounded to float.
* A row's rounding is taken not to depend on its place in the batch, for a record that is chosen moves the others by
  one. Poisson batches have room in multiples of 8, for XLA multiplies what is left of one in another order; and
  where a batch outgrows its usual room. 5e-6·C was seen. The proof here takes 2.4e-5 of ``KAPPA``, and leaves
  6.5e-6.

C may be traced, so that runs that differ in it share a program. It is then the same float32; the grid, a power of
two times C, stays exact, and C² rounds once more, for which ``KAPPA`` has room.

A sum is held in two int32 limbs, value = (high·2^16 + low)·grid, because a block of rows fits 31 bits and a
million rows do not.

Claim: One record moves the sum of clipped gradients by at most C, or by 2C under ``replace_one``.
Proof: vectors are cut to C and to a grid, and added as integers. Float32 exceeds C by ``KAPPA`` of it at most,
which is charged.
Held by: test_query.py::test_neighbours_differ_by_at_most_the_sensitivity,
test_neighbours_in_a_minibatch_differ_by_at_most_the_sensitivity,
test_the_norm_of_every_clipped_row_is_within_kappa,
test_query.py::test_huge_and_tiny_magnitudes_never_break_the_bound, test_sums_do_not_depend_on_row_order,
"clip missing", "clip after the mean", "padded rows counted", "norm in the records' own integers"

Claim: A row that is not finite adds zero.
Proof: its factor is zero where its norm is not finite, and its numbers are left out before they are multiplied.
Held by: test_query.py::test_rows_that_are_not_finite_contribute_exactly_zero,
test_ghost_norms.py::test_rows_that_are_not_finite_contribute_exactly_zero, "non-finite row escapes the mask",
"one branch for a whole block of records"
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Num
from dpmcmc.privacy.query.platforms import by_platform
from dpmcmc.privacy.query.rows_in_place import IN_PLACE, Rows, over_blocks, parts_on_cpu, truncated


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


#: Rows summed in one int32 before they are split into limbs.
BLOCK_ROWS = 512
_SQUARES_BLOCK = 256
_TINY = np.float32(np.finfo(np.float32).tiny)
#: C, as a number or traced.
Clip = float | jax.Array


class FixedPoint(NamedTuple):
    """A pytree of exact sums: ``(high * 2**16 + low) * clip * 2**-fraction_bits``.

    Attributes:
        high, low: pytrees of int32, shaped like the summed vector.
    """

    high: PyTree
    low: PyTree

    def __add__(self, other: FixedPoint) -> FixedPoint:  # type: ignore[override]
        """Exact sum of two sums (shards, microbatches)."""
        return _carry(
            FixedPoint(
                jax.tree.map(jnp.add, self.high, other.high),
                jax.tree.map(jnp.add, self.low, other.low),
            )
        )

    def across(self, axis: str) -> FixedPoint:
        """Exact sum over the devices of a mesh axis, at most 2^15 of them."""
        return _carry(FixedPoint(*jax.lax.psum((self.high, self.low), axis)))

    def to_float(self, clip: Clip, fraction_bits: int) -> PyTree:
        """Pytree of float32. Rounds, so never call it on a sum before its noise is in."""
        unit = clip * 2.0**-fraction_bits
        return jax.tree.map(
            lambda h, l: h.astype(jnp.float32) * float32(unit * 65536) + l.astype(jnp.float32) * float32(unit),
            *self,
        )

    def to_float64(self, clip: float, fraction_bits: int) -> PyTree:
        """Pytree of NumPy float64, exact; for tests and confidential diagnostics."""
        unit = clip * 2.0**-fraction_bits
        return jax.tree.map(
            lambda h, l: (np.asarray(h, np.float64) * 65536 + np.asarray(l, np.float64)) * unit,
            *self,
        )


def float32(value: Clip) -> np.float32 | jax.Array:
    """The float32 nearest to a number; a traced one stays traced."""
    return value.astype(jnp.float32) if isinstance(value, jax.Array) else np.float32(value)


def squared_norms(rows: PyTree) -> jax.Array:
    """Squared l2 norm of each row of a pytree with leaves (n, ...), rounded as ``KAPPA`` assumes."""
    parts = [squared_norms_of(leaf) for leaf in jax.tree.leaves(rows)]
    if not parts:
        raise InputError("a gradient needs at least one array leaf")
    return sum_in_pairs(parts)


def squared_norms_of(leaf: Num[jax.Array, "n ..."]) -> Float[jax.Array, " n"]:
    """Squared l2 norm of each row of ONE array (n, ...)."""
    squares = jnp.square(as_float(leaf).reshape(leaf.shape[0], -1)) + _TINY
    while squares.shape[1] > 1:
        width = squares.shape[1]
        block = min(width, _SQUARES_BLOCK)
        short = -width % block
        if short:
            squares = jnp.pad(squares, ((0, 0), (0, short)))
        squares = jnp.sum(squares.reshape(squares.shape[0], -1, block), axis=2)
        # Without the barrier XLA merges the levels into one long sum, and the bound is lost.
        squares = jax.lax.optimization_barrier(squares)
    return squares[:, 0]


def as_float(leaf: jax.Array) -> jax.Array:
    """The array, in float32 where it holds integers, whose squares would wrap: 16² is 0 in eight bits."""
    return leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.astype(jnp.float32)


def sum_in_pairs(parts: list[jax.Array]) -> jax.Array:
    """Sum of arrays of one shape by a balanced tree: log2(parts) roundings."""
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]


def unit_factor(norm: Float[jax.Array, " n"], mask: Bool[jax.Array, " n"], clip: Clip) -> Float[jax.Array, " n"]:
    """min(1, C/norm)/C per row; zero for masked rows and rows whose norm is not finite."""
    good = mask & jnp.isfinite(norm)
    return jnp.where(good, jnp.minimum(1.0 / float32(clip), 1.0 / norm), 0.0)


def materialised(tree: PyTree, then: Callable[[PyTree], PyTree] | None = None) -> PyTree:
    """The same numbers, computed once: a norm and the vector it scales must be those of ONE computation.

    XLA computes what is cheap again wherever it is used, and a·b − c·d contracted differently (FMA) in two places can
    differ without bound relative to itself: rows were seen at 1773 times the clip norm. An optimization barrier does
    not prevent it on CPU; the carry of a loop is a buffer.

    Args:
        tree: the numbers.
        then: what is made of them in the loop's second round and returned in their place, of the same shapes.
    """

    def keep(i: jax.Array, kept: PyTree) -> PyTree:
        # A loop that begins with the numbers and only keeps them would be taken out by the compiler.
        both = (tree, kept) if then is None else (kept, then(kept))
        return jax.tree.map(lambda one, two: jnp.where(i == 0, one, two), *both)

    with jax.named_scope("held"):  # by this name tests find the loop in what a compiler has made of it
        return jax.lax.fori_loop(0, 2, keep, jax.tree.map(jnp.zeros_like, tree) if then is None else tree)


def clipped_sum(rows: PyTree, mask: Bool[jax.Array, " n"], clip: Clip, bits: int) -> FixedPoint:
    """Σ over unmasked rows of the row clipped to norm ``clip``.

    Args:
        rows: pytree, leaves (n, ...): one vector per record.
        mask: (n,) bool.
        clip: C.
        bits: grid exponent p of ``grid.fraction_bits``.
    """
    rows = materialised(rows)
    return scaled_sum(rows, unit_factor(jnp.sqrt(squared_norms(rows)), mask, clip), bits)


def scaled_sum(rows: PyTree, factor: Float[jax.Array, " n"], bits: int) -> FixedPoint:
    """Σ of rows times their factor, in units of the grid; rows whose factor is zero are left out, NaN or not."""
    keep = factor > 0

    def integers(leaf: jax.Array) -> jax.Array:
        shape = (-1,) + (1,) * (leaf.ndim - 1)
        scaled = leaf * factor.reshape(shape) * np.float32(2.0**bits)
        # 0 · NaN is NaN, so a rejected row is replaced rather than multiplied away.
        return jnp.where(keep.reshape(shape), scaled, 0.0).astype(jnp.int32)

    return sum_rows(jax.tree.map(integers, rows))


def row_norms(rows: PyTree) -> Float[jax.Array, " n"]:
    """l2 norm of each row of a pytree with leaves (n, ...), rounded as ``KAPPA`` assumes."""
    return jnp.sqrt(squared_norms(rows))


def linear_sum(
    residual: Float[jax.Array, " n"],
    x: Num[jax.Array, "n d"] | Rows,
    mask: Bool[jax.Array, " n"],
    clip: Clip,
    bits: int,
    norms: Float[jax.Array, " n"] | None = None,
) -> FixedPoint:
    """Σ clip(residual_i · x_i): the generalised-linear case, with norms in closed form.

    Args:
        residual: (n,).
        x: (n, d).
        mask: (n,) bool.
        clip: C.
        bits: grid exponent p.
        norms: :func:`row_norms` of x, where they are known.

    Returns:
        FixedPoint with leaves (d,).
    """
    # A computed array would be computed twice.
    rows = x if isinstance(x, Rows) else Rows(materialised(as_float(x)))
    norms = row_norms(rows.read()) if norms is None else norms

    def weighted(residual: jax.Array) -> jax.Array:
        factor = unit_factor(jnp.abs(residual) * norms, mask & jnp.isfinite(residual), clip)
        return jnp.where(factor > 0, residual * factor, 0.0) * np.float32(2.0**bits)

    def summed(rows: Rows, weight: jax.Array, parts: int = 1) -> FixedPoint:
        size = weight.shape[0] // parts
        every = [slice(k * size, (k + 1) * size) for k in range(parts)]
        return sum_rows(sum(truncated(rows.read(part), weight[part]) for part in every), parts)

    def on_cpu(rows: Rows, weight: jax.Array) -> FixedPoint:
        size = weight.shape[0]
        if size <= BLOCK_ROWS:
            return summed(rows, weight, parts_on_cpu(size))
        zero = jnp.zeros(rows.table.shape[1:], jnp.int32)
        return over_blocks(rows, weight, summed, FixedPoint(zero, zero))

    def in_place(rows: Rows, weight: jax.Array) -> FixedPoint:
        return sum_rows(truncated(rows.read(), weight), most=IN_PLACE)

    weight = materialised(residual, weighted)
    return by_platform(rows, weight, cpu=on_cpu, default=in_place)


def sum_rows(integers: PyTree, each: int = 1, most: int = BLOCK_ROWS) -> FixedPoint:
    """Exact sum over axis 0 of int32 leaves.

    Args:
        integers: each the sum of ``each`` numbers bounded by 2^30 / BLOCK_ROWS in size.
        each: as said.
        most: numbers that a block should sum, at most BLOCK_ROWS; it sums more where there would be over 2^14 blocks.
    """

    def blocks(leaf: jax.Array) -> jax.Array:
        n = leaf.shape[0]
        block = max(most // each, -(-n >> 14))
        if n * each > 1 << 23:  # so that the sum of 2^14 low limbs fits an int32
            raise InputError(f"sum at most 2^23 rows at once, got {n * each}; add FixedPoint sums of smaller blocks")
        short = -n % block if n > block else 0
        if short:
            leaf = jnp.pad(leaf, ((0, short),) + ((0, 0),) * (leaf.ndim - 1))
        return leaf.reshape((-1, min(max(n, 1), block), *leaf.shape[1:])).sum(axis=1)

    return sum_blocks(jax.tree.map(blocks, integers))


def sum_blocks(totals: PyTree) -> FixedPoint:
    """Exact sum over axis 0, at most 2^14 long, of int32 leaves: each the sum of up to BLOCK_ROWS rows."""
    high = jax.tree.map(lambda leaf: (leaf >> 16).sum(axis=0), totals)
    return _carry(FixedPoint(high, jax.tree.map(lambda leaf: (leaf & 0xFFFF).sum(axis=0), totals)))


def _carry(total: FixedPoint) -> FixedPoint:
    return FixedPoint(
        jax.tree.map(lambda h, l: h + (l >> 16), total.high, total.low),
        jax.tree.map(lambda l: l & 0xFFFF, total.low),
    )


def fraction_bits(largest_noise_multiplier: float) -> int:
    """Grid exponent p: as fine as a block of rows and the noise allow.

    Raises:
        ValueError: noise so large (z > 7e9) that it leaves no grid.
    """
    rows = 30 - math.ceil(math.log2(BLOCK_ROWS))
    # Noise within 10σ stays below 2^36, whose high limb fits an int32 with room to spare.
    noise = math.floor(36 - math.log2(10 * max(largest_noise_multiplier, 1.0)))
    if noise < 0:
        raise InputError(
            f"noise multiplier {largest_noise_multiplier:.3g} is too large to represent",
            "epsilon",
        )
    return min(rows, noise)
