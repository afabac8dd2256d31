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

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from dpmcmc.inference.decompositions import eigh, spectral
from dpmcmc.inference.normal_law import symmetric_noise

#: Candidates for τ. The smallest keeps an error of the model in intervals whatever a release says.
DEVIATIONS = np.geomspace(0.02, 1.0, 13)
#: τ under its own prior, log-normal: its median and the standard deviation of its logarithm.
USUAL_DEVIATION, LOG_DEVIATION_STD = 0.1, 0.7
#: Least eigenvalue of I + Δ: the matrix is positive. Where a release has less noise than that, it can show less. The
#: least is then the first part of the noise's standard deviation for the estimate, and the second for what else the
#: matrix may be. A least of .1 alone held columns that fill a hundredth of their range to 1.4 to 4 times their
#: curvature, though the release denied it, and intervals of such columns covered 0 of 6 times.
LEAST_RELATIVE, LEAST_OF_NOISE, LEAST_POSSIBLE_OF_NOISE = 0.1, 0.5, 0.1
#: Part of the model's largest eigenvalue up to which a direction holds nothing, unless its error is above the second
#: part of it: rounding leaves a little of both where rows declare that there is nothing, up to 1e-9 in a metric of
#: little noise.
HOLDS_NOTHING, ERROR_MAY_HOLD = 1e-7, 1e-6
#: Part of the release's noise below which a model tells nothing: where a path ran away, a curvature of 1e-150 made
#: entries of the noise infinite, and the run ended in an error after its budget was spent.
NOTHING_TO_NOISE = 1e-12
#: Part of it that tells directions apart in which the model holds as much.
_TIE = 1e-9


