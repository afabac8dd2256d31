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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, solve_triangular
from scipy.special import expit, ndtri

from dpmcmc.privacy.query.label_blind import label_blind_weight

#: Standard normal quantiles over which logits are averaged: weights have kinks, which a Gauss rule does not resolve.
_NODES = ndtri((np.arange(1000) + 0.5) / 1000)


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

    (E u)_i = Σ_j E_ij u_j, and E_ij = E_ji: Cov = (std²/2)(tr(Q) I + Q).
    """
    return lambda q: std**2 / 2 * (np.trace(q) * np.eye(len(q)) + q)


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
        informed = np.linalg.solve(_covariance(release, local, now), h)
        covariance = np.linalg.inv(precision + h @ informed)
        covariance = (covariance + covariance.T) / 2
        now = Gaussian(covariance @ (informed.T @ u), covariance)
    return now


def log_evidence(release: Release, local: Local, prior: np.ndarray, now: Gaussian) -> float:
    """Return log N(Hθ̄ − ḡ; 0, 𝒞 + H prior H), which a prior covariance (d, d) is judged by."""
    h = local.curvature
    covariance = _covariance(release, local, now) + h @ prior @ h
    factor, lower = cho_factor(covariance, lower=True)
    white = solve_triangular(factor, h @ release.position - release.gradient, lower=lower)
    return float(-0.5 * white @ white - np.sum(np.log(np.diag(factor))))


def _covariance(release: Release, local: Local, now: Gaussian) -> np.ndarray:
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


@dataclass(frozen=True)
class LogisticLaw:
    """Average curvature of a label-blind logistic score over rows that are normal about a mean row.

    The score of a record is w (p − y) x with w = min(1, clip/(max(p, 1 − p)·norm)): the weight knows x and θ and not y,
    so the score's mean at the truth is zero whatever the clip norm is. With h = w p(1 − p) at the logit z, which is
    N(mean, variance), Stein's identity turns E[h x xᵀ] into averages of h and of its derivatives.

    Attributes:
        curvature: c = E[h].
        slope: E[h'].
        along: E[h''], by how much less the mean gradient curves along θ.
        score: E[w h], of the score's variance.
    """

    curvature: float
    slope: float
    along: float
    score: float

    @classmethod
    def at(cls, mean: float, variance: float, norm: float, clip: float) -> LogisticLaw:
        """Return the averages.

        Args:
            mean: of the logits.
            variance: of the logits about it.
            norm: typical ‖F⁻¹x‖ of a record, √(tr(F⁻¹GF⁻¹)/N).
            clip: C.
        """
        std = math.sqrt(max(variance, 1e-9))
        p = expit(mean + std * _NODES)
        weight = label_blind_weight(np.maximum(p, 1 - p) * norm, clip)
        h = weight * p * (1 - p)
        slope, along = np.mean(h * _NODES) / std, np.mean(h * (_NODES**2 - 1)) / std**2
        return cls(float(np.mean(h)), float(slope), float(along), float(np.mean(h * weight)))


@dataclass(frozen=True)
class LogisticRows:
    """Facts of the rows of a logistic regression that a curvature is made of.

    Attributes:
        gram: G, (d, d).
        num_records: N.
        mean: the mean row, (d,); zero where no intercept is declared.
        norm: typical ‖F⁻¹x‖.
        clip: C.
        error: Q -> Cov[E u] of the error of G; that of H is c times as long.
    """

    gram: np.ndarray
    num_records: int
    mean: np.ndarray
    norm: float
    clip: float
    error: Callable[[np.ndarray], np.ndarray]

    def local(self, theta: np.ndarray) -> Local:
        """Return the model of the gradient near θ, (d,), with x̄ the mean row and Σ = G/N − x̄x̄ᵀ:

        H = N·(E[h] G/N + E[h'](x̄(Σθ)ᵀ + Σθ x̄ᵀ) + E[h''] Σθ(Σθ)ᵀ),   B = E[w h] G.
        """
        mean = float(self.mean @ theta)
        towards = self.gram @ theta / self.num_records - self.mean * mean
        law = LogisticLaw.at(mean, float(theta @ towards), self.norm, self.clip)
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
