r"""Noise-aware release: a posterior whose intervals hold, from noisy sums whose noise law is part of the model.

Everything that leaves is a Gaussian release, so the budget adds up, μ² = Σ μ_i², and draws are post-processing.

Logistic regression, with ‖x‖ <= b enforced on every row:

1. the Gram matrix G = Σ x xᵀ and, unless it is declared, its trace (``privacy/query/gram_release.py``);
2. a metric F and a clip norm C, made of the released Gram matrix: both public now;
3. K gradients of all records, weighted blindly to labels and clipped in the metric (``label_blind.py``). Later ones get
   more of the budget, and each is taken at the posterior's mean given those before it (``inference/noise_aware.py``).

Linear regression: G and Xᵀy, |y| <= Y, in one release (``linear_statistics.py``); −Xᵀy/noise_scale² is the gradient at
θ = 0.

Sums are exact up to the rounding that each sensitivity is charged for, on either neighbour; value and noise are added
on a grid (``gaussian_release.py``). A row beyond b is refused before anything is computed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import jax
import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.data.row_structure import RowStructure
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference import noise_aware
from dpmcmc.inference.gram import denoised, shrunk
from dpmcmc.inference.noise_aware import Gaussian, Local, LogisticLaw, LogisticRows, Release
from dpmcmc.mechanisms import score_moment
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.label_blind import CLIP, Design, LabelBlindGradient
from dpmcmc.mechanisms.linear_statistics import (
    release_statistics,
    residual_rows,
    residual_scores,
    settle_statistics,
)
from dpmcmc.mechanisms.one_shot import Asked, OneShot
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.query.gaussian_release import gaussian_event, mu_std, standard_normal
from dpmcmc.privacy.query.gram_release import GramRelease, NoisyGram, Rows, within
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive, Target, require_bound
from dpmcmc.targets.glm import LinearRegression, LogisticRegression
from dpmcmc.targets.per_owner import PerOwner

#: Ratio of the budgets of two gradients, one after the other; part of the gradients that the posterior is made of.
_GROWTH, _LAST = 1.15, 0.6
#: Share of μ² for the trace.
_TRACE_SHARE = 0.01
#: Candidates for the share of μ² for the Gram matrix.
_GRAM_SHARES = (0.2, 0.3, 0.4, 0.5)
#: Iterations of the posterior given the last gradients; those of a candidate share, and its bootstraps.
_ROUNDS, _PREDICTED_ROUNDS, _PREDICTED_BOOTSTRAPS = 12, 6, 6
#: Draws that an interval is read from and gradients that the position settles in, at least.
_FEWEST_DRAWS, _FEWEST_STEPS = 100, 32
#: Largest prior_scale and intercept_scale times row_bound at which intervals were seen to cover.
_STRONGEST, _STRONGEST_INTERCEPT = 2.0, 4.0
#: Farthest position, in prior standard deviations times √d.
_RADIUS = 30.0
#: Candidates of ``prior_scale: evidence`` in units of the target's, and the standard deviation of the log of a scale
#: under its hyperprior.
_SCALES, _LOG_SCALE_STD = np.exp(np.linspace(-2, 2, 33)), 1.0

#: Events and settings.
Settled = tuple[tuple[Event, ...], dict[str, float]]


@dataclass(frozen=True)
class NoiseAware(OneShot):
    """Posterior draws whose intervals account for the noise of privacy.

    Args:
        draws: how many; they cost nothing.
        steps: K, gradients of all records; logistic regression only.
        gram_share: part of μ² for the Gram matrix; None: the part that makes predicted intervals narrowest.
        prior_scale: ``target``: the target's; ``evidence``: chosen from the released numbers, with a log-normal
            hyperprior around the target's.
        covariance: ``model``: scores vary as the model says; ``sandwich``, linear regression only: as a private second
            moment of them says, which costs a tenth of μ². Intervals then hold for the pseudo-true parameter where the
            model is wrong.
        intercept_scale: prior standard deviation of the coefficient of the declared intercept; None: the target's.
        structure: what is declared of all rows; a wrong declaration makes intervals wrong, not less private.

    Raises:
        ValueError: a value outside these.
    """

    draws: Annotated[int, Gt(0)] = 1000
    steps: Annotated[int, Ge(4), Le(100)] = 48
    gram_share: Annotated[float, Gt(0), Lt(0.95)] | None = None
    prior_scale: Literal["target", "evidence"] = "target"
    covariance: Literal["model", "sandwich"] = "model"
    intercept_scale: Positive | None = None
    structure: RowStructure | None = field(default=None, kw_only=True, repr=False)

    def settle(self, target: Target, asked: Asked) -> MechanismPlan:
        """Settle every noise.

        Raises:
            UnsupportedCombination: another target than logistic or linear regression.
            ValueError: a public bound that is not given.
        """
        features = getattr(target, "num_features", None)
        if self.structure is not None and features is not None:
            self.structure.check(features)
        if self.intercept_scale is not None and self._intercept is None:
            raise InputError(
                "intercept_scale: nothing declares which column is the intercept; give "
                "structure=RowStructure(constant=...) in Python, or data whose encoder declares it",
                "intercept_scale",
            )
        if type(target) is LinearRegression:
            return self.planned(target, asked, *self._settle_linear(target, asked))
        if self.covariance == "sandwich":
            raise UnsupportedCombination(
                "covariance sandwich is derived for LinearRegression: label-blind weights of a logistic regression "
                "depend on θ, so where the model is wrong its score curves by a term that depends on labels too, and "
                "no release of that term is derived; leave covariance out."
            )
        return self.planned(target, asked, *self._settle_logistic(_supported(target), asked))

    def _settle_linear(self, target: LinearRegression, asked: Asked) -> Settled:
        """Return what (svec G, w Xᵀy) and, for a sandwich, the second moment of scores cost, and their settings."""
        if self.covariance == "model":
            event, settings = settle_statistics(target, asked, asked.mu, 1.0, "noise_aware")
            return (event,), settings
        budget = asked.mu * (1 - 1e-9)
        event, settings = settle_statistics(
            target, asked, budget * math.sqrt(1 - score_moment.SHARE), 1.0, "noise_aware"
        )
        rows = residual_rows(target, asked.most_records, self._radius(target))
        scores = score_moment.settle(rows, asked.adjacency, budget)
        return (event, *scores.events(asked.adjacency)), settings | score_moment.settings_of(scores)

    def _settle_logistic(self, target: LogisticRegression, asked: Asked) -> Settled:
        """Return what the Gram matrix, its trace and the gradients cost, and their settings."""
        mu = asked.mu * (1 - 1e-9)
        design, adjacency = self._design(target, asked.most_records), asked.adjacency
        rows = self._rows(design)
        trace_share = 0.0 if rows.trace_declared(adjacency) else _TRACE_SHARE

        def gram(share: float) -> GramRelease:
            return GramRelease.settle(rows, adjacency, mu * math.sqrt(share), mu * math.sqrt(trace_share))

        def gradient_mu(share: float) -> float:
            return mu * math.sqrt(1 - share - trace_share)

        def width(share: float) -> float:
            return predicted_width(
                design, target.prior_scale, gram(share).noise_std, asked.moved / gradient_mu(share), self.structure
            )

        widths = {s: width(s) for s in (_GRAM_SHARES if self.gram_share is None else (self.gram_share,))}
        share = min(widths, key=widths.__getitem__)
        moves = asked.moved + 2 * design.rounding()
        first = mu_std(moves, design.size, gradient_mu(share) * math.sqrt(self._shares()[0]))
        gradients = [gaussian_event(z, moves, design.size, adjacency) for z in self._multipliers(first)]
        settings = {
            "gram_share": share,
            "gram_noise_std": gram(share).noise_std,
            "trace_noise_std": gram(share).trace_std,
            "first_noise_multiplier": first,
            "predicted_width": widths[share],
        }
        return (*gram(share).events(adjacency), *gradients), settings

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> np.ndarray:
        """Return posterior draws, (draws, d)."""
        x, y = np.asarray(records["x"], np.float64), np.asarray(records["y"], np.float64)
        conclude = self._linear if type(plan.target) is LinearRegression else self._logistic
        noise = standard_normal(streams.dynamics, (self.draws, x.shape[1]))
        return conclude(plan, x, y, streams.noise).draws(noise)

    def intervals(self, plan: MechanismPlan) -> tuple[bool, str]:
        """Return whether intervals of the draws hold, and why; planned from public facts."""
        if self.draws < _FEWEST_DRAWS:
            return False, f"Do not report intervals: {self.draws} draws are too few; take {_FEWEST_DRAWS} or more."
        if type(plan.target) is LogisticRegression:
            if self.steps < _FEWEST_STEPS:
                return False, f"Do not report intervals: {self.steps} steps are too few; take {_FEWEST_STEPS} or more."
            bound = plan.target.row_bound or math.inf
            for name, scale, most in (
                ("prior_scale", plan.target.prior_scale, _STRONGEST),
                ("intercept_scale", self.intercept_scale or 0.0, _STRONGEST_INTERCEPT),
            ):
                if scale * bound > most:
                    return False, (
                        f"Do not report intervals: {name} spreads logits over up to {scale * bound:.3g} under the "
                        f"prior, and intervals were seen to cover up to {most:g}; take a smaller {name}."
                    )
        if self.covariance == "sandwich":
            return True, (
                "Yes, of the parameter at which the model's mean score is zero, if the prior is true: the draws "
                "account for the noise of privacy, and for scores that vary otherwise than the model says."
            )
        return True, "Yes, if the model and the prior are true: the draws account for the noise of privacy."

    @property
    def _intercept(self) -> int | None:
        return None if self.structure is None else self.structure.constant

    def _scales(self, target: LinearRegression | LogisticRegression) -> np.ndarray:
        """Return the prior's standard deviations, (d,)."""
        assert target.num_features is not None
        scales = np.full(target.num_features, target.prior_scale)
        if self.intercept_scale is not None:
            scales[self._intercept] = self.intercept_scale
        return scales

    def _radius(self, target: LinearRegression | LogisticRegression) -> float:
        """Return how far from 0 a public position may lie."""
        scales = self._scales(target)
        return _RADIUS * float(np.max(scales)) * math.sqrt(len(scales))

    def _design(self, target: LogisticRegression, num_records: int) -> Design:
        """Return the public facts of a logistic regression, whose bounds are given."""
        row, features = require_bound(target.row_bound, "row_bound", "LogisticRegression"), target.num_features
        if features is None:
            raise InputError("num_features: LogisticRegression needs it before a plan; give it", "num_features")
        return Design(num_records, features, row, self._radius(target))

    def _rows(self, design: Design) -> Rows:
        """Return the public facts of the Gram matrix."""
        unit_norm = self.structure is not None and self.structure.unit_norm
        return Rows(design.num_records, design.size, design.row_bound, unit_norm)

    def _shares(self) -> np.ndarray:
        """Part of the gradients' μ² that each of them gets, (steps,); they add up to 1."""
        shares = _GROWTH ** np.arange(self.steps, dtype=np.float64)
        return shares / shares.sum()

    def _multipliers(self, first: float) -> np.ndarray:
        """Noise multipliers of the gradients, (steps,), given the first's; never less than their shares ask for."""
        shares = self._shares()
        return first * np.sqrt(shares[0] / shares) * (1 + 1e-12)

    def _linear(self, plan: MechanismPlan, x: np.ndarray, y: np.ndarray, key: jax.Array) -> Gaussian:
        """Release G, Xᵀy and, for a sandwich, the second moment of scores, and conclude."""
        d, noise_std = x.shape[1], plan.settings["noise_std"]
        statistics_key, score_key = jax.random.split(key)
        released, moment = release_statistics(x, y, plan.settings, statistics_key)
        variance = plan.target.noise_scale**2
        trace = float(np.clip(np.trace(released), noise_std, plan.num_records * plan.target.row_bound**2))
        gram, error = denoised(shrunk(NoisyGram(released, noise_std, trace, noise_std * math.sqrt(d))), self.structure)
        local = Local(gram / variance, gram / variance, lambda q: error(q) / variance**2)
        noise = np.eye(d) * (plan.settings["label_noise_std"] / variance) ** 2
        release, scales = Release(np.zeros(d), -moment / variance, noise), self._scales(plan.target)
        at = self._concluded(scales, release, lambda now: local, Gaussian(np.zeros(d), np.diag(scales**2)))
        if self.covariance == "model":
            return at
        rows = residual_rows(plan.target, plan.num_records, self._radius(plan.target))
        scores = residual_scores(x, y, within(at.mean[None], self._radius(plan.target))[0], plan.target.label_bound)
        model = score_moment.released(rows, plan.settings, scores, gram * variance, score_key)
        robust = local._replace(score=model / variance**2)
        return self._concluded(scales, release, lambda now: robust, at)

    def _logistic(self, plan: MechanismPlan, x: np.ndarray, y: np.ndarray, key: jax.Array) -> Gaussian:
        """Release G, its trace and the gradients, and conclude."""
        design, settings = self._design(plan.target, plan.num_records), plan.settings
        gram_key, *keys = jax.random.split(key, self.steps + 1)
        noisy = GramRelease(self._rows(design), settings["gram_noise_std"], settings["trace_noise_std"])
        gram, error = denoised(noisy.release(x, gram_key), self.structure)
        access = LabelBlindGradient.of(gram, design, x, y)
        mean = noise_aware.mean_row(gram, design.num_records, self._intercept)
        known = LogisticRows(gram, design.num_records, mean, access.norm, access.clip, error)
        rough = dataclasses.replace(known, error=noise_aware.isotropic_error(settings["gram_noise_std"]))

        positions, gradients = np.zeros((2, self.steps, design.size))
        metric, scales = design.metric(gram), self._scales(plan.target)
        multipliers = self._multipliers(settings["first_noise_multiplier"])
        prior = np.diag(scales**2)
        now = Gaussian(np.zeros(design.size), prior)
        for k, z in enumerate(multipliers):
            positions[k] = within(now.mean[None], design.radius)[0]
            gradients[k] = access.release(positions[k], z, keys[k])
            window = slice(k + 1 - math.ceil(_LAST * (k + 1)), k + 1)
            precisions = (access.clip * multipliers[window]) ** -2.0
            release = noise_aware.weighted_mean(positions[window], gradients[window], precisions, metric)
            now = noise_aware.posterior(release, rough.local(now.mean), np.diag(scales**-2), now, rounds=2)
        return self._concluded(scales, release, lambda at: known.local(at.mean), now)

    def _concluded(
        self, scales: np.ndarray, release: Release, local: Callable[[Gaussian], Local], at: Gaussian
    ) -> Gaussian:
        """Return the posterior given the last release, under the prior's scales or multiples of them chosen from it.

        Args:
            scales: standard deviations of the prior, (d,).
            release: of the gradient.
            local: model of the gradient, given a posterior.
            at: first guess of the posterior.
        """
        at = _settled(release, local, np.diag(scales**-2), at)
        if self.prior_scale == "target":
            return at
        here = local(at)

        def log_density(factor: float) -> float:
            fit = noise_aware.log_evidence(release, here, np.diag((factor * scales) ** 2), at)
            return fit - 0.5 * (math.log(factor) / _LOG_SCALE_STD) ** 2

        chosen = scales * float(max(_SCALES, key=log_density))
        return _settled(release, local, np.diag(chosen**-2), at)