@dataclass(frozen=True, eq=False)
class Corrected:
    """A matrix from a model and a release.

    Attributes:
        vectors: U, (d, d).
        values: m_i, (d,), no smaller than their own errors; 1 where nothing is held.
        held: whether a direction holds anything, (d,).
        lift: what was added to M where it is below its own error, (d, d).
        mean: posterior mean of I + Δ, (d, d), in the basis U.
        variances: of its entries, (d, d).
        noise: standard deviations of the release along U, in units of m_i, (d,).
        deviation: τ, by how much the matrix differs from its model.
    """

    vectors: np.ndarray
    values: np.ndarray
    held: np.ndarray
    lift: np.ndarray
    mean: np.ndarray
    variances: np.ndarray
    noise: np.ndarray
    deviation: float

    @functools.cached_property
    def _relative(self) -> np.ndarray:
        """I + Δ, positive, (d, d)."""
        return self._positive(self.mean, LEAST_OF_NOISE)

    @functools.cached_property
    def _root(self) -> np.ndarray:
        """M^½ U, (d, d)."""
        return self.vectors * np.where(self.held, np.sqrt(self.values), 0.0)

    @functools.cached_property
    def _entry_variances(self) -> np.ndarray:
        """v_ij, (d, d)."""
        return self.variances * np.outer(self.values, self.values)

    @property
    def matrix(self) -> np.ndarray:
        """A, (d, d)."""
        return self._root @ self._relative @ self._root.T

    @property
    def turn(self) -> np.ndarray:
        """T with A = T (M + lift) Tᵀ, (d, d), for a model of the same matrix elsewhere."""
        return self._turned(self._relative)

    @property
    def stds(self) -> np.ndarray:
        """Standard deviations of A along the model's eigenvectors, as a matrix with these eigenvectors, (d, d)."""
        return (self.vectors * np.sqrt(np.diag(self._entry_variances))) @ self.vectors.T

    @property
    def least(self) -> np.ndarray:
        """A with every eigenvalue of I + Δ lowered by one standard deviation, to 0 at most, (d, d)."""
        return self._root @ _lowered(self.mean, self.variances) @ self._root.T

    def error(self, q: np.ndarray) -> np.ndarray:
        """Return Cov[E u] of the error E of A, u ~ (0, Q), (d, d)."""
        turned = self.vectors.T @ q @ self.vectors
        out = self._entry_variances * turned.T
        out[np.diag_indices(len(out))] = self._entry_variances @ np.diag(turned)
        return self.vectors @ out @ self.vectors.T

    def turns(self, count: int) -> np.ndarray:
        """Return matrices in place of T, (count, d, d), of positive matrices drawn from what is known of A."""
        return self._turned(self._drawn(count))

    def possible(self, count: int) -> np.ndarray:
        """Return these positive matrices, (count, d, d)."""
        return self._root @ self._drawn(count) @ self._root.T

    def _turned(self, relative: np.ndarray) -> np.ndarray:
        """Return T given I + Δ, (..., d, d)."""
        return self._root @ spectral(relative, np.sqrt) @ (self.vectors / np.sqrt(self.values)).T

    def _drawn(self, count: int) -> np.ndarray:
        """Return draws of I + Δ, each with its mirror image about the mean, (count, d, d)."""
        rng = np.random.default_rng(0)
        size = len(self.mean)
        noise = np.stack([symmetric_noise(rng, size) for _ in range(count // 2)])
        away = np.sqrt(self.variances / _halves(size)) * noise
        return self._positive(self.mean + np.concatenate([away, -away]), LEAST_POSSIBLE_OF_NOISE)

    def _positive(self, relative: np.ndarray, part: float) -> np.ndarray:
        """Return I + Δ, (..., d, d), with no eigenvalue below the least.

        Args:
            relative: I + Δ.
            part: of the noise's standard deviation that a direction has at least.
        """
        least = np.sqrt(np.minimum(LEAST_RELATIVE, part * self.noise))
        scale = np.outer(least, least)
        return scale * spectral(relative / scale, lambda values: np.maximum(values, 1.0))


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
    values, vectors, own_variances = _basis(model, own)
    largest = max(values[-1], np.finfo(float).tiny)
    own_stds = np.sqrt(np.diag(own_variances))
    held = (values > HOLDS_NOTHING * largest) | (own_stds > ERROR_MAY_HOLD * largest)
    lifted = np.where(held, np.maximum(values, np.maximum(own_stds, NOTHING_TO_NOISE * noise_std)), 1.0)
    lift = (vectors * np.where(held, lifted - values, 0.0)) @ vectors.T
    root = np.sqrt(lifted)
    found = vectors.T @ (released - model - lift) @ vectors / np.outer(root, root)
    both = np.outer(held, held)
    found = np.where(both, found, 0.0)
    products = np.outer(lifted, lifted)
    noise = _halves(len(model)) * noise_std**2 / products
    weights, priors = _weighed_deviations(found, noise, own_variances / products, both)
    shares = np.where(both, np.tensordot(weights, priors / (priors + noise), 1), 0.0)
    mean = np.eye(len(model)) + shares * found
    stds = np.sqrt(np.diag(noise))
    return Corrected(vectors, lifted, held, lift, mean, shares * noise, stds, float(weights @ DEVIATIONS))


def _basis(
    model: np.ndarray, own: Callable[[np.ndarray], np.ndarray] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return m_i, (d,), and U, (d, d), and the variances of its own error in this basis, (d, d)."""
    values, vectors = eigh(model)
    if own is None:
        return values, vectors, np.zeros_like(model)
    # Where the model holds nothing, the error tells directions that may hold something from those that do not.
    error = own(np.eye(len(model)))
    tied = error * (_TIE * max(values[-1], np.finfo(float).tiny) / np.trace(error))
    vectors = eigh(model + tied)[1]
    values = _forms(model, vectors)
    of_columns = [np.sum(vectors * (own(np.outer(u, u)) @ vectors), axis=0) for u in vectors.T]
    return values, vectors, np.maximum(np.stack(of_columns), 0.0)


def _weighed_deviations(
    found: np.ndarray, noise: np.ndarray, own: np.ndarray, both: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior weights of DEVIATIONS, (k,), and t_ij over m_i m_j under each of them, (k, d, d).

    Args:
        found: Δ̃, (d, d).
        noise: variances of its noise, (d, d).
        own: those of the model's own error in it, (d, d).
        both: whether both directions of an entry hold anything, (d, d).
    """
    priors = DEVIATIONS[:, None, None] ** 2 * _halves(len(found)) + own
    upper = np.triu(both)
    variances = (priors + noise)[:, upper]
    log_likelihood = -0.5 * np.sum(np.log(variances) + found[upper] ** 2 / variances, axis=1)
    log_prior = -0.5 * (np.log(DEVIATIONS / USUAL_DEVIATION) / LOG_DEVIATION_STD) ** 2
    return softmax(log_likelihood + log_prior), priors


def _halves(size: int) -> np.ndarray:
    """Return (1 + δ_ij)/2, (d, d)."""
    return (1 + np.eye(size)) / 2


def _lowered(relative: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return I + Δ, (d, d), with each eigenvalue lowered by its standard deviation, and none below 0.

    Args:
        relative: I + Δ.
        variances: of its entries, (d, d).
    """
    values, axes = eigh(relative)
    # An entry off the diagonal stands twice in a quadratic form.
    twice = variances * (2 - np.eye(len(values)))
    stds = np.sqrt(_forms(twice, axes**2))
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
    least = np.maximum(_forms(released, axes) - noise_std, _forms(model, axes))
    least = np.clip(least, 0.0, np.maximum(values, 0.0))
    return (axes * least) @ axes.T


def _forms(matrix: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the quadratic form of each column, (k,), in a matrix (d, d)."""
    return np.einsum("ik,ij,jk->k", columns, matrix, columns)


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
