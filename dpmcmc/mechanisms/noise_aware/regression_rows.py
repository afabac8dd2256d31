"""Releases of rows alone, and what follows from them: the metric, the bounds in it, and the prior."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpmcmc.inference import denoised_moment
from dpmcmc.inference.corrected_matrix import corrected, exchangeable
from dpmcmc.inference.curvature import mean_row
from dpmcmc.inference.denoised_moment import Denoised, denoised, spiked
from dpmcmc.mechanisms.noise_aware.gradients import BoundedGradient, Design
from dpmcmc.mechanisms.noise_aware.metric import Joined, joined, lengthening, longest_whitened, spreads
from dpmcmc.mechanisms.noise_aware.owners import RowsOfOwners
from dpmcmc.mechanisms.noise_aware.prior import Prior
from dpmcmc.mechanisms.noise_aware.regression_plan import GRAM, OFFSETS, OWNERS, ROW_SUM, WHITENED, RegressionPlan
from dpmcmc.mechanisms.noise_aware.release import Noise
from dpmcmc.mechanisms.rows import Rows, Totals
from dpmcmc.privacy.query.gram_release import NoisyGram, SumRelease
from dpmcmc.privacy.query.record_sums import Records


@dataclass(frozen=True)
class ReleasedRows:
    """Releases of rows; all is public but ``records``.

    Attributes:
        records: with the norms of their rows in the metric; sums alone can be asked of them.
        design: public facts of the rows, with their released number.
        owners: how many rows owners have.
        offset: mean and variance of what is added to predictors.
        noisy: the released Gram matrix.
        moment: estimate of the Gram matrix, and the law of its error.
        mean_row_of: second moment of rows -> the mean row under it, (d,).
        metric: access to records in the metric F.
        typical: a typical ‖F⁻¹x‖.
        prior: of the coefficients, which knows how rows spread.
        joined: what both releases of rows tell; None: there was one.
    """

    records: Records
    design: Design
    owners: RowsOfOwners
    offset: tuple[float, float]
    noisy: NoisyGram
    moment: Denoised
    mean_row_of: Callable[[np.ndarray], np.ndarray]
    metric: BoundedGradient
    typical: float
    prior: Prior
    joined: Joined | None

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.design.num_records

    @property
    def gram(self) -> np.ndarray:
        """Estimate of the Gram matrix, (d, d)."""
        return self.moment.gram

    @functools.cached_property
    def mean_row(self) -> np.ndarray:
        """The mean row, (d,)."""
        return self.mean_row_of(self.moment.gram)

    @functools.cached_property
    def root(self) -> np.ndarray:
        """F of all predictors, (d·K, d·K)."""
        return np.kron(self.metric.root, np.eye(self.metric.score.size))

    @functools.cached_property
    def inverse(self) -> np.ndarray:
        """F⁻¹ of all predictors, (d·K, d·K)."""
        return np.kron(self.metric.inverse, np.eye(self.metric.score.size))

    @functools.cached_property
    def square(self) -> np.ndarray:
        """F² of all predictors, (d·K, d·K)."""
        return self.root @ self.root


def release_rows(plan: RegressionPlan, num_records: int, records: Records, rows: Rows, noise: Noise) -> ReleasedRows:
    """Release what is about rows alone.

    Args:
        plan: public facts.
        num_records: N, of records or owners.
        records: prepared by ``rows``.
        rows: their public facts.
        noise: of the releases.
    """
    most = plan.design(num_records, noise.settings[GRAM[0]] if plan.has_curvature else None)
    totals = rows.totals(records, plan.target.offset_bound)
    noisy = noise.gram(totals.gram, plan.rows(most), GRAM)
    moment = _estimated(plan, noisy)
    released_row = _released_row(plan, most, totals, noise)
    offset = _released_offset(plan, most, totals, noise)
    owners = RowsOfOwners.of(noise.added(totals.counts, OWNERS) if plan.together > 1 else np.array([num_records]))
    design = most._replace(num_records=owners.num_rows)

    def mean_row_of(gram: np.ndarray) -> np.ndarray:
        if released_row is None:
            return mean_row(gram, owners.num_rows, plan.intercept)
        return released_row * (most.num_records / owners.num_rows)

    metric = BoundedGradient.of(moment.gram, design, plan.score)
    both = None
    if plan.has_curvature:
        both = release_whitened(plan, records, noise, metric, noisy, moment, mean_row_of)
        moment = both.rows
        metric = BoundedGradient.of(moment.gram, design, plan.score, both.square)
    return ReleasedRows(
        metric.prepared(records),
        design,
        owners,
        offset,
        noisy,
        moment,
        mean_row_of,
        dataclasses.replace(metric, norm=metric.norm * owners.typical),
        metric.norm,
        prior_of_rows(plan, metric, moment.gram / design.num_records),
        both,
    )


def _estimated(plan: RegressionPlan, noisy: NoisyGram) -> Denoised:
    """Return an estimate of the rows' second moment from its first release."""
    groups = plan.options.group_effects
    if groups:
        alike = exchangeable(noisy.gram, groups)
        found = corrected(alike, noisy.gram, noisy.noise_std)
        return Denoised(found.matrix, found.error)
    return spiked(noisy) if plan.hidden else denoised(noisy, plan.options.structure)


def _released_row(plan: RegressionPlan, design: Design, totals: Totals, noise: Noise) -> np.ndarray | None:
    """Release the sum of rows; return the mean row of as many rows as there may be, (d,), or None: it is not needed."""
    if not plan.sums_rows:
        return None
    release = SumRelease(plan.rows(design), noise.settings[ROW_SUM])
    return release.mean(totals.rows, next(noise.keys))


def _released_offset(plan: RegressionPlan, design: Design, totals: Totals, noise: Noise) -> tuple[float, float]:
    """Release the sums of offsets and of their squares; return their mean and variance."""
    bound = plan.target.offset_bound
    if bound is None:
        return 0.0, 0.0
    mean, square = np.clip(noise.added(totals.offsets, OFFSETS) / design.num_records, (-1.0, 0.0), 1.0)
    return bound * float(mean), bound**2 * max(0.0, float(square - mean**2))


def release_whitened(
    plan: RegressionPlan,
    records: Records,
    noise: Noise,
    first: BoundedGradient,
    noisy: NoisyGram,
    moment: Denoised,
    mean_row_of: Callable[[np.ndarray], np.ndarray],
) -> Joined:
    """Release the rows' second moment again, in the metric of the first release; return what both tell."""
    std = noise.settings[WHITENED]
    design = first.design
    count = design.num_records
    longest = longest_whitened(first.norm, first.longest, std, count, design.size)
    exact = first.rows(first.prepared(records), longest)

    def lengthened(moment: np.ndarray) -> np.ndarray:
        row = first.inverse @ mean_row_of(first.root @ moment @ first.root)
        return lengthening(first.root, moment / count, row, longest, design.row_bound)

    own = moment.error if plan.options.group_effects else denoised_moment.error_of_noise(noisy, plan.options.structure)
    released = longest**2 * noise.symmetric(exact, WHITENED)
    return joined(first.inverse, moment.gram, released, longest**2 * std, own, count, lengthened)


def prior_of_rows(plan: RegressionPlan, metric: BoundedGradient, per_row: np.ndarray) -> Prior:
    """Return the prior that knows G/N, the rows' second moment per row, (d, d)."""
    prior = plan.prior.with_rows(per_row, metric.design.row_bound)
    structure = plan.options.structure
    if plan.has_curvature and structure is not None:
        prior = prior.with_spreads(spreads(metric.root @ metric.root, per_row, structure))
    return prior
