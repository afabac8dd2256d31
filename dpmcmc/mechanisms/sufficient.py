r"""Linear regression from private sufficient statistics.

XᵀX and Xᵀy are released once, as ONE Gaussian query of the vector (svec(XᵀX), w·Xᵀy), w = label_weight·b/Y for rows
‖x‖ <= b and labels |y| <= Y. svec keeps the diagonal and √2 times the upper triangle, so its l2 norm is the Frobenius
norm. Everything after the noise is post-processing and costs nothing. One point leaves. Draws that account for the
noise, from the same release, are those of ``noise_aware.py``.

Sensitivity. One record contributes norm √(b⁴ + w²b²Y²): add_remove and zero_out. A replaced one moves the vector by

    ‖·‖² = ‖xxᵀ − x'x'ᵀ‖² + w²‖xy − x'y'‖² = s² + s'² − 2t² + w²(y²s + y'²s' − 2yy't),   s = ‖x‖², s' = ‖x'‖², t = x·x'

It grows with s, s' at a fixed t, and −yy't is at most Y²|t|, so the supremum is at s = s' = b² and y = −y', over
|t| <= b²: with r = w²Y²/(2b²) it is at |t| = b²·min(1, r),

    ‖·‖ <= √2·b²·(1 + r) for r <= 1,      2wbY for r > 1

Both are attained. The two parts apart would be charged √(2b⁴ + 4w²b²Y²); for w = 0, ‖xxᵀ − x'x'ᵀ‖ <= √2·b².
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.gaussian_release import calibrated_std, gaussian_event, gaussian_release
from dpmcmc.mechanisms.linear_bounds import gram_and_moment, linear_bounds, summing
from dpmcmc.mechanisms.one_shot import Asked, OneShot
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive, Target
from dpmcmc.targets.glm import LinearRegression


@dataclass(frozen=True)
class SufficientStatistics(OneShot):
    """Ridge regression from one noisy release of XᵀX and Xᵀy.

    Args:
        label_weight: how much of the budget goes to Xᵀy; its noise is that of XᵀX times
            label_bound/(row_bound·label_weight).

    Raises:
        ValueError: a value outside these.
    """

    label_weight: Positive = 1.0

    def settle(self, target: Target, asked: Asked) -> MechanismPlan:
        """Settle the noise.

        Raises:
            UnsupportedCombination: another target than linear regression.
            ValueError: no row_bound or label_bound.
        """
        _, row, label, num_features = linear_bounds(target, "sufficient_statistics")
        weight = self.label_weight * row / label
        # Rounding of float64 sums, on either neighbour.
        unsure = summing(asked.num_records) * asked.num_records * record_norm(row, label, weight)
        sensitivity = sensitivity_of(row, label, weight, asked.adjacency) + 2 * unsure
        size = num_features * (num_features + 3) // 2
        noise_std = calibrated_std(sensitivity, size, epsilon=asked.epsilon, delta=asked.delta)
        event = gaussian_event(noise_std, sensitivity, size, asked.adjacency)
        settings = {
            "sensitivity": sensitivity,
            "noise_std": noise_std,
            "label_noise_std": noise_std / weight,
            "noise_multiplier": event.noise_multiplier,
        }
        return self.planned(target, asked, (event,), settings)

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> np.ndarray:
        """Return the ridge estimate, (1, d)."""
        noise_std = plan.settings["noise_std"]
        weight = noise_std / plan.settings["label_noise_std"]
        released = gaussian_release(statistics(records["x"], records["y"], weight), noise_std, streams.noise)
        gram, moment = split(released, records["x"].shape[1], weight)
        return ridge(gram, moment, plan.target, noise_std)[np.newaxis]


def sensitivity_of(row_bound: float, label_bound: float, weight: float, adjacency: Adjacency) -> float:
    """Return the largest l2 distance of (svec(XᵀX), weight·Xᵀy) between neighbours; derived above."""
    if adjacency.sensitivity == 1:
        return record_norm(row_bound, label_bound, weight)
    ratio = (weight * label_bound / row_bound) ** 2 / 2
    if ratio <= 1:
        return math.sqrt(2) * row_bound**2 * (1 + ratio)
    return 2 * weight * row_bound * label_bound


def statistics(x: np.ndarray, y: np.ndarray, weight: float) -> np.ndarray:
    """Return (svec(XᵀX), weight·Xᵀy), (d(d + 3)/2,).

    Args:
        x: (N, d).
        y: (N,).
        weight: w.
    """
    gram, moment = gram_and_moment(x, y)
    return np.concatenate([svec(gram), weight * moment])


def svec(matrix: np.ndarray) -> np.ndarray:
    """Return the diagonal and √2 times the upper triangle of a symmetric matrix, (d(d + 1)/2,)."""
    row, column = np.triu_indices(len(matrix))
    return matrix[row, column] * _scale(row, column)


def symmetric(entries: np.ndarray, d: int) -> np.ndarray:
    """Return the matrix (d, d) whose :func:`svec` these are."""
    row, column = np.triu_indices(d)
    matrix = np.zeros((d, d))
    matrix[row, column] = matrix[column, row] = entries / _scale(row, column)
    return matrix


def ridge(gram: np.ndarray, moment: np.ndarray, target: LinearRegression, noise_std: float) -> np.ndarray:
    """Return the mean of the posterior that takes noisy statistics for exact ones, (d,).

    Eigenvalues of XᵀX that the noise could have made by itself are raised to noise_std·√(2d), the spectral radius of
    symmetric noise of this std: directions the records say nothing about are shrunk and not blown up.

    Args:
        gram: noisy XᵀX, (d, d), symmetric.
        moment: noisy Xᵀy, (d,).
        target: prior and noise scale.
        noise_std: of svec.
    """
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, noise_std * math.sqrt(2 * len(values)))
    precision = (vectors * values) @ vectors.T / target.noise_scale**2 + np.eye(len(values)) / target.prior_scale**2
    return cho_solve(cho_factor(precision), moment) / target.noise_scale**2


def record_norm(row_bound: float, label_bound: float, weight: float) -> float:
    """Return the largest norm that one record contributes."""
    return math.hypot(row_bound**2, weight * row_bound * label_bound)


def _scale(row: np.ndarray, column: np.ndarray) -> np.ndarray:
    return np.where(row == column, 1.0, math.sqrt(2))


def split(released: np.ndarray, d: int, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (XᵀX, Xᵀy) of a noisy :func:`statistics`."""
    entries = d * (d + 1) // 2
    return symmetric(released[:entries], d), released[entries:] / weight
