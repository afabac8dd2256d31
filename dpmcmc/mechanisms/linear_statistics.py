r"""One release of (svec(XᵀX), w·Xᵀy) for linear regression: its noise, its charge and its reading of the records.

Rows have ‖x‖ <= b and labels |y| <= Y; w = label_weight·b/Y. svec keeps the diagonal and √2 times the upper triangle,
so its l2 norm is the Frobenius norm.

Sensitivity. One record contributes norm √(b⁴ + w²b²Y²): add_remove and zero_out. A replaced one moves the vector by

    ‖·‖² = ‖xxᵀ − x'x'ᵀ‖² + w²‖xy − x'y'‖² = s² + s'² − 2t² + w²(y²s + y'²s' − 2yy't),   s = ‖x‖², s' = ‖x'‖², t = x·x'

It grows with s, s' at a fixed t, and −yy't is at most Y²|t|, so the supremum is at s = s' = b² and y = −y', over
|t| <= b²: with r = w²Y²/(2b²) it is at |t| = b²·min(1, r),

    ‖·‖ <= √2·b²·(1 + r) for r <= 1,      2wbY for r > 1

Both are attained. The two parts apart would be charged √(2b⁴ + 4w²b²Y²); for w = 0, ‖xxᵀ − x'x'ᵀ‖ <= √2·b².

An owner of at most m rows moves the vector m times as far at most: pair its rows with those that replace them; a row
without a partner adds √(b⁴ + w²b²Y²), which is less than the supremum of a pair.
"""

from __future__ import annotations

import math

import jax
import numpy as np

from dpmcmc.mechanisms.linear_bounds import gram_and_moment, linear_bounds
from dpmcmc.mechanisms.one_shot import Asked
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.query.gaussian_release import gaussian_release, mu_std
from dpmcmc.privacy.query.gram_release import Rows, entries, summing, svec, symmetric
from dpmcmc.targets.base import Target
from dpmcmc.targets.glm import LinearRegression


def settle_statistics(
    target: Target, asked: Asked, mu: float, label_weight: float, mechanism: str, together: int = 1
) -> tuple[Event, dict[str, float]]:
    """Return what one release of the statistics costs, and its settings.

    Args:
        target: linear regression with its public bounds.
        asked: N and adjacency.
        mu: μ of the release.
        label_weight: how much of it goes to Xᵀy.
        mechanism: named in errors.
        together: m, rows that an owner may have; 1 where records are rows.

    Raises:
        UnsupportedCombination: another target than linear regression.
        ValueError: no row_bound or label_bound.
        CalibrationError: see :func:`mu_std`.
    """
    _, row, label, d = linear_bounds(target, mechanism)
    weight, size = label_weight * row / label, d * (d + 3) // 2
    # Rounding of float64 sums, on either neighbour.
    rows = together * asked.most_records
    unsure = summing(rows) * rows * record_norm(row, label, weight)
    sensitivity = together * sensitivity_of(row, label, weight, asked.adjacency) + 2 * unsure
    noise_std = mu_std(sensitivity, size, mu)
    event = asked.gaussian(noise_std, sensitivity, size)
    return event, {
        "sensitivity": sensitivity,
        "noise_std": noise_std,
        "label_noise_std": noise_std / weight,
        "noise_multiplier": event.noise_multiplier,
    }


def label_weight_of(settings: dict[str, float]) -> float:
    """Return w, by which Xᵀy is multiplied before noise is added."""
    return settings["noise_std"] / settings["label_noise_std"]


def release_statistics(
    x: np.ndarray, y: np.ndarray, settings: dict[str, float], key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy (XᵀX, Xᵀy).

    Args:
        x: (N, d), within the row_bound.
        y: (N,), within the label_bound.
        settings: of :func:`settle_statistics`.
        key: secret JAX key, used for nothing else.
    """
    weight = label_weight_of(settings)
    released = gaussian_release(statistics(x, y, weight), settings["noise_std"], key)
    return split(released, x.shape[1], weight)


def residual_rows(target: LinearRegression, num_records: int, radius: float, together: int = 1) -> Rows:
    """Return the public facts of :func:`residual_scores`, summed over an owner's rows, within ``radius``.

    Raises:
        UnsupportedCombination: another target than linear regression.
        ValueError: no row_bound or label_bound.
    """
    _, row, label, d = linear_bounds(target, "noise_aware")
    # A margin is off by d·2^-53·b·R, and v vᵀ by 2‖v‖ times what v is off by.
    each = 2.0**-53 * (d * row * radius / label + 7 + together)
    return Rows(num_records, d, together * row * label, rounding=2 * num_records * each)


def residual_scores(x: np.ndarray, y: np.ndarray, theta: np.ndarray, label_bound: float) -> np.ndarray:
    """Return (y − x·θ) x of every record, (N, d), residuals beyond Y taken for Y. Private: it must not leave."""
    return np.clip(y - x @ theta, -label_bound, label_bound)[:, None] * x


def sensitivity_of(row_bound: float, label_bound: float, weight: float, adjacency: Adjacency) -> float:
    """Return the largest l2 distance of (svec(XᵀX), weight·Xᵀy) between neighbours; derived above."""
    if adjacency.sensitivity == 1:
        return record_norm(row_bound, label_bound, weight)
    ratio = (weight * label_bound / row_bound) ** 2 / 2
    if ratio <= 1:
        return math.sqrt(2) * row_bound**2 * (1 + ratio)
    return 2 * weight * row_bound * label_bound


def record_norm(row_bound: float, label_bound: float, weight: float) -> float:
    """Return the largest norm that one record contributes."""
    return math.hypot(row_bound**2, weight * row_bound * label_bound)


def statistics(x: np.ndarray, y: np.ndarray, weight: float) -> np.ndarray:
    """Return (svec(XᵀX), weight·Xᵀy), (d(d + 3)/2,).

    Args:
        x: (N, d).
        y: (N,).
        weight: w.
    """
    gram, moment = gram_and_moment(x, y)
    return np.concatenate([svec(gram), weight * moment])


def split(released: np.ndarray, d: int, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (XᵀX, Xᵀy) of a noisy :func:`statistics`."""
    number = entries(d)
    return symmetric(released[:number], d), released[number:] / weight
