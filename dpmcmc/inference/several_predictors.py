"""Curvature of a bounded score of K predictors η = Θᵀx, Θ (d, K), from a second moment of the rows.

A record's gradient is x ψᵀ, so H = Σ_i x_i x_iᵀ ⊗ Λ(η_i) and B = Σ_i x_i x_iᵀ ⊗ V(η_i), with parameters
in the order (d, K).
Rows are taken as normal about a mean row x̄ with covariance Σ = G/N − x̄x̄ᵀ. Write Θᵀ Σ Θ = R diag(v) Rᵀ. Then
η = Θᵀx̄ + R diag(√v) n with n ~ N(0, I_K), and x = x̄ + A n + e with A = ΣΘ R diag(v)^-½ and e independent of n, so

    E[x xᵀ ⊗ h(η)] = G/N ⊗ E[h] + Σ_a (x̄ A_aᵀ + A_a x̄ᵀ) ⊗ E[h n_a] + Σ_ab A_a A_bᵀ ⊗ E[h (n_a n_b − δ_ab)],

which is Stein's identity of second order (``normal_law.py`` has it for one predictor). Scores of a classifier depend
on differences of predictors alone, so Θ is centred first. Averages over n are taken at quasi Monte Carlo points with
mean zero and covariance I, so B is positive semi-definite as the average is.

The Gram matrix' error enters H mostly as E ⊗ E[h]. Its covariance with a vector u ~ (0, Q) is the error's of each
block Q_ab (d, d) of Q, mixed over classes by E[h] on both sides.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.curvature import AverageLaw, ScoredRows
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.normal_law import Local

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
