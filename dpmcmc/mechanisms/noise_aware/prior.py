"""The prior of a noise-aware posterior, and how a posterior is concluded under it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmcmc.data.row_structure import RowStructure
from dpmcmc.inference import noise_aware
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.noise_aware import Gaussian, Local, Release
from dpmcmc.mechanisms.one_shot import Drawn
from dpmcmc.privacy.query.gram_release import NoisyGram

#: Iterations of the posterior given the last release.
_ROUNDS = 12
#: Farthest position, in prior standard deviations times √d.
_RADIUS = 30.0
#: Candidates of ``prior_scale: evidence`` in units of the target's, and the standard deviation of the log of a scale
#: under its hyperprior.
_SCALES, _LOG_SCALE_STD = np.exp(np.linspace(-2, 2, 33)), 1.0


class Concluded(NamedTuple):
    """A posterior, and what it was concluded from.

    Attributes:
        posterior: of the coefficients.
        release: of the gradient.
        local: model of the gradient at the posterior.
        scales: standard deviations of the prior, (d,).
    """

    posterior: Gaussian
    release: Release
    local: Local
    scales: np.ndarray

    def drawn(self, draws: np.ndarray, num_rows: int, gram: NoisyGram | None, structure: RowStructure | None) -> Drawn:
        """Return draws with the evidence that they rest on."""
        h = self.local.curvature
        covariance = noise_aware.total_covariance(self.release, self.local, self.posterior)
        statistic = h @ self.release.position - self.release.gradient
        return Drawn(draws, Evidence(h, statistic, covariance, self.scales, num_rows, gram, structure))


@dataclass(frozen=True)
class Prior:
    """N(0, diag(scales²)), or the multiple of it that released numbers favour.

    Attributes:
        scales: standard deviations of the coefficients, (d,); those of K predictors one row after the other, (d·K,).
        by_evidence: whether a multiple is chosen.
    """

    scales: np.ndarray
    by_evidence: bool

    @classmethod
    def of(cls, shape: tuple[int, int], scale: float, intercept: tuple[int, float] | None, by_evidence: bool) -> Prior:
        """Return the prior of coefficients (d, K), with a scale of its own for the row of the intercept."""
        scales = np.full(shape, scale)
        if intercept is not None:
            scales[intercept[0]] = intercept[1]
        return cls(scales.ravel(), by_evidence)

    @property
    def radius(self) -> float:
        """How far from 0 a public position may lie."""
        return _RADIUS * float(np.max(self.scales)) * math.sqrt(len(self.scales))

    @property
    def precision(self) -> np.ndarray:
        """P, (d, d)."""
        return np.diag(self.scales**-2)

    @property
    def gaussian(self) -> Gaussian:
        """The prior itself."""
        return Gaussian(np.zeros(len(self.scales)), np.diag(self.scales**2))

    def conclude(self, release: Release, local: Callable[[Gaussian], Local], at: Gaussian) -> Gaussian:
        """Return the posterior given the last release; see :meth:`concluded`."""
        return self.concluded(release, local, at).posterior

    def concluded(self, release: Release, local: Callable[[Gaussian], Local], at: Gaussian) -> Concluded:
        """Return what follows from the last release.

        Args:
            release: of the gradient.
            local: model of the gradient, given a posterior.
            at: first guess of the posterior.
        """
        at = _settled(release, local, self.precision, at)
        if not self.by_evidence:
            return Concluded(at, release, local(at), self.scales)
        here = local(at)

        def log_density(factor: float) -> float:
            fit = noise_aware.log_evidence(release, here, np.diag((factor * self.scales) ** 2), at)
            return fit - 0.5 * (math.log(factor) / _LOG_SCALE_STD) ** 2

        chosen = self.scales * float(max(_SCALES, key=log_density))
        at = _settled(release, local, np.diag(chosen**-2), at)
        return Concluded(at, release, local(at), chosen)


def _settled(release: Release, local: Callable[[Gaussian], Local], precision: np.ndarray, at: Gaussian) -> Gaussian:
    """Return the posterior whose model of the gradient is made at itself."""
    for _ in range(_ROUNDS // 4):
        at = noise_aware.posterior(release, local(at), precision, at)
    return at
