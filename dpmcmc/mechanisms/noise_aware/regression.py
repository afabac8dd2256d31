"""The strategy of regressions with a bounded score: it chooses the budget and the clip of a plan, and carries it out.

``regression_plan.py`` says what is released.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference import normal_law
from dpmcmc.inference.count_score import Counts
from dpmcmc.inference.linear_score import Huber
from dpmcmc.mechanisms.noise_aware.clipping import affordable, candidates
from dpmcmc.mechanisms.noise_aware.langevin import check_sampler
from dpmcmc.mechanisms.noise_aware.regression_conclusion import concluded
from dpmcmc.mechanisms.noise_aware.regression_plan import FEWEST_STEPS, MOST_RELEASED, RegressionPlan
from dpmcmc.mechanisms.noise_aware.regression_run import released
from dpmcmc.mechanisms.noise_aware.regression_width import ExpectedRun
from dpmcmc.mechanisms.noise_aware.residuals import BOUNDS_IN_STD
from dpmcmc.mechanisms.noise_aware.strategy import Calibrated
from dpmcmc.mechanisms.one_shot import PrivacySpec, ReleasedDraws
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records

#: Predicted width up to which a clip further out is tried.
_WIDTH_OF_LITTLE_NOISE = 2.0
#: Bound of labels in standard deviations of residuals, before anything of them is known.
_LABEL_BOUND_IN_STD = 10


@dataclass(frozen=True)
class Regression(RegressionPlan):
    """Strategy for regressions whose score is bounded; attributes are those of :class:`RegressionPlan`."""

    def calibrate(self, spec: PrivacySpec) -> Calibrated:
        """Return what all releases cost, and their settings."""
        self._check()
        runs = [ExpectedRun.of(self, spec, share) for share in self.gram_shares]
        # The first one is taken where there is no other.
        run = min(runs, key=lambda one: one.width(self.score)) if len(runs) > 1 else runs[0]
        clip, width = self._chosen_clip(run, spec.num_records)
        events, settings = run.budget.calibrated(spec)
        name = "bound_deviations" if isinstance(self.score, Huber) else "clip_ratio"
        return events, {**settings, "predicted_width": width, name: clip}

    def _check(self) -> None:
        """Refuse what is not derived."""
        check_sampler(self.options.sampler)
        size = self.prior.size
        most = normal_law.MOST_COEFFICIENTS
        if self.score.size > 1 and size > most:
            raise UnsupportedCombination(
                f"noise_aware inverts dense matrices of at most {most:,} coefficients of several predictors, and there "
                f"are {size:,}; use a sampler, whose draws are for prediction."
            )
        if self.options.covariance == "sandwich" and not self.has_curvature:
            raise UnsupportedCombination(
                f"covariance: sandwich releases how scores vary, and the spread of {size} numbers would be noise; take "
                f"covariance model, or at most {MOST_RELEASED} of them (an ordinal regression, which has no other "
                "covariance, takes fewer columns, or goal prediction)"
            )

    def _chosen_clip(self, run: ExpectedRun, num_records: int) -> tuple[float, float]:
        """Return κ, or the bound of residuals in their standard deviations, and the predicted width under it."""
        score = self.score
        if isinstance(score, Huber):
            std = score.bound / _LABEL_BOUND_IN_STD
            widths = {bound: run.width(Huber.of(std, bound)) for bound in BOUNDS_IN_STD}
            clip = min(widths, key=widths.__getitem__)
        elif self.has_curvature:
            widths = {one.clip: run.width(one) for one in candidates(score)}
            # The releases tell which; this one is likely.
            most = affordable(min(widths.values()) ** 2, score, num_records)
            clip = max(clip for clip, width in widths.items() if width**2 <= most)
        else:
            own = run.width(score)
            widths = {score.clip: own}
            if isinstance(score, Counts) and own <= _WIDTH_OF_LITTLE_NOISE:
                widths |= {one.clip: run.width(one) for one in candidates(score)}
            clip = max(clip for clip, width in widths.items() if width <= own)
        return clip, widths[clip]

    def refusal(self, plan: Plan) -> str | None:
        """Return why intervals of the draws do not hold, or None where they do; from public facts."""
        if self.options.steps < FEWEST_STEPS:
            return f"{self.options.steps} steps are too few; take {FEWEST_STEPS} or more."
        return None

    def draw(self, plan: Plan, records: Records, streams: Streams) -> ReleasedDraws:
        """Return posterior draws, (draws, d), or (draws, d, K) for K predictors, with their evidence."""
        facts = self if self.has_curvature else self.clipped_at(plan.settings["clip_ratio"])
        found = concluded(released(facts, plan, records, streams))
        draws = found.draws(self.options.draws, streams)
        if self.score.size > 1:
            draws = draws.reshape(len(draws), -1, self.score.size)
        return ReleasedDraws(draws, found.evidence)
