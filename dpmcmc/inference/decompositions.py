"""Eigenvalues and singular values of finite matrices, also where LAPACK's faster algorithms do not converge.

These divide and conquer. They fail on some matrices of which many eigenvalues are equal, as a posterior's are in
directions that the records say nothing of: one of 300 releases of a table with 66 coefficients ended so, its budget
spent. Then a slower algorithm does it, the iterations of QR.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg


def eigh(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues in ascending order, (..., d), and eigenvectors in columns, (..., d, d), of symmetric matrices.

    Raises:
        numpy.linalg.LinAlgError: an entry is not finite.
    """
    try:
        values, vectors = np.linalg.eigh(matrix)
    except np.linalg.LinAlgError:
        if not np.isfinite(matrix).all():
            raise
        found = [scipy.linalg.eigh(one, driver="ev") for one in matrix.reshape(-1, *matrix.shape[-2:])]
        values = np.stack([one for one, _ in found]).reshape(matrix.shape[:-1])
        vectors = np.stack([one for _, one in found]).reshape(matrix.shape)
    return values, vectors


def spectral(matrix: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return V diag(f(λ)) Vᵀ of symmetric matrices V diag(λ) Vᵀ, (..., d, d)."""
    values, vectors = eigh(matrix)
    return (vectors * function(values)[..., None, :]) @ vectors.swapaxes(-1, -2)


def square_root(matrix: np.ndarray) -> np.ndarray:
    """Return W, (d, d), with W Wᵀ = M of a symmetric matrix M, whose negative eigenvalues count as 0."""
    values, vectors = eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def roots(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return M^½ and M^-½ of a positive definite matrix M, (d, d) each, symmetric."""
    values, vectors = eigh(matrix)
    stds = np.sqrt(values)
    return (vectors * stds) @ vectors.T, (vectors / stds) @ vectors.T


def svd(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return U, the singular values in descending order and Vᵀ of a matrix (d, k).

    Raises:
        numpy.linalg.LinAlgError: an entry is not finite.
    """
    try:
        left, sizes, right = np.linalg.svd(matrix)
    except np.linalg.LinAlgError:
        if not np.isfinite(matrix).all():
            raise
        left, sizes, right = scipy.linalg.svd(matrix, lapack_driver="gesvd")
    return left, sizes, right
