"""The prior of a noise-aware posterior, and how a posterior is concluded under it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpmcmc.inference import noise_aware
from dpmcmc.inference.noise_aware import Gaussian, Local, Release

#: Iterations of the posterior given the last release.
_ROUNDS = 12
#: Farthest position, in prior standard deviations times √d.
_RADIUS = 30.0
#: Candidates of ``prior_scale: evidence`` in units of the target's, and the standard deviation of the log of a scale
#: under its hyperprior.
_SCALES, _LOG_SCALE_STD = np.exp(np.linspace(-2, 2, 33)), 1.0


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
        """Return the posterior given the last release.

        Args:
            release: of the gradient.
            local: model of the gradient, given a posterior.
            at: first guess of the posterior.
        """
        at = _settled(release, local, self.precision, at)
        if not self.by_evidence:
            return at
        here = local(at)

        def log_density(factor: float) -> float:
            fit = noise_aware.log_evidence(release, here, np.diag((factor * self.scales) ** 2), at)
            return fit - 0.5 * (math.log(factor) / _LOG_SCALE_STD) ** 2

        chosen = self.scales * float(max(_SCALES, key=log_density))
        return _settled(release, local, np.diag(chosen**-2), at)


def _settled(release: Release, local: Callable[[Gaussian], Local], precision: np.ndarray, at: Gaussian) -> Gaussian:
    """Return the posterior whose model of the gradient is made at itself."""
    for _ in range(_ROUNDS // 4):
        at = noise_aware.posterior(release, local(at), precision, at)
    return at
