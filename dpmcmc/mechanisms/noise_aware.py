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
from dpmcmc.inference.gram import denoised
from dpmcmc.inference.noise_aware import Gaussian, Local, LogisticLaw, Release
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.label_blind import CLIP, Design, LabelBlindGradient
from dpmcmc.mechanisms.linear_statistics import release_statistics, settle_statistics
from dpmcmc.mechanisms.one_shot import Asked, OneShot
from dpmcmc.privacy.query.gaussian_release import gaussian_event, mu_std, standard_normal
from dpmcmc.privacy.query.gram_release import GramRelease, NoisyGram, Rows
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, require_bound
from dpmcmc.targets.glm import LinearRegression, LogisticRegression

#: Ratio of the budgets of two gradients, one after the other; part of the gradients that the posterior is made of.
_GROWTH, _LAST = 1.15, 0.6
#: Share of μ² for the trace.
_TRACE_SHARE = 0.01
#: Candidates for the share of μ² for the Gram matrix.
_GRAM_SHARES = (0.2, 0.3, 0.4, 0.5)
#: Iterations of the posterior given the last gradients; those of a candidate share, and its bootstraps.
_ROUNDS, _PREDICTED_ROUNDS, _PREDICTED_BOOTSTRAPS = 12, 6, 6
#: Draws that an interval is read from and gradients that the position settles in, at least; largest prior_scale times
#: row_bound at which intervals were seen to cover.
_FEWEST_DRAWS, _FEWEST_STEPS, _STRONGEST = 100, 32, 4.0
#: Candidates of ``prior_scale: evidence`` in units of the target's, and the standard deviation of the log of a scale
#: under its hyperprior.
_SCALES, _LOG_SCALE_STD = np.exp(np.linspace(-2, 2, 33)), 1.0


