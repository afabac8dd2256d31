r"""Curvature of a regression's bounded score, from a second moment of its rows.

Rows are taken as normal about a mean row x̄ with covariance Σ = G/N − x̄x̄ᵀ, so a predictor x·θ is normal too, and Stein's
identity turns E[h(x·θ) x xᵀ] into averages of h and of its derivatives over one predictor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from dpmcmc.inference.noise_aware import Local
from dpmcmc.inference.scores.base import BoundedScore

#: Standard normal quantiles over which predictors are averaged: scores have kinks, which a Gauss rule does not resolve.
_NODES = ndtri((np.arange(1000) + 0.5) / 1000)


@dataclass(frozen=True)
class AverageLaw:
    """Averages of a score's law over a normal predictor η, with h = Λ(η) (``inference/scores/__init__.py``).

    Attributes:
        curvature: c = E[h].
        slope: E[h'].
        along: E[h''], by how much less the mean gradient curves along θ.
        score: E[V], of the score's variance.
    """

    curvature: float
    slope: float
    along: float
    score: float

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
        h = law.curvature
        slope, along = np.mean(h * _NODES) / std, np.mean(h * (_NODES**2 - 1)) / std**2
        return cls(float(np.mean(h)), float(slope), float(along), float(np.mean(law.variance)))


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
    """

    score: BoundedScore
    gram: np.ndarray
    num_records: int
    mean: np.ndarray
    limit: float
    error: Callable[[np.ndarray], np.ndarray]

    def local(self, theta: np.ndarray) -> Local:
        """Return the model of the gradient near θ, (d,), with x̄ the mean row and Σ = G/N − x̄x̄ᵀ:

        H = N·(E[h] G/N + E[h'](x̄(Σθ)ᵀ + Σθ x̄ᵀ) + E[h''] Σθ(Σθ)ᵀ),   B = E[V] G.
        """
        mean = float(self.mean @ theta)
        towards = self.gram @ theta / self.num_records - self.mean * mean
        law = AverageLaw.at(self.score, mean, float(theta @ towards), self.limit)
        curvature = law.curvature * self.gram
        curvature = curvature + self.num_records * bent(law.slope, law.along, self.mean, towards)
        return Local(curvature, law.score * self.gram, lambda q: law.curvature**2 * self.error(q))


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
    """Return the mean row that a Gram matrix states in the column of its intercept, (d,); zero without one.

    Σ x_c x = N x_c·(mean of x) where x_c is the same in every row, and G_cc = N x_c².
    """
    if constant is None or not gram[constant, constant] > 0:
        return np.zeros(len(gram))
    return gram[:, constant] / math.sqrt(num_records * gram[constant, constant])
