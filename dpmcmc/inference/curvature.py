r"""Curvature and variance of a regression's score: what normal rows make of them, corrected by releases.

A record with row x and predictor η = x·θ has the score v ψ(η, y) x, v a weight that sees no label. The mean gradient
near θ has the curvature H = Σ v E[∂ψ/∂η] x xᵀ and the variance B = Σ v² ψ² x xᵀ. Two sources tell what these are:

* the rows' second moment, with rows taken as normal about their mean (:class:`ScoredRows`). It costs nothing beyond
  the Gram matrix that the metric needs. It is off by .2 to .5 of H where rows are not normal;
* a noisy release of H or B itself, whose noise is as large in a direction of little curvature as in any other.

:func:`corrected` joins the two: the deviation of the matrix from the normal rows' one is taken for RELATIVE.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.noise_aware import Local, symmetric_noise
from dpmcmc.inference.scores import BoundedScore

# ----------------------------------------------------------------------------------------------------
# A matrix from a model of it and a noisy release.
#
# Let M be the model's matrix, with eigenvalues m_i and eigenvectors U. The matrix itself is taken for
#
#     A = M^½ U (I + Δ) Uᵀ M^½ + D,     Δ symmetric,  Δ_ij ~ N(0, τ²(1 + δ_ij)/2)  independent,
#
# so that it deviates from the truth of its model by about τ of it in every direction. D is the error of M itself, which
# comes from a noisy release of rows; its entries in the basis U have the known variances e_ij. A release à = A + E with
# Var E_ij = σ²(1 + δ_ij)/2 has Δ̃_ij = (UᵀM^-½ à M^-½U − I)_ij. So each entry has the posterior mean k_ij Δ̃_ij and the
# variance k_ij σ²(1 + δ_ij)/(2 m_i m_j), with
#
#     k_ij = t_ij/(t_ij + σ²(1 + δ_ij)/(2 m_i m_j)),     t_ij = τ²(1 + δ_ij)/2 + e_ij/(m_i m_j):
#
# an entry between directions of much curvature is the release's, and one between directions of little curvature the
# model's, as far as the model knows it. k_ij is averaged over τ, whose posterior all Δ̃_ij make. The error E of the
# result has independent entries v_ij = k_ij σ²(1 + δ_ij)/2 in the basis U, and for u ~ (0, Q):
#
#     Cov[E u]_ij = δ_ij Σ_k v_ik Q_kk + (1 − δ_ij) v_ij Q_ij.
#
# An eigenvalue of M below its own error is noise, and the matrix itself may have far more there: such an eigenvalue is
# taken for as large as its error. Without e_ij a direction that the rows' release lost in its noise was taken for
# known: nine coefficients of a table whose columns fill a small part of their ranges were covered .11 of the time.
#
# One shrinkage for the whole matrix keeps noise in directions of little curvature: it covered 0 of 24 tables with
# strong effects, where this covers .85 to .92.

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


# ----------------------------------------------------------------------------------------------------
# Curvature of a regression's bounded score, from a second moment of its rows.
#
# Rows are taken as normal about a mean row x̄ with covariance Σ = G/N − x̄x̄ᵀ, so a predictor x·θ is normal too, and
# Stein's identity turns E[h(x·θ) x xᵀ] into averages of h and of its derivatives over one predictor.

#: Normal rows that stand in for the real ones.
_ROWS = 4000
#: Standard normal quantiles over which predictors are averaged: scores have kinks, which a Gauss rule does not resolve.
_NODES = ndtri((np.arange(1000) + 0.5) / 1000)
#: Their variance is exactly 1: E[h''] is a difference over the predictors' variance, which may be tiny.
_NODES /= np.sqrt(np.mean(_NODES**2))


@dataclass(frozen=True)
class AverageLaw:
    """Averages of a score's law over a normal predictor η, with h = Λ(η) (``inference/scores.py``).

    Attributes:
        curvature: c = E[h].
        slope: E[h'].
        along: E[h''], by how much less the mean gradient curves along θ.
        score: E[V], of the score's variance.
        score_slope: E[V'].
        score_along: E[V''].
    """

    curvature: float
    slope: float
    along: float
    score: float
    score_slope: float
    score_along: float

    @classmethod
    def at(cls, score: BoundedScore, mean: float, variance: float, limit: float) -> AverageLaw:
        """Return the averages.

        Args:
            score: of the family.
            mean: of the predictors.
            variance: of the predictors about it.
            limit: of a typical record's score, C over a typical ‖F⁻¹x‖.
        """
        std = math.sqrt(max(variance, 1e-9))
        law = score.law(mean + std * _NODES, limit)
        averages = [
            float(average)
            for h in law
            for average in (
                np.mean(h),
                np.mean(h * _NODES) / std,
                np.mean(h * (_NODES**2 - 1)) / std**2,
            )
        ]
        return cls(*averages)


@dataclass(frozen=True)
class ScoredRows:
    """Facts of the rows of a regression that a curvature is made of.

    Attributes:
        score: of the family.
        gram: G, (d, d).
        num_records: N.
        mean: the mean row, (d,); zero where no intercept is declared.
        limit: of a typical record's score, C over a typical ‖F⁻¹x‖.
        error: Q -> Cov[E u] of the error of G; that of H is c times as long.
        offset: mean and variance of what is added to predictors, which is taken for independent of rows.
    """

    score: BoundedScore
    gram: np.ndarray
    num_records: int
    mean: np.ndarray
    limit: float
    error: Callable[[np.ndarray], np.ndarray]
    offset: tuple[float, float] = (0.0, 0.0)

    def local(self, theta: np.ndarray) -> Local:
        """Return the model of the gradient near θ, (d,), with x̄ the mean row and Σ = G/N − x̄x̄ᵀ:

        H = N·(E[h] G/N + E[h'](x̄(Σθ)ᵀ + Σθ x̄ᵀ) + E[h''] Σθ(Σθ)ᵀ),   and B is the same of V in place of h.
        """
        mean = float(self.mean @ theta)
        towards = self.gram @ theta / self.num_records - self.mean * mean
        law = self.law(theta, self.limit)

        def second_moment(average: float, slope: float, along: float) -> np.ndarray:
            change = bent(slope, along, self.mean, towards)
            return average * self.gram + self.num_records * change

        return Local(
            second_moment(law.curvature, law.slope, law.along),
            second_moment(law.score, law.score_slope, law.score_along),
            lambda q: law.curvature**2 * self.error(q),
        )

    def errors(self, theta: np.ndarray, grams: np.ndarray, means: Sequence[np.ndarray]) -> np.ndarray:
        """Return errors that the curvature near θ may have, (k, d, d), from what else the rows may be.

        A curvature is better known than the second moment of rows that it is made of: with more of it predictors reach
        farther, and slopes there are smaller. c times the second moment's own error would be twice too large where
        effects are strong.

        Args:
            theta: θ, (d·K,).
            grams: second moments that rows may have, (k, d, d).
            means: mean rows under them, (d,) each.
        """
        others = [dataclasses.replace(self, gram=gram, mean=mean) for gram, mean in zip(grams, means, strict=True)]
        found = np.stack([other.local(theta).curvature for other in others])
        return found - self.local(theta).curvature

    def law(self, theta: np.ndarray, limit: float) -> AverageLaw:
        """Return the averages over predictors at θ, (d,), under a limit of a typical record's score."""
        return AverageLaw.at(self.score, *self._law_of_predictors(theta), limit)

    def predictors(self, theta: np.ndarray) -> np.ndarray:
        """Return points of the law of predictors at θ, (d,), with equal shares, (points,)."""
        mean, variance = self._law_of_predictors(theta)
        return mean + math.sqrt(variance) * _NODES

    def _law_of_predictors(self, theta: np.ndarray) -> tuple[float, float]:
        """Return mean and variance of predictors at θ, (d,)."""
        mean = float(self.mean @ theta)
        variance = float(theta @ self.gram @ theta) / self.num_records - mean**2
        return mean + self.offset[0], max(variance, 0.0) + self.offset[1]

    def beyond(self, positions: np.ndarray, weights: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """Return by how much the mean gradient at positions exceeds the linear one about θ, weighted, (d·K,).

        The gradient at a position θ_k is about Σ_i x_i ∫ Λ(η) dη from x·θ to x·θ_k, of which Λ(x·θ)(x·θ_k − x·θ) is the
        linear part. Rows are normal ones, drawn from public points; the integral is Simpson's.

        Args:
            positions: θ_k, (k, d·K).
            weights: of each, they sum to 1, (k,).
            theta: θ, (d·K,).
        """
        rows = self._rows()
        size = self.score.size
        added = self._offsets(len(rows)) if size == 1 else 0.0

        def predictors(at: np.ndarray) -> np.ndarray:
            return added + rows @ (at if size == 1 else at.reshape(-1, size))

        def slopes(eta: np.ndarray) -> np.ndarray:
            return self.score.law(eta, self.limit).curvature

        start = predictors(theta)
        first = slopes(start)
        total = np.zeros_like(start)
        for position, weight in zip(positions, weights, strict=True):
            step = predictors(position) - start
            bend = (4 * slopes(start + step / 2) + slopes(start + step) - 5 * first) / 6
            total += weight * (bend * step if size == 1 else np.einsum("nkl,nl->nk", bend, step))
        return self.num_records / len(rows) * (rows.T @ total).ravel()

    def shifted(self, theta: np.ndarray) -> np.ndarray:
        """Return Σ_i x_i dE[ψ]/d(shift) at θ, (d,), of a score that learns of its labels."""
        rows = self._rows()
        added = self._offsets(len(rows))
        moved = self.score.shifted(added + rows @ theta, self.limit)  # type: ignore[attr-defined]
        return self.num_records / len(rows) * rows.T @ moved

    def norms(self, inverse: np.ndarray) -> np.ndarray:
        """Return ‖F⁻¹x‖ of normal rows, (points,), given F⁻¹, (d, d)."""
        return np.linalg.norm(self._rows() @ inverse, axis=1)

    def _offsets(self, count: int) -> np.ndarray:
        """Return offsets of normal rows, (count,)."""
        mean, variance = self.offset
        return mean + math.sqrt(variance) * np.random.default_rng(1).normal(size=count)

    def _rows(self) -> np.ndarray:
        """Return normal rows with this mean and second moment, (points, d)."""
        return normal_rows(self.gram / self.num_records, self.mean)


def normal_rows(moment: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return normal rows from public points, (points, d), with a second moment (d, d) and a mean row (d,)."""
    values, vectors = eigh(moment - np.outer(mean, mean))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    noise = np.random.default_rng(0).normal(size=(_ROWS // 2, len(values)))
    return mean + np.concatenate([noise, -noise]) @ root.T


def bent(slope: float, along: float, row: np.ndarray, towards: np.ndarray) -> np.ndarray:
    """Return E[h x xᵀ] − E[h] E[x xᵀ], (d, d), of normal rows by Stein's identity.

    Args:
        slope: E[h'], of a function h of the margin x·θ.
        along: E[h''].
        row: x̄, the mean row, (d,).
        towards: Σθ, the rows' covariance times θ, (d,).
    """
    mixed = np.outer(row, towards)
    return slope * (mixed + mixed.T) + along * np.outer(towards, towards)


def mean_row(gram: np.ndarray, num_records: int, constant: int | None) -> np.ndarray:
    """Return the mean row, (d,), which the intercept's column of a Gram matrix holds; zero without an intercept.

    Σ x_c x = N x_c·(mean of x) where x_c is the same in every row, and G_cc = N x_c².
    """
    if constant is None or not gram[constant, constant] > 0:
        return np.zeros(len(gram))
    return gram[:, constant] / math.sqrt(num_records * gram[constant, constant])


# ----------------------------------------------------------------------------------------------------
# Curvature of a bounded score of K predictors η = Θᵀx, Θ (d, K), from a second moment of the rows.
#
# A record's gradient is x ψᵀ, so H = Σ_i x_i x_iᵀ ⊗ Λ(η_i) and B = Σ_i x_i x_iᵀ ⊗ V(η_i), with parameters
# in the order (d, K).
# Rows are taken as normal about a mean row x̄ with covariance Σ = G/N − x̄x̄ᵀ. Write Θᵀ Σ Θ = R diag(v) Rᵀ. Then
# η = Θᵀx̄ + R diag(√v) n with n ~ N(0, I_K), and x = x̄ + A n + e with A = ΣΘ R diag(v)^-½ and e independent of n, so
#
#     E[x xᵀ ⊗ h(η)] = G/N ⊗ E[h] + Σ_a (x̄ A_aᵀ + A_a x̄ᵀ) ⊗ E[h n_a] + Σ_ab A_a A_bᵀ ⊗ E[h (n_a n_b − δ_ab)],
#
# which is Stein's identity of second order (``noise_aware.py`` has it for one predictor). Scores of a classifier depend
# on differences of predictors alone, so Θ is centred first. Averages over n are taken at quasi Monte Carlo points with
# mean zero and covariance I, so B is positive semi-definite as the average is.
#
# The Gram matrix' error enters H mostly as E ⊗ E[h]. Its covariance with a vector u ~ (0, Q) is the error's of each
# block Q_ab (d, d) of Q, mixed over classes by E[h] on both sides.

#: Logarithm to base 2 of the points of an average over K normal numbers.
_LOG_POINTS = 12


@dataclass(frozen=True)
class SeveralPredictors(ScoredRows):
    """Facts of the rows of a regression with K predictors that a curvature is made of."""

    def local(self, theta: np.ndarray) -> Local:
        """Return the model of the gradient near θ, (d·K,)."""
        size = self.score.size
        count = self.num_records
        parameters = theta.reshape(-1, size)
        parameters = parameters - parameters.mean(axis=1, keepdims=True)
        covariance = self.gram / count - np.outer(self.mean, self.mean)
        towards = covariance @ parameters
        values, vectors = eigh(parameters.T @ towards)
        std = np.sqrt(np.maximum(values, 1e-9))
        along = towards @ vectors / std
        nodes = _normal_points(size)
        law = self.score.law(self.mean @ parameters + (nodes * std) @ vectors.T, self.limit)

        def second_moment(h: np.ndarray) -> np.ndarray:
            """Σ_i x_i x_iᵀ ⊗ E h, (d·K, d·K), of h (points, K, K)."""
            squares = nodes[:, :, None] * nodes[:, None, :] - np.eye(size)
            first, second = (np.tensordot(n, h, (0, 0)) / len(h) for n in (nodes, squares))
            mixed = np.multiply.outer(self.mean, np.tensordot(along, first, (1, 0)))
            out = np.multiply.outer(self.gram / count, np.mean(h, axis=0)) + mixed + mixed.swapaxes(0, 1)
            out += np.tensordot(along, np.tensordot(along, second, (1, 1)), (1, 1)).swapaxes(0, 1)
            return count * out.swapaxes(1, 2).reshape(len(theta), -1)

        mean = np.mean(law.curvature, axis=0)
        return Local(
            second_moment(law.curvature),
            second_moment(law.variance),
            lambda q: self._error(q, mean),
        )

    def _error(self, q: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return Cov[(E ⊗ c) u] of the Gram matrix' error E, u ~ (0, Q) and c = E[h], (d·K, d·K)."""
        size = self.score.size
        blocks = q.reshape(-1, size, len(q) // size, size).transpose(1, 3, 0, 2)
        errors = np.stack([[self.error(block) for block in row] for row in blocks])
        mixed = np.tensordot(mean, np.tensordot(mean, errors, (1, 1)), (1, 1))
        return mixed.transpose(2, 0, 3, 1).reshape(q.shape)


def average_law(score: BoundedScore, variance: float, limit: float) -> AverageLaw:
    """Return averages over independent predictors N(0, variance), of each contrast of them where there are several."""
    if score.size == 1:
        return AverageLaw.at(score, 0.0, variance, limit)
    law = score.law(math.sqrt(variance) * _normal_points(score.size), limit)
    curvature, spread = (float(np.trace(np.mean(h, axis=0))) / (score.size - 1) for h in law)
    return AverageLaw(curvature, 0.0, 0.0, spread, 0.0, 0.0)


@functools.lru_cache(maxsize=8)
def _normal_points(size: int) -> np.ndarray:
    """Return standard normal points (points, K): Sobol's and their mirror images, made exactly white."""
    from scipy.stats import qmc  # half a second to import

    half = qmc.Sobol(size, scramble=False).random_base2(_LOG_POINTS - 1) + 0.5**_LOG_POINTS
    points = ndtri(np.concatenate([half, 1 - half]))
    return np.linalg.solve(np.linalg.cholesky(points.T @ points / len(points)), points.T).T
