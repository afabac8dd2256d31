"""Linear regression: G and Xᵀy, |y| <= Y, in one release; −Xᵀy/noise_scale² is the gradient at θ = 0."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import jax
import numpy as np

from dpmcmc.inference.gram import denoised, shrunk
from dpmcmc.inference.noise_aware import Local, Release
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.linear_statistics import (
    release_statistics,
    residual_rows,
    residual_scores,
    settle_statistics,
)
from dpmcmc.mechanisms.noise_aware import score_moment
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.mechanisms.noise_aware.owners import Read
from dpmcmc.mechanisms.noise_aware.prior import Concluded, Prior
from dpmcmc.mechanisms.noise_aware.way import Settled
from dpmcmc.mechanisms.one_shot import Asked, Drawn
from dpmcmc.privacy.query.gram_release import NoisyGram, within
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.glm import LinearRegression


@dataclass(frozen=True)
class Statistics:
    """The way of linear regression.

    Attributes:
        options: of the mechanism.
        target: with its public bounds.
        together: m, rows that an owner may have; 1 where records are rows.
    """

    options: Options
    target: LinearRegression
    together: int = 1

    def settle(self, asked: Asked) -> Settled:
        """Return what (svec G, w Xᵀy) and, for a sandwich, the second moment of scores cost, and their settings."""
        if self.options.covariance == "model":
            event, settings = settle_statistics(self.target, asked, asked.mu, 1.0, "noise_aware", self.together)
            return (event,), settings
        budget = asked.mu * (1 - 1e-9)
        event, settings = settle_statistics(
            self.target, asked, budget * math.sqrt(1 - score_moment.SHARE), 1.0, "noise_aware", self.together
        )
        rows = residual_rows(self.target, asked.most_records, Prior.of(self.options, self.target).radius, self.together)
        events, more = score_moment.settle(rows, asked, budget)
        return (event, *events), settings | more

    def refusal(self, plan: MechanismPlan) -> str | None:
        """Return None: intervals hold."""
        return None

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> Drawn:
        """Return posterior draws, (draws, d), with their evidence."""
        noisy, found = self.conclude(plan, Read.of(records), streams.noise)
        # The number of owners' rows is not released, and the Gram matrix says little without it.
        gram = noisy if self.together == 1 else None
        evidence = dataclasses.replace(found.evidence, gram=gram, structure=self.options.structure)
        return Drawn(found.draws(self.options.draws, streams), evidence)

    def conclude(self, plan: MechanismPlan, read: Read, key: jax.Array) -> tuple[NoisyGram, Concluded]:
        """Release G, Xᵀy and, for a sandwich, the second moment of scores; return G and what follows."""
        target, d, noise_std = self.target, read.x.shape[1], plan.settings["noise_std"]
        assert target.row_bound is not None
        assert target.label_bound is not None
        statistics_key, score_key = jax.random.split(key)
        released, moment = release_statistics(read.x, read.y, plan.settings, statistics_key)
        variance = target.noise_scale**2
        trace = float(np.clip(np.trace(released), noise_std, self.together * plan.num_records * target.row_bound**2))
        noisy = NoisyGram(released, noise_std, trace, noise_std * math.sqrt(d))
        gram, error = denoised(shrunk(noisy), self.options.structure)
        local = Local(gram / variance, gram / variance, lambda q: error(q) / variance**2)
        noise = np.eye(d) * (plan.settings["label_noise_std"] / variance) ** 2
        release, prior = Release(np.zeros(d), -moment / variance, noise), Prior.of(self.options, target)
        found = prior.concluded(release, lambda now: local, prior.gaussian, plan.num_records)
        if self.options.covariance == "model":
            return noisy, found
        at = within(found.posterior.mean[None], prior.radius)[0]
        rows = residual_rows(target, plan.num_records, prior.radius, self.together)
        scores = read.of_owners(residual_scores(read.x, read.y, at, target.label_bound))
        model = score_moment.released(rows, plan.settings, scores, gram * variance, score_key)
        robust = local._replace(score=model / variance**2)
        return noisy, prior.concluded(release, lambda now: robust, found.posterior, plan.num_records)
