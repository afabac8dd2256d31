r"""Curvature and variance of a regression's score, from a second moment of its rows: one rule for K predictors.

A record with row x and predictors η = Θᵀx, Θ (d, K), has the gradient x ψᵀ, with Λ and V the curvature and the variance
of its score ψ (``scores.py``). So the mean gradient near Θ has, with parameters in the order (d, K),

    H = Σ_i x_i x_iᵀ ⊗ Λ(η_i),     B = Σ_i x_i x_iᵀ ⊗ V(η_i).

Rows are taken as normal about a mean row x̄ with covariance Σ = G/N − x̄x̄ᵀ, G = Σ x xᵀ. Write Θᵀ Σ Θ = R diag(v) Rᵀ. Then
η = Θᵀx̄ + R diag(√v) n with n ~ N(0, I_K), and x = x̄ + A n + e with A = ΣΘ R diag(v)^-½ and e independent of n, so

    E[x xᵀ ⊗ h(η)] = G/N ⊗ E[h] + Σ_a (x̄ A_aᵀ + A_a x̄ᵀ) ⊗ E[h n_a] + Σ_ab A_a A_bᵀ ⊗ E[h (n_a n_b − δ_ab)],     (1)

which is Stein's identity of second order. It costs nothing beyond the Gram matrix that the metric needs, and is off by
.2 to .5 of H where rows are not normal: ``corrected_matrix.py`` joins it to a noisy release of H or B.

Averages over n are taken at ``normal_points``, whose mean is zero and whose covariance is exactly I: E[h (n² − 1)] is a
difference, and B is positive semi-definite as the average is. A quantity of the rows at two positions at once has no
such rule, and is an average over ``normal_rows``.
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

from dpmcmc.inference.bounded_score import BoundedScore, Law
from dpmcmc.inference.decompositions import eigh, square_root
from dpmcmc.inference.normal_law import Local

#: Normal rows that stand in for the real ones.
NUM_NORMAL_ROWS = 4000
#: Points of an average over one normal number: its quantiles. Scores have kinks, which a Gauss rule does not resolve.
NUM_QUANTILES = 1000
#: Logarithm to base 2 of the points of an average over several normal numbers.
LOG_SOBOL_POINTS = 12
#: Least variance of predictors: of rows that have none, E[h n] is still a quotient.
LEAST_VARIANCE = 1e-9
#: Least curvature and variance of a score, which rounding hides elsewhere: where a path ran away both were 0, and a run
#: ended in an error after its budget was spent.
LEAST_SLOPE = 1e-30


@functools.lru_cache(maxsize=8)
def normal_points(size: int) -> np.ndarray:
    """Return standard normal points of equal weight, (points, K), made white: quantiles, or Sobol's where K > 1."""
    if size == 1:
        points = ndtri((np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES)[:, None]
        return points / np.sqrt(np.mean(points**2))
    from scipy.stats import qmc  # half a second to import

    half = qmc.Sobol(size, scramble=False).random_base2(LOG_SOBOL_POINTS - 1) + 0.5**LOG_SOBOL_POINTS
    points = ndtri(np.concatenate([half, 1 - half]))
    return np.linalg.solve(np.linalg.cholesky(points.T @ points / len(points)), points.T).T


class PredictorLaw(NamedTuple):
    """Law of rows and of their predictors η, as in (1).

    Attributes:
        moment: G/N, (d, d).
        mean: x̄, (d,).
        along: A, (d, K).
        points: n, (points, K).
        eta: η at these points, (points, K).
    """

    moment: np.ndarray
    mean: np.ndarray
    along: np.ndarray
    points: np.ndarray
    eta: np.ndarray

    @classmethod
    def of(
        cls, moment: np.ndarray, mean: np.ndarray, theta: np.ndarray, offset: tuple[float, float] = (0.0, 0.0)
    ) -> PredictorLaw:
        """Return the law at Θ, (d, K).

        Args:
            moment: G/N, (d, d).
            mean: x̄, (d,).
            theta: Θ.
            offset: mean and variance of what is added to predictors, independent of rows.
        """
        points = normal_points(theta.shape[1])
        towards = moment @ theta - np.outer(mean, mean @ theta)
        values, vectors = eigh(theta.T @ towards)
        std = np.sqrt(np.maximum(np.maximum(values, 0.0) + offset[1], LEAST_VARIANCE))
        eta = mean @ theta + offset[0] + (points * std) @ vectors.T
        return cls(moment, mean, towards @ vectors / std, points, eta)

    def second_moment(self, h: np.ndarray) -> np.ndarray:
        """Return E[x xᵀ ⊗ h], (d·K, d·K), equation (1), of h at the points, (points, K, K) or (points,)."""
        size = self.points.shape[1]
        h = h.reshape(-1, size, size)
        squares = self.points[:, :, None] * self.points[:, None, :] - np.eye(size)
        first, second = (np.tensordot(n, h, (0, 0)) / len(h) for n in (self.points, squares))
        mixed = np.multiply.outer(self.mean, np.tensordot(self.along, first, (1, 0)))
        out = np.multiply.outer(self.moment, np.mean(h, axis=0)) + mixed + mixed.swapaxes(0, 1)
        out += np.tensordot(self.along, np.tensordot(self.along, second, (1, 1)), (1, 1)).swapaxes(0, 1)
        return out.swapaxes(1, 2).reshape(len(self.mean) * size, -1)


def law_at(score: BoundedScore, eta: np.ndarray, limit: float) -> Law:
    """Return Λ and V of a score, (points, K, K) each, at predictors (points, K)."""
    size = score.size
    law = score.law(eta if size > 1 else eta[:, 0], limit)
    return Law(*(h.reshape(-1, size, size) + LEAST_SLOPE * np.eye(size) for h in law))


@dataclass(frozen=True)
class ScoredRows:
    """Facts of the rows of a regression that a curvature is made of.

    Attributes:
        score: of the family.
        gram: G, (d, d).
        num_records: N.
        mean: x̄, (d,); zero where no intercept is declared.
        limit: of a typical record's score, C over a typical ‖F⁻¹x‖.
        error: Q -> Cov[E u] of the error of G.
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
        """Return the model of the gradient near θ, (d·K,): H, B, and the error of H."""
        at = self._at(theta)
        law = law_at(self.score, at.eta, self.limit)
        curvature, variance = (self.num_records * at.second_moment(h) for h in law)
        mean = np.mean(law.curvature, axis=0)
        return Local(curvature, variance, lambda q: self._error(q, mean))

    def _at(self, theta: np.ndarray) -> PredictorLaw:
        """Return the law of predictors at θ, (d·K,)."""
        columns = theta.reshape(-1, self.score.size)
        if self.score.size > 1:  # scores of a classifier depend on differences of predictors alone
            columns = columns - columns.mean(axis=1, keepdims=True)
        return PredictorLaw.of(self.gram / self.num_records, self.mean, columns, self.offset)

    def _error(self, q: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return Cov[(E ⊗ c) u] of the error E of G, u ~ (0, Q) and c = E[Λ], (d·K, d·K).

        It is the error's covariance of each block Q_ab (d, d), mixed over predictors by c on both sides.
        """
        size = self.score.size
        blocks = q.reshape(-1, size, len(q) // size, size).transpose(1, 3, 0, 2)
        errors = np.stack([[self.error(block) for block in row] for row in blocks])
        mixed = np.tensordot(mean, np.tensordot(mean, errors, (1, 1)), (1, 1))
        return mixed.transpose(2, 0, 3, 1).reshape(q.shape)

    def errors(self, theta: np.ndarray, grams: np.ndarray, means: Sequence[np.ndarray]) -> np.ndarray:
        """Return errors that the curvature near θ may have, (k, d·K, d·K), from what else the rows may be.

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

    def predictors(self, theta: np.ndarray) -> np.ndarray:
        """Return points of equal weight of the law of predictors at θ, (points, K)."""
        return self._at(theta).eta

    def nonlinear_part(self, positions: np.ndarray, weights: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """Return by how much the mean gradient at positions exceeds the linear one about θ, weighted, (d·K,).

        The gradient at a position θ_k is about Σ_i x_i ∫ Λ(η) dη from x·θ to x·θ_k, of which Λ(x·θ)(x·θ_k − x·θ) is the
        linear part. Rows are normal ones, drawn from public points; the integral is Simpson's.

        Args:
            positions: θ_k, (k, d·K).
            weights: of each, they sum to 1, (k,).
            theta: θ, (d·K,).
        """
        rows = self._rows()
        start = self._predictors_of(rows, theta)
        first = self._slopes(start)
        total = np.zeros_like(start)
        for position, weight in zip(positions, weights, strict=True):
            step = rows @ (position - theta).reshape(-1, self.score.size)
            middle, end = (self._slopes(start + part * step) for part in (0.5, 1.0))
            total += weight / 6 * np.sum((4 * middle + end - 5 * first) * step[:, None, :], axis=-1)
        return self.num_records / len(rows) * (rows.T @ total).ravel()

    def _slopes(self, eta: np.ndarray) -> np.ndarray:
        """Return Λ at predictors (rows, K), (rows, K, K)."""
        return law_at(self.score, eta, self.limit).curvature

    def shifted(self, theta: np.ndarray) -> np.ndarray:
        """Return Σ_i x_i dE[ψ]/d(shift) at θ, (d,), of a score that learns of its labels."""
        rows = self._rows()
        eta = self._predictors_of(rows, theta)[:, 0]
        moved = self.score.shifted(eta, self.limit)  # type: ignore[attr-defined]
        return self.num_records / len(rows) * rows.T @ moved

    def norms(self, inverse: np.ndarray) -> np.ndarray:
        """Return ‖F⁻¹x‖ of normal rows, (points,), given F⁻¹, (d, d)."""
        return np.linalg.norm(self._rows() @ inverse, axis=1)

    def _rows(self) -> np.ndarray:
        """Return normal rows with this mean and second moment, (points, d)."""
        return normal_rows(self.gram / self.num_records, self.mean)

    def _predictors_of(self, rows: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """Return predictors of normal rows at θ, offsets included, (points, K)."""
        mean, variance = self.offset
        offsets = mean + math.sqrt(variance) * np.random.default_rng(1).normal(size=(len(rows), 1))
        return offsets + rows @ theta.reshape(-1, self.score.size)


class AverageLaw(NamedTuple):
    """E[Λ] and E[V] of a score over predictors, of each contrast of them where there are several."""

    curvature: float
    variance: float


def average_law(score: BoundedScore, variance: float, limit: float) -> AverageLaw:
    """Return the averages over independent predictors N(0, variance).

    Args:
        score: of the family.
        variance: of each predictor.
        limit: of a typical record's score.
    """
    eta = math.sqrt(max(variance, LEAST_VARIANCE)) * normal_points(score.size)
    contrasts = max(1, score.size - 1)
    return AverageLaw(*(float(np.mean(h, axis=0).trace()) / contrasts for h in law_at(score, eta, limit)))


def normal_rows(moment: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return normal rows from public points, (points, d), with a second moment (d, d) and a mean row (d,)."""
    root = square_root(moment - np.outer(mean, mean))
    noise = np.random.default_rng(0).normal(size=(NUM_NORMAL_ROWS // 2, len(mean)))
    return mean + np.concatenate([noise, -noise]) @ root.T


def mean_row(gram: np.ndarray, num_records: int, constant: int | None) -> np.ndarray:
    """Return the mean row, (d,), which the intercept's column of a Gram matrix holds; zero without an intercept.

    Σ x_c x = N x_c·(mean of x) where x_c is the same in every row, and G_cc = N x_c².
    """
    if constant is None or not gram[constant, constant] > 0:
        return np.zeros(len(gram))
    return gram[:, constant] / math.sqrt(num_records * gram[constant, constant])
