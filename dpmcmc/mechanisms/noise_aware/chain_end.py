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
path. The mean of the path's gradients then is one gradient with a known law (``regression_conclusion.py``). It has two
more known parts than one of ``fit``:

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
from dpmcmc.inference.bounded_score import LabelBlind
from dpmcmc.inference.curvature import mean_row
from dpmcmc.inference.decompositions import spectral
from dpmcmc.inference.path_law import PathGradients
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.inference.trace import Trace
from dpmcmc.mechanisms.noise_aware.descent import Path
from dpmcmc.mechanisms.noise_aware.gradients import BoundedGradient
from dpmcmc.mechanisms.noise_aware.owners import RowsOfOwners
from dpmcmc.mechanisms.noise_aware.prior import Concluded
from dpmcmc.mechanisms.noise_aware.regression_conclusion import concluded
from dpmcmc.mechanisms.noise_aware.regression_plan import RegressionPlan
from dpmcmc.mechanisms.noise_aware.regression_rows import ReleasedRows, prior_of_rows, release_whitened
from dpmcmc.mechanisms.noise_aware.regression_run import Released, State, release_ends
from dpmcmc.mechanisms.noise_aware.release import Noise, calibrated
from dpmcmc.mechanisms.noise_aware.scale import LearntScore
from dpmcmc.mechanisms.noise_aware.strategy import Calibrated
from dpmcmc.mechanisms.one_shot import PrivacySpec
from dpmcmc.mechanisms.rows import Rows
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.private_metric import PlannedMetric
from dpmcmc.privacy.query.gram_release import within
from dpmcmc.privacy.query.record_sums import Records, asked
from dpmcmc.targets.base import target_offers

#: Keys of the releases, at least.
_KEYS = 8


@dataclass(frozen=True)
class EndOfChain(RegressionPlan):
    """Public facts of a regression whose gradients are a chain's; attributes are those of :class:`RegressionPlan`."""

    @classmethod
    def of(cls, facts: RegressionPlan, metric: PlannedMetric) -> Self:
        """Return the facts of a regression as the end of a chain in a metric.

        Raises:
            UnsupportedCombination: a model or a metric that no end is derived for.
        """
        if not isinstance(facts.score, LabelBlind) or facts.scale is not None or facts.together > 1:
            raise UnsupportedCombination(
                f"end: a posterior from a chain's path is derived for LogisticRegression, and the target is "
                f"{type(facts.target).__name__}; leave end out, or use dpmcmc.fit(..., sampler=...).",
                "end",
            )
        offers = target_offers(facts.target)
        if offers.offset_bound is not None or offers.weight_scale is not None:
            raise UnsupportedCombination(
                "end: no posterior from a chain's path is derived for records with an offset or weights; leave it out, "
                "or use dpmcmc.fit(..., sampler=...).",
                "end",
            )
        if not metric.asked.of_rows or not facts.has_curvature:
            raise UnsupportedCombination(
                "end: the curvature is released of a run with metric gram and at most 100 coefficients; leave end out.",
                "end",
            )
        structure = facts.options.structure or metric.asked.structure
        options = dataclasses.replace(facts.options, structure=structure)
        return cls(options, facts.target, facts.score, None, 1).clipped_at(metric.asked.ratio)

    @property
    def latest(self) -> int:
        """Number of gradients that the posterior is made of: the mean of the chain's."""
        return 1

    def calibrated(self, spec: PrivacySpec) -> tuple[float, int, Calibrated]:
        """Return the part of μ² that the releases have, how many numbers they are, and what they cost."""
        whitened, ends = self.of_curvature(self.rows(self.design(spec.most_records)), spec.adjacency)
        releases = [*whitened, *ends]
        share = sum(one.share for one in releases)
        numbers = sum(one.size for one in releases)
        return share, numbers, calibrated(releases, spec.mu * (1 - 1e-9), spec)

    def concluded(
        self, plan: Plan, metric: ReleasedMetric, trace: Trace, records: Records, key: jax.Array
    ) -> Concluded:
        """Release where the path ends; return the posterior of the path and of that.

        Args:
            plan: with the noise of each release.
            metric: of the chain.
            trace: of the chain, after burn-in.
            records: of the data holder.
            key: secret, of the noise.
        """
        assert plan.end is not None
        noise = Noise(plan.end.settings, iter(jax.random.split(key, _KEYS)))
        prepare = Rows(plan.target, self.design(metric.num_records).row_bound)
        rows = self._released_rows(metric, asked(records).prepared(prepare), noise)
        state = State(self, noise, rows, LearntScore(self.score))
        gradients = trace.path()
        path = _path(gradients, trace.root, rows)
        now = state.settled(path, rows.prior.gaussian)
        at = within(now.mean[None], rows.design.radius)[0]
        ends = release_ends(state, at)
        per_step = (1 - trace.rate) / trace.rate * rows.root @ ends.spread.matrix @ rows.root
        path = path._replace(minibatch=gradients.share * per_step)
        return concluded(Released(state, path, now, at, ends))

    def _released_rows(self, metric: ReleasedMetric, records: Records, noise: Noise) -> ReleasedRows:
        """Release the rows' second moment again; return what both releases tell, in the chain's metric."""
        num_rows = metric.num_records
        design = self.design(num_rows, metric.noisy.noise_std)
        owners = RowsOfOwners.of(np.array([num_rows]))

        def mean_row_of(gram: np.ndarray) -> np.ndarray:
            return mean_row(gram, num_rows, self.intercept)

        moment = metric.denoised
        first = BoundedGradient.of(moment.gram, design, self.score)
        both = release_whitened(self, records, noise, first, metric.noisy, moment, mean_row_of)
        square = spectral(metric.gram / num_rows, lambda values: np.maximum(values, 0.0) + metric.floor)
        own = BoundedGradient.of(both.rows.gram, design, self.score, square)
        return ReleasedRows(
            own.prepared(records),
            design,
            owners,
            (0.0, 0.0),
            metric.noisy,
            both.rows,
            mean_row_of,
            own,
            own.norm,
            prior_of_rows(self, own, both.rows.gram / num_rows),
            both,
        )


def _path(mean: PathGradients, root: np.ndarray, rows: ReleasedRows) -> Path:
    """Return the mean of gradients of a chain, whose metric is ``root``, as a path of one in units of the rows'."""
    # Both are of one shape; the chain's is scaled so that its clip norm is the plan's.
    scale = math.sqrt(np.trace(root @ root.T) / np.trace(rows.square))
    return Path((mean.position,), (mean.gradient,), (scale / math.sqrt(mean.precision),), mean.spread)
