"""A noise-aware end of a chain: what is released where its path ends, and the posterior of both.

Claim: All that the end of a chain releases is charged in the chain's own guarantee, with the noise that is added.
Proof: its events are composed with those of the metric and of the steps, which one multiplier is then calibrated with.
Held by: test_metric_steps_and_end_keep_one_promise, test_noise_that_an_end_adds_is_noise_that_is_charged,
test_one_record_moves_the_first_release_by_no_more_than_is_charged,
test_a_run_that_stopped_at_its_end_ends_with_the_same_bits, "the end of a chain left out of the guarantee"

A chain in a metric of rows has released the rows' second moment Ĝ₁ and, step for step, gradients of all records or of
minibatches, each clipped blindly to its label. Its score is the bounded score of ``fit`` in another metric, F of the
chain: ψ = w(η)(μ(η) − y) with ‖F⁻¹x‖|ψ| <= C (``inference/bounded_score.py``). So the same releases complete it: the
second moment of rows again, whitened by Ĝ₁, and curvature H and spread B of the score where the posterior is, given the
path. With more than :data:`MOST_RELEASED` coefficients none of these is released, and both are those of normal rows
with the second moment Ĝ₁.

The mean of the path's gradients then is one gradient with a known law (``regression_conclusion.py``). It has two more
known parts than one of ``fit``:

* points spread about their mean θ̄ with a covariance that the path shows, so slopes are averaged over points of it;
* minibatches of rate q add (1 − q)/q B to the covariance of one step's gradient: Poisson batches by their law, and
  those of a fixed size a little less, which is not counted.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Self

import jax
import numpy as np

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference.curvature import mean_row
from dpmcmc.inference.decompositions import spectral
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.inference.scores import score_of
from dpmcmc.inference.trace import PathGradients, Trace
from dpmcmc.mechanisms.noise_aware.descent import Path
from dpmcmc.mechanisms.noise_aware.gradients import BoundedGradient
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.mechanisms.noise_aware.owners import RowsOfOwners
from dpmcmc.mechanisms.noise_aware.prior import Concluded
from dpmcmc.mechanisms.noise_aware.regression_conclusion import concluded
from dpmcmc.mechanisms.noise_aware.regression_plan import MOST_RELEASED, RegressionPlan
from dpmcmc.mechanisms.noise_aware.regression_rows import ReleasedRows, prior_of_rows, release_whitened
from dpmcmc.mechanisms.noise_aware.regression_run import Released, State, release_ends
from dpmcmc.mechanisms.noise_aware.release import Noise, Release
from dpmcmc.mechanisms.noise_aware.scale import LearntScore
from dpmcmc.mechanisms.rows import Rows
from dpmcmc.planning.permitted_uses import BEST_FIT, IF_TRUE, REFUSED, Use
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.private_metric import PlannedMetric
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.accounting.sampling import FixedSize, Full, Poisson, Sampling
from dpmcmc.privacy.query.gram_release import within
from dpmcmc.privacy.query.record_sums import Records, asked
from dpmcmc.targets.base import Target, target_offers
from dpmcmc.targets.generalised_linear import GeneralisedLinear

#: Keys of the releases, at least.
_KEYS = 8
#: κ of a metric where a curvature is released, unless one is given. A score is weighted where it is longer than the
#: clip. From κ = 1 on these are the scores of longer rows than a typical one, so the best-fitting coefficients are
#: nearly those of the score without weights: they were covered .89 at κ = 1 and at 1.5, where the model was wrong, and
#: intervals were 1.1 to 1.4 times wider at 1.5. At the metric's own κ of 1/2 they were covered .35.
CLIP_RATIO = 1.0
#: Largest prior standard deviation of a logit at which intervals were seen to cover, where rows are taken as normal.
LARGEST_PRIOR_STD = 3.0
#: Intervals with the covariance of the records' own scores, and why those of the model's hold.
SANDWICH = Use(
    True,
    f"Yes, {BEST_FIT}: the draws account for the noise of privacy and for how scores vary. Supposed are independent "
    "records, and as many as make a sum of scores normal.",
)
OF_MODEL = f"Yes, {IF_TRUE}: the draws account for the noise of privacy"


@dataclass(frozen=True)
class EndOfChain(RegressionPlan):
    """Public facts of a regression whose gradients are a chain's; attributes are those of :class:`RegressionPlan`."""

    @classmethod
    def of(cls, options: Options, target: Target, metric: PlannedMetric, sampling: Sampling) -> Self:
        """Return the facts of a regression as the end of a chain in a metric.

        Raises:
            UnsupportedCombination: no end is derived for the model, the metric, the batches or the covariance.
        """
        score = score_of(target)
        if not isinstance(score, Logistic) or not isinstance(target, GeneralisedLinear):
            raise _underived(f"is derived for LogisticRegression, and the target is {type(target).__name__}")
        offers = target_offers(target)
        if offers.offset_bound is not None or offers.weight_scale is not None:
            raise _underived("is derived for no records with an offset or weights")
        if not metric.asked.of_rows:
            raise _underived("rests on the second moment of rows, which metric gram releases")
        if type(sampling) not in (Full, Poisson, FixedSize):
            raise _underived(f"knows no law of the batches of {type(sampling).__name__}")
        structure = options.structure or metric.asked.structure
        options = dataclasses.replace(options, structure=structure)
        found = cls(options, target, score, None, 1).clipped_at(metric.asked.ratio)
        if options.covariance == "sandwich" and not found.has_curvature:
            raise _underived(f"has covariance sandwich of at most {MOST_RELEASED} coefficients; take covariance model")
        return found

    @property
    def latest(self) -> int:
        """Number of gradients that the posterior is made of: the mean of the chain's."""
        return 1

    def releases(self, num_records: int, adjacency: Adjacency) -> list[Release]:
        """Return the releases where the path ends."""
        if not self.has_curvature:
            return []
        whitened, ends = self.of_curvature(self.rows(self.design(num_records)), adjacency)
        return [*whitened, *ends]

    def intervals(self) -> Use:
        """Return whether intervals of the posterior hold, from public facts."""
        margins = self.design(1).row_bound * self.target.prior_scale
        if not self.has_curvature and margins > LARGEST_PRIOR_STD:
            why = f"logits spread over up to {margins:.3g} under the prior, and intervals were seen to cover up to"
            return Use(False, f"{REFUSED}: {why} {LARGEST_PRIOR_STD:g}; take a smaller prior_scale.", "a wide prior")
        # Beyond a typical row's clip the weights of scores, which a wrong model makes matter, are of few records.
        best_fit = self.options.covariance == "sandwich" and self.score.clip >= 1
        return SANDWICH if best_fit else Use(True, f"{OF_MODEL}.")

    def concluded(self, plan: Plan, trace: Trace, records: Records, key: jax.Array) -> Concluded:
        """Release where the path ends; return the posterior of the path and of that.

        Args:
            plan: with the noise of each release.
            trace: of the chain, after burn-in, with its metric.
            records: of the data holder.
            key: secret, of the noise.
        """
        assert plan.end is not None
        metric = trace.metric
        noise = Noise(plan.end.settings, iter(jax.random.split(key, _KEYS)))
        if self.has_curvature:
            records = asked(records).prepared(Rows(plan.target, self.design(metric.num_records).row_bound))
        rows = self._known_rows(metric, records, noise)
        state = State(self, noise, rows, LearntScore(self.score))
        gradients = trace.path()
        path = _path(gradients, metric.root, rows)
        now = state.settled(path, rows.prior.gaussian)
        at = within(now.mean[None], rows.design.radius)[0]
        ends = release_ends(state, at) if self.has_curvature else None
        spread = state.known.local(at).spread if ends is None else rows.root @ ends.spread.matrix @ rows.root
        path = path._replace(minibatch=gradients.share * self.minibatch(spread, trace.rate))
        return concluded(Released(state, path, now, at, ends))

    @staticmethod
    def minibatch(spread: np.ndarray, rate: float) -> np.ndarray:
        """Return the covariance of what a minibatch of this rate adds to a step's gradient, given B, (d, d)."""
        return (1 - rate) / rate * spread

    def _known_rows(self, metric: ReleasedMetric, records: Records, noise: Noise) -> ReleasedRows:
        """Return what is known of rows in the chain's metric: by its release, and by a second one if there is one."""
        num_rows = metric.num_records
        design = self.design(num_rows, metric.noisy.noise_std)

        def mean_row_of(gram: np.ndarray) -> np.ndarray:
            return mean_row(gram, num_rows, self.intercept)

        moment = metric.denoised
        both = None
        if self.has_curvature:
            first = BoundedGradient.of(moment.gram, design, self.score)
            both = release_whitened(self, records, noise, first, metric.noisy, moment, mean_row_of)
            moment = both.rows
        square = spectral(metric.gram / num_rows, lambda values: np.maximum(values, 0.0) + metric.floor)
        own = BoundedGradient.of(moment.gram, design, self.score, square)
        return ReleasedRows(
            own.prepared(records) if self.has_curvature else records,
            design,
            RowsOfOwners.of(np.array([num_rows])),
            (0.0, 0.0),
            metric.noisy,
            moment,
            mean_row_of,
            own,
            own.norm,
            prior_of_rows(self, own, moment.gram / num_rows),
            both,
        )


def _underived(why: str) -> UnsupportedCombination:
    return UnsupportedCombination(
        f"end: a posterior from a chain's path {why}; leave end out, or use dpmcmc.fit(..., sampler=...).", "end"
    )


def _path(mean: PathGradients, root: np.ndarray, rows: ReleasedRows) -> Path:
    """Return the mean of gradients of a chain, whose metric is ``root``, as a path of one in units of the rows'."""
    # Both are of one shape; the chain's is scaled so that its clip norm is the plan's.
    scale = math.sqrt(np.trace(root @ root.T) / np.trace(rows.square))
    return Path((mean.position,), (mean.gradient,), (scale / math.sqrt(mean.precision),), mean.spread)
