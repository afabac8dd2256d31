"""The releases of a regression in their order, and the posterior that follows from them (``regression.py``)."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.inference import denoised_moment, normal_law
from dpmcmc.inference.corrected_matrix import Corrected, confirmed, corrected, exchangeable
from dpmcmc.inference.count_score import Counts
from dpmcmc.inference.curvature import ScoredRows, mean_row
from dpmcmc.inference.denoised_moment import Denoised, denoised, spiked
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local
from dpmcmc.inference.rare_levels import rare_levels
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.noise_aware.descent import multipliers
from dpmcmc.mechanisms.noise_aware.facts import (
    FIRST,
    LAST,
    LAST_OF_NORMAL,
    Facts,
    Sums,
    further,
    furthest,
    last_gradients,
    missed,
    releases_curvature,
    steps_of,
)
from dpmcmc.mechanisms.noise_aware.gradients import BoundedGradient, Bounds
from dpmcmc.mechanisms.noise_aware.metric import (
    again_within,
    clip_of,
    joined,
    lengthening,
    leverage_of,
    longest_row,
    reach_of,
    spreads,
)
from dpmcmc.mechanisms.noise_aware.owners import Sharing, release_counts
from dpmcmc.mechanisms.noise_aware.prior import Concluded, Mixture
from dpmcmc.mechanisms.noise_aware.residuals import Residuals
from dpmcmc.mechanisms.noise_aware.scale import Learnt, Scale
from dpmcmc.mechanisms.rows import Rows
from dpmcmc.privacy.query.gaussian_release import gaussian_release
from dpmcmc.privacy.query.gram_release import GramRelease, SumRelease, symmetric, trace_of, within
from dpmcmc.privacy.query.integer_rows import Exact, svec_of
from dpmcmc.privacy.query.record_sums import Records
from dpmcmc.report import progress

#: Parts of the gradients before a scale is released, and of a scale's budget that each release gets.
_SCALES, SCALE_PARTS = (0.25, 0.45), (0.15, 0.15, 0.7)
#: Part of the gradients before the path says how far out labels can be clipped.
_HALF = 0.5
#: Quantiles of rows whose own bounds stand for all.
_LIMITS = (np.arange(20) + 0.5) / 20
#: Relative standard deviation of a curvature beyond which the verdict refuses intervals; posterior standard deviations
#: between the last position and the mean of those before it beyond which it does.
_UNSURE, _FAR = 0.6, 4.0
#: Posterior standard deviations by which slopes that change along the path may move the mean. On public tables,
#: intervals of larger ones covered a third: what normal rows say of the change is then no small correction.
_BENT = 1.0
#: Deviation of the spread from the curvature beyond which errors differ so much from row to row that those beyond
#: Huber's bound may all be of a few rows; the sentence for it.
_UNEVEN = 0.35
_CLIPPED = (
    "errors of some rows are far larger than those of others, and the largest are clipped, so that coefficients are "
    "those of Huber's fit and not of the mean; transform the label (scale='log1p')"
)

#: Part by which scores may vary more than a model says, and the least part of what it says; standard deviations of
#: noise by which they have to be beyond these; largest noise of the part. Where columns separate the labels of a
#: logistic regression, scores vary .2 to .6 times as much as it says.
_VARY, _FOLLOW, _BEYOND, _FAINT = 1.25, 0.85, 2.0, 1.0
#: Mean of counts that their score may leave out, over the mean itself, and over the posterior's standard deviation of
#: its logarithm. Where the law of the counts is not that of the score, the estimate is off by some of it.
_LEFT_OUT, _SHIFTED = 0.05, 1.0

#: Names of a scale's noise in the settings.
SCALE_NAMES = ("early_scale_noise_std", "middle_scale_noise_std", "scale_noise_std")
#: Draws that stand for a posterior.
_DRAWS = 200
#: Curvatures that stand for all that a release leaves possible.
_CURVATURES = 32
#: Least trace of B in units of what the model expects.
_LEAST_RATIO = 0.1


class _Path(NamedTuple):
    """Gradients of one score, in their order: positions, gradients, and noise stds in the metric."""

    positions: list[np.ndarray]
    gradients: list[np.ndarray]
    stds: list[float]

    def last(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the last ``count`` positions, (count, d·K), and their weights in the mean."""
        precisions = np.array(self.stds[-count:]) ** -2.0
        return np.array(self.positions[-count:]), precisions / precisions.sum()

    def mean(self, count: int, square: np.ndarray) -> GradientRelease:
        """Return the mean of the last ``count``, weighted by their precision."""
        return normal_law.weighted_mean(
            np.array(self.positions[-count:]),
            np.array(self.gradients[-count:]),
            np.array(self.stds[-count:]) ** -2.0,
            square,
        )


