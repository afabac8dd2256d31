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
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import chdtrc

from dpmcmc.data.schema import RowStructure
from dpmcmc.inference.decompositions import eigh, svd
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.storage.blas import on_one_blas_thread

#: Most coefficients of a posterior of several predictors, which inverts dense matrices of d·K rows many times.
MOST_COEFFICIENTS = 1024


class Gaussian(NamedTuple):
    """A normal law of parameters: ``mean`` (d,) and ``covariance`` (d, d)."""

    mean: np.ndarray
    covariance: np.ndarray

    def draws(self, noise: np.ndarray) -> np.ndarray:
        """Return draws (draws, d) made of standard normals (draws, d)."""
        values, vectors = eigh(self.covariance)
        return self.mean + noise @ (vectors * np.sqrt(np.maximum(values, 0.0))).T


class Whitening(NamedTuple):
    """A map of u ~ N(0, 𝒞 + W Wᵀ) to standard normals, in two steps.

    W Wᵀ of a wide prior may be so much larger than 𝒞 that rounding their sum would leave nothing of 𝒞. So u is whitened
    by 𝒞, and then along the left singular vectors of what this makes of W.

    Attributes:
        root: triangular root of 𝒞, (d, d).
        vectors: left singular vectors of root⁻¹ W, (d, d).
        stds: of whitened u along each, (d,).
    """

    root: np.ndarray
    vectors: np.ndarray
    stds: np.ndarray

    @classmethod
    def of(cls, covariance: np.ndarray, wide: np.ndarray) -> Whitening:
        """Return the map given 𝒞 and W, (d, d) each."""
        root = np.linalg.cholesky(covariance)
        whitened = solve_triangular(root, wide, lower=True)
        vectors, sizes, _ = svd(whitened)
        return cls(root, vectors, np.hypot(1.0, sizes))

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Return u, (d,) or (d, k), whitened."""
        once = self.vectors.T @ solve_triangular(self.root, u, lower=True)
        return (once.T / self.stds).T

    @property
    def log_size(self) -> float:
        """Half the logarithm of the determinant of 𝒞 + W Wᵀ."""
        return float(np.sum(np.log(np.diag(self.root) * self.stds)))


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
        score: B, (d, d).
        curvature_error: Q (d, d) -> Cov[E u], (d, d).
        curvatures: H's that it may be, (k, d, d), from which the error then follows; or None.
    """

    curvature: np.ndarray
    score: np.ndarray
    curvature_error: Callable[[np.ndarray], np.ndarray]
    curvatures: np.ndarray | None = None

    def under(self, release: GradientRelease, precision: np.ndarray) -> Local:
        """Return the model with the error of its curvature under a prior N(0, P⁻¹)."""
        if self.curvatures is None:
            return self
        added = error_of_curvatures(release, self, self.curvatures, precision)
        return self._replace(curvature_error=lambda q: added, curvatures=None)


