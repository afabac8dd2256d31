r"""Posteriors from released numbers whose noise law is known.

A release is data: near a public point θ̄ the private gradient of the negative log-likelihood is

    ḡ = H (θ̄ − θ*) + score + noise,     score ~ N(0, B),  noise ~ N(0, V),                                     (1)

θ* the parameter that made the labels, H the expected curvature and B the variance of the score. H itself is known up
to an error E, since it comes from a noisy release too: ḡ = (Ĥ − E)(θ̄ − θ*) + …, and E adds the covariance
``curvature_error(Q)`` = Cov[E u], u ~ (0, Q), to ḡ, where Q = E[(θ̄ − θ*)(θ̄ − θ*)ᵀ] under the posterior. With the prior
N(0, P⁻¹) Bayes' rule gives

    𝒞 = B + V + curvature_error(Q),   S = (P + H 𝒞⁻¹ H)⁻¹,   m = S H 𝒞⁻¹ (H θ̄ − ḡ),   Q = S + (θ̄ − m)(θ̄ − m)ᵀ,     (2)

which is iterated. The derivation of each constant is in ``docs/noise_aware.md``. Everything here is a pure function of
released numbers and costs no privacy. The intervals hold if the model and its prior are true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

#: Most coefficients of a posterior of several predictors, which inverts dense matrices of d·K rows many times.
MOST_COEFFICIENTS = 1024


class Gaussian(NamedTuple):
    """A normal law of parameters: ``mean`` (d,) and ``covariance`` (d, d)."""

    mean: np.ndarray
    covariance: np.ndarray

    def draws(self, noise: np.ndarray) -> np.ndarray:
        """Return draws (draws, d) made of standard normals (draws, d)."""
        values, vectors = np.linalg.eigh(self.covariance)
        return self.mean + noise @ (vectors * np.sqrt(np.maximum(values, 0.0))).T


class Release(NamedTuple):
    """One private gradient, or a precision-weighted mean of several.

    Attributes:
        position: θ̄, (d,), public.
        gradient: ḡ of the negative log-likelihood, (d,).
        noise: V, (d, d).
    """

    position: np.ndarray
    gradient: np.ndarray
    noise: np.ndarray


class Local(NamedTuple):
    """A model of the gradient near the posterior's mean.

    Attributes:
        curvature: Ĥ, (d, d).
        score: B, (d, d).
        curvature_error: Q (d, d) -> Cov[E u], (d, d).
    """

    curvature: np.ndarray
    score: np.ndarray
    curvature_error: Callable[[np.ndarray], np.ndarray]


def isotropic_error(std: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return Q -> Cov[E u] for symmetric noise E with variance std² on and std²/2 off the diagonal.

    (E u)_i = Σ_j E_ij u_j, and E_ij = E_ji: Cov = (std²/2)(tr(Q) I + Qᵀ), the mean of E Q E for any Q.
    """
    return lambda q: std**2 / 2 * (np.trace(q) * np.eye(len(q)) + q.T)


def bootstrapped_error(errors: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return Q -> mean_b E_b Q E_b of symmetric errors (b, d, d)."""
    return lambda q: np.mean(errors @ q @ errors, axis=0)


def symmetric_noise(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return (d, d) symmetric noise of variance 1 on the diagonal and 1/2 off it."""
    upper = np.triu(rng.normal(size=(size, size)))
    return (upper + np.triu(upper, 1).T) * np.where(np.eye(size) > 0, 1.0, math.sqrt(0.5))


def posterior(release: Release, local: Local, precision: np.ndarray, start: Gaussian, rounds: int = 4) -> Gaussian:
    """Iterate equation (2).

    Args:
        release: of the gradient.
        local: model of the gradient.
        precision: P of the prior N(0, P⁻¹), (d, d).
        start: first guess of the posterior.
        rounds: of the iteration.
    """
    h, u, now = local.curvature, local.curvature @ release.position - release.gradient, start
    for _ in range(rounds):
        informed = np.linalg.solve(total_covariance(release, local, now), h)
        covariance = np.linalg.inv(precision + h @ informed)
        covariance = (covariance + covariance.T) / 2
        now = Gaussian(covariance @ (informed.T @ u), covariance)
    return now


def total_covariance(release: Release, local: Local, now: Gaussian) -> np.ndarray:
    """Return 𝒞 of equation (2), (d, d)."""
    away = release.position - now.mean
    return local.score + release.noise + local.curvature_error(now.covariance + np.outer(away, away))


def weighted_mean(positions: np.ndarray, gradients: np.ndarray, precisions: np.ndarray, metric: np.ndarray) -> Release:
    """Return the mean of releases, weighted by their precision; under a linear model it is sufficient.

    Args:
        positions: θ_k, (k, d).
        gradients: g̃_k, (k, d).
        precisions: 1/s_k², (k,): the noise of g̃_k has covariance s_k² F².
        metric: F², (d, d).
    """
    weights = precisions / precisions.sum()
    return Release(weights @ positions, weights @ gradients, metric / precisions.sum())
