"""Linear regression: G and Xᵀy, |y| <= Y, in one release; −Xᵀy/noise_scale² is the gradient at θ = 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np

from dpmcmc.inference.gram import denoised, shrunk
from dpmcmc.inference.noise_aware import Gaussian, Local, Release
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.linear_statistics import (
    release_statistics,
    residual_rows,
    residual_scores,
    settle_statistics,
)
from dpmcmc.mechanisms.noise_aware import score_moment
from dpmcmc.mechanisms.noise_aware.way import Settled, posterior_draws, prior_of
from dpmcmc.mechanisms.one_shot import Asked
from dpmcmc.privacy.query.gram_release import NoisyGram, within
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.glm import LinearRegression

if TYPE_CHECKING:
    from dpmcmc.mechanisms.noise_aware.mechanism import NoiseAware


@dataclass(frozen=True)
class Statistics:
    """The way of linear regression.

    Attributes:
        options: of the mechanism.
        target: with its public bounds.
    """

    options: NoiseAware
    target: LinearRegression

    def settle(self, asked: Asked) -> Settled:
        """Return what (svec G, w Xᵀy) and, for a sandwich, the second moment of scores cost, and their settings."""
        if self.options.covariance == "model":
            event, settings = settle_statistics(self.target, asked, asked.mu, 1.0, "noise_aware")
            return (event,), settings
        budget = asked.mu * (1 - 1e-9)
        event, settings = settle_statistics(
            self.target, asked, budget * math.sqrt(1 - score_moment.SHARE), 1.0, "noise_aware"
        )
        rows = residual_rows(self.target, asked.most_records, prior_of(self.options, self.target).radius)
        scores = score_moment.settle(rows, asked.adjacency, budget)
        return (event, *scores.events(asked.adjacency)), settings | score_moment.settings_of(scores)

    def refusal(self) -> str | None:
        """Return None: intervals hold."""
        return None

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> np.ndarray:
        """Return posterior draws, (draws, d)."""
        x, y = (np.asarray(records[name], np.float64) for name in ("x", "y"))
        return posterior_draws(self.conclude(plan, x, y, streams.noise), self.options.draws, streams)

    def conclude(self, plan: MechanismPlan, x: np.ndarray, y: np.ndarray, key: jax.Array) -> Gaussian:
        """Release G, Xᵀy and, for a sandwich, the second moment of scores, and conclude."""
        target, d, noise_std = self.target, x.shape[1], plan.settings["noise_std"]
        assert target.row_bound is not None
        assert target.label_bound is not None
        statistics_key, score_key = jax.random.split(key)
        released, moment = release_statistics(x, y, plan.settings, statistics_key)
        variance = target.noise_scale**2
        trace = float(np.clip(np.trace(released), noise_std, plan.num_records * target.row_bound**2))
        noisy = shrunk(NoisyGram(released, noise_std, trace, noise_std * math.sqrt(d)))
        gram, error = denoised(noisy, self.options.structure)
        local = Local(gram / variance, gram / variance, lambda q: error(q) / variance**2)
        noise = np.eye(d) * (plan.settings["label_noise_std"] / variance) ** 2
        release, prior = Release(np.zeros(d), -moment / variance, noise), prior_of(self.options, target)
        at = prior.conclude(release, lambda now: local, prior.gaussian)
        if self.options.covariance == "model":
            return at
        rows = residual_rows(target, plan.num_records, prior.radius)
        scores = residual_scores(x, y, within(at.mean[None], prior.radius)[0], target.label_bound)
        model = score_moment.released(rows, plan.settings, scores, gram * variance, score_key)
        robust = local._replace(score=model / variance**2)
        return prior.conclude(release, lambda now: robust, at)
