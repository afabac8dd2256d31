r"""Curvature and variance of a regression's score: what normal rows make of them, corrected by releases.

A record with row x and predictor η = x·θ has the score v ψ(η, y) x, v a weight that sees no label. The mean gradient
near θ has the curvature H = Σ v E[∂ψ/∂η] x xᵀ and the variance B = Σ v² ψ² x xᵀ. Two sources tell what these are:

* the rows' second moment G, with rows taken as normal about their mean x̄ (:class:`ScoredRows`). Their covariance is
  Σ = G/N − x̄x̄ᵀ, so a predictor x·θ is normal too. Stein's identity turns E[h(x·θ) x xᵀ] into averages of h and of its
  derivatives over one predictor. This costs nothing beyond the Gram matrix that the metric needs. It is off by .2 to .5
  of H where rows are not normal;
* a noisy release of H or B itself, whose noise is as large in a direction of little curvature as in any other.

:func:`corrected` joins the two: the deviation of the matrix from the normal rows' one is taken for RELATIVE.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.normal_law import Local

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