def isotropic_error(std: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return Q -> Cov[E u] for symmetric noise E with variance std² on and std²/2 off the diagonal.

    (E u)_i = Σ_j E_ij u_j, and E_ij = E_ji: Cov = (std²/2)(tr(Q) I + Qᵀ), the mean of E Q E for any Q.
    """
    return lambda q: std**2 / 2 * (np.trace(q) * np.eye(len(q)) + q.T)


#: p-value below which a check speaks against a release.
RARE = 1e-3
#: Pull of a prior beyond which its contradiction takes intervals away: how far a prior twice as wide moves the mean,
#: root mean square in posterior standard deviations. Adult's is .5 to .6 for a truth 1.6 times as wide as the prior,
#: where coefficients cover .83 to .91; where it was 1.2 they covered .33.
PULLED = 0.8


def beyond(square: float, degrees: int) -> float:
    """P(χ² > square); ``scipy.stats`` gives the same bits and takes half a second to import."""
    return float(chdtrc(degrees, np.maximum(square, 0.0)))


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
) -> Gaussian:
    """Iterate equation (2).

    Args:
        release: of the gradient.
        local: model of the gradient.
        precision: P of the prior N(0, P⁻¹), (d, d).
        start: first guess of the posterior.
        rounds: of the iteration.
    """
    h = local.curvature
    u = h @ release.position - release.gradient
    now = start
    for _ in range(rounds):
        informed, covariance = _informed(h, total_covariance(release, local, now), precision)
        now = Gaussian(covariance @ (informed.T @ u), covariance)
    return now


#: A release and the model of it, given a posterior: about another mean a path of gradients has another law.
Releases = Callable[[Gaussian], tuple[GradientRelease, Local]]


def conclude(law: Releases, precision: np.ndarray, start: Gaussian, rounds: int, inner: int) -> Gaussian:
    """Return the posterior given private gradients, a mechanism's or those of a chain's path.

    Args:
        law: of the gradients' mean, which depends on where the posterior is.
        precision: P of the prior N(0, P⁻¹), (d, d).
        start: first guess of the posterior.
        rounds: how often the law is taken at the posterior that followed from it.
        inner: iterations of :func:`posterior` under one law.
    """
    now = start
    for _ in range(rounds):
        release, local = law(now)
        now = posterior(release, local, precision, now, inner)
    return now


def _informed(h: np.ndarray, total: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 𝒞⁻¹ H and S of equation (2), (..., d, d)."""
    informed = np.linalg.solve(total, h)
    covariance = np.linalg.inv(precision + h @ informed)
    return informed, (covariance + covariance.swapaxes(-1, -2)) / 2


#: Least information of a release in a direction, in units of the prior's.
_LEAST_INFORMATION = 1e-3


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
    base = local.score + release.noise
    h = local.curvature
    informed, covariances = _informed(curvatures, base, precision)
    u = curvatures @ release.position - release.gradient
    means = np.einsum("kij,klj,kl->ki", covariances, informed, u)
    away = means - means.mean(axis=0)
    covariances = covariances + away[:, :, None] * away[:, None, :]
    # In units of the prior.
    scale = np.diag(precision) ** -0.5
    values, vectors = eigh(covariances / np.outer(scale, scale))
    logs = np.log(np.maximum(values, 1e-300))[:, None, :]
    mean = ((vectors * logs) @ vectors.swapaxes(-1, -2)).mean(axis=0)
    values, vectors = eigh(mean)
    # The information of a mixture is between 0 and that without an error.
    information = np.maximum(np.exp(-values) - 1, _LEAST_INFORMATION)
    half = h @ (vectors * scale[:, None] / np.sqrt(information))
    values, vectors = eigh(base)
    stds = np.sqrt(np.maximum(values, values[-1] * np.finfo(np.float32).eps ** 2))
    inside = (vectors / stds).T @ half
    values, turned = eigh(inside @ inside.T - np.eye(len(h)))
    added = (vectors * stds) @ (turned * np.sqrt(np.maximum(values, 0.0)))
    return added @ added.T


def total_covariance(release: GradientRelease, local: Local, now: Gaussian) -> np.ndarray:
    """Return 𝒞 of equation (2), (d, d)."""
    away = release.position - now.mean
    return local.score + release.noise + local.curvature_error(now.covariance + np.outer(away, away))


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


# ----------------------------------------------------------------------------------------------------
# Predicted width of intervals, before a record is read.
#
# The width is that of an interval of the posterior under privacy over that of the posterior without: of the same rows,
# under the same prior. Rows that stand in for the real ones give both: those of ``usual_spectrum``, or those that a
# schema makes possible (``estimators/outlook.py``). A chain, a mechanism and a suggestion all predict by ``predicted``.

#: Iterations of equation (2) of a predicted covariance.
_PREDICTED_ROUNDS = 8


class Predicted(NamedTuple):
    """Predicted covariances of a posterior.

    Attributes:
        private: S, with the noise of privacy, (d, d); or (d, 1, 1) of independent directions.
        alone: S₀, without it, of the same shape.
    """

    private: np.ndarray
    alone: np.ndarray

    def width(self, directions: np.ndarray | None = None) -> float:
        """Return the mean over directions of an interval's width over that without privacy.

        Args:
            directions: (k, d); None: coordinates.
        """
        ratios = variances(self.private, directions) / variances(self.alone, directions)
        return float(np.mean(np.sqrt(ratios)))


def variances(covariance: np.ndarray, directions: np.ndarray | None = None) -> np.ndarray:
    """Return the variance in each of k directions (k, d); None: in each coordinate."""
    if directions is None:
        return np.diagonal(covariance, axis1=-2, axis2=-1)
    return np.einsum("kd,de,ke->k", directions, covariance, directions)


def elasticity(covariance: np.ndarray, precision: np.ndarray, directions: np.ndarray | None = None) -> np.ndarray:
    """Return by how much variances change with the prior's, (k,): (S P S)_jj/S_jj of a posterior's S.

    It is 1 where the prior alone makes a variance, ½ where prior and records say as much, and 0 where the records do.

    Args:
        covariance: S, (d, d).
        precision: P of the prior N(0, P⁻¹), (d, d).
        directions: (k, d); None: coordinates.
    """
    moved = covariance @ precision @ covariance
    return variances(moved, directions) / variances(covariance, directions)


def predicted(local: Local, noise: np.ndarray, precision: np.ndarray, alone: np.ndarray) -> Predicted:
    """Return the predicted covariances of a posterior whose gradients are released near it.

    Args:
        local: model of the gradient.
        noise: V of the release, (d, d), or (d, 1, 1) of independent directions, as all others are then.
        precision: P of the prior N(0, P⁻¹).
        alone: S₀.
    """
    private = alone
    for _ in range(_PREDICTED_ROUNDS):
        total = local.score + noise + local.curvature_error(private)
        _, private = _informed(local.curvature, total, precision)
    return Predicted(private, alone)


def usual_spectrum(size: int, trace: float) -> np.ndarray:
    """Return eigenvalues ∝ 1/j² with a sum of ``trace``, (size,): those of rows that stand in for the real ones."""
    spectrum = np.arange(1.0, size + 1) ** -2
    return spectrum * (trace / spectrum.sum())


def noise_left(std: float, structure: RowStructure | None) -> float:
    """Return the noise of a Gram matrix that a projection leaves: half of it contradicts declared blocks."""
    return std / 2 if structure is not None and structure.blocks else std


# ----------------------------------------------------------------------------------------------------
# A second moment of rows, G = Σ x xᵀ, from a noisy release of it.
#
# Noise is symmetric and isotropic in Frobenius norm: variance σ² on the diagonal and σ²/2 off it. Whatever is done here
# is post-processing of the release and costs nothing.
#
# ``project``: the nearest matrix that can be a second moment of rows. It is positive semi-definite and has a known
# trace. Where a ``RowStructure`` is declared it also has zeros within one-hot blocks, no negative entry between columns
# that are never negative, and a diagonal equal to the intercept's column on one-hot columns. The columns of a block add
# up to the intercept's, so G v = 0 for v = (a block's indicator) − (the intercept's). Dykstra's alternating projections
# (Boyle and Dykstra 1986) meet all of them.

_ROUNDS = 12
_LINEAR_ROUNDS = 3


def project(noisy: np.ndarray, trace: float, structure: RowStructure | None = None) -> np.ndarray:
    """Return the second moment nearest to a noisy one.

    Args:
        noisy: (d, d), symmetric.
        trace: of the result, > 0.
        structure: of the rows, or None where nothing is declared.
    """
    if structure is None or not (structure.blocks or structure.nonnegative or structure.constant is not None):
        return _semidefinite(noisy, trace)
    linear = _Linear.of(structure, len(noisy))
    # Dykstra's correction belongs to the cone alone; the other sets are subspaces except for the signs.
    correction = np.zeros_like(noisy)
    out = noisy
    for _ in range(_ROUNDS):
        nearest = _semidefinite(out + correction, trace)
        correction = out + correction - nearest
        out = nearest
        for _ in range(_LINEAR_ROUNDS):
            out = linear.project(out)
    # Declared null directions end exactly null: what is left there would be read as curvature under a wide prior.
    inside = linear.inside(_semidefinite(out, trace))
    return inside * (trace / float(np.trace(inside)))


def shrunk(noisy: NoisyGram) -> NoisyGram:
    """Return a second moment's posterior mean, and the noise left, where it varies normally about (trace/d) I.

    Let D be the release less (trace/d) I. It has k = d(d + 1)/2 − 1 dimensions, each with a variance of noise σ² and an
    unknown variance τ² of the second moment itself, so E‖D‖² = k(τ² + σ²). Then ρ = τ²/(τ² + σ²) is estimated by
    max(0, 1 − kσ²/‖D‖²). The posterior mean is (trace/d) I + ρD, and its error has the variance ρσ² (James and Stein
    1961; Efron and Morris 1973). Where the spectrum is clear of the noise, ρ is near 1 and the release stays as it is.
    """
    size = len(noisy.gram)
    centre = np.eye(size) * noisy.trace / size
    away = noisy.gram - centre
    noise = (size * (size + 1) / 2 - 1) * noisy.noise_std**2
    left = max(0.0, 1 - noise / max(float(np.sum(away**2)), np.finfo(float).tiny))
    return noisy._replace(gram=centre + left * away, noise_std=math.sqrt(left) * noisy.noise_std)


class Denoised(NamedTuple):
    """An estimate of a second moment, (d, d), and Q -> covariance of its error times a vector u ~ (0, Q)."""

    gram: np.ndarray
    error: Callable[[np.ndarray], np.ndarray]


#: Standard deviation of a second moment's eigenvalues that noise hides, over their mean.
_EIGENVALUES_VARY = 2.0


def spiked(noisy: NoisyGram) -> Denoised:
    r"""Return the estimate of a second moment whose eigenvalues noise hides, all but the largest.

    The noise is symmetric with variance s² off its diagonal, so its own eigenvalues lie within ±2s√d (Wigner 1955). An
    eigenvalue λ of the second moment stands out at λ + s²d/λ, if λ > s√d, and its vector then has the squared cosine
    1 − s²d/λ² with the one that is found (Benaych-Georges and Nadakuditi 2011). In that direction the estimate is λ
    times the squared cosine, which errs least. Nothing is known of the others but their mean, which the trace tells:
    each is taken to be the mean. A projection onto what is positive would take the upper half of the noise's
    eigenvalues for the second moment's.

    In directions that stand out the error is the noise. Among the others it is the second moment itself, less its mean.
    Were m eigenvalues to vary by w times their mean b, in vectors of any direction, then a number off the diagonal
    would vary by w b/√m.
    """
    size = len(noisy.gram)
    values, vectors = eigh(noisy.gram)
    spread = noisy.noise_std**2 / 2 * size
    out = values > 2 * math.sqrt(spread)
    found = (values[out] + np.sqrt(values[out] ** 2 - 4 * spread)) / 2
    found = found - spread / found
    # Noise of the trace may leave nothing to the mean, which is positive.
    others = max(1, size - int(out.sum()))
    mean = max(noisy.trace - float(found.sum()), 0.01 * noisy.trace) / others
    seen, rest = vectors[:, out], vectors[:, ~out]
    gram = seen * found @ seen.T + mean * rest @ rest.T
    gram = gram * (noisy.trace / float(np.trace(gram)))
    inside, outside = seen @ seen.T, rest @ rest.T
    own = isotropic_error(noisy.noise_std)
    hidden = _EIGENVALUES_VARY * mean * math.sqrt(2 / others)
    among = isotropic_error(min(hidden, noisy.noise_std))
    scale = (noisy.trace_std / noisy.trace) ** 2

    def error(q: np.ndarray) -> np.ndarray:
        kept = inside @ own(q) @ inside
        crossed = outside @ own(inside @ q @ inside) @ outside
        left = outside @ among(outside @ q @ outside) @ outside
        return kept + crossed + left + scale * gram @ q @ gram

    return Denoised(gram, error)


def error_of_noise(noisy: NoisyGram, structure: RowStructure | None) -> Callable[[np.ndarray], np.ndarray]:
    """Return Q -> Cov[E u] of a projection's error, at most: the noise, and none in declared null directions.

    A bootstrap about a projection is too small for eigenvalues that the projection left near 0: it supposes that they
    are as small, where the release says no more than that they are below its noise.
    """
    isotropic = isotropic_error(noisy.noise_std)
    if structure is None or not structure.blocks:
        return isotropic
    inside = _Linear.of(structure, len(noisy.gram)).inside
    return lambda q: inside(isotropic(inside(q)))


class _BootstrappedError:
    """Q -> mean_b E_b Q E_b of errors that are made when they are first asked for; several threads make them once."""

    def __init__(self, make: Callable[[], np.ndarray]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._of: Callable[[np.ndarray], np.ndarray] | None = None

    @on_one_blas_thread
    def __call__(self, q: np.ndarray) -> np.ndarray:
        with self._lock:
            if self._of is None:
                self._of = bootstrapped_error(self._make())
        return self._of(q)


def denoised(
    noisy: NoisyGram,
    structure: RowStructure | None,
    *,
    rng: np.random.Generator | None = None,
    bootstraps: int = 24,
) -> Denoised:
    """Return the estimate, with a parametric bootstrap of its error.

    Args:
        noisy: the release.
        structure: of the rows, or None.
        rng: public randomness of the bootstrap.
        bootstraps: how many.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    # Drawn now, since the generator is the caller's.
    noises = [symmetric_noise(rng, len(noisy.gram)) for _ in range(bootstraps)]
    return projected(noisy, structure, lambda: noisy.noise_std * np.stack(noises))


def projected(
    estimate: NoisyGram,
    structure: RowStructure | None,
    errors: Callable[[], np.ndarray],
) -> Denoised:
    """Return the second moment nearest to an estimate of it, with a parametric bootstrap of its error.

    Args:
        estimate: (d, d), and its trace.
        structure: of the rows, or None.
        errors: makes draws of the estimate's error, (bootstraps, d, d). They are made and projected once the error is
            asked for, which many never do.
    """
    trace = estimate.trace
    nearest = project(estimate.gram, trace, structure)
    of_shape = _BootstrappedError(
        lambda: np.stack([project(nearest + error, trace, structure) - nearest for error in errors()])
    )
    scale = (estimate.trace_std / trace) ** 2
    return Denoised(nearest, lambda q: of_shape(q) + scale * nearest @ q @ nearest)


@dataclass(frozen=True)
class _Linear:
    """Subspaces and signs that a structure declares."""

    null: np.ndarray
    zero: np.ndarray
    least: np.ndarray
    hot: np.ndarray
    constant: int

    @classmethod
    def of(cls, structure: RowStructure, size: int) -> _Linear:
        hot = np.array([column for block in structure.blocks for column in block], int)
        constant = -1 if structure.constant is None else structure.constant
        sums = np.zeros((size, len(structure.blocks)))
        zero = np.zeros((size, size), bool)
        for number, block in enumerate(structure.blocks):
            sums[list(block), number] = 1.0
            sums[constant, number] = -1.0
            zero[np.ix_(block, block)] = True
        zero[np.diag_indices(size)] = False
        signs = np.zeros(size, bool)
        signs[
            [
                *hot,
                *structure.nonnegative,
                *([] if structure.constant is None else [constant]),
            ]
        ] = True
        least = np.where(np.outer(signs, signs), 0.0, -np.inf)
        return cls(np.linalg.qr(sums)[0], zero, least, hot, constant)

    def inside(self, gram: np.ndarray) -> np.ndarray:
        """Return the matrix without its part in the declared null directions."""
        left = gram - self.null @ (self.null.T @ gram)
        return left - (left @ self.null) @ self.null.T

    def project(self, gram: np.ndarray) -> np.ndarray:
        """Return the matrix after each of the sets in turn."""
        out = self.inside(gram)
        out[self.zero] = 0.0
        if len(self.hot):
            # An entry off the diagonal counts twice in the Frobenius norm.
            mean = (out[self.hot, self.hot] + 2 * out[self.hot, self.constant]) / 3
            out[self.hot, self.hot] = out[self.hot, self.constant] = out[self.constant, self.hot] = mean
        return np.maximum(out, self.least)


def _semidefinite(matrix: np.ndarray, trace: float) -> np.ndarray:
    """Return the nearest positive semi-definite matrix with this trace: eigenvalues are projected onto a simplex."""
    values, vectors = eigh((matrix + matrix.T) / 2)
    descending = values[::-1]
    excess = (np.cumsum(descending) - trace) / np.arange(1, len(values) + 1)
    level = excess[np.nonzero(descending > excess)[0][-1]]
    first = int(np.searchsorted(values, level))
    kept = vectors[:, first:]
    return (kept * (values[first:] - level)) @ kept.T
