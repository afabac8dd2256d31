r"""Regressions with a bounded score: a Gram matrix, then gradients in the metric that it makes.

With ‖x‖ <= b enforced on every row:

1. the Gram matrix G = Σ x xᵀ and, unless it is declared, its trace (``privacy/query/gram_release.py``). A family whose
   curvature rests on the mean row gets Σ x too, where no intercept is declared in whose column G has it;
2. a metric F and a clip norm C, made of the released Gram matrix: both public now;
3. K gradients of all records, whose scores are bounded in the metric without bias (``bounded_gradient.py``). Later ones
   get more of the budget, and each is taken at the posterior's mean given those before it
   (``inference/noise_aware.py``).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import jax
import numpy as np

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference import noise_aware
from dpmcmc.inference.curvature import ScoredRows, mean_row
from dpmcmc.inference.gram import denoised
from dpmcmc.inference.noise_aware import Gaussian, Local, Release
from dpmcmc.inference.scores import BoundedScore
from dpmcmc.inference.scores.counts import CLIPS, Counts
from dpmcmc.inference.several_predictors import SeveralPredictors, average_law
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.noise_aware.bounded_gradient import BoundedGradient, Design
from dpmcmc.mechanisms.noise_aware.descent import FEWEST_STEPS, Descent, multipliers, shares
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.mechanisms.noise_aware.owners import COUNT_SHARE, Read, Sharing, release_counts, settle_counts
from dpmcmc.mechanisms.noise_aware.prior import Concluded, Prior
from dpmcmc.mechanisms.noise_aware.way import Settled
from dpmcmc.mechanisms.one_shot import Asked, Drawn
from dpmcmc.privacy.query.gaussian_release import mu_std
from dpmcmc.privacy.query.gram_release import GramRelease, NoisyGram, Rows, SumRelease, within
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import require_bound
from dpmcmc.targets.glm.base import GeneralisedLinear
from dpmcmc.targets.last_layer import on_rows

#: Ratio of the budgets of two gradients, one after the other; part of the gradients that the posterior is made of.
_GROWTH, _LAST = 1.15, 0.6
#: Share of μ² for the trace, and for the sum of the rows.
_TRACE_SHARE, _MEAN_SHARE = 0.01, 0.01
#: Candidates for the share of μ² for the Gram matrix.
_GRAM_SHARES = (0.2, 0.3, 0.4, 0.5)
#: Iterations of the posterior of a candidate share, and its bootstraps.
_PREDICTED_ROUNDS, _PREDICTED_BOOTSTRAPS = 6, 6
#: Predicted width up to which a clip further out is tried: beyond it the error of the Gram matrix hides what it costs.
_HIDDEN = 2.0


@dataclass(frozen=True)
class Gradients:
    """The way of regressions whose score is bounded.

    Attributes:
        options: of the mechanism.
        target: with its public bounds.
        score: of the target's family.
        together: m, rows that an owner may have; 1 where records are rows.
    """

    options: Options
    target: GeneralisedLinear
    score: BoundedScore
    together: int = 1

    def settle(self, asked: Asked) -> Settled:
        """Return what the Gram matrix, its trace and the gradients cost, and their settings."""
        if self.options.covariance == "sandwich":
            raise UnsupportedCombination(
                "covariance sandwich is derived for LinearRegression: label-blind weights of a logistic regression "
                "depend on θ, so where the model is wrong its score curves by a term that depends on labels too, and "
                "no release of that term is derived; leave covariance out."
            )
        mu = asked.mu * (1 - 1e-9)
        design, adjacency = self.design(asked.most_records), asked.adjacency
        count, most = design.size * self.score.size, noise_aware.MOST_COEFFICIENTS
        if self.score.size > 1 and count > most:
            raise UnsupportedCombination(
                f"noise_aware inverts dense matrices of at most {most:,} coefficients of several predictors, and there "
                f"are {count:,}; use a sampler, whose draws are for prediction."
            )
        rows = self._rows(design)
        trace_share = 0.0 if rows.trace_declared(adjacency) else _TRACE_SHARE
        mean_share = _MEAN_SHARE if self._sums_rows else 0.0
        count_share = 0.0 if self.together == 1 else COUNT_SHARE
        sharing = Sharing.guessed(asked.num_records, self.together)

        def gram(share: float) -> GramRelease:
            return GramRelease.settle(rows, adjacency, mu * math.sqrt(share), mu * math.sqrt(trace_share))

        def gradient_mu(share: float) -> float:
            return mu * math.sqrt(1 - share - trace_share - mean_share - count_share)

        def width(share: float, way: Gradients = self) -> float:
            noise_multiplier = asked.moved / gradient_mu(share)
            return way.predicted_width(design, gram(share).noise_std, noise_multiplier, sharing)

        share = self.options.gram_share
        widths = {s: width(s) for s in (_GRAM_SHARES if share is None else (share,))}
        share = min(widths, key=widths.__getitem__)
        found, clip = widths[share], self.score.clip
        for wider in CLIPS if isinstance(self.score, Counts) and found <= _HIDDEN else ():
            now = width(share, self._clipped_at(wider))
            if now <= widths[share]:
                found, clip = now, wider
        moves = asked.moved + 2 * design.rounding(self._clipped_at(clip).score)
        first = mu_std(moves, count, gradient_mu(share) * math.sqrt(self._shares[0]))
        gradients = [asked.gaussian(z, moves, count) for z in multipliers(first, self._shares)]
        settings = {
            "gram_share": share,
            "gram_noise_std": gram(share).noise_std,
            "trace_noise_std": gram(share).trace_std,
            "first_noise_multiplier": first,
            "predicted_width": found,
        }
        if isinstance(self.score, Counts):
            settings["clip_ratio"] = clip
        events = asked.gram(gram(share))
        if self._sums_rows:
            total = SumRelease.settle(rows, adjacency, mu * math.sqrt(mean_share))
            settings["sum_noise_std"] = total.noise_std
            events = (*events, total.event(adjacency))
        if self.together > 1:
            event, settings["count_noise_std"] = settle_counts(self.together, asked, mu * math.sqrt(count_share))
            events = (*events, event)
        return (*events, *gradients), settings

    def _clipped_at(self, clip: float) -> Gradients:
        """Return the way with another κ, which only counts have."""
        if not isinstance(self.score, Counts):
            return self
        return dataclasses.replace(self, score=dataclasses.replace(self.score, clip=clip))

    @property
    def _sums_rows(self) -> bool:
        """Whether Σ x is released."""
        return self.score.needs_mean_row and self._intercept is None

    @property
    def _intercept(self) -> int | None:
        return None if self.options.structure is None else self.options.structure.constant

    def refusal(self, plan: MechanismPlan) -> str | None:
        """Return why intervals of the draws do not hold, or None where they do; from public facts."""
        options, score, bound = self.options, self.score, self.target.row_bound or math.inf
        if options.steps < FEWEST_STEPS:
            return f"{options.steps} steps are too few; take {FEWEST_STEPS} or more."
        for name, scale, most in (
            ("prior_scale", self.target.prior_scale, score.strongest),
            ("intercept_scale", options.intercept_scale or 0.0, score.strongest_intercept),
        ):
            if scale * bound > most:
                return (
                    f"{name} spreads {score.predictors} over up to {scale * bound:.3g} under the prior, and intervals "
                    f"were seen to cover up to {most:g}; take a smaller {name}."
                )
        return None

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> Drawn:
        """Return posterior draws, (draws, d), or (draws, d, K) for K predictors, with their evidence."""
        read = Read.of(on_rows(plan.target, records)[1])
        read = read._replace(x=within(read.x, self.design(plan.num_records).row_bound))
        planned = self._clipped_at(plan.settings.get("clip_ratio", self.score.clip))
        found = planned.conclude(plan, read, streams.noise)
        draws = found.draws(self.options.draws, streams)
        draws = draws if self.score.size == 1 else draws.reshape(len(draws), read.x.shape[1], -1)
        return Drawn(draws, found.evidence)

    def design(self, num_records: int) -> Design:
        """Return the public facts of the rows of records or owners, whose bounds are given."""
        row = require_bound(self.target.row_bound, "row_bound", type(self.target).__name__)
        prior = self._prior()
        return Design(num_records * self.together, len(prior.scales) // self.score.size, row, prior.radius)

    def _prior(self) -> Prior:
        return Prior.of(self.options, self.target, self.score.size)

    def _rows(self, design: Design) -> Rows:
        """Return the public facts of the Gram matrix."""
        structure = self.options.structure
        unit_norm = structure is not None and structure.unit_norm
        return Rows(design.num_records, design.size, design.row_bound, unit_norm, together=self.together)

    @property
    def _shares(self) -> np.ndarray:
        return shares(self.options.steps, _GROWTH)

    def conclude(self, plan: MechanismPlan, read: Read, key: jax.Array) -> Concluded:
        """Release G, its trace and the gradients; return what follows."""
        most, settings, structure = self.design(plan.num_records), plan.settings, self.options.structure
        steps, prior = self.options.steps, self._prior()
        gram_key, *keys = jax.random.split(key, steps + 1 + self._sums_rows + (self.together > 1))
        rows = self._rows(most)
        noisy = GramRelease(rows, settings["gram_noise_std"], settings["trace_noise_std"]).release(read.x, gram_key)
        gram, error = denoised(noisy, structure)
        sharing = Sharing.guessed(plan.num_records, 1)
        if self.together > 1:
            sharing = release_counts(read, self.together, settings["count_noise_std"], keys[-1])
        design, score = most._replace(num_records=sharing.num_rows), sharing.scored(self.score)
        access = BoundedGradient.of(gram, design, self.score, read.x, read.y).shared(read.sharers, sharing.typical)
        row = mean_row(gram, design.num_records, self._intercept)
        if self._sums_rows:
            row = SumRelease(rows, settings["sum_noise_std"]).mean(read.x, keys[steps])
            row = row * (most.num_records / design.num_records)
        known_rows = ScoredRows if self.score.size == 1 else SeveralPredictors
        known = known_rows(score, gram, design.num_records, row, self.score.clip, error)
        rough = dataclasses.replace(known, error=noise_aware.isotropic_error(settings["gram_noise_std"]))

        metric = np.kron(design.metric(gram), np.eye(self.score.size))
        z = multipliers(settings["first_noise_multiplier"], self._shares)
        descent = Descent(access.clip * z, metric, prior.precision, rough.local, np.full(steps, _LAST), design.radius)
        now, release = descent.carry_out(lambda k, at: access.release(at, z[k], keys[k]), prior.gaussian, 0, steps)
        posterior, evidence = prior.concluded(release, lambda at: known.local(at.mean), now, sharing.num_rows)
        return Concluded(posterior, dataclasses.replace(evidence, gram=noisy, structure=structure))

    def predicted_width(
        self, design: Design, gram_noise_std: float, noise_multiplier: float, sharing: Sharing
    ) -> float:
        """Return the predicted width of an interval over that of the non-private posterior, mean over coordinates.

        It rests on a stand-in spectrum, since no record is read: the Gram matrix is a public one with trace N·b² and
        eigenvalues ∝ 1/j², released with simulated noise, and what follows is what ``draw`` does. Where blocks are
        declared, half of the Gram matrix' noise is taken to contradict them. On Adult's rows at ε = 1 it says 1.52, and
        1.24 was measured.

        Args:
            design: public facts.
            gram_noise_std: of the Gram matrix.
            noise_multiplier: of one gradient with the budget of all.
            sharing: a guess of how many rows owners have.
        """
        design = design._replace(num_records=sharing.num_rows)
        d, scale, structure = design.size, self.target.prior_scale**2, self.options.structure
        score, rng = self.score, np.random.default_rng(0)
        spectrum = np.arange(1.0, d + 1) ** -2
        spectrum *= design.largest_trace / spectrum.sum()
        std = gram_noise_std * (0.5 if structure and structure.blocks else 1.0)
        noisy = NoisyGram(np.diag(spectrum) + std * noise_aware.symmetric_noise(rng, d), std, design.largest_trace, 0.0)
        gram, error = denoised(noisy, None, rng=rng, bootstraps=_PREDICTED_BOOTSTRAPS)
        norm = design.whitened_norm(gram)
        predictors = scale * design.row_bound**2 / 2
        shared = sharing.scored(score)
        law, unbounded = (average_law(shared, predictors, limit) for limit in (score.clip, math.inf))
        noise = (noise_multiplier * score.clip * norm * sharing.typical) ** 2 * design.metric(gram)
        # The releases are about as far from the truth as the posterior is wide.
        local = Local(law.curvature * gram, law.score * gram, lambda q: 2 * law.curvature**2 * error(q))
        start = Gaussian(np.zeros(d), np.eye(d) * scale)
        release = Release(np.zeros(d), np.zeros(d), noise)
        now = noise_aware.posterior(release, local, np.eye(d) / scale, start, rounds=_PREDICTED_ROUNDS)
        return float(np.mean(np.sqrt(np.diag(now.covariance) * (1 / scale + unbounded.curvature * spectrum))))
