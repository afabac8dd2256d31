"""Shared by the one-shot mechanisms of linear regression: public bounds, and XᵀX and Xᵀy with their rounding."""

from __future__ import annotations

import numpy as np

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.targets.base import Target, require_bound
from dpmcmc.targets.glm import LinearRegression

_BLOCK = 512


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
    x = np.asarray(x, np.float64)
    return gram_of(x), weighted_sum(x, y)


def gram_of(x: np.ndarray) -> np.ndarray:
    """Return XᵀX, (d, d), summed in blocks of rows (N, d) float64."""
    gram = np.zeros((x.shape[1], x.shape[1]))
    for i in range(0, len(x), _BLOCK):
        rows = x[i : i + _BLOCK]
        gram += rows.T @ rows
    return gram


def weighted_sum(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return Σ weight·row, (d,), summed in blocks of rows.

    Args:
        x: (N, d) float64.
        weights: (N,) float64.
    """
    x, weights = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    total = np.zeros(x.shape[1])
    for i in range(0, len(x), _BLOCK):
        total += x[i : i + _BLOCK].T @ weights[i : i + _BLOCK]
    return total


def summing(num_records: int) -> float:
    """Return the rounding error of these sums in Frobenius norm, relative to the records' summed norms."""
    return 2.0**-53 * (_BLOCK + num_records / _BLOCK + 16)


def rounding(num_records: int, size: int) -> float:
    """Return the rounding error of an eigenvalue of XᵀX in float64, relative to its largest trace N·row_bound².

    Sums in blocks are off by :func:`summing` of Σ‖x‖²; eigenvalues of a symmetric
    matrix by a modest multiple of 2^-53·‖XᵀX‖ (backward stability, Weyl), for which 16d² leaves ample room.
    """
    return summing(num_records) + 2.0**-53 * 16 * size**2