@dataclass(frozen=True)
class NoiseAware(OneShot):
    """Posterior draws whose intervals account for the noise of privacy.

    Args:
        draws: how many; they cost nothing.
        steps: K, gradients of all records; logistic regression only.
        gram_share: part of μ² for the Gram matrix; None: the part that makes predicted intervals narrowest.
        prior_scale: ``target``: the target's; ``evidence``: chosen from the released numbers, with a log-normal
            hyperprior around the target's.
        structure: what is declared of all rows; a wrong declaration makes intervals wrong, not less private.

    Raises:
        ValueError: a value outside these.
    """

    draws: Annotated[int, Gt(0)] = 1000
    steps: Annotated[int, Ge(4), Le(100)] = 48
    gram_share: Annotated[float, Gt(0), Lt(0.95)] | None = None
    prior_scale: Literal["target", "evidence"] = "target"
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
        if type(target) is LinearRegression:
            event, settings = settle_statistics(target, asked, asked.mu, 1.0, "noise_aware")
            return self.planned(target, asked, (event,), settings)
        design = _design(target, asked.most_records)
        mu, adjacency = asked.mu * (1 - 1e-9), asked.adjacency
        rows = self._rows(design)
        trace_share = 0.0 if rows.trace_declared(adjacency) else _TRACE_SHARE

        def gram(share: float) -> GramRelease:
            return GramRelease.settle(rows, adjacency, mu * math.sqrt(share), mu * math.sqrt(trace_share))

        def gradient_mu(share: float) -> float:
            return mu * math.sqrt(1 - share - trace_share)

        def width(share: float) -> float:
            return predicted_width(design, gram(share).noise_std, asked.moved / gradient_mu(share), self.structure)

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
        return self.planned(target, asked, (*gram(share).events(adjacency), *gradients), settings)

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
            logits = plan.target.prior_scale * (plan.target.row_bound or math.inf)
            if logits > _STRONGEST:
                return False, (
                    f"Do not report intervals: logits spread over up to {logits:.3g} under the prior, and intervals "
                    f"were seen to cover up to {_STRONGEST:g}; take a smaller prior_scale."
                )
        wide = plan.settings.get("predicted_width")
        said = "" if wide is None else f", which is predicted to make intervals {wide:.2g} times as wide"
        return True, f"Yes, if the model and the prior are true: the draws account for the noise of privacy{said}."

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
        """Release G and Xᵀy, and conclude."""
        d, noise_std = x.shape[1], plan.settings["noise_std"]
        released, moment = release_statistics(x, y, plan.settings, key)
        variance = plan.target.noise_scale**2
        trace = float(np.clip(np.trace(released), noise_std, plan.num_records * plan.target.row_bound**2))
        gram, error = denoised(NoisyGram(released, noise_std, trace, noise_std * math.sqrt(d)), self.structure)
        local = Local(gram / variance, gram / variance, lambda q: error(q) / variance**2)
        noise = np.eye(d) * (plan.settings["label_noise_std"] / variance) ** 2
        release = Release(np.zeros(d), -moment / variance, noise)
        return self._concluded(plan.target.prior_scale, release, lambda now: local)

    def _logistic(self, plan: MechanismPlan, x: np.ndarray, y: np.ndarray, key: jax.Array) -> Gaussian:
        """Release G, its trace and the gradients, and conclude."""
        design = _design(plan.target, plan.num_records)
        gram_key, *keys = jax.random.split(key, self.steps + 1)
        settings = plan.settings
        noisy = GramRelease(self._rows(design), settings["gram_noise_std"], settings["trace_noise_std"])
        gram, error = denoised(noisy.release(x, gram_key), self.structure)
        rough = noise_aware.isotropic_error(settings["gram_noise_std"])
        access = LabelBlindGradient.of(gram, design, x, y)

        def local(now: Gaussian, error: Callable[[np.ndarray], np.ndarray] = error) -> Local:
            law = LogisticLaw.at(float(now.mean @ gram @ now.mean) / design.num_records, access.norm, access.clip)
            return law.local(gram, design.num_records, now.mean, error)

        positions, gradients = np.zeros((2, self.steps, design.size))
        metric = design.metric(gram)
        multipliers = self._multipliers(settings["first_noise_multiplier"])
        precision = np.eye(design.size) / design.prior_scale**2
        now = Gaussian(np.zeros(design.size), np.linalg.inv(precision))
        for k, z in enumerate(multipliers):
            positions[k] = now.mean * min(1.0, design.radius / max(float(np.linalg.norm(now.mean)), 1e-300))
            gradients[k] = access.release(positions[k], z, keys[k])
            window = slice(k + 1 - math.ceil(_LAST * (k + 1)), k + 1)
            precisions = (access.clip * multipliers[window]) ** -2.0
            release = noise_aware.weighted_mean(positions[window], gradients[window], precisions, metric)
            now = noise_aware.posterior(release, local(now, rough), precision, now, rounds=2)
        return self._concluded(design.prior_scale, release, local, now)

    def _concluded(
        self, prior_scale: float, release: Release, local: Callable[[Gaussian], Local], now: Gaussian | None = None
    ) -> Gaussian:
        """The posterior given the last release, under the target's prior scale or one chosen from it."""
        identity = np.eye(len(release.position))
        at = Gaussian(0 * release.position, identity * prior_scale**2) if now is None else now
        for _ in range(_ROUNDS // 4):
            at = noise_aware.posterior(release, local(at), identity / prior_scale**2, at)
        if self.prior_scale == "target":
            return at

        here = local(at)

        def log_density(scale: float) -> float:
            fit = noise_aware.log_evidence(release, here, (prior_scale * scale) ** 2, at)
            return fit - 0.5 * (math.log(scale) / _LOG_SCALE_STD) ** 2

        chosen = prior_scale * float(max(_SCALES, key=log_density))
        for _ in range(_ROUNDS // 4):
            at = noise_aware.posterior(release, local(at), identity / chosen**2, at)
        return at


def _design(target: Target, num_records: int) -> Design:
    """Return the public facts of a logistic regression.

    Raises:
        UnsupportedCombination: another target.
        ValueError: a bound that is not given.
    """
    if type(target) is not LogisticRegression:
        raise UnsupportedCombination(
            "noise_aware is derived for LogisticRegression and LinearRegression, and the target is "
            f"{type(target).__name__}; use a sampler, whose draws are for prediction."
        )
    row = require_bound(target.row_bound, "row_bound", "LogisticRegression")
    if target.num_features is None:
        raise InputError("num_features: LogisticRegression needs it before a plan; give it", "num_features")
    return Design(num_records, target.num_features, row, target.prior_scale)


def predicted_width(
    design: Design, gram_noise_std: float, noise_multiplier: float, structure: RowStructure | None = None
) -> float:
    """Return the predicted width of an interval over that of the non-private posterior, mean over coordinates.

    No record is read: the Gram matrix is a public one with trace N·b² and eigenvalues ∝ 1/j², released with simulated
    noise, and what follows is what ``draw`` does.

    Args:
        design: public facts.
        gram_noise_std: of the Gram matrix.
        noise_multiplier: of one gradient with the budget of all.
        structure: of the rows; where blocks are declared, half of the Gram matrix' noise is taken to contradict them.
    """
    d, prior, rng = design.size, design.prior_scale**2, np.random.default_rng(0)
    spectrum = np.arange(1.0, d + 1) ** -2
    spectrum *= design.largest_trace / spectrum.sum()
    std = gram_noise_std * (0.5 if structure and structure.blocks else 1.0)
    noisy = NoisyGram(np.diag(spectrum) + std * noise_aware.symmetric_noise(rng, d), std, design.largest_trace, 0.0)
    gram, error = denoised(noisy, None, rng=rng, bootstraps=_PREDICTED_BOOTSTRAPS)
    norm = design.whitened_norm(gram)
    logits = prior * design.row_bound**2 / 2
    law, unclipped = (LogisticLaw.at(logits, norm, clip) for clip in (CLIP * norm, math.inf))
    noise = (noise_multiplier * CLIP * norm) ** 2 * design.metric(gram)
    # The releases are about as far from the truth as the posterior is wide.
    local = law.local(gram, design.num_records, np.zeros(d), lambda q: 2 * error(q))
    start = Gaussian(np.zeros(d), np.eye(d) * prior)
    release = Release(np.zeros(d), np.zeros(d), noise)
    now = noise_aware.posterior(release, local, np.eye(d) / prior, start, rounds=_PREDICTED_ROUNDS)
    return float(np.mean(np.sqrt(np.diag(now.covariance) * (1 / prior + unclipped.curvature * spectrum))))