class Releases:
    """The releases in their order, and what follows from them; records are reached through ``access`` alone."""

    def __init__(self, strategy: Facts, plan: MechanismPlan, rows: Rows, records: Records) -> None:
        self.strategy = strategy
        self.plan = plan
        self.rows = rows
        self.records = records
        self.settings = plan.settings
        self.prior = strategy.prior
        self.learnt = Learnt(strategy.score)
        self.reach = 1.0
        self.leverage = math.inf

    def conclude(self, key: jax.Array) -> Concluded:
        """Release everything; return the posterior that follows."""
        strategy = self.strategy
        steps = strategy.options.steps
        self.keys = iter(jax.random.split(key, steps + 20))
        self._release_rows()
        scale = strategy.scale
        parts = steps_of(steps)
        z = multipliers(self.settings["first_noise_multiplier"], parts)
        released = releases_curvature(self.settings)
        last = math.ceil((LAST if released else LAST_OF_NORMAL) * steps)
        third = steps - last
        # Each at a gradient of its own, however few there are.
        early, middle = (min(int(part * steps), third - left) for part, left in zip(_SCALES, (2, 1), strict=True))
        whens = dict(zip((early, middle, third), SCALE_NAMES, strict=True))
        now = self.prior.gaussian
        path = _Path([], [], [])
        for k in range(steps):
            at = within(now.mean[None], self.design.radius)[0]
            if scale is not None and k in whens:
                self._learn(scale, at, self.settings[whens[k]])
            if released and scale is None and k == int(_HALF * steps):
                scores = map(Learnt, further(strategy.score))
                self.learnt = self._furthest(tuple(scores), at)
            access = self._access(at)
            path.positions.append(at)
            path.gradients.append(self._gradient(access, at, z[k]))
            path.stds.append(access.clip * z[k])
            part = FIRST if released else LAST_OF_NORMAL
            count = max(1, min(math.ceil(part * len(path.stds)), last))
            now = self._next(path, count, now, at)
            progress.report_steps(k + 1, steps)
        return self._concluded(path, last, now, released)

    # Rows, and the bounds that they set.

    def _release_rows(self) -> None:
        """Release G and what else is about rows alone; set the metric."""
        strategy = self.strategy
        settings = self.settings
        count = self.plan.num_records
        floored = releases_curvature(settings)
        most = strategy.design(count, settings["gram_noise_std"] if floored else None)
        rows = strategy.rows(most)
        totals = self.rows.totals(self.records, strategy.offset_bound)
        self.noisy = GramRelease(rows, settings["gram_noise_std"], settings["trace_noise_std"]).of_sum(
            totals.gram, next(self.keys)
        )
        groups = strategy.options.group_effects
        if groups:
            alike = exchangeable(self.noisy.gram, groups)
            found = corrected(alike, self.noisy.gram, self.noisy.noise_std)
            self.gram = Denoised(found.matrix, found.error)
        elif strategy.hidden:
            self.gram = spiked(self.noisy)
        else:
            self.gram = denoised(self.noisy, strategy.options.structure)
        self.released_row: np.ndarray | None = None
        if strategy.sums_rows:
            total = SumRelease(rows, settings["sum_noise_std"])
            self.released_row = total.mean(totals.rows, next(self.keys))
        self.offset = (0.0, 0.0)
        if strategy.offset_bound is not None:
            self.offset = self._release_offsets(totals.offsets, strategy.offset_bound, most.num_records)
        self.sharing = Sharing.guessed(count, 1)
        if strategy.together > 1:
            self.sharing = release_counts(totals.counts, settings["count_noise_std"], next(self.keys))
        self.design = most._replace(num_records=self.sharing.num_rows)
        metric = BoundedGradient.of(self.gram.gram, self.design, strategy.score)
        if floored:
            metric = self._release_whitened(metric)
        self.row = self._mean_row(self.gram.gram)
        self.typical = metric.norm
        self.metric = dataclasses.replace(metric, norm=metric.norm * self.sharing.typical)
        self.records = self.metric.prepared(self.records)
        kronecker = np.eye(strategy.score.size)
        self.root = np.kron(self.metric.root, kronecker)
        self.inverse = np.kron(self.metric.inverse, kronecker)
        self.square = self.root @ self.root
        mean = self.gram.gram / self.design.num_records
        self.prior = self.prior.with_rows(mean, self.design.row_bound)
        structure = strategy.options.structure
        if floored and structure is not None:
            known = self.metric.root @ self.metric.root
            self.prior = self.prior.with_spreads(spreads(known, mean, structure))

    def _release_whitened(self, first: BoundedGradient) -> BoundedGradient:
        """Release the rows' second moment again, in the metric of the first release; return the metric of both."""
        std = self.settings["whitened_noise_std"]
        count = self.design.num_records
        longest = again_within(first.norm, first.longest, std, count, self.design.size)
        exact = first.rows(first.prepared(self.records), longest)
        structure = self.strategy.options.structure
        grouped = self.strategy.options.group_effects

        def lengthened(moment: np.ndarray) -> np.ndarray:
            row = first.inverse @ self._mean_row(first.root @ moment @ first.root)
            bound = self.design.row_bound
            return lengthening(first.root, moment / count, row, longest, bound)

        found = joined(
            first.inverse,
            self.gram.gram,
            longest**2 * self._noisy(exact, std),
            longest**2 * std,
            self.gram.error if grouped else denoised_moment.error_of_noise(self.noisy, structure),
            count,
            lengthened,
        )
        self.gram, self.possible, self.least = found.rows, found.possible, found.least
        return BoundedGradient.of(self.gram.gram, self.design, self.strategy.score, found.square)

    def _release_offsets(self, exact: Exact, bound: float, count: int) -> tuple[float, float]:
        """Release the sums of offsets and of their squares; return their mean and variance."""
        noisy = gaussian_release(exact, self.settings["offset_noise_std"], next(self.keys))
        mean, square = np.clip(noisy / count, (-1.0, 0.0), 1.0)
        return bound * float(mean), bound**2 * max(0.0, float(square - mean**2))

    def _access(self, position: np.ndarray) -> BoundedGradient:
        """Return the access with the bounds that hold at a public position."""
        score = self.learnt.score
        clip = clip_of(score, self.typical, self.metric.longest) * self.sharing.typical
        if not releases_curvature(self.settings):
            return dataclasses.replace(self.metric, score=score, bounds=Bounds(clip))
        longest = self.reach * longest_row(self.typical, self.metric.longest)
        longest = min(longest, self.metric.longest)
        leverage = leverage_of(score, clip, longest, self.reach, self.leverage)
        bounds = Bounds(clip, longest, leverage)
        return dataclasses.replace(self.metric, score=score, bounds=bounds)

    def _known(self) -> ScoredRows:
        """Return what normal rows make of the score."""
        score = self.learnt.score
        return ScoredRows(
            self.sharing.scored(score),
            self.gram.gram,
            self.design.num_records,
            self.row,
            score.limit,
            self.gram.error,
            self.offset,
        )

    # Releases at a position.

    def _learn(self, scale: Scale, position: np.ndarray, noise_std: float) -> None:
        """Release what the score has to know of its labels."""
        exact = self._access(position).labels(self.records, position, scale.statistic)
        noisy = gaussian_release(exact, noise_std, next(self.keys))
        norms = self._known().norms(self.metric.inverse)
        usual = clip_of(self.learnt.score, self.typical, self.metric.longest)
        usual /= self.learnt.score.limit
        limits = np.quantile(np.minimum(1.0, usual / norms), _LIMITS)
        found = scale.learnt(noisy, noise_std, self.design.num_records, limits)
        self.learnt, self.learnt_at = self._furthest(found, position), position

    def _furthest(self, found: tuple[Learnt, ...], position: np.ndarray) -> Learnt:
        """Return the score that clips labels as far out as costs little, by what was released so far."""
        z = last_gradients(self.settings, self.strategy.options.steps)
        scores = []
        for self.learnt in found:
            local = self._known().local(position)
            noise = (z * self._access(position).public.clip) ** 2 * self.square
            if self.learnt.variance is not None:
                spread = self.learnt.variance * self.gram.gram
                scores.append(Sums(local.curvature, spread, noise, self._missed()))
                continue
            ratio = float(np.trace(local.score) / np.trace(local.curvature))
            # The spread has the shape of the curvature, which normal rows know better.
            scores.append(Sums(local.curvature, ratio * local.curvature, noise))
        return found[furthest(scores, self.learnt.score, self.design.num_records)]

    def _missed(self) -> np.ndarray:
        """Return the bound of what the score leaves out of residuals, (d, d); see ``missed``."""
        return missed(self.learnt.beyond, self.gram.gram, self.design.num_records)

    def _curvature(self, position: np.ndarray) -> tuple[Corrected, np.ndarray]:
        """Release the curvature; return it, and what of it the releases confirm, (d, d), in the metric."""
        std = self.settings["curvature_noise_std"]
        inverse = self.inverse
        known = self._known()
        model = inverse @ known.local(position).curvature @ inverse
        grams = self.possible(_CURVATURES)
        errors = known.errors(position, grams, [self._mean_row(gram) for gram in grams])
        self.leverage = float(np.trace(model)) / self.design.num_records

        def noise(reach: float) -> float:
            self.reach = reach
            return self._access(position).public.leverage * std

        # Rows as long as noise affords weigh in full.
        self.reach = reach_of(noise, float(np.trace(model)) / len(model))
        access = self._access(position)
        most = access.public.leverage
        released = most * self._noisy(access.curvature(self.records, position), std)
        found = corrected(
            model,
            released,
            most * std,
            normal_law.bootstrapped_error(inverse @ errors @ inverse),
        )
        row = self._mean_row(self.least)
        fewest = dataclasses.replace(known, gram=self.least, mean=row).local(position)
        least = inverse @ fewest.curvature @ inverse
        return found, confirmed(found.matrix, released, most * std, least)

    def _mean_row(self, gram: np.ndarray) -> np.ndarray:
        """Return the mean row under a second moment, (d,); the released one where there is one."""
        count = self.design.num_records
        if self.released_row is None:
            return mean_row(gram, count, self.strategy.intercept)
        most = self.plan.num_records * self.strategy.together
        return self.released_row * (most / count)

    def _gradient(self, access: BoundedGradient, position: np.ndarray, noise_multiplier: float) -> np.ndarray:
        """Release the gradient at a public position within the radius, (d,) or (d·K,)."""
        exact = access.gradient(self.records, position)
        noisy = gaussian_release(exact, noise_multiplier, next(self.keys))
        columns = noisy.reshape(self.design.size, -1)
        return (access.clip * access.root @ columns).ravel()

    def _noisy(self, exact: Exact, std: float) -> np.ndarray:
        """Return a second moment with noise."""
        noisy = gaussian_release(svec_of(exact), std, next(self.keys))
        return symmetric(noisy, len(exact.steps))

    def _spread(self, position: np.ndarray, curvature: Corrected) -> tuple[Corrected, list[str]]:
        """Release the spread of scores; return B in the metric, and why intervals may not hold.

        The trace is that of the records' own scores, whichever covariance B is.
        """
        access = self._access(position)
        own = access.spread(self.records, position)
        sandwich = self.strategy.options.covariance == "sandwich"
        exact = own if sandwich else access.expected_spread(self.records, position)
        std = self.settings["spread_noise_std"]
        noisy = self._noisy(exact, std)
        trace_std = self.settings["spread_trace_noise_std"]
        trace = gaussian_release(trace_of(own), trace_std, next(self.keys))[0]
        most = access.clip**2
        # Normal rows give its shape, changed as the curvature is, and the release gives the trace.
        local = self._known().local(position)
        ratio = float(np.trace(local.score) / np.trace(local.curvature))
        usual = self.inverse @ local.score @ self.inverse + ratio * curvature.lift
        usual = curvature.turn @ usual @ curvature.turn.T
        expected = float(np.trace(usual))
        ratio = most * trace / expected
        model = usual * max(ratio, _LEAST_RATIO) if sandwich else usual
        found = corrected(model, most * noisy, most * std)
        if not sandwich:
            expected = float(np.trace(found.matrix))
            ratio = most * trace / expected
        return found, self._unlike(ratio, most * trace_std / expected)

    def _unlike(self, ratio: float, noise_std: float) -> list[str]:
        """Return why intervals may not hold where scores vary by another factor than 1 of what the model says.

        Args:
            ratio: the released factor.
            noise_std: of it.
        """
        if noise_std > _FAINT:
            return ["how much scores vary is mostly noise; take a larger epsilon, more records or fewer columns"]
        sandwich = self.strategy.options.covariance == "sandwich"
        if not sandwich and ratio - _BEYOND * noise_std > _VARY:
            return [f"scores vary {ratio:.2g} times as much as the model says; take covariance sandwich"]
        if self.strategy.scale is None and ratio + _BEYOND * noise_std < _FOLLOW:
            return [
                f"scores vary {max(ratio, 0.0):.2g} times as much as the model says, as where columns separate the "
                "labels, whose best-fitting coefficients have no end; leave out what nearly is the label, or give "
                "coefficients priors"
            ]
        return []

    # Conclusions.

    def _seen(self, found: Corrected, scores: np.ndarray, curvature: np.ndarray) -> Local:
        """Return a model whose curvature differs from normal rows' one as it does where it was released.

        Args:
            found: where it was released.
            scores: their spread B.
            curvature: normal rows' one.
        """
        lifted = curvature + self.root @ found.lift @ self.root
        turns = self.root @ np.stack([found.turn, *found.turns(_CURVATURES)]) @ self.inverse
        matrices = turns @ lifted @ turns.swapaxes(-1, -2)
        return Local(matrices[0], scores, np.zeros_like, matrices[1:])

    def _size(self, matrix: np.ndarray) -> float:
        """Return the trace of a matrix in the metric."""
        return float(np.trace(self.inverse @ matrix @ self.inverse))

    def _next(
        self,
        path: _Path,
        count: int,
        now: Gaussian,
        at: np.ndarray,
    ) -> Gaussian:
        """Return the posterior given the gradients so far, no farther from ``at`` than predictors may move."""
        known = self._known()
        release = path.mean(count, self.square)
        if releases_curvature(self.settings):
            # Where the slope changes along the path, the mean of its gradients is not that at the mean position.
            beyond = known.nonlinear_part(*path.last(count), now.mean)
            release = release._replace(gradient=release.gradient - beyond)
            exact = dataclasses.replace(known, error=np.zeros_like)
            prior = self.prior.best(release, exact.local(now.mean), now)
            # A step along a direction that is not well known is short, and no gradient counts less for the error of H:
            # far from where gradients vanish it would leave the position to the prior.
            square = self.design.num_records * self.metric.root @ self.metric.root
            local = dataclasses.replace(exact, gram=square).local(now.mean)
        else:
            std = self.settings["gram_noise_std"]
            known = dataclasses.replace(known, error=normal_law.isotropic_error(std))
            local = known.local(now.mean)
            prior = self.prior.best(release, local, now)
        found = prior.moved(
            normal_law.posterior(
                prior.about_zero(release),
                local,
                prior.precision,
                now._replace(mean=now.mean - prior.means),
                rounds=2,
            )
        )
        return found._replace(mean=self._near(found.mean, at))

    def _near(self, mean: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Return the point toward ``mean`` that is no farther from ``at`` than predictors may move."""
        step = (mean - at).reshape(self.design.size, -1)
        size = math.sqrt(max(0.0, float(np.sum(step * (self.gram.gram @ step)))) / self.design.num_records)
        return at + min(1.0, self.learnt.score.step / max(size, 1e-300)) * (mean - at)

    def _concluded(self, path: _Path, last: int, now: Gaussian, released: bool) -> Concluded:
        """Release curvature and spread where the gradients end; return the posterior."""
        at = within(now.mean[None], self.design.radius)[0]
        known = self._known()
        count = self.design.num_records
        release = path.mean(last, self.square)
        positions, weights = path.last(last)
        doubts = [*self.learnt.doubts]
        scores: np.ndarray | None = None
        confirms: np.ndarray | None = None
        if released:
            found, least = self._curvature(at)
            spread, unlike = self._spread(at, found)
            doubts += unlike
            confirms = self.root @ least @ self.root
            # For each unit of what normal rows make of the scores here.
            size = self._size(known.local(at).score)
            scores = self.root @ (spread.matrix / size) @ self.root
            if self.learnt.variance is not None:
                # All that is clipped, were it of one direction, against what sampling moves it by.
                most = count * self.learnt.beyond**2
                if spread.deviation > _UNEVEN and most > self.learnt.variance:
                    doubts.append(_CLIPPED)
                more = self._missed() / self.typical**2
                release = release._replace(noise=release.noise + more)
            if self.learnt.shift_variance:
                along = known.shifted(at)
                release = release._replace(
                    gradient=release.gradient - self.learnt.shift * along,
                    noise=release.noise + self.learnt.shift_variance * np.outer(along, along),
                )
            if found.uncertainty > _UNSURE:
                doubts.append(
                    f"the curvature is known to {found.uncertainty:.0%} in its weakest direction, which is mostly "
                    "noise; take a larger epsilon, more records or fewer columns"
                )

        def law(posterior: Gaussian) -> tuple[GradientRelease, Local]:
            # Farther away a law of normal rows is no guide.
            near = self._near(posterior.mean, at)
            local = known.local(near)
            if scores is None:
                return release, local
            # By as much as they differed from normal rows where they were released, they differ here.
            beyond = known.nonlinear_part(positions, weights, near)
            there = release._replace(gradient=release.gradient - beyond)
            spread = self._size(local.score) * scores
            return there, self._seen(found, spread, local.curvature)

        concluded = self.prior.concluded(law, now, count)
        covariance = concluded.posterior.covariance
        away = release.position - at
        far = _in_deviations(away, covariance)
        if far > _FAR:
            doubts.append(
                f"gradients end {far:.2g} posterior standard deviations from where they were on average; take "
                "a larger epsilon or more steps"
            )
        if released:
            near = self._near(concluded.posterior.mean, at)
            bent = _moved(concluded.evidence, known.nonlinear_part(positions, weights, near))
            if bent > _BENT:
                doubts.append(
                    f"slopes that change along the path of gradients move the posterior by {bent:.2g} standard "
                    "deviations; take a larger epsilon, more records or fewer columns"
                )
        doubts += self._left_out(known, concluded.posterior)
        evidence = dataclasses.replace(
            concluded.evidence,
            gram=self.noisy,
            structure=self.strategy.options.structure,
            doubts=tuple(doubts),
            label_scale=self._label_scale(concluded.mixture),
            least=confirms,
            rare=self._rare(concluded.posterior),
        )
        return concluded._replace(evidence=evidence)

    def _left_out(self, known: ScoredRows, posterior: Gaussian) -> list[str]:
        """Return why intervals may not hold where the score of counts leaves out much of them."""
        score = self.learnt.score
        if not isinstance(score, Counts):
            return []
        predictors = known.predictors(posterior.mean)
        mean, beyond = score.left_out(predictors, known.limit)
        part = float(np.mean(beyond) / np.mean(mean))
        std = math.sqrt(float(known.mean @ posterior.covariance @ known.mean))
        if part <= _LEFT_OUT or part <= _SHIFTED * std:
            return []
        return [
            f"the score of counts is clipped where {part:.0%} of their mean lies beyond, so that the estimate rests on "
            "the law of the counts; take a larger epsilon or more records"
        ]

    def _rare(self, posterior: Gaussian) -> np.ndarray:
        """Return which coefficients are of a level where some label is too rare, (d·K,)."""
        found = rare_levels(
            self.learnt.score,
            self.strategy.options.structure,
            self.gram.gram,
            self.design.num_records,
            posterior,
        )
        # Effects of groups have a prior that all groups tell.
        return found & (self.prior.family <= 0)

    def _label_scale(self, posterior: Mixture) -> float | None:
        """Return how labels vary about their means, where that was learnt; see ``Evidence.label_scale``."""
        scale, score = self.strategy.scale, self.learnt.score
        if isinstance(scale, Residuals) and self.learnt.residuals is not None:
            # Public: these draws stand for the posterior alone.
            noise = np.random.default_rng(0).normal(size=(_DRAWS, self.prior.size))
            away = posterior.draws(noise) - self.learnt_at
            off = np.sum((away @ self.gram.gram) * away, axis=1) / self.design.num_records
            return scale.label_std(*self.learnt.residuals, off)
        return score.dispersion if scale is not None and isinstance(score, Counts) else None


def _moved(evidence: Evidence, beyond: np.ndarray) -> float:
    """Return by how many posterior standard deviations a change of the gradient moves the mean, root mean square."""
    here = evidence.posterior()
    changed = dataclasses.replace(evidence, statistic=evidence.statistic + beyond)
    return _in_deviations(changed.posterior().mean - here.mean, here.covariance)


def _in_deviations(away: np.ndarray, covariance: np.ndarray) -> float:
    """Return a distance in standard deviations, root mean square over directions."""
    return math.sqrt(float(away @ np.linalg.solve(covariance, away)) / len(away))
