"""Predicted width of a regression's intervals under a budget, from public facts alone.

No record is read, so rows of a usual spectrum stand in for the real ones: their Gram matrix has the trace N·b² and
eigenvalues ∝ 1/j².
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmcmc.inference import normal_law, predicted_width
from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.curvature import average_law
from dpmcmc.inference.denoised_moment import denoised, spiked
from dpmcmc.inference.linear_score import Huber
from dpmcmc.mechanisms.noise_aware.clipping import clipped_off
from dpmcmc.mechanisms.noise_aware.expected_metric import ExpectedMetric
from dpmcmc.mechanisms.noise_aware.gradients import Design
from dpmcmc.mechanisms.noise_aware.metric import clip_of
from dpmcmc.mechanisms.noise_aware.owners import RowsOfOwners
from dpmcmc.mechanisms.noise_aware.regression_plan import CURVATURE, GRAM, WHITENED, Budget, RegressionPlan
from dpmcmc.mechanisms.one_shot import PrivacySpec
from dpmcmc.privacy.query.gram_release import NoisyGram

#: Bootstraps of the error of a stand-in Gram matrix.
_BOOTSTRAPS = 6


class ExpectedRun(NamedTuple):
    """A run that a plan expects.

    Attributes:
        budget: of the run.
        gradient_std: noise of the mean gradient, over the clip norm.
        owners: a guess of how many rows they have.
        prior_variance: of a coefficient.
        row_bound: b.
        spectrum: eigenvalues of the stand-in rows' second moment, (d,).
        metric: of these rows.
    """

    budget: Budget
    gradient_std: float
    owners: RowsOfOwners
    prior_variance: float
    row_bound: float
    spectrum: np.ndarray
    metric: ExpectedMetric

    @classmethod
    def of(cls, plan: RegressionPlan, spec: PrivacySpec, gram_share: float) -> ExpectedRun:
        """Return the run under a budget with this share for the Gram matrix."""
        budget = plan.budget(spec, gram_share)
        # Every number of rows is as likely.
        owners = RowsOfOwners.of(np.full(plan.together, spec.num_records / plan.together))
        design = plan.design(spec.most_records)._replace(num_records=owners.num_rows)
        spectrum = predicted_width.usual_spectrum(design.size, design.largest_trace)
        return cls(
            budget,
            spec.moved / (budget.mu * math.sqrt(budget.gradients_share)),
            owners,
            plan.target.prior_scale**2,
            design.row_bound,
            spectrum,
            _metric(plan, design, np.diag(spectrum), budget.stds),
        )

    def width(self, score: BoundedScore) -> float:
        """Return the width of an interval over that of the non-private posterior, mean over coordinates."""
        metric = self.metric
        num_rows = self.owners.num_rows
        shared = self.owners.scored(score)
        predictors = self.prior_variance * self.row_bound**2 / 2
        law, unbounded = (average_law(shared, predictors, limit) for limit in (score.limit, math.inf))
        clip = clip_of(score, metric.norm, metric.longest)
        noise = (self.gradient_std * clip * self.owners.typical) ** 2 * metric.square
        if isinstance(score, Huber):
            noise = noise + clipped_off(score.mean_beyond, metric.gram, num_rows)
        precision = np.eye(len(self.spectrum)) / self.prior_variance
        curvature = law.curvature * metric.gram
        spread = law.variance * metric.gram
        local = metric.local(curvature, spread, score, clip, law.curvature, noise, precision, num_rows)
        # Bounds aside, information is the curvature squared over the score's variance.
        information = unbounded.curvature**2 / unbounded.variance
        alone = np.diag(1 / (1 / self.prior_variance + information * self.spectrum))
        return predicted_width.predicted(local, noise, precision, alone).width()


def _metric(plan: RegressionPlan, design: Design, gram: np.ndarray, stds: dict[str, float]) -> ExpectedMetric:
    """Return the metric of rows with this second moment, (d, d)."""
    std = predicted_width.noise_left(stds[GRAM[0]], plan.options.structure)
    if plan.has_curvature:
        own = normal_law.isotropic_error(std)
        noise = (std, stds[WHITENED], stds[CURVATURE])
        return ExpectedMetric.of_two_releases(gram, noise, design.num_records, design.row_bound, own)
    # Another seed than that of the bootstrap of its error.
    drawn = gram + std * normal_law.symmetric_noise(np.random.default_rng(1), design.size)
    noisy = NoisyGram(drawn, std, design.largest_trace, 0.0)
    found = spiked(noisy) if plan.hidden else denoised(noisy, None, bootstraps=_BOOTSTRAPS)
    return ExpectedMetric.of_one_release(found, design)
