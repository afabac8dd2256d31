"""Non-private fits of the four kinds of labels: Newton's method, the sandwich covariance, and predictive laws.

The log likelihood of a record is y·η − b(η), with η = x·θ: b is log(1 + e^η) of binary labels, log Σ_k e^{η_k} of
classes (the first η is 0), e^η of counts and η²/2 of real labels. The covariance H⁻¹ (Σ ss') H⁻¹ of the scores s holds
for overdispersed counts and heteroscedastic errors too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit as expit
from scipy.special import gammaln, logsumexp
from scipy.special import softmax as scipy_softmax
from scipy.stats import nbinom, norm, poisson

#: Most Newton steps, the relative length of the last one, and a ridge over N that keeps singular designs solvable.
_STEPS, _CLOSE, _RIDGE = 60, 1e-8, 1e-9
#: Largest |θ| of a fit that exists: beyond it two classes are separated.
_LARGEST = 1e3
#: Largest |η|: beyond it e^η says no more.
_FARTHEST = 30.0
#: Least predicted probability or density.
_LEAST = 1e-12


class Law(NamedTuple):
    """b(η), b'(η) and b''(η)."""

    cumulant: Callable[[np.ndarray], np.ndarray]
    mean: Callable[[np.ndarray], np.ndarray]
    variance: Callable[[np.ndarray], np.ndarray]


LAWS = {
    "binary": Law(lambda eta: np.logaddexp(0, eta), expit, lambda eta: expit(eta) * expit(-eta)),
    "count": Law(np.exp, np.exp, np.exp),
    "real": Law(lambda eta: eta**2 / 2, lambda eta: eta, np.ones_like),
}


class Fit(NamedTuple):
    """A fit.

    Attributes:
        theta: (p,), or (p, K − 1) of K classes.
        inverse: of the curvature, (P, P) for the ravelled coefficients.
        covariance: sandwich, (P, P).
        dispersion: α of counts, whose variance is μ + αμ²; the residual standard deviation of real labels; else 0.
    """

    theta: np.ndarray
    inverse: np.ndarray
    covariance: np.ndarray
    dispersion: float

    def errors(self, precision: float) -> np.ndarray:
        """Return standard errors, (P,): the sandwich's, or those of the normal posterior under a prior."""
        return np.sqrt(np.diag(self.inverse if precision else self.covariance))


def softmax(eta: np.ndarray) -> np.ndarray:
    """Return probabilities (n, K) of predictors (n, K − 1) of all classes but the first."""
    return scipy_softmax(np.insert(eta, 0, 0.0, axis=1), axis=1)


def fitted(
    x: np.ndarray, y: np.ndarray, kind: str, classes: int = 1, precision: float = 0.0, ridge: float = _RIDGE
) -> Fit:
    """Return the fit of rows (n, p).

    Args:
        x: rows.
        y: labels, (n,); of counts and real labels also means.
        kind: of the label.
        classes: K of ``classes``.
        precision: of a normal prior of every coefficient.
        ridge: over n, which keeps singular designs solvable.

    Raises:
        LinAlgError: no fit exists, as of separated classes without a ridge.
    """
    size = x.shape[1] * (classes - 1 if kind == "classes" else 1)
    penalty = precision + ridge * len(y)
    theta = np.zeros(size)
    if kind == "count":  # the intercept is the last column
        theta[-1] = np.log(max(np.mean(y), 1e-3)) / max(x[0, -1], 1e-12)
    before = _loss(x, y, kind, theta, penalty)
    for _ in range(_STEPS):
        scores, curvature = _derivatives(x, y, kind, classes, theta)
        step = np.linalg.solve(curvature + penalty * np.eye(size), scores.sum(axis=0) - penalty * theta)
        length = 1.0
        while not (after := _loss(x, y, kind, theta + length * step, penalty)) <= before and length > _CLOSE:
            length /= 2
        theta = theta + length * step
        if abs(before - after) < _CLOSE * (1 + abs(before)) / len(y):
            break
        before = after
    if not ridge and np.abs(theta).max() > _LARGEST:
        raise np.linalg.LinAlgError("the classes are separated")
    scores, curvature = _derivatives(x, y, kind, classes, theta)
    inverse = np.linalg.inv(curvature + penalty * np.eye(size))
    covariance = inverse @ (scores.T @ scores) @ inverse
    shaped = theta.reshape(x.shape[1], -1) if kind == "classes" else theta
    return Fit(shaped, inverse, covariance, _dispersion(x, y, kind, theta))


def _eta(x: np.ndarray, theta: np.ndarray, kind: str) -> np.ndarray:
    eta = x @ (theta.reshape(x.shape[1], -1) if kind == "classes" else theta)
    return eta if kind == "real" else np.clip(eta, -_FARTHEST, _FARTHEST)


