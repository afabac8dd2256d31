"""A matrix from a model of it and a noisy release.

Let M be the model's matrix, with eigenvalues m_i and eigenvectors U. The matrix itself is taken for

    A = M^½ U (I + Δ) Uᵀ M^½ + D,     Δ symmetric,  Δ_ij ~ N(0, τ²(1 + δ_ij)/2)  independent,

so that it deviates from the truth of its model by about τ of it in every direction. D is the error of M itself, which
comes from a noisy release of rows; its entries in the basis U have the known variances e_ij. A release à = A + E with
Var E_ij = σ²(1 + δ_ij)/2 has Δ̃_ij = (UᵀM^-½ à M^-½U − I)_ij. So each entry has the posterior mean k_ij Δ̃_ij and the
variance k_ij σ²(1 + δ_ij)/(2 m_i m_j), with

    k_ij = t_ij/(t_ij + σ²(1 + δ_ij)/(2 m_i m_j)),     t_ij = τ²(1 + δ_ij)/2 + e_ij/(m_i m_j):

an entry between directions of much curvature is the release's, and one between directions of little curvature the
model's, as far as the model knows it. k_ij is averaged over τ, whose posterior all Δ̃_ij make. The error E of the
result has independent entries v_ij = k_ij σ²(1 + δ_ij)/2 in the basis U, and for u ~ (0, Q):

    Cov[E u]_ij = δ_ij Σ_k v_ik Q_kk + (1 − δ_ij) v_ij Q_ij.

An eigenvalue of M below its own error is noise, and the matrix itself may have far more there: such an eigenvalue is
taken for as large as its error. Without e_ij a direction that the rows' release lost in its noise was taken for
known: nine coefficients of a table whose columns fill a small part of their ranges were covered .11 of the time.

One shrinkage for the whole matrix keeps noise in directions of little curvature: it covered 0 of 24 tables with
strong effects, where this covers .85 to .92.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.normal_law import symmetric_noise

#: Candidates for τ. The smallest keeps an error of the model in intervals whatever a release says.
_DEVIATIONS = np.geomspace(0.02, 1.0, 13)
#: τ under its own prior, log-normal: its median and the standard deviation of its logarithm.
_USUAL, _LOG_STD = 0.1, 0.7
#: Least eigenvalue of I + Δ; directions of the model below this part of its largest eigenvalue hold nothing, unless
#: their error is above that part of it: rounding leaves a little of one where rows declare that there is nothing.
_LEAST, _NOTHING, _MAY_HOLD = 0.1, 1e-9, 1e-6


class Corrected(NamedTuple):
    """A matrix from a model and a release.

    Attributes:
        matrix: A, (d, d).
        turn: T with A = T (M + lift) Tᵀ, (d, d), for a model of the same matrix elsewhere.
        lift: what was added to M where it is below its own error, (d, d).
        error: Q (d, d) -> Cov[E u] of its error E, u ~ (0, Q).
        stds: of A along the model's eigenvectors, as a matrix with these eigenvectors, (d, d).
        turns: count -> matrices in place of T, (count, d, d), of positive matrices drawn from what is known of A.
        possible: count -> these positive matrices, (count, d, d).
        deviation: τ, by how much the matrix differs from its model.
        kept: mean k_ij, the part of the deviation that the release tells.
        uncertainty: largest relative standard deviation over the model's eigenvectors.
        least: A with every eigenvalue of I + Δ lowered by one standard deviation, to 0 at most, (d, d).
    """

    matrix: np.ndarray
    turn: np.ndarray
    lift: np.ndarray
    error: Callable[[np.ndarray], np.ndarray]
    stds: np.ndarray
    turns: Callable[[int], np.ndarray]
    possible: Callable[[int], np.ndarray]
    deviation: float
    kept: float
    uncertainty: float
    least: np.ndarray


def corrected(
    model: np.ndarray,
    released: np.ndarray,
    noise_std: float,
    own: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Corrected:
    """Return a matrix from a model of it and a noisy release.

    Args:
        model: M, (d, d), positive semi-definite.
        released: Ã, (d, d), symmetric.
        noise_std: σ of its diagonal; σ/√2 off it.
        own: Q (d, d) -> Cov[D u] of the model's own error D, u ~ (0, Q); None: it has none.
    """
    model = (model + model.T) / 2
    values, vectors = eigh(model)
    largest = max(values[-1], np.finfo(float).tiny)
    own_variance = np.zeros_like(model)
    if own is not None:
        # Where the model holds nothing, the error tells directions that may hold something from those that do not.
        unlike = own(np.eye(len(model)))
        tied = unlike * (_NOTHING * largest / np.trace(unlike))
        vectors = eigh(model + tied)[1]
        values = np.einsum("id,ij,jd->d", vectors, model, vectors)
        own_variance = _entries(own, vectors)
    own_std = np.sqrt(np.diag(own_variance))
    held = (values > _NOTHING * largest) | (own_std > _MAY_HOLD * largest)
    lifted = np.where(held, np.maximum(values, own_std), 1.0)
    lift = (vectors * np.where(held, lifted - values, 0.0)) @ vectors.T
    values = lifted
    root = np.sqrt(values)
    products = np.outer(values, values)
    both = np.outer(held, held)
    halves = (1 + np.eye(len(values))) / 2
    found = vectors.T @ (released - model - lift) @ vectors / np.outer(root, root)
    found = np.where(both, found, 0.0)
    own_variance = own_variance / products
    noise = halves * noise_std**2 / products
    upper = np.triu(both)

    def log_likelihood(deviation: float) -> float:
        variance = (deviation**2 * halves + own_variance + noise)[upper]
        return -0.5 * float(np.sum(np.log(variance) + found[upper] ** 2 / variance))

    logs = np.array([log_likelihood(deviation) for deviation in _DEVIATIONS])
    logs -= 0.5 * (np.log(_DEVIATIONS / _USUAL) / _LOG_STD) ** 2
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    prior = _DEVIATIONS[:, None, None] ** 2 * halves + own_variance
    kept = np.where(both, np.tensordot(weights, prior / (prior + noise), 1), 0.0)
    mean = np.eye(len(values)) + kept * found
    relative, half = _positive(mean)
    scale = vectors * np.where(held, root, 0.0)
    back = (vectors / root).T
    left = kept * noise * products

    def error(q: np.ndarray) -> np.ndarray:
        turned = vectors.T @ q @ vectors
        out = left * turned.T
        out[np.diag_indices(len(out))] = left @ np.diag(turned)
        return vectors @ out @ vectors.T

    def positive(count: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        away = np.sqrt(kept * noise / halves) * np.stack([symmetric_noise(rng, len(values)) for _ in range(count // 2)])
        return _positive(mean + np.concatenate([away, -away]))

    def turns(count: int) -> np.ndarray:
        return scale @ positive(count)[1] @ back

    def possible(count: int) -> np.ndarray:
        return scale @ positive(count)[0] @ scale.T

    unsure = np.sqrt(np.diag(left)) / (values * np.diag(relative))
    return Corrected(
        scale @ relative @ scale.T,
        scale @ half @ back,
        lift,
        error,
        (vectors * np.sqrt(np.diag(left))) @ vectors.T,
        turns,
        possible,
        float(weights @ _DEVIATIONS),
        float(np.mean(kept[both])) if both.any() else 0.0,
        float(np.max(unsure[held], initial=0.0)),
        scale @ _lowered(mean, kept * noise) @ scale.T,
    )


def _lowered(relative: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return I + Δ, (d, d), with each eigenvalue lowered by its standard deviation, and none below 0.

    Args:
        relative: I + Δ.
        variances: of its entries, (d, d).
    """
    values, axes = eigh(relative)
    squares = axes**2
    # An entry off the diagonal stands twice in a quadratic form.
    twice = variances * (2 - np.eye(len(values)))
    stds = np.sqrt(np.einsum("ik,ij,jk->k", squares, twice, squares))
    return (axes * np.maximum(values - stds, 0.0)) @ axes.T


