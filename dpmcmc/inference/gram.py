r"""A second moment of rows, G = Σ x xᵀ, from a noisy release of it.

Noise is symmetric and isotropic in Frobenius norm: variance σ² on the diagonal and σ²/2 off it. Whatever is done here
is post-processing of the release and costs nothing.

``project``: the nearest matrix that rows could have made. It is positive semi-definite and has a known trace. Where a
``RowStructure`` is declared it also has zeros within one-hot blocks, no negative entry between columns that are never
negative, and a diagonal equal to the intercept's column on one-hot columns. The columns of a block add up to the
intercept's, so G v = 0 for v = (a block's indicator) − (the intercept's). Dykstra's alternating projections (Boyle and
Dykstra 1986) meet all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmcmc.data.row_structure import RowStructure
from dpmcmc.inference.noise_aware import bootstrapped_error, symmetric_noise
from dpmcmc.privacy.query.gram_release import NoisyGram

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
    correction, out = np.zeros_like(noisy), noisy
    for _ in range(_ROUNDS):
        nearest = _semidefinite(out + correction, trace)
        correction, out = out + correction - nearest, nearest
        for _ in range(_LINEAR_ROUNDS):
            out = linear.project(out)
    return _semidefinite(out, trace)


def shrunk(noisy: NoisyGram) -> NoisyGram:
    """Return a second moment's posterior mean, and the noise left, where it varies normally about (trace/d) I.

    Let D be the release less (trace/d) I. It has k = d(d + 1)/2 − 1 dimensions, each with a variance of noise σ² and an
    unknown variance τ² of the second moment itself, so E‖D‖² = k(τ² + σ²). Then ρ = τ²/(τ² + σ²) is estimated by
    max(0, 1 − kσ²/‖D‖²). The posterior mean is (trace/d) I + ρD, and its error has the variance ρσ² (James and Stein
    1961; Efron and Morris 1973). A spectrum that the release tells from noise has ρ near 1 and stays as it is.
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
    noise_std, trace = noisy.noise_std, noisy.trace
    nearest = project(noisy.gram, trace, structure)
    again = (
        project(nearest + noise_std * symmetric_noise(rng, len(nearest)), trace, structure) for _ in range(bootstraps)
    )
    errors = np.stack([one - nearest for one in again])
    of_shape = bootstrapped_error(errors)
    return Denoised(nearest, lambda q: of_shape(q) + (noisy.trace_std / trace) ** 2 * nearest @ q @ nearest)


@dataclass(frozen=True)
class _Linear:
    """Subspaces and signs that a structure declares."""

    along: np.ndarray
    zero: np.ndarray
    nonnegative: np.ndarray
    hot: np.ndarray
    constant: int

    @classmethod
    def of(cls, structure: RowStructure, size: int) -> _Linear:
        hot = np.array([column for block in structure.blocks for column in block], int)
        constant = -1 if structure.constant is None else structure.constant
        sums = np.zeros((size, len(structure.blocks)))
        zero = np.zeros((size, size), bool)
        for number, block in enumerate(structure.blocks):
            sums[list(block), number], sums[constant, number] = 1.0, -1.0
            zero[np.ix_(block, block)] = True
        zero[np.diag_indices(size)] = False
        basis = np.linalg.qr(sums)[0]
        signs = np.zeros(size, bool)
        signs[[*hot, *structure.nonnegative, *([] if structure.constant is None else [constant])]] = True
        return cls(np.eye(size) - basis @ basis.T, zero, np.outer(signs, signs), hot, constant)

    def project(self, gram: np.ndarray) -> np.ndarray:
        """Return the matrix after each of the sets in turn."""
        out = self.along @ gram @ self.along
        out[self.zero] = 0.0
        if len(self.hot):
            # A pair off the diagonal counts twice in Frobenius norm.
            mean = (out[self.hot, self.hot] + 2 * out[self.hot, self.constant]) / 3
            out[self.hot, self.hot] = out[self.hot, self.constant] = out[self.constant, self.hot] = mean
        out[self.nonnegative] = np.maximum(out[self.nonnegative], 0.0)
        return out


def _semidefinite(matrix: np.ndarray, trace: float) -> np.ndarray:
    """Return the nearest positive semi-definite matrix with this trace: eigenvalues are projected onto a simplex."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    descending = values[::-1]
    excess = (np.cumsum(descending) - trace) / np.arange(1, len(values) + 1)
    level = excess[np.nonzero(descending > excess)[0][-1]]
    return (vectors * np.maximum(values - level, 0.0)) @ vectors.T
