"""Symmetric p×p matrices in one of two forms: a second moment as it is released, and as samplers compute with it.

A matrix is an array, (p, p) in the dense form and (p,) in the diagonal one. Its form knows what to do with it, so that
no formula asks which of the two it has; :func:`form_of` chooses the form once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

#: Up to this many parameters the form is dense, beyond it diagonal (``structure="auto"``).
DENSE_PARAMETERS = 256


class Form(NamedTuple):
    """Functions of matrices of one form.

    Attributes:
        shape: p -> shape of the array.
        of: matrix of either form -> that matrix in this form; a diagonal keeps no other entries.
        outer: vector (p,) -> v vᵀ.
        shifted: (A, number) -> A plus that multiple of the identity.
        solve: (A positive definite, v (p,)) -> x of A x = v.
        projected: A -> the nearest positive semidefinite matrix.
        trace: A -> sum of the diagonal entries, ().
        products: rows (n, p) -> the entries of each v vᵀ that are released, (n, entries).
        summed: rows (n, p) -> sum of their products in float32, (entries,): never of private rows before noise.
        noise_scale: p -> std of each released entry relative to a diagonal one, (entries,) float32, rounded up.
        from_entries: (released entries, p) -> A.
    """

    shape: Callable[[int], tuple[int, ...]]
    of: Callable[[jax.Array], jax.Array]
    outer: Callable[[jax.Array], jax.Array]
    shifted: Callable[[jax.Array, jax.Array | float], jax.Array]
    solve: Callable[[jax.Array, jax.Array], jax.Array]
    projected: Callable[[jax.Array], jax.Array]
    trace: Callable[[jax.Array], jax.Array]
    products: Callable[[jax.Array], jax.Array]
    summed: Callable[[jax.Array], jax.Array]
    noise_scale: Callable[[int], np.ndarray]
    from_entries: Callable[[jax.Array, int], jax.Array]


def form_of(structure: str, size: int) -> Form:
    """The form of ``dense``, ``diagonal`` or ``auto``, which is dense up to ``DENSE_PARAMETERS`` parameters."""
    return DENSE if structure == "dense" or (structure == "auto" and size <= DENSE_PARAMETERS) else DIAGONAL


def _projected(matrix: Float[jax.Array, "p p"]) -> Float[jax.Array, "p p"]:
    """The matrix with its negative eigenvalues put to zero."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * jnp.maximum(values, 0.0)) @ vectors.T


def _products(rows: Float[jax.Array, "n p"]) -> Float[jax.Array, "n entries"]:
    """Products of entries on and above the diagonal, row by row."""
    row, column = np.triu_indices(rows.shape[1])
    return rows[:, row] * rows[:, column]


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
    outer=lambda vector: jnp.outer(vector, vector),
    shifted=lambda matrix, by: matrix + by * jnp.eye(len(matrix), dtype=matrix.dtype),
    solve=lambda matrix, vector: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix), vector),
    projected=_projected,
    trace=jnp.trace,
    products=_products,
    summed=lambda rows: (rows.T @ rows)[np.triu_indices(rows.shape[1])],
    noise_scale=_noise_scale,
    from_entries=_from_entries,
)
DIAGONAL = Form(
    shape=lambda size: (size,),
    of=lambda matrix: matrix if matrix.ndim == 1 else jnp.diagonal(matrix),
    outer=jnp.square,
    shifted=lambda matrix, by: matrix + by,
    solve=lambda matrix, vector: vector / matrix,
    projected=lambda matrix: jnp.maximum(matrix, 0.0),
    trace=jnp.sum,
    products=lambda rows: rows * rows,
    summed=lambda rows: jnp.sum(jnp.square(rows), axis=0),
    noise_scale=lambda size: np.ones(size, np.float32),
    from_entries=lambda entries, size: entries,
)
