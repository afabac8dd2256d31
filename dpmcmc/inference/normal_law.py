r"""Posteriors from released numbers whose noise law is known.

A release is data: near a public point θ̄ the private gradient of the negative log-likelihood is

    ḡ = H (θ̄ − θ*) + score + noise,     score ~ N(0, B),  noise ~ N(0, V),                                     (1)

θ* the parameter that made the labels, H the expected curvature and B the variance of the score. H itself is known up
to an error E, since it comes from a noisy release too: ḡ = (Ĥ − E)(θ̄ − θ*) + …, and E adds the covariance
``curvature_error(Q)`` = Cov[E u], u ~ (0, Q), to ḡ, where Q = E[(θ̄ − θ*)(θ̄ − θ*)ᵀ] under the posterior. With the prior
N(0, P⁻¹) Bayes' rule gives

    𝒞 = B + V + curvature_error(Q),   S = (P + H 𝒞⁻¹ H)⁻¹,   m = S H 𝒞⁻¹ (H θ̄ − ḡ),   Q = S + (θ̄ − m)(θ̄ − m)ᵀ,     (2)

which is iterated. ``docs/uncertainty.md`` outlines the derivation. Everything here is a pure function of
released numbers and costs no privacy. The intervals hold if the model and its prior are true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import chdtrc

from dpmcmc.inference.decompositions import eigh, spectral, square_root, svd

#: Most coefficients of a posterior of several predictors, which inverts dense matrices of d·K rows many times.
MOST_COEFFICIENTS = 1024


class Gaussian(NamedTuple):
    """A normal law of parameters: ``mean`` (d,) and ``covariance`` (d, d)."""

    mean: np.ndarray
    covariance: np.ndarray

    def draws(self, noise: np.ndarray) -> np.ndarray:
        """Return draws (draws, d) made of standard normals (draws, d)."""
        return self.mean + noise @ square_root(self.covariance).T


def log_density(u: np.ndarray, covariance: np.ndarray, wide: np.ndarray) -> float:
    """Return log N(u; 0, 𝒞 + W Wᵀ), given u, (d,), and 𝒞 and W, (d, d) each.

    W Wᵀ of a wide prior may be so much larger than 𝒞 that rounding their sum would leave nothing of 𝒞. So u is whitened
    by 𝒞, and then along the left singular vectors of what this makes of W.
    """
    root = np.linalg.cholesky(covariance)
    vectors, sizes, _ = svd(solve_triangular(root, wide, lower=True))
    stds = np.hypot(1.0, sizes)
    white = vectors.T @ solve_triangular(root, u, lower=True) / stds
    log_determinant = 2 * float(np.sum(np.log(np.diag(root) * stds)))
    return -0.5 * (float(white @ white) + len(u) * math.log(2 * math.pi) + log_determinant)


class GradientRelease(NamedTuple):
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
        spread: B, of scores, (d, d).
        curvature_error: Q (d, d) -> Cov[E u], (d, d).
        curvatures: H's that it may be, (k, d, d), from which the error then follows; or None.
    """

    curvature: np.ndarray
    spread: np.ndarray
    curvature_error: Callable[[np.ndarray], np.ndarray]
    curvatures: np.ndarray | None = None