def _loss(x: np.ndarray, y: np.ndarray, kind: str, theta: np.ndarray, penalty: float) -> float:
    eta = _eta(x, theta, kind)
    if kind == "classes":
        whole = np.insert(eta, 0, 0.0, axis=1)
        each = logsumexp(whole, axis=1) - whole[np.arange(len(y)), y]
    else:
        each = LAWS[kind].cumulant(eta) - y * eta
    return float(np.sum(each) + penalty * theta @ theta / 2)


def _derivatives(
    x: np.ndarray, y: np.ndarray, kind: str, classes: int, theta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of records, (n, P), and the curvature, (P, P)."""
    eta = _eta(x, theta, kind)
    if kind != "classes":
        law = LAWS[kind]
        return x * (y - law.mean(eta))[:, None], (x * law.variance(eta)[:, None]).T @ x
    probability = softmax(eta)[:, 1:]
    gap = (y[:, None] == np.arange(1, classes)) - probability
    scores = (x[:, :, None] * gap[:, None, :]).reshape(len(x), -1)
    size, others = x.shape[1], classes - 1
    curvature = np.zeros((size, others, size, others))
    for j in range(others):
        for k in range(j, others):
            weight = probability[:, j] * ((j == k) - probability[:, k])
            curvature[:, j, :, k] = curvature[:, k, :, j] = (x * weight[:, None]).T @ x
    return scores, curvature.reshape(size * others, size * others)


def _dispersion(x: np.ndarray, y: np.ndarray, kind: str, theta: np.ndarray) -> float:
    if kind not in ("count", "real"):
        return 0.0
    eta = _eta(x, theta, kind)
    free = max(len(y) - x.shape[1], 1)
    if kind == "real":
        return float(np.sqrt(np.sum((y - eta) ** 2) / free))
    mean = np.exp(eta)
    return max(float(np.sum((y - mean) ** 2 - mean) / np.sum(mean**2)), 0.0)


def clipped_mean(mean: np.ndarray, dispersion: float, most: int) -> np.ndarray:
    """Return E[min(Y, most)] of negative binomial counts Y: the sum of P(Y > k) over k below ``most``."""
    total = np.zeros_like(mean)
    for k in range(most):
        total += _count_law(mean, dispersion).sf(k)
    return total


def _count_law(mean: np.ndarray, dispersion: float):  # SciPy names no such type
    if dispersion < 1e-6:
        return poisson(mean)
    size = 1 / dispersion
    return nbinom(size, size / (size + mean))


def log_density(eta: np.ndarray, y: np.ndarray, kind: str, dispersion: float) -> np.ndarray:
    """Return log p(y | η), (k, n), of predictors (k, n), or (k, n, K) of classes.

    Args:
        eta: predictors of k draws.
        y: labels, (n,).
        kind: of the label.
        dispersion: standard deviation of real labels; α of counts.
    """
    if kind == "binary":
        return -np.logaddexp(0, np.where(y == 1, -eta, eta))
    if kind == "classes":
        return np.take_along_axis(eta, y[None, :, None], axis=2)[..., 0] - logsumexp(eta, axis=2)
    if kind == "real":
        return norm.logpdf(y, eta, dispersion)
    eta = np.clip(eta, -_FARTHEST, _FARTHEST)
    mean = np.exp(eta)
    if dispersion < 1e-6:
        return y * eta - mean - gammaln(y + 1)
    return nbinom.logpmf(y, 1 / dispersion, 1 / (1 + dispersion * mean))


def predicted(eta: np.ndarray, kind: str, bounds: tuple[float, float] | None = None) -> np.ndarray:
    """Return the mean of labels averaged over draws: P(y = 1), class probabilities (n, K), or the mean, (n,).

    No mean of counts or of real labels lies beyond their public bounds.
    """
    if kind == "binary":
        return expit(eta).mean(axis=0)
    if kind == "classes":
        return np.exp(eta - logsumexp(eta, axis=2, keepdims=True)).mean(axis=0)
    if kind == "real":
        return (eta if bounds is None else np.clip(eta, *bounds)).mean(axis=0)
    means = np.exp(np.clip(eta, -_FARTHEST, _FARTHEST))
    return (means if bounds is None else np.clip(means, *bounds)).mean(axis=0)


def log_score(eta: np.ndarray, y: np.ndarray, kind: str, dispersion: float) -> float:
    """Return the mean over labels of the log of the predictive density, averaged over draws."""
    each = log_density(eta, y, kind, dispersion)
    whole = logsumexp(each, axis=0) - np.log(len(each))
    return float(np.mean(np.maximum(whole, np.log(_LEAST))))