def confirmed(matrix: np.ndarray, released: np.ndarray, noise_std: float, model: np.ndarray) -> np.ndarray:
    """Return a matrix without what its release does not confirm, (d, d), along its own eigenvectors.

    Where noise hides a direction, an estimate of a matrix that may not be negative is positive all the same. The
    larger one of two lower ends is left of an eigenvalue: that of the release, one standard deviation of its noise
    below it, and that of a model of the matrix.

    Args:
        matrix: its estimate, (d, d).
        released: the matrix with noise, (d, d).
        noise_std: of its diagonal; smaller by √2 off it.
        model: lower end of its model, (d, d).
    """
    values, axes = eigh(matrix)
    seen, modelled = (np.einsum("ik,ij,jk->k", axes, one, axes) for one in (released, model))
    least = np.clip(np.maximum(seen - noise_std, modelled), 0.0, np.maximum(values, 0.0))
    return (axes * least) @ axes.T


def _positive(relative: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return I + Δ, (..., d, d), with no eigenvalue below the least, and its square root."""
    values, vectors = eigh(relative)
    values = np.maximum(values, _LEAST)[..., None, :]
    transposed = vectors.swapaxes(-1, -2)
    return (vectors * values) @ transposed, (vectors * np.sqrt(values)) @ transposed


def _entries(error: Callable[[np.ndarray], np.ndarray], vectors: np.ndarray) -> np.ndarray:
    """Return the variances of an error's entries in a basis, (d, d), given Q -> Cov[E u]."""
    of_columns = [np.sum(vectors * (error(np.outer(u, u)) @ vectors), axis=0) for u in vectors.T]
    return np.maximum(np.stack(of_columns), 0.0)


def exchangeable(gram: np.ndarray, blocks: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """Return a noisy second moment with the columns of each block, one for each level of a group, made alike, (d, d).

    Levels of one group exclude each other, so that their products are zero. As a model for :func:`corrected` it lets
    groups differ in size and in their mean row by about as much as all of them are seen to.

    Args:
        gram: (d, d), with noise that averages shrink.
        blocks: columns of each group effect.
    """
    groups = [list(block) for block in blocks]
    taken = {column for block in blocks for column in block}
    groups += [[column] for column in range(len(gram)) if column not in taken]
    average = np.zeros((len(groups), len(gram)))
    for number, columns in enumerate(groups):
        average[number, columns] = 1 / len(columns)
    spread = (average > 0).astype(np.float64)
    means = average @ gram @ average.T
    out = spread.T @ means @ spread
    for columns in groups[: len(blocks)]:
        out[np.ix_(columns, columns)] = np.mean(np.diag(gram)[columns]) * np.eye(len(columns))
    return out
