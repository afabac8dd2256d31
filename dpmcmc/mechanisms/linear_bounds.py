"""Shared by the one-shot mechanisms of linear regression: public bounds, and XᵀX and Xᵀy with their rounding."""

from __future__ import annotations

import math

import numpy as np

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.privacy.query.gram_release import gram_of, summing, weighted_sum
from dpmcmc.targets.base import Target, require_bound
from dpmcmc.targets.glm import LinearRegression


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
        raise InputError("num_features: LinearRegression needs it before a plan; give it", "num_features")
    return target, row, label, target.num_features


def gram_and_moment(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (XᵀX, Xᵀy), summed in float64 in blocks of rows.

    Args:
        x: (N, d).
        y: (N,).
    """
    return gram_of(x, math.inf), weighted_sum(x, y)


def rounding(num_records: int, size: int) -> float:
    """Return the rounding error of an eigenvalue of XᵀX in float64, relative to its largest trace N·row_bound².

    Sums in blocks are off by :func:`summing` of Σ‖x‖²; eigenvalues of a symmetric
    matrix by a modest multiple of 2^-53·‖XᵀX‖ (backward stability, Weyl), for which 16d² leaves ample room.
    """
    return summing(num_records) + 2.0**-53 * 16 * size**2
