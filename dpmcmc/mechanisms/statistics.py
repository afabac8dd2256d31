"""One release of (svec(XᵀX), w·Xᵀy) for linear regression: its noise, its charge and its reading of the records.

Rows have ‖x‖ <= b and labels |y| <= Y; w = label_weight·b/Y. svec keeps the diagonal and √2 times the upper triangle,
so its l2 norm is the Frobenius norm.

Sensitivity. One record contributes norm √(b⁴ + w²b²Y²): add_remove and zero_out. A replaced one moves the vector by

    ‖·‖² = ‖xxᵀ − x'x'ᵀ‖² + w²‖xy − x'y'‖² = s² + s'² − 2t² + w²(y²s + y'²s' − 2yy't),   s = ‖x‖², s' = ‖x'‖², t =
    x·x'

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

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.mechanisms.one_shot import PrivacySpec
from dpmcmc.mechanisms.rows import Rows
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.query.gaussian_release import gaussian_release, mu_std
from dpmcmc.privacy.query.gram_release import entries, symmetric
from dpmcmc.privacy.query.integer_rows import Exact, stacked, svec_of
from dpmcmc.privacy.query.record_sums import Records, asked
from dpmcmc.targets.base import Target, require_bound
from dpmcmc.targets.linear import LinearRegression


def linear_bounds(target: Target, mechanism: str) -> tuple[LinearRegression, float, float, int]:
    """Return the target as a linear regression, with its row_bound, label_bound and num_features.

    Args:
        target: linear regression with its public bounds.
        mechanism: named in errors.

    Raises:
        UnsupportedCombination: another target, whose posterior is not Gaussian.
        ValueError: a bound that is not given.
    """
    if type(target) is not LinearRegression:
        raise UnsupportedCombination(
            f"{mechanism} needs the Gaussian posterior of LinearRegression, and the target is "
            f"{type(target).__name__}; use certified_ops or output_perturbation for other convex losses."
        )
    row = require_bound(target.row_bound, "row_bound", "LinearRegression")
    label = require_bound(target.label_bound, "label_bound", "LinearRegression")
    if target.num_features is None:
        raise InputError(
            "num_features: LinearRegression needs it before a plan; give it",
            "num_features",
        )
    return target, row, label, target.num_features


def gram_and_moment(records: Records, target: LinearRegression) -> tuple[Exact, Exact]:
    """Return (XᵀX, Xᵀy) of records, or owners, exactly: rows and labels are rounded one by one (``rows.py``).

    Args:
        records: of a regression, as they are; or arrays.
        target: its public bounds, of rows and of labels.
    """
    row = require_bound(target.row_bound, "row_bound", "LinearRegression")
    label = require_bound(target.label_bound, "label_bound", "LinearRegression")
    rows = Rows(target, row)
    return rows.with_labels(asked(records).prepared(rows), label)


def rounding(size: int) -> float:
    """Return the rounding error of an eigenvalue of XᵀX in float64, relative to its largest trace N·row_bound².

    XᵀX is exact, and its entries are rounded to float64. Eigenvalues of a symmetric matrix are off by that and by a
    modest multiple of 2^-53·‖XᵀX‖ (backward stability, Weyl), for which 16d² leaves ample room.
    """
    return 2.0**-53 * 16 * size**2


def calibrate_statistics(
    target: Target,
    spec: PrivacySpec,
    mu: float,
    label_weight: float,
    mechanism: str,
    together: int = 1,
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
    weight = label_weight * row / label
    size = d * (d + 3) // 2
    sensitivity = together * sensitivity_of(row, label, weight, spec.adjacency)
    noise_std = mu_std(sensitivity, size, mu)
    event = spec.gaussian(noise_std, sensitivity, size)
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
    records: Records,
    target: LinearRegression,
    settings: dict[str, float],
    key: jax.Array,
) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy (XᵀX, Xᵀy).

    Args:
        records: as they are, of the target or of its owners.
        target: its public bounds.
        settings: of :func:`calibrate_statistics`.
        key: secret JAX key, used for nothing else.
    """
    weight = label_weight_of(settings)
    gram, moment = gram_and_moment(records, target)
    exact = statistics(gram, moment, weight)
    released = gaussian_release(exact, settings["noise_std"], key)
    return split(released, len(moment.steps), weight)


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


def statistics(gram: Exact, moment: Exact, weight: float) -> Exact:
    """Return (svec(XᵀX), weight·Xᵀy), (d(d + 3)/2,), exactly.

    Args:
        gram: XᵀX, (d, d).
        moment: Xᵀy, (d,).
        weight: w.
    """
    return stacked(svec_of(gram), moment.times(weight))


def split(released: np.ndarray, d: int, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (XᵀX, Xᵀy) of a noisy :func:`statistics`."""
    number = entries(d)
    return symmetric(released[:number], d), released[number:] / weight
