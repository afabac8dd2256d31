r"""Regressions with a bounded score: a metric, gradients, then the curvature and the variance of scores where they end.

With ‖x‖ <= b enforced on every row, each release is a Gaussian one of a sum over records at a public position:

1. the Gram matrix G = Σ x xᵀ and, unless it is declared, its trace: a metric F and the bounds that hold in it. A family
   whose curvature rests on the mean row gets Σ x too, where no intercept is declared in whose column G has it;
2. where the curvature is released, the second moment of rows again, whitened by F. Both make the metric F of
   everything below (``metric.py``);
3. K gradients of all records (``gradients.py``). Later ones get more of the budget, and each is taken at the
   posterior's mean given those before it. The posterior rests on the last two fifths, which have
   nine tenths of their budget;
4. three times on the way the scale of labels (``scale.py``), where the score has one that is not declared. It, or the
   path midway, says how far out labels can be clipped at little cost (``facts.py``);
5. where the gradients end, their curvature H and the spread B of scores.

Rows taken as normal give H and B for nothing, and are .2 to .5 off where rows are not normal. The releases correct them
as far as noise lets them (``inference/curvature.py``). Beyond :data:`MOST_RELEASED` numbers a release would be noise:
nothing of 2 and 5 is released, and H has the error of the Gram matrix alone.

B is of the scores themselves (``covariance: sandwich``) or of what the model says of them (``model``). With the first,
intervals are for the parameter θ* at which the mean score is zero, whether or not the model is true (Huber 1967, White
1982): the best-fitting coefficients.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference import normal_law, predicted_width
from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.count_score import CLIPS, Counts
from dpmcmc.inference.curvature import average_law
from dpmcmc.inference.denoised_moment import denoised, spiked
from dpmcmc.inference.linear_score import Huber
from dpmcmc.inference.normal_law import Local
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.noise_aware.descent import FEWEST_STEPS, multipliers
from dpmcmc.mechanisms.noise_aware.facts import (
    MOST_RELEASED,
    Facts,
    affordable,
    further,
    missed,
    releases_curvature,
    steps_of,
)
from dpmcmc.mechanisms.noise_aware.gradients import Design
from dpmcmc.mechanisms.noise_aware.metric import (
    Planned,
    clip_of,
    expected,
    planned,
)
from dpmcmc.mechanisms.noise_aware.owners import (
    COUNT_SHARE,
    Sharing,
    calibrate_counts,
)
from dpmcmc.mechanisms.noise_aware.releases import SCALE_NAMES, SCALE_PARTS, Releases
from dpmcmc.mechanisms.noise_aware.residuals import DEVIATIONS
from dpmcmc.mechanisms.noise_aware.strategy import Calibrated
from dpmcmc.mechanisms.one_shot import PrivacySpec, ReleasedDraws
from dpmcmc.mechanisms.rows import Rows
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.query.gaussian_release import mu_std
from dpmcmc.privacy.query.gram_release import GramRelease, NoisyGram, RowFacts, SumRelease, entries
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records, asked

#: Shares of μ²: of the trace of G, of the sum of rows, of a scale, and of offsets.
_TRACE, _MEAN, _SCALE, _OFFSET = 0.01, 0.01, 0.07, 0.01


class _Shares(NamedTuple):
    """Shares of μ² where a curvature is released.

    Attributes:
        gram: of the Gram matrix.
        again: of the rows' second moment in the metric of the first.
        curvature: of H.
        spread: of B.
        trace: of its trace.
    """

    gram: float
    again: float
    curvature: float
    spread: float
    trace: float


#: Shares by the most coefficients that have them. The few numbers of a small metric take little, and where records are
#: few an interval follows from H as much as from the gradients.
_BY_SIZE = (
    (3, _Shares(0.05, 0.03, 0.1, 0.015, 0.01)),
    (10, _Shares(0.1, 0.05, 0.08, 0.03, 0.01)),
    (30, _Shares(0.2, 0.05, 0.08, 0.03, 0.01)),
    (MOST_RELEASED, _Shares(0.3, 0.05, 0.08, 0.03, 0.01)),
)
#: Candidates for the Gram matrix' share of μ² where no curvature is released.
_GRAM_SHARES = (0.2, 0.3, 0.4, 0.5)
#: Bootstraps of the error of a candidate share's Gram matrix.
_PREDICTED_BOOTSTRAPS = 6
#: Predicted width up to which a clip further out is tried.
_HIDDEN = 2.0


@dataclass(frozen=True)
class Regression(Facts):
    """Strategy for regressions whose score is bounded; attributes are those of :class:`Facts`."""

    # Planning, from public facts alone.

    def calibrate(self, spec: PrivacySpec) -> Calibrated:
        """Return what all releases cost, and their settings."""
        design = self.design(spec.most_records)
        size = design.size * self.score.size
        most = normal_law.MOST_COEFFICIENTS
        if self.score.size > 1 and size > most:
            raise UnsupportedCombination(
                f"noise_aware inverts dense matrices of at most {most:,} coefficients of several predictors, and there "
                f"are {size:,}; use a sampler, whose draws are for prediction."
            )
        self._check(size)
        budget = _Budget(self, spec, design)
        share = self.options.gram_share
        candidates = (share,) if share is not None else self._gram_shares(size)
        share, clip, width = self._chosen(budget, candidates)
        return budget.events(share, clip, width)

    def _check(self, size: int) -> None:
        """Refuse what is not derived."""
        if self.options.covariance == "sandwich" and not self.releases:
            raise UnsupportedCombination(
                f"covariance: sandwich releases how scores vary, and the spread of {size} numbers would be noise; take "
                f"covariance model, or at most {MOST_RELEASED} of them (an ordinal regression, which has no other "
                "covariance, takes fewer columns, or goal prediction)"
            )

    def _gram_shares(self, size: int) -> tuple[float, ...]:
        return (_shares_of(size).gram,) if self.releases else _GRAM_SHARES

    def _chosen(self, budget: _Budget, candidates: tuple[float, ...]) -> tuple[float, float, float]:
        """Return (share of G, κ or the bound in deviations of residuals, predicted width)."""
        several = candidates if len(candidates) > 1 else ()
        widths = {share: budget.width(share, self.score) for share in several}
        share = min(widths, key=widths.__getitem__, default=candidates[0])
        tried: dict[float, float] = {}
        if isinstance(self.score, Huber):
            tried = {k: budget.width(share, self.score, k) for k in DEVIATIONS}
            clip = min(tried, key=tried.__getitem__)
            return share, clip, tried[clip]
        if budget.curvature:
            tried = {one.clip: budget.width(share, one) for one in further(self.score)}
            # The releases tell which; this one is likely.
            most = affordable(min(tried.values()) ** 2, self.score, budget.spec.num_records)
            clip = max(clip for clip, width in tried.items() if width**2 <= most)
            return share, clip, tried[clip]
        clip = self.score.clip
        found = narrow = widths.get(share) or budget.width(share, self.score)
        for wider in CLIPS if isinstance(self.score, Counts) and found <= _HIDDEN else ():
            now = budget.width(share, self.clipped_at(wider).score)
            if now <= narrow:
                found, clip = now, wider
        return share, clip, found

    def refusal(self, plan: MechanismPlan) -> str | None:
        """Return why intervals of the draws do not hold, or None where they do; from public facts."""
        if self.options.steps < FEWEST_STEPS:
            return f"{self.options.steps} steps are too few; take {FEWEST_STEPS} or more."
        return None

    # The releases.

    def draw(self, plan: MechanismPlan, records: Records, streams: Streams) -> ReleasedDraws:
        """Return posterior draws, (draws, d), or (draws, d, K) for K predictors, with their evidence."""
        planned: Facts = self
        if not releases_curvature(plan.settings):
            planned = self.clipped_at(plan.settings["clip_ratio"])
        design = self.design(plan.num_records)
        rows = Rows(plan.target, design.row_bound)
        releases = Releases(planned, plan, rows, asked(records).prepared(rows))
        found = releases.conclude(streams.noise)
        draws = found.draws(self.options.draws, streams)
        if self.score.size > 1:
            draws = draws.reshape(len(draws), design.size, -1)
        return ReleasedDraws(draws, found.evidence)


def _shares_of(size: int) -> _Shares:
    """Return the shares where so many coefficients have their curvature released."""
    return next(shares for most, shares in _BY_SIZE if size <= most)


def _clip_name(score: BoundedScore) -> str:
    """Return the name in the settings of what says where a score is clipped."""
    return "bound_deviations" if isinstance(score, Huber) else "clip_ratio"


@dataclass(frozen=True)
class _Budget:
    """How μ² is shared out.

    Attributes:
        strategy: of the family.
        spec: the promise.
        design: public facts, without a floor of the metric.
    """

    strategy: Regression
    spec: PrivacySpec
    design: Design

    @property
    def mu(self) -> float:
        return self.spec.mu * (1 - 1e-9)

    @property
    def curvature(self) -> bool:
        """Whether curvature and spread are released."""
        return self.strategy.releases

    @property
    def shares(self) -> _Shares:
        """Shares of what is released with a curvature."""
        return _shares_of(self.design.size * self.strategy.score.size)

    @functools.cached_property
    def sharing(self) -> Sharing:
        return Sharing.guessed(self.spec.num_records, self.strategy.together)

    @functools.cached_property
    def _metrics(self) -> dict[float, Planned]:
        """The metric to expect at each share of G so far; no score changes it."""
        return {}

    def gram(self, share: float) -> GramRelease:
        """Return the release of G."""
        rows = self.strategy.rows(self.design)
        trace = 0.0 if rows.trace_declared(self.spec.adjacency) else _TRACE
        return GramRelease.calibrate(
            rows,
            self.spec.adjacency,
            self.mu * math.sqrt(share),
            self.mu * math.sqrt(trace),
        )

    @property
    def others(self) -> float:
        """Share of everything but G and the gradients."""
        strategy = self.strategy
        declared = strategy.rows(self.design).trace_declared(self.spec.adjacency)
        released = sum(self.shares[1:]) if self.curvature else 0.0
        return (
            _TRACE * (not declared)
            + _MEAN * strategy.sums_rows
            + COUNT_SHARE * (strategy.together > 1)
            + _OFFSET * (strategy.offset_bound is not None)
            + _SCALE * (strategy.scale is not None)
            + released
        )

    def std(self, rows: RowFacts, size: int, share: float) -> float:
        """Return the noise of a second moment of rows in ``size`` numbers each, which has a share of μ²."""
        moved = rows.moved(self.spec.adjacency)[0]
        return mu_std(moved, entries(size), self.mu * math.sqrt(share))

    def gradient_mu(self, share: float) -> float:
        """Return μ of all gradients."""
        return self.mu * math.sqrt(1 - share - self.others)

    def width(self, share: float, score: BoundedScore, deviations: float = DEVIATIONS[0]) -> float:
        """Return the predicted width of an interval over that of the non-private posterior, mean over coordinates.

        It rests on a stand-in spectrum, since no record is read: the Gram matrix is a public one with trace N·b² and
        eigenvalues ∝ 1/j². Without a release of curvature its error is the curvature's.
        """
        strategy = self.strategy
        design = self.design._replace(num_records=self.sharing.num_rows)
        d = design.size
        scale = strategy.target.prior_scale**2
        rng = np.random.default_rng(0)
        spectrum = predicted_width.usual_spectrum(d, design.largest_trace)
        std = predicted_width.noise_left(self.gram(share).noise_std, strategy.options.structure)
        moment = np.diag(spectrum)
        seen: Planned | None = None
        if self.curvature:
            seen = self._metrics.get(share)
            if seen is None:
                seen = self._metrics[share] = planned(
                    moment,
                    std,
                    self.std(strategy.whitened(design), design.size, self.shares.again),
                    design.num_records,
                    design.row_bound,
                    normal_law.isotropic_error(std),
                )
            gram, square, norm, longest = moment, seen.square, seen.norm, seen.longest
        else:
            noisy = NoisyGram(
                moment + std * normal_law.symmetric_noise(rng, d),
                std,
                design.largest_trace,
                0.0,
            )
            gram, error = (
                spiked(noisy) if strategy.hidden else denoised(noisy, None, rng=rng, bootstraps=_PREDICTED_BOOTSTRAPS)
            )
            square, longest = design.metric(gram), design.longest
            norm = design.whitened_norm(gram)
        predictors = scale * design.row_bound**2 / 2
        if isinstance(score, Huber):
            # Residuals are taken for a tenth of the label's range.
            score = Huber.of(score.bound / 10, deviations)
        shared = self.sharing.scored(score)
        law, unbounded = (average_law(shared, predictors, limit) for limit in (score.limit, math.inf))
        clip = clip_of(score, norm, longest)
        noise = (self.spec.moved / self.gradient_mu(share) * clip * self.sharing.typical) ** 2 * square
        if isinstance(score, Huber):
            noise = noise + missed(score.mean_beyond_bound, gram, design.num_records)
        precision = np.eye(d) / scale
        curvature = law.curvature * gram
        local = Local(curvature, law.variance * gram, np.zeros_like)
        if seen is None:
            local = local._replace(curvature_error=lambda q: 2 * law.curvature**2 * error(q))
        else:
            bent = strategy.moments(design)[0]
            local = expected(
                local,
                noise,
                precision,
                *seen.curvature(
                    curvature,
                    score,
                    clip,
                    law.curvature,
                    self.std(bent, d * score.size, self.shares.curvature),
                    design.num_records,
                ),
            )
        # Bounds aside, information is the curvature squared over the score's variance.
        information = unbounded.curvature**2 / unbounded.variance
        alone = np.diag(1 / (1 / scale + information * spectrum))
        return predicted_width.predicted(local, noise, precision, alone).width()

    def events(self, share: float, clip: float, width: float) -> Calibrated:
        """Return all charges in the order of the releases, and the settings."""
        strategy = self.strategy
        if not self.curvature:
            strategy = strategy.clipped_at(clip)
        spec = self.spec
        adjacency = spec.adjacency
        gram = self.gram(share)
        design = strategy.design(spec.most_records, gram.noise_std if self.curvature else None)
        size = design.size * strategy.score.size
        parts = steps_of(strategy.options.steps)
        first = mu_std(spec.moved, size, self.gradient_mu(share) * math.sqrt(parts[0]))
        settings = {
            "gram_share": share,
            "gram_noise_std": gram.noise_std,
            "trace_noise_std": gram.trace_std,
            "first_noise_multiplier": first,
            "predicted_width": width,
        }
        settings[_clip_name(strategy.score)] = clip
        events = [*spec.gram(gram)]
        if strategy.sums_rows:
            total = SumRelease.calibrate(strategy.rows(self.design), adjacency, self.mu * math.sqrt(_MEAN))
            settings["sum_noise_std"] = total.noise_std
            events.append(total.event(adjacency))
        if strategy.offset_bound is not None:
            # (o, o²) of an offset o within ±1: |o − o'| <= 2 and |o² − o'²| <= 1.
            one = math.sqrt(5) if adjacency == Adjacency.REPLACE_ONE else math.sqrt(2)
            moved = strategy.together * one
            std = mu_std(moved, 2, self.mu * math.sqrt(_OFFSET))
            settings["offset_noise_std"] = std
            events.append(spec.gaussian(std, moved, 2))
        if strategy.together > 1:
            event, settings["count_noise_std"] = calibrate_counts(
                strategy.together, spec, self.mu * math.sqrt(COUNT_SHARE)
            )
            events.append(event)
        if self.curvature:
            again = strategy.whitened(design)
            std = self.std(again, design.size, self.shares.again)
            settings["whitened_noise_std"] = std
            events += spec.gram(GramRelease(again, std, 0.0))
        events += [spec.gaussian(z, spec.moved, size) for z in multipliers(first, parts)]
        if strategy.scale is not None:
            scale = strategy.scale
            moved = strategy.together * scale.moved(adjacency)
            for part, name in zip(SCALE_PARTS, SCALE_NAMES, strict=True):
                std = mu_std(moved, scale.size, self.mu * math.sqrt(_SCALE * part))
                settings[name] = std
                events.append(spec.gaussian(std, moved, scale.size))
        if self.curvature:
            bent, spread = strategy.moments(design)
            std = self.std(bent, size, self.shares.curvature)
            settings["curvature_noise_std"] = std
            events += spec.gram(GramRelease(bent, std, 0.0))
            release = GramRelease.calibrate(
                spread,
                adjacency,
                self.mu * math.sqrt(self.shares.spread),
                self.mu * math.sqrt(self.shares.trace),
            )
            settings["spread_noise_std"] = release.noise_std
            settings["spread_trace_noise_std"] = release.trace_std
            events += spec.gram(release)
        return tuple(events), settings