def isotropic_error(std: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return Q -> Cov[E u] for symmetric noise E with variance std² on and std²/2 off the diagonal.

    (E u)_i = Σ_j E_ij u_j, and E_ij = E_ji: Cov = (std²/2)(tr(Q) I + Qᵀ), the mean of E Q E for any Q.
    """
    return lambda q: std**2 / 2 * (np.trace(q) * np.eye(len(q)) + q.T)


def moved_error(error: Callable[[np.ndarray], np.ndarray], by: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return Q -> Cov[MEM u] given Q -> Cov[E u] and a symmetric matrix M, (d, d)."""
    return lambda q: by @ error(by @ q @ by) @ by


#: p-value below which a check speaks against a release.
RARE = 1e-3
#: Pull of a prior beyond which its contradiction takes intervals away: how far a prior twice as wide moves the mean,
#: root mean square in posterior standard deviations. Adult's is .5 to .6 for a truth 1.6 times as wide as the prior,
#: where coefficients cover .83 to .91; where it was 1.2 they covered .33.
PULLED = 0.8


def chi_square_tail(square: float, degrees: int) -> float:
    """P(χ² > square); ``scipy.stats`` gives the same bits and takes half a second to import."""
    return float(chdtrc(degrees, np.maximum(square, 0.0)))


def moved_by_prior(found: Gaussian, precision: np.ndarray, prior_mean: np.ndarray) -> np.ndarray:
    """Return how far the posterior's mean moves under a prior twice as wide, (d,).

    Args:
        found: posterior N(m, S).
        precision: that of the prior which falls to a quarter, (d, d).
        prior_mean: of it, (d,).
    """
    inverse = np.linalg.inv(found.covariance)
    less = (1 - 1 / 4) * precision
    return np.linalg.solve(inverse - less, inverse @ found.mean - less @ prior_mean) - found.mean


def pull(found: Gaussian, moved: np.ndarray) -> float:
    """Return by how many posterior standard deviations a mean moves, root mean square over coefficients."""
    return float(np.sqrt(np.mean(moved**2 / np.diag(found.covariance))))


def bootstrapped_error(errors: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return Q -> mean_b E_b Q E_b of symmetric errors (b, d, d)."""

    def error(q: np.ndarray) -> np.ndarray:
        most = int(np.argmax(np.diag(q)))
        root = q[most] / math.sqrt(max(q[most, most], np.finfo(float).tiny))
        if np.allclose(q, np.outer(root, root), rtol=0, atol=1e-15 * q[most, most]):
            moved = errors @ root  # one direction takes a d-th of the time
            return moved.T @ moved / len(errors)
        return np.mean(errors @ q @ errors, axis=0)

    return error


def symmetric_noise(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return (d, d) symmetric noise of variance 1 on the diagonal and 1/2 off it."""
    upper = np.triu(rng.normal(size=(size, size)))
    return (upper + np.triu(upper, 1).T) * np.where(np.eye(size) > 0, 1.0, math.sqrt(0.5))


def posterior(
    release: GradientRelease,
    local: Local,
    precision: np.ndarray,
    start: Gaussian,
    rounds: int = 4,
    prior_mean: np.ndarray | float = 0.0,
) -> Gaussian:
    """Iterate equation (2), with m = m₀ + S H 𝒞⁻¹ (H (θ̄ − m₀) − ḡ) of a prior N(m₀, P⁻¹).

    Args:
        release: of the gradient.
        local: model of the gradient.
        precision: P, (d, d).
        start: first guess of the posterior.
        rounds: of the iteration.
        prior_mean: m₀, (d,).
    """
    h = local.curvature
    u = h @ (release.position - prior_mean) - release.gradient
    now = start
    for _ in range(rounds):
        informed, covariance = conjugate_update(h, total_covariance(release, local, now), precision)
        now = Gaussian(prior_mean + covariance @ (informed.T @ u), covariance)
    return now


#: A release and the model of it, given a posterior: about another mean a path of gradients has another law.
Releases = Callable[[Gaussian], tuple[GradientRelease, Local]]


def conjugate_update(h: np.ndarray, total: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 𝒞⁻¹ H and S of equation (2), (..., d, d)."""
    informed = np.linalg.solve(total, h)
    covariance = np.linalg.inv(precision + h @ informed)
    return informed, (covariance + covariance.swapaxes(-1, -2)) / 2


#: Least information of a release in a direction, in units of the prior's.
LEAST_INFORMATION = 1e-3


def error_of_curvatures(
    release: GradientRelease,
    local: Local,
    curvatures: np.ndarray,
    precision: np.ndarray,
) -> np.ndarray:
    r"""Return what not knowing H adds to 𝒞 of equation (2), (d, d), from H's that it may be.

    Under each H_k the posterior is N(m_k, S_k). 𝒞 is made so that (P + Ĥ 𝒞⁻¹ Ĥ)⁻¹ is the typical one of
    S_k + (m_k − m)(m_k − m)ᵀ, m the mean of m_k: exp of the mean of their logarithms. The mean itself would be that of
    the few H_k that are near 0 in some direction. The law of E u for independent E and u, which ``curvature_error`` is,
    is right where E is small. A direction of which H may be near 0 is as wide as the prior, and there such a law widens
    every other direction too, since it lets an error that no positive H has meet a u that H near 0 alone allows.

    Args:
        release: of the gradient.
        local: model of the gradient, whose ``curvature_error`` is not used.
        curvatures: H_k, (k, d, d).
        precision: P, (d, d).
    """
    base = local.spread + release.noise
    h = local.curvature
    informed, covariances = conjugate_update(curvatures, base, precision)
    u = curvatures @ release.position - release.gradient
    means = np.einsum("kij,klj,kl->ki", covariances, informed, u)
    away = means - means.mean(axis=0)
    covariances = covariances + away[:, :, None] * away[:, None, :]
    # In units in which the prior is N(0, I): of Lᵀθ, P = L Lᵀ.
    lower = np.linalg.cholesky(precision)
    logs = spectral(lower.T @ covariances @ lower, lambda values: np.log(np.maximum(values, 1e-300)))
    values, vectors = eigh(logs.mean(axis=0))
    # The information of a mixture is between 0 and that without an error.
    information = np.maximum(np.exp(-values) - 1, LEAST_INFORMATION)
    half = h @ solve_triangular(lower.T, vectors / np.sqrt(information))
    values, vectors = eigh(base)
    stds = np.sqrt(np.maximum(values, values[-1] * np.finfo(np.float32).eps ** 2))
    inside = (vectors / stds).T @ half
    added = (vectors * stds) @ square_root(inside @ inside.T - np.eye(len(h)))
    return added @ added.T


def total_covariance(release: GradientRelease, local: Local, now: Gaussian) -> np.ndarray:
    """Return 𝒞 of equation (2), (d, d)."""
    away = release.position - now.mean
    return local.spread + release.noise + local.curvature_error(now.covariance + np.outer(away, away))


def weighted_mean(
    positions: np.ndarray,
    gradients: np.ndarray,
    precisions: np.ndarray,
    metric: np.ndarray,
) -> GradientRelease:
    """Return the mean of releases, weighted by their precision; under a linear model it is sufficient.

    Args:
        positions: θ_k, (k, d).
        gradients: g̃_k, (k, d).
        precisions: 1/s_k², (k,): the noise of g̃_k has covariance s_k² F².
        metric: F², (d, d).
    """
    weights = precisions / precisions.sum()
    return GradientRelease(weights @ positions, weights @ gradients, metric / precisions.sum())
