"""Linear regression: G and Xᵀy, |y| <= Y, in one release; −Xᵀy/noise_scale² is the gradient at θ = 0."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import jax
import numpy as np

from dpmcmc.inference.corrected_matrix import confirmed
from dpmcmc.inference.denoised_moment import denoised, shrunk
from dpmcmc.inference.normal_law import GradientRelease, Local
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.mechanisms.noise_aware.prior import Prior
from dpmcmc.mechanisms.noise_aware.strategy import Calibrated
from dpmcmc.mechanisms.one_shot import PrivacySpec, ReleasedDraws
from dpmcmc.mechanisms.statistics import calibrate_statistics, release_statistics
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records
from dpmcmc.targets.base import require_bound
from dpmcmc.targets.linear import LinearRegression


@dataclass(frozen=True)
class Statistics:
    """Strategy for linear regression.

    Attributes:
        options: of the mechanism.
        target: with its public bounds.
        together: m, rows that an owner may have; 1 where records are rows.
    """

    options: Options
    target: LinearRegression
    together: int = 1

    def calibrate(self, spec: PrivacySpec) -> Calibrated:
        """Return what (svec G, w Xᵀy) cost, and their settings."""
        event, settings = calibrate_statistics(self.target, spec, spec.mu, 1.0, "noise_aware", self.together)
        return (event,), settings

    def refusal(self, plan: Plan) -> str | None:
        """Return None: intervals hold."""
        return None

    def draw(self, plan: Plan, records: Records, streams: Streams) -> ReleasedDraws:
        """Return posterior draws, (draws, d), with their evidence."""
        noisy, moment = self._released(plan, records, streams.noise)
        variance = self.target.noise_scale**2
        gram, error = denoised(shrunk(noisy), self.options.structure)
        local = Local(gram / variance, gram / variance, lambda q: error(q) / variance**2)
        noise = np.eye(len(gram)) * (plan.settings["label_noise_std"] / variance) ** 2
        release = GradientRelease(np.zeros(len(gram)), -moment / variance, noise)
        prior = Prior.of(self.options, self.target)
        found = prior.concluded(lambda now: (release, local), prior.gaussian, plan.num_records)
        evidence = dataclasses.replace(
            found.evidence,
            # The number of owners' rows is not released, and the Gram matrix says little without it.
            gram=noisy if self.together == 1 else None,
            structure=self.options.structure,
            supposed=self.options.supposed,
            least=confirmed(gram, noisy.gram, noisy.noise_std, np.zeros_like(gram)) / variance,
        )
        return ReleasedDraws(found.draws(self.options.draws, streams), evidence)

    def _released(self, plan: Plan, records: Records, key: jax.Array) -> tuple[NoisyGram, np.ndarray]:
        """Release G and Xᵀy."""
        gram, moment = release_statistics(records, self.target, plan.settings, key)
        noise_std = plan.settings["noise_std"]
        row_bound = require_bound(self.target.row_bound, "row_bound", "LinearRegression")
        largest = self.together * plan.num_records * row_bound**2
        trace = float(np.clip(np.trace(gram), noise_std, largest))
        return NoisyGram(gram, noise_std, trace, noise_std * math.sqrt(len(gram))), moment
