"""Symmetric p×p matrices in one of two forms: a second moment as it is released, and as samplers compute with it.

A matrix is an array, (p, p) in the dense form and (p,) in the diagonal one. Its form knows what to do with it, so
that no formula asks which of the two it has; :func:`form_of` chooses the form once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy.query import exact_sums, outer_products
from dpmcmc.privacy.query.exact_sums import FixedPoint

if TYPE_CHECKING:
    from jaxtyping import Float


#: Up to this many parameters the form is dense, beyond it diagonal (``structure="auto"``).
DENSE_PARAMETERS = 256


class Factors(NamedTuple):
    """A positive semidefinite matrix as an operator: Q diag(values) Qᵀ, so that it can be shifted at no cost.

    Attributes:
        values: (p,), at least 0.
        vectors: Q, (p, p); None where the matrix is diagonal, and Q the identity.
    """

    values: jax.Array
    vectors: jax.Array | None = None

    def solve(self, shift: jax.Array | float, vector: Float[jax.Array, " p"]) -> Float[jax.Array, " p"]:
        """x of (A + shift·I) x = v."""
        if self.vectors is None:
            return vector / (self.values + shift)
        return self.vectors @ ((vector @ self.vectors) / (self.values + shift))

    def matrix(self) -> jax.Array:
        """The matrix, in its form."""
        return self.values if self.vectors is None else (self.vectors * self.values) @ self.vectors.T


class Form(NamedTuple):
    """Functions of matrices of one form.

    Attributes:
        shape: p -> shape of the array.
        of: matrix of either form -> that matrix in this form; a diagonal keeps no other entries.
        outer: vector (p,) -> v vᵀ.
        shifted: (A, number) -> A plus that multiple of the identity.
        factors: A -> :class:`Factors` of the nearest positive semidefinite matrix.
        trace: A -> sum of the diagonal entries, ().
        exact: (rows (n, p) of norm at most 1, bits) -> exact sum of the entries of v vᵀ that are released, (entries,).
        summed: rows (n, p) -> sum of their products in float32, (entries,): never of private rows before noise.
        noise_scale: p -> std of each released entry relative to a diagonal one, (entries,) float32, rounded up.
        from_entries: (released entries, p) -> A.
    """

    shape: Callable[[int], tuple[int, ...]]
    of: Callable[[jax.Array], jax.Array]
    outer: Callable[[jax.Array], jax.Array]
    shifted: Callable[[jax.Array, jax.Array | float], jax.Array]
    factors: Callable[[jax.Array], Factors]
    trace: Callable[[jax.Array], jax.Array]
    exact: Callable[[jax.Array, int], FixedPoint]
    summed: Callable[[jax.Array], jax.Array]
    noise_scale: Callable[[int], np.ndarray]
    from_entries: Callable[[jax.Array, int], jax.Array]


def form_of(structure: str, size: int) -> Form:
    """The form of ``dense``, ``diagonal`` or ``auto``, which is dense up to ``DENSE_PARAMETERS`` parameters."""
    return DENSE if structure == "dense" or (structure == "auto" and size <= DENSE_PARAMETERS) else DIAGONAL


def _factors(matrix: Float[jax.Array, "p p"]) -> Factors:
    """Eigenvalues, the negative ones put to zero, and eigenvectors."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return Factors(jnp.maximum(values, 0.0), vectors)


def _outer(vector: Float[jax.Array, " p"]) -> Float[jax.Array, "p p"]:
    """v vᵀ, of a v that is held: a compiler would compute a gradient again for every entry."""
    vector = exact_sums.materialised(vector)
    return jnp.outer(vector, vector)


def _dense_sum(rows: Float[jax.Array, "n p"], bits: int) -> FixedPoint:
    """Exact Σ v vᵀ on and above the diagonal, each v vᵀ clipped to norm 1 with room for its rounding."""
    every = jnp.ones(len(rows), bool)
    (high,), (low,) = outer_products.clipped_sum([outer_products.Outer(rows, rows)], every, 1.0, bits)
    upper = np.triu_indices(rows.shape[1])
    return FixedPoint(high[upper], low[upper])


def _diagonal_sum(rows: Float[jax.Array, "n p"], bits: int) -> FixedPoint:
    """Exact Σ v ∘ v, each product truncated, which only shortens it."""
    return exact_sums.sum_rows((rows * rows * np.float32(2.0**bits)).astype(jnp.int32))


def _noise_scale(size: int) -> np.ndarray:
    """1 on the diagonal and 1/√2 off it, where an entry stands for two."""
    row, column = np.triu_indices(size)
    return np.where(row == column, np.float32(1), np.nextafter(np.float32(0.5**0.5), np.float32(1)))


def _from_entries(entries: Float[jax.Array, " entries"], size: int) -> Float[jax.Array, "p p"]:
    """The matrix of its entries on and above the diagonal."""
    upper = jnp.zeros((size, size), entries.dtype).at[np.triu_indices(size)].set(entries)
    return upper + jnp.triu(upper, 1).T


DENSE = Form(
    shape=lambda size: (size, size),
    of=lambda matrix: matrix if matrix.ndim == 2 else jnp.diag(matrix),
    outer=_outer,
    shifted=lambda matrix, by: matrix + by * jnp.eye(len(matrix), dtype=matrix.dtype),
    factors=_factors,
    trace=jnp.trace,
    exact=_dense_sum,
    summed=lambda rows: (rows.T @ rows)[np.triu_indices(rows.shape[1])],
    noise_scale=_noise_scale,
    from_entries=_from_entries,
)
DIAGONAL = Form(
    shape=lambda size: (size,),
    of=lambda matrix: matrix if matrix.ndim == 1 else jnp.diagonal(matrix),
    outer=jnp.square,
    shifted=lambda matrix, by: matrix + by,
    factors=lambda matrix: Factors(jnp.maximum(matrix, 0.0)),
    trace=jnp.sum,
    exact=_diagonal_sum,
    summed=lambda rows: jnp.sum(jnp.square(rows), axis=0),
    noise_scale=lambda size: np.ones(size, np.float32),
    from_entries=lambda entries, size: entries,
)
