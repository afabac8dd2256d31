r"""Second moment of rows from its noisy release and from the path of a chain.

A path's gradients tell how the likelihood curves wherever the path moves. Let q_k = θ_k − θ̄ and r_k = g̃_k − ḡ be the
released points and gradients about their means. With G̃ = G + E the release, and rows and records as in ``trace.py``,

    r_k = J q_k + noise_k,    J = J(G̃) − c E,    noise_k ~ N(0, F²/p_k),

c the mean slope of a record's score along the path. Means and differences of normal noise are independent, so what the
differences tell of E is not told again by ḡ. E is normal before them: variance σ² on and σ²/2 off the diagonal. Its
posterior mean −D solves, in eigenvectors of F² with eigenvalues f_i², Φ = diag(1/f_i²), S = Σ_k p_k q_k q_kᵀ and
R = Σ_k p_k (r_k − J(G̃) q_k) q_kᵀ,

    D/σ² + c² sym(Φ D S) = c sym(Φ R),    sym(X) = (X + Xᵀ)/2,

and G̃ + D replaces the release. Its error follows from drawn noise by the same equation. The noise F²/p_k is small
where the metric found little, and the release's is as large there as anywhere: the path tells most of the directions in
which a release is lost.

A θ_k follows from earlier noise, never from its own, so each gradient has this law given its point, and a likelihood
asks for no more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmcmc.data.structure import RowStructure
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.denoised_moment import Denoised, projected
from dpmcmc.inference.normal_law import symmetric_noise
from dpmcmc.privacy.query.gram_release import NoisyGram

#: Draws of the error's noise.
NUM_BOOTSTRAPS = 24
#: Relative residual at which conjugate gradients end: far below the standard error of any number of E.
RESIDUAL = 1e-9
#: Most iterations: of a system that needs more, what is left is small beside the error of E.
MOST_ITERATIONS = 500


class Differences(NamedTuple):
    """Points of a path and their gradients, about their means.

    Attributes:
        positions: q_k, (k, d).
        gradients: r_k, (k, d).
        precisions: p_k, (k,).
        metric: F², (d, d).
    """

    positions: np.ndarray
    gradients: np.ndarray
    precisions: np.ndarray
    metric: np.ndarray


def refined(
    noisy: NoisyGram,
    structure: RowStructure | None,
    path: Differences,
    response: np.ndarray,
    slope: float,
) -> Denoised:
    """Return the second moment that a release and a path tell, with a parametric bootstrap of its error.

    Args:
        noisy: the release.
        structure: of the rows, or None.
        path: differences of its points and gradients.
        response: J(G̃), (d, d).
        slope: c.
    """
    squares, turn = eigh(path.metric)
    moved = path.positions @ turn
    size = len(squares)
    scatter = (moved.T * path.precisions) @ moved

    def correction(differences: np.ndarray) -> np.ndarray:
        """Return D, (d, d), that follows from r_k − J q_k in eigenvectors of the metric, (k, d)."""
        right = slope * _symmetric((differences.T * path.precisions) @ moved / squares[:, None])
        return _solved(right, noisy.noise_std, slope**2 / squares[:, None], scatter)

    def errors() -> np.ndarray:
        rng = np.random.default_rng(0)
        released = noisy.noise_std * np.stack([symmetric_noise(rng, size) for _ in range(NUM_BOOTSTRAPS)])
        noise = rng.normal(size=(NUM_BOOTSTRAPS, *moved.shape)) * np.sqrt(squares / path.precisions[:, None])
        noise = noise - np.average(noise, axis=1, weights=path.precisions)[:, None]
        left = [e + correction(z - slope * moved @ e) for e, z in zip(released, noise, strict=True)]
        return turn @ np.stack(left) @ turn.T

    beyond_release = path.gradients @ turn - moved @ (turn.T @ response @ turn).T
    found = noisy.gram + turn @ correction(beyond_release) @ turn.T
    return projected(noisy._replace(gram=found), structure, errors)


def _solved(right: np.ndarray, noise_std: float, weights: np.ndarray, scatter: np.ndarray) -> np.ndarray:
    """Return D with D/σ² + sym(w ∘ D S) = right, (d, d), by conjugate gradients.

    Args:
        right: symmetric.
        noise_std: σ.
        weights: w = c² diag(Φ), (d, 1).
        scatter: S, (d, d).
    """
    from scipy.sparse.linalg import LinearOperator, cg  # slow to import, and few runs end here

    def applied(flat: np.ndarray) -> np.ndarray:
        found = flat.reshape(right.shape)
        return (found / noise_std**2 + _symmetric((weights * found) @ scatter)).ravel()

    diagonal = noise_std**-2 + _symmetric(weights * np.diag(scatter)).ravel()
    shape = (right.size, right.size)
    nearly_inverse = LinearOperator(shape, lambda flat: flat / diagonal)
    found, _ = cg(
        LinearOperator(shape, applied), right.ravel(), rtol=RESIDUAL, maxiter=MOST_ITERATIONS, M=nearly_inverse
    )
    return found.reshape(right.shape)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return (matrix + matrix.T) / 2