def _supported(target: Target) -> LogisticRegression:
    """Return a target that is no linear regression.

    Raises:
        UnsupportedCombination: one that nothing is derived for.
    """
    if isinstance(target, PerOwner):
        raise UnsupportedCombination(
            "noise_aware charges for one record, and an owner with k records moves its sums k times as far; to clip an "
            "owner's records together would bias the score. Keep one record of each owner, or use a sampler, whose "
            "draws are for prediction."
        )
    if type(target) is not LogisticRegression:
        raise UnsupportedCombination(
            "noise_aware is derived for LogisticRegression and LinearRegression, and the target is "
            f"{type(target).__name__}; use a sampler, whose draws are for prediction."
        )
    return target


def _settled(release: Release, local: Callable[[Gaussian], Local], precision: np.ndarray, at: Gaussian) -> Gaussian:
    """Return the posterior whose model of the gradient is made at itself."""
    for _ in range(_ROUNDS // 4):
        at = noise_aware.posterior(release, local(at), precision, at)
    return at


def predicted_width(
    design: Design,
    prior_scale: float,
    gram_noise_std: float,
    noise_multiplier: float,
    structure: RowStructure | None = None,
) -> float:
    """Return the predicted width of an interval over that of the non-private posterior, mean over coordinates.

    It rests on a stand-in spectrum, since no record is read: the Gram matrix is a public one with trace N·b² and
    eigenvalues ∝ 1/j², released with simulated noise, and what follows is what ``draw`` does. On Adult's rows at ε = 1
    it says 1.52, and 1.24 was measured.

    Args:
        design: public facts.
        prior_scale: of every coefficient.
        gram_noise_std: of the Gram matrix.
        noise_multiplier: of one gradient with the budget of all.
        structure: of the rows; where blocks are declared, half of the Gram matrix' noise is taken to contradict them.
    """
    d, prior, rng = design.size, prior_scale**2, np.random.default_rng(0)
    spectrum = np.arange(1.0, d + 1) ** -2
    spectrum *= design.largest_trace / spectrum.sum()
    std = gram_noise_std * (0.5 if structure and structure.blocks else 1.0)
    noisy = NoisyGram(np.diag(spectrum) + std * noise_aware.symmetric_noise(rng, d), std, design.largest_trace, 0.0)
    gram, error = denoised(noisy, None, rng=rng, bootstraps=_PREDICTED_BOOTSTRAPS)
    norm = design.whitened_norm(gram)
    logits = prior * design.row_bound**2 / 2
    law, unclipped = (LogisticLaw.at(0.0, logits, norm, clip) for clip in (CLIP * norm, math.inf))
    noise = (noise_multiplier * CLIP * norm) ** 2 * design.metric(gram)
    # The releases are about as far from the truth as the posterior is wide.
    local = Local(law.curvature * gram, law.score * gram, lambda q: 2 * law.curvature**2 * error(q))
    start = Gaussian(np.zeros(d), np.eye(d) * prior)
    release = Release(np.zeros(d), np.zeros(d), noise)
    now = noise_aware.posterior(release, local, np.eye(d) / prior, start, rounds=_PREDICTED_ROUNDS)
    return float(np.mean(np.sqrt(np.diag(now.covariance) * (1 / prior + unclipped.curvature * spectrum))))
