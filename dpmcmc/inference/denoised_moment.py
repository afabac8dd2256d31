"""A second moment of rows, G = Σ x xᵀ, from a noisy release of it.

Noise is symmetric and isotropic in Frobenius norm: variance σ² on the diagonal and σ²/2 off it. Whatever is done here
is post-processing of the release and costs nothing.

``project``: the nearest matrix that can be a second moment of rows. It is positive semi-definite and has a known
trace. Where a ``RowStructure`` is declared it also has zeros within one-hot blocks, no negative entry between columns
that are never negative, and a diagonal equal to the intercept's column on one-hot columns. The columns of a block add
up to the intercept's, so G v = 0 for v = (a block's indicator) − (the intercept's). Dykstra's alternating projections
(Boyle and Dykstra 1986) meet all of them.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmcmc.data.structure import RowStructure
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.normal_law import bootstrapped_error, isotropic_error, moved_error, symmetric_noise
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.storage.blas import on_one_blas_thread

#: Rounds of Dykstra's projections onto the cone, and of those onto the other sets within each.
NUM_ROUNDS = 12
NUM_LINEAR_ROUNDS = 3


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
    for _ in range(NUM_ROUNDS):
        nearest = _semidefinite(out + correction, trace)
        correction = out + correction - nearest
        out = nearest
        for _ in range(NUM_LINEAR_ROUNDS):
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
HIDDEN_EIGENVALUES_STD = 2.0


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
    hidden = HIDDEN_EIGENVALUES_STD * mean * math.sqrt(2 / others)
    among = moved_error(isotropic_error(min(hidden, noisy.noise_std)), outside)
    scale = (noisy.trace_std / noisy.trace) ** 2

    def error(q: np.ndarray) -> np.ndarray:
        kept = inside @ own(q) @ inside
        crossed = outside @ own(inside @ q @ inside) @ outside
        return kept + crossed + among(q) + scale * gram @ q @ gram

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


def denoised(noisy: NoisyGram, structure: RowStructure | None, *, bootstraps: int = 24) -> Denoised:
    """Return the second moment nearest to a release, with a parametric bootstrap of its error.

    The bootstrap's noise is public. It is projected once the error is asked for, which many never do.

    Args:
        noisy: the release.
        structure: of the rows, or None.
        bootstraps: how many.
    """
    trace = noisy.trace
    nearest = project(noisy.gram, trace, structure)
    scale = (noisy.trace_std / trace) ** 2
    # A thread may ask for the error while another makes it.
    once = threading.Lock()

    @functools.cache
    def of_shape() -> Callable[[np.ndarray], np.ndarray]:
        rng = np.random.default_rng(0)
        noises = [noisy.noise_std * symmetric_noise(rng, len(nearest)) for _ in range(bootstraps)]
        return bootstrapped_error(np.stack([project(nearest + one, trace, structure) - nearest for one in noises]))

    @on_one_blas_thread
    def error(q: np.ndarray) -> np.ndarray:
        with once:
            moved = of_shape()
        return moved(q) + scale * nearest @ q @ nearest

    return Denoised(nearest, error)


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
        signs[[*hot, *structure.nonnegative]] = True
        signs[constant] |= structure.constant is not None
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
