"""The non-private fit: maximum likelihood by Newton's method, with sandwich standard errors.

The log likelihood of a record is y·η − b(η) with η = x·θ, up to a factor that moves no estimate: b(η) is log(1 + e^η)
of a logistic regression, e^η of counts, and η²/2 of a linear regression. The sandwich H⁻¹ (Σ r² x xᵀ) H⁻¹ with
r = y − b'(η) holds for heteroscedastic errors and overdispersed counts too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit

#: Most Newton steps, and the decrease of the objective over N below which a fit has converged.
_STEPS, _TOLERANCE = 60, 1e-13
#: Largest |θ| of a fit that exists: beyond it two classes are separated.
_LARGEST = 1e3


class Family(NamedTuple):
    """b(η), b'(η) and b''(η)."""

    cumulant: Callable[[np.ndarray], np.ndarray]
    mean: Callable[[np.ndarray], np.ndarray]
    variance: Callable[[np.ndarray], np.ndarray]


FAMILIES = {
    "logistic": Family(lambda eta: np.logaddexp(0, eta), expit, lambda eta: expit(eta) * expit(-eta)),
    "counts": Family(np.exp, np.exp, np.exp),
    "linear": Family(lambda eta: eta**2 / 2, lambda eta: eta, np.ones_like),
}


class Estimate(NamedTuple):
    """Coefficients (d,) and their standard errors (d,); NaN where the fit does not exist."""

    theta: np.ndarray
    error: np.ndarray


def fitted(x: np.ndarray, y: np.ndarray, family: str, precision: float = 0.0) -> Estimate:
    """Return the fit of rows (N, d) and labels (N,).

    Args:
        x: rows, with the intercept's 1 where there is one.
        y: labels.
        family: name in :data:`FAMILIES`.
        precision: of a normal prior of every coefficient; above 0 the fit is the mode of the posterior, and the errors
            are those of its normal approximation.
    """
    found = maximum(x, y, family, precision)
    nothing = np.full(x.shape[1], np.nan)
    if found is None:
        return Estimate(nothing, nothing)
    of = FAMILIES[family]
    eta = x @ found
    inverse = np.linalg.inv(_curvature(x, of.variance(eta), precision))
    if precision:
        return Estimate(found, np.sqrt(np.diag(inverse)))
    scores = x * (y - of.mean(eta))[:, None]
    return Estimate(found, np.sqrt(np.diag(inverse @ (scores.T @ scores) @ inverse)))


def maximum(x: np.ndarray, y: np.ndarray, family: str, precision: float = 0.0) -> np.ndarray | None:
    """Return the coefficients of highest likelihood, (d,); None where there are none, as of separated classes."""
    of = FAMILIES[family]
    theta = np.zeros(x.shape[1])

    def loss(at: np.ndarray) -> float:
        eta = x @ at
        with np.errstate(over="ignore"):
            return float(np.mean(of.cumulant(eta) - y * eta) + precision * at @ at / (2 * len(y)))

    before = loss(theta)
    for _ in range(_STEPS):
        eta = x @ theta
        gradient = x.T @ (y - of.mean(eta)) - precision * theta
        try:
            step = np.linalg.solve(_curvature(x, of.variance(eta), precision), gradient)
        except np.linalg.LinAlgError:
            return None
        length = 1.0
        while not (after := loss(theta + length * step)) <= before and length > _TOLERANCE:
            length /= 2
        theta = theta + length * step
        if np.abs(theta).max() > _LARGEST:
            return None
        if before - after < _TOLERANCE:
            return theta
        before = after
    return None


def _curvature(x: np.ndarray, weight: np.ndarray, precision: float) -> np.ndarray:
    return (x * weight[:, None]).T @ x + precision * np.eye(x.shape[1])
