"""The prior of a noise-aware posterior, and how a posterior is concluded under it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.inference import noise_aware
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.noise_aware import Gaussian, Local, Release
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.privacy.query.gaussian_release import standard_normal
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.targets.glm.base import GeneralisedLinear

#: Iterations of the posterior given the last release.
_ROUNDS = 12
#: Farthest position, in prior standard deviations times √d.
_RADIUS = 30.0
#: Candidates of ``prior_scale: evidence`` in units of the target's, and the standard deviation of the log of a scale
#: under its hyperprior.
_SCALES, _LOG_SCALE_STD = np.exp(np.linspace(-2, 2, 33)), 1.0


class Concluded(NamedTuple):
    """A posterior of the coefficients, and the law of the release that it was concluded from."""

    posterior: Gaussian
    evidence: Evidence

    def draws(self, count: int, streams: Streams) -> np.ndarray:
        """Return draws from the posterior, (count, d)."""
        return self.posterior.draws(standard_normal(streams.dynamics, (count, len(self.posterior.mean))))


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
    def of(cls, options: Options, target: GeneralisedLinear, predictors: int = 1) -> Prior:
        """Return the prior of a regression with K predictors, with a scale of its own for the declared intercept.

        Raises:
            ValueError: num_features is not known.
        """
        if target.num_features is None:
            raise InputError(f"num_features: {type(target).__name__} needs it before a plan; give it", "num_features")
        scales = np.full((target.num_features, predictors), target.prior_scale)
        constant = None if options.structure is None else options.structure.constant
        if options.intercept_scale is not None and constant is not None:
            scales[constant] = options.intercept_scale
        return cls(scales.ravel(), options.prior_scale == "evidence")

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

    def concluded(
        self, release: Release, local: Callable[[Gaussian], Local], at: Gaussian, num_records: int
    ) -> Concluded:
        """Return what follows from the last release.

        Args:
            release: of the gradient.
            local: model of the gradient, given a posterior.
            at: first guess of the posterior.
            num_records: N.
        """
        for _ in range(_ROUNDS // 4):
            at = noise_aware.posterior(release, local(at), self.precision, at)
        here = local(at)
        statistic = here.curvature @ release.position - release.gradient
        covariance = noise_aware.total_covariance(release, here, at)
        found = Evidence(here.curvature, statistic, covariance, self.scales, num_records)
        if not self.by_evidence:
            return Concluded(at, found)

        def log_density(factor: float) -> float:
            return found.log_density(scales=factor * self.scales) - 0.5 * (math.log(factor) / _LOG_SCALE_STD) ** 2

        chosen = Prior(self.scales * float(max(_SCALES, key=log_density)), by_evidence=False)
        return chosen.concluded(release, local, at, num_records)
