r"""Regressions with a bounded score: a metric, gradients, then the curvature and the variance of scores where they end.

With ‖x‖ <= b enforced on every row, each release is a Gaussian one of a sum over records at a public position:

1. the Gram matrix G = Σ x xᵀ and, unless it is declared, its trace: a metric F and the bounds that hold in it. A family
   whose curvature rests on the mean row gets Σ x too, where no intercept is declared in whose column G has it;
2. K gradients of all records (``gradients.py``). Later ones get more of the budget, and each is taken at the
   posterior's mean given those before it. The posterior rests on the last two fifths, which have
   nine tenths of their budget;
3. three times on the way the scale of labels (``scale.py``), where the score has one that is not declared;
4. midway the curvature H, which steers the other gradients, and where they end H and the spread B of scores.

Rows taken as normal give H and B for nothing, and are .2 to .5 off where rows are not normal. The releases correct them
as far as noise lets them (``inference/curvature.py``). Beyond :data:`MOST_RELEASED` numbers a release would be noise:
nothing of 4 is released, and H has the error of the Gram matrix alone.

B is of the scores themselves (``covariance: sandwich``) or of what the model says of them (``model``). With the first,
intervals are for the parameter θ* at which the mean score is zero, whether or not the model is true (Huber 1967, White
1982): the best-fitting coefficients.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference import noise_aware
from dpmcmc.inference.curvature import (
    AverageLaw,
    Corrected,
    ScoredRows,
    SeveralPredictors,
    average_law,
    corrected,
    exchangeable,
    mean_row,
)
from dpmcmc.inference.noise_aware import (
    Denoised,
    Gaussian,
    GradientRelease,
    Local,
    denoised,
)
from dpmcmc.inference.scores import CLIPS, BoundedScore, Counts, Huber
from dpmcmc.mechanisms.base import MechanismPlan, PrivacySpec, ReleasedDraws
from dpmcmc.mechanisms.noise_aware.gradients import (
    FEWEST_STEPS,
    BoundedGradient,
    Bounds,
    Design,
    multipliers,
    shares,
)
from dpmcmc.mechanisms.noise_aware.prior import (
    COUNT_SHARE,
    Calibrated,
    Concluded,
    Options,
    Prior,
    Read,
    Sharing,
    calibrate_counts,
    release_counts,
)
from dpmcmc.mechanisms.noise_aware.scale import BOUND_QUANTILE, Learnt, Scale
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.query.gaussian_release import (
    GramRelease,
    NoisyGram,
    RowFacts,
    SumRelease,
    entries,
    gaussian_release,
    mu_std,
    summing,
    svec,
    symmetric,
    weighted_sum,
    within,
)
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.report import console
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import require_bound
from dpmcmc.targets.glm import GeneralisedLinear
from dpmcmc.targets.last_layer import on_rows

#: Most numbers d·K whose curvature is released; a release for more would be noise (docs/uncertainty.md).
MOST_RELEASED = 60
#: Shares of μ²: of the trace of G, of the sum of rows, of a scale, of the curvature midway and at the end, of the
#: spread and of its trace.
_TRACE, _MEAN, _SCALE, _MIDWAY, _CURVATURE, _SPREAD, _SPREAD_TRACE = (
    0.01, 0.01, 0.04, 0.02, 0.08, 0.03, 0.01,
)  # fmt: skip
#: Share of μ² of offsets.
_OFFSET = 0.01
#: Parts of the gradients before a scale is released, and of a scale's budget that each release gets.
_SCALES, _SCALE_PARTS = (0.25, 0.45), (0.2, 0.2, 0.6)
#: Part of the gradients before the curvature is released midway.
_HALF = 0.5
#: Part of the gradients that the posterior is made of where a curvature is released and where none is, and of those
#: so far that a position is made of; by how much the budget of gradients grows over a quarter of them.
_LAST, _LAST_OF_NORMAL, _FIRST, _GROWTH = 0.4, 0.6, 0.4, 4.8
#: R² in units of a typical ‖z‖², and added to it.
_LONGEST, _MORE = 3.0, 2.0
#: L of a family without a bound, in units of C·(typical ‖z‖)·√(mean information).
_LEVERAGE = 2.0
#: Candidates for the Gram matrix' share of μ² where no curvature is released, and its share elsewhere, by size.
_GRAM_SHARES, _GRAM_BY_SIZE = (
    (0.2, 0.3, 0.4, 0.5),
    ((10, 0.1), (30, 0.2), (MOST_RELEASED, 0.3)),
)
#: κ where a curvature is released: the widest whose predicted width is within the last number of the narrowest.
_WIDEST, _WIDER = (0.5, 0.75, 1.0, 1.5, 3.0), 1.03
#: Bootstraps of the error of a candidate share's Gram matrix.
_PREDICTED_BOOTSTRAPS = 6
#: Predicted width up to which a clip further out is tried.
_HIDDEN = 2.0
#: Least part of b² in the metric's floor.
_SMALLEST_FLOOR = 1e-5
#: Relative standard deviation of a curvature beyond which the verdict refuses intervals; posterior standard deviations
#: between the last positions and the posterior beyond which it does.
_UNSURE, _FAR = 0.6, 4.0
#: Deviation of the spread from the curvature beyond which errors differ from row to row, and standard deviations beyond
#: which they are skewed; what is said of both.
_UNEVEN, _CLEAR = 0.07, 3.0
_SKEWED = (
    "errors are skewed and their spread differs from row to row, so that slopes are those of Huber's fit and not of "
    "the mean; transform the label (scale='log1p')"
)

#: Names of a scale's noise in the settings.
_SCALE_NAMES = ("early_scale_noise_std", "middle_scale_noise_std", "scale_noise_std")
#: Least ratio of B to H in units of what the model expects.
_LEAST_RATIO = 0.1


def steps_of(steps: int) -> np.ndarray:
    """Return the part of all gradients' μ² that each of them gets, (steps,)."""
    return shares(steps, _GROWTH ** (4 / max(4, steps)))


@dataclass(frozen=True)
class Regression:
    """Strategy for regressions whose score is bounded.

    Attributes:
        options: of the mechanism.
        target: with its public bounds.
        score: of the target's family.
        scale: what the score learns of its labels on the way, or None.
        together: m, rows that an owner may have; 1 where records are rows.
    """

    options: Options
    target: GeneralisedLinear
    score: BoundedScore
    scale: Scale | None = None
    together: int = 1

    # ------------------------------------------------------------------------------------------------
    # Planning, from public facts alone.

    def calibrate(self, spec: PrivacySpec) -> Calibrated:
        """Return what all releases cost, and their settings."""
        design = self.design(spec.most_records)
        size = design.size * self.score.size
        most = noise_aware.MOST_COEFFICIENTS
        if self.score.size > 1 and size > most:
            raise UnsupportedCombination(
                f"noise_aware inverts dense matrices of at most {most:,} coefficients of several predictors, and there "
                f"are {size:,}; use a sampler, whose draws are for prediction."
            )
        self._check(spec.adjacency, size)
        budget = _Budget(self, spec, design)
        share = self.options.gram_share
        candidates = (
            (share,) if share is not None else self._gram_shares(spec.adjacency, size)
        )
        share, clip, width = self._chosen(budget, candidates)
        return budget.events(share, clip, width)

    def _check(self, adjacency: Adjacency, size: int) -> None:
        """Refuse what is not derived."""
        if self.options.covariance == "sandwich" and not self.releases(adjacency):
            why = (
                f"the spread of {size} numbers would be noise"
                if size > MOST_RELEASED
                else "under add_remove rounding of a count's curvature has no derived bound"
            )
            raise UnsupportedCombination(
                f"covariance: sandwich releases how scores vary, and {why}; take covariance model"
            )

    def releases(self, adjacency: Adjacency) -> bool:
        """Return whether curvature and spread are released."""
        rounds = adjacency == Adjacency.ADD_REMOVE and math.isinf(
            self.score.slope_rounding(0.0)
        )
        return self._prior().size <= MOST_RELEASED and not rounds

    def _gram_shares(self, adjacency: Adjacency, size: int) -> tuple[float, ...]:
        if not self.releases(adjacency):
            return _GRAM_SHARES
        return (next(share for most, share in _GRAM_BY_SIZE if size <= most),)

    def _chosen(
        self, budget: _Budget, candidates: tuple[float, ...]
    ) -> tuple[float, float, float]:
        """Return (share of G, κ, predicted width)."""
        widths = {share: budget.width(share, self.score) for share in candidates}
        share = min(widths, key=widths.__getitem__)
        found = widths[share]
        if isinstance(self.score, Huber):
            return share, 1.0, found
        if budget.curvature:
            tried = {
                clip: budget.width(share, self.clipped_at(clip).score) for clip in _WIDEST
            }
            least = min(tried.values())
            clip = max(clip for clip, width in tried.items() if width <= _WIDER * least)
            return share, clip, tried[clip]
        clip = self.score.clip
        for wider in CLIPS if isinstance(self.score, Counts) and found <= _HIDDEN else ():
            now = budget.width(share, self.clipped_at(wider).score)
            if now <= widths[share]:
                found, clip = now, wider
        return share, clip, found

    def clipped_at(self, clip: float) -> Regression:
        """Return the strategy with another κ."""
        if isinstance(self.score, Huber):
            return self
        scale = None if self.scale is None else dataclasses.replace(self.scale, clip=clip)  # type: ignore[type-var]
        return dataclasses.replace(
            self,
            score=dataclasses.replace(self.score, clip=clip),  # type: ignore[type-var]
            scale=scale,
        )

    def refusal(self, plan: MechanismPlan) -> str | None:
        """Return why intervals of the draws do not hold, or None where they do; from public facts."""
        if self.options.steps < FEWEST_STEPS:
            return f"{self.options.steps} steps are too few; take {FEWEST_STEPS} or more."
        return None

    def design(self, num_records: int, gram_noise_std: float | None = None) -> Design:
        """Return the public facts of the rows of records or owners, whose bounds are given.

        Args:
            num_records: N.
            gram_noise_std: σ of the Gram matrix where a curvature is released: the metric's floor is the size of its
                noise.
        """
        row = require_bound(
            self.target.row_bound, "row_bound", type(self.target).__name__
        )
        prior = self._prior()
        size = prior.size // self.score.size
        rows = num_records * self.together
        floor = None
        if gram_noise_std is not None:
            noise = gram_noise_std * math.sqrt(2 * size) / rows
            floor = min(max(noise, _SMALLEST_FLOOR * row**2), row**2 / size)
        return Design(rows, size, row, prior.radius, floor)

    def _prior(self) -> Prior:
        return Prior.of(self.options, self.target, self.score.size)

    @property
    def finest(self) -> BoundedScore:
        """The score that rounding moves most: of the smallest bound that may be learnt, shared by an owner's rows."""
        if not isinstance(self.score, Huber):
            return self.score
        return dataclasses.replace(
            self.score, bound=self.score.bound * 2.0**-12 / self.together
        )

    @property
    def intercept(self) -> int | None:
        """Column of the declared intercept."""
        return None if self.options.structure is None else self.options.structure.constant

    @property
    def offset_bound(self) -> float | None:
        """Bound on what is added to predictors; None: nothing is."""
        return self.target.offset_bound

    @property
    def sums_rows(self) -> bool:
        """Whether Σ x is released."""
        return self.score.needs_mean_row and self.intercept is None

    def rows(self, design: Design) -> RowFacts:
        """Return the public facts of the Gram matrix."""
        structure = self.options.structure
        unit_norm = structure is not None and structure.unit_norm
        return RowFacts(
            design.num_records, design.size, design.row_bound, unit_norm, together=self.together
        )  # fmt: skip

    def moments(self, design: Design, adjacency: Adjacency) -> tuple[RowFacts, RowFacts]:
        """Return the public facts of curvature and spread, each of rows within 1.

        Under ``add_remove`` other records change their places, and with them the last bits of their numbers.
        """
        size = design.size * self.score.size
        # A record of K predictors is K rows, and a block of sums as many times longer (``gram_of``).
        moved, curve = 0.0, (self.score.size - 1) * 2.0**-44
        if adjacency == Adjacency.ADD_REMOVE:
            away = design.size**2 * 2.0**-50
            curve += self.finest.slope_rounding(design.margin) + away
            moved = 2 * (self.finest.rounding(design.margin, away) + away)
        count = design.num_records
        return (
            RowFacts(count, size, 1.0, rounding=count * curve, together=self.together),
            RowFacts(count, size, 1.0, rounding=count * moved),
        )

    # ------------------------------------------------------------------------------------------------
    # The releases.

    def draw(
        self, plan: MechanismPlan, records: PyTree, streams: Streams
    ) -> ReleasedDraws:
        """Return posterior draws, (draws, d), or (draws, d, K) for K predictors, with their evidence."""
        read = Read.of(on_rows(plan.target, records)[1])
        read = read._replace(x=within(read.x, self.design(plan.num_records).row_bound))
        planned = self.clipped_at(plan.settings.get("clip_ratio", self.score.clip))
        found = _Releases(planned, plan, read).conclude(streams.noise)
        draws = found.draws(self.options.draws, streams)
        if self.score.size > 1:
            draws = draws.reshape(len(draws), read.x.shape[1], -1)
        return ReleasedDraws(draws, found.evidence)


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
        return self.strategy.releases(self.spec.adjacency)

    @functools.cached_property
    def sharing(self) -> Sharing:
        return Sharing.guessed(self.spec.num_records, self.strategy.together)

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
        released = _MIDWAY + _CURVATURE + _SPREAD + _SPREAD_TRACE
        return (
            _TRACE * (not declared)
            + _MEAN * strategy.sums_rows
            + COUNT_SHARE * (strategy.together > 1)
            + _OFFSET * (strategy.offset_bound is not None)
            + _SCALE * (strategy.scale is not None)
            + released * self.curvature
        )

    def gradient_mu(self, share: float) -> float:
        """Return μ of all gradients."""
        return self.mu * math.sqrt(1 - share - self.others)

    def width(self, share: float, score: BoundedScore) -> float:
        """Return the predicted width of an interval over that of the non-private posterior, mean over coordinates.

        It rests on a stand-in spectrum, since no record is read: the Gram matrix is a public one with trace N·b² and
        eigenvalues ∝ 1/j². Without a release of curvature its error is the curvature's.
        """
        strategy = self.strategy
        design = self.design._replace(num_records=self.sharing.num_rows)
        d = design.size
        scale = strategy.target.prior_scale**2
        rng = np.random.default_rng(0)
        spectrum = noise_aware.usual_spectrum(d, design.largest_trace)
        std = noise_aware.noise_left(
            self.gram(share).noise_std, strategy.options.structure
        )
        noisy = NoisyGram(
            np.diag(spectrum) + std * noise_aware.symmetric_noise(rng, d),
            std,
            design.largest_trace,
            0.0,
        )
        gram, error = denoised(noisy, None, rng=rng, bootstraps=_PREDICTED_BOOTSTRAPS)
        if self.curvature:
            floor = max(std * math.sqrt(2 * d) / design.num_records, _SMALLEST_FLOOR)
            design = design._replace(floor=min(floor, design.row_bound**2 / d))
            gram, error = np.diag(spectrum), np.zeros_like
        norm = design.whitened_norm(gram)
        predictors = scale * design.row_bound**2 / 2
        if isinstance(score, Huber):
            # Residuals are taken for a tenth of the label's range.
            score = Huber.of(1.65 * score.bound / 10, BOUND_QUANTILE)
        shared = self.sharing.scored(score)
        law, unbounded = (
            average_law(shared, predictors, limit) for limit in (score.clip, math.inf)
        )
        clip = _clip(score, norm, design)
        noise = (
            self.spec.moved / self.gradient_mu(share) * clip * self.sharing.typical
        ) ** 2 * design.metric(gram)
        local = Local(
            law.curvature * gram,
            law.score * gram,
            lambda q: 2 * law.curvature**2 * error(q),
        )
        # Bounds aside, information is the curvature squared over the score's variance.
        information = unbounded.curvature**2 / unbounded.score
        alone = np.diag(1 / (1 / scale + information * spectrum))
        return noise_aware.predicted(local, noise, np.eye(d) / scale, alone).width()

    def events(self, share: float, clip: float, width: float) -> Calibrated:
        """Return all charges in the order of the releases, and the settings."""
        strategy = self.strategy.clipped_at(clip)
        spec = self.spec
        adjacency = spec.adjacency
        gram = self.gram(share)
        design = strategy.design(
            spec.most_records, gram.noise_std if self.curvature else None
        )
        size = design.size * strategy.score.size
        parts = steps_of(strategy.options.steps)
        moves = spec.moved + 2 * design.rounding(strategy.finest)
        first = mu_std(moves, size, self.gradient_mu(share) * math.sqrt(parts[0]))
        settings = {
            "gram_share": share,
            "gram_noise_std": gram.noise_std,
            "trace_noise_std": gram.trace_std,
            "first_noise_multiplier": first,
            "predicted_width": width,
        }
        if not isinstance(strategy.score, Huber):
            settings["clip_ratio"] = clip
        events = [*spec.gram(gram)]
        if strategy.sums_rows:
            total = SumRelease.calibrate(
                strategy.rows(self.design), adjacency, self.mu * math.sqrt(_MEAN)
            )
            settings["sum_noise_std"] = total.noise_std
            events.append(total.event(adjacency))
        rows = design.num_records
        if strategy.offset_bound is not None:
            # (o, o²) of an offset o within ±1: |o − o'| <= 2 and |o² − o'²| <= 1.
            one = math.sqrt(5) if adjacency == Adjacency.REPLACE_ONE else math.sqrt(2)
            moved = strategy.together * one + 4 * summing(rows) * rows
            std = mu_std(moved, 2, self.mu * math.sqrt(_OFFSET))
            settings["offset_noise_std"] = std
            events.append(spec.gaussian(std, moved, 2))
        if strategy.together > 1:
            event, settings["count_noise_std"] = calibrate_counts(
                strategy.together, spec, self.mu * math.sqrt(COUNT_SHARE)
            )
            events.append(event)
        events += [spec.gaussian(z, moves, size) for z in multipliers(first, parts)]
        if strategy.scale is not None:
            scale = strategy.scale
            moved = strategy.together * scale.moved(adjacency)
            moved += 2 * summing(rows) * rows * math.sqrt(scale.size)
            if adjacency == Adjacency.ADD_REMOVE:
                moved += 2 * rows * scale.rounding(design.margin)
            for part, name in zip(_SCALE_PARTS, _SCALE_NAMES, strict=True):
                std = mu_std(moved, scale.size, self.mu * math.sqrt(_SCALE * part))
                settings[name] = std
                events.append(spec.gaussian(std, moved, scale.size))
        if self.curvature:
            bent, spread = strategy.moments(design, adjacency)
            for name, part in (("midway", _MIDWAY), ("curvature", _CURVATURE)):
                std = mu_std(
                    bent.moved(adjacency)[0],
                    entries(size),
                    self.mu * math.sqrt(part),
                )
                settings[f"{name}_noise_std"] = std
                events += spec.gram(GramRelease(bent, std, 0.0))
            release = GramRelease.calibrate(
                spread,
                adjacency,
                self.mu * math.sqrt(_SPREAD),
                self.mu * math.sqrt(_SPREAD_TRACE),
            )
            settings["spread_noise_std"] = release.noise_std
            settings["spread_trace_noise_std"] = release.trace_std
            events += spec.gram(release)
        return tuple(events), settings


def _clip(score: BoundedScore, norm: float, design: Design) -> float:
    """Return C of a score where a typical ‖F⁻¹x‖ is ``norm``."""
    if isinstance(score, Huber):
        return score.bound * longest_row(norm, design.longest)
    return score.clip * norm


def longest_row(norm: float, most: float) -> float:
    """Return R where a typical ‖F⁻¹x‖ is ``norm`` and no row is longer than ``most``."""
    return min(math.sqrt(_LONGEST * norm**2 + _MORE), most)


def last_gradients(settings: dict[str, float], steps: int) -> float:
    """Return the noise multiplier of the mean of the gradients that a posterior is made of."""
    z = multipliers(settings["first_noise_multiplier"], steps_of(steps))
    part = _LAST if "curvature_noise_std" in settings else _LAST_OF_NORMAL
    return float(np.sum(z[-math.ceil(part * steps) :] ** -2.0) ** -0.5)


class _Path(NamedTuple):
    """Gradients of one score, in their order: positions, gradients, and noise stds in the metric."""

    positions: list[np.ndarray]
    gradients: list[np.ndarray]
    stds: list[float]

    def mean(self, count: int, square: np.ndarray) -> GradientRelease:
        """Return the mean of the last ``count``, weighted by their precision."""
        return noise_aware.weighted_mean(
            np.array(self.positions[-count:]),
            np.array(self.gradients[-count:]),
            np.array(self.stds[-count:]) ** -2.0,
            square,
        )


class _Releases:
    """The releases in their order, and what follows from them; records are reached through ``access`` alone."""

    def __init__(self, strategy: Regression, plan: MechanismPlan, read: Read) -> None:
        self.strategy = strategy
        self.plan = plan
        self.read = read
        self.settings = plan.settings
        self.prior = strategy._prior()
        self.learnt = Learnt(strategy.score)

    def conclude(self, key: jax.Array) -> Concluded:
        """Release everything; return the posterior that follows."""
        strategy = self.strategy
        steps = strategy.options.steps
        self.keys = iter(jax.random.split(key, steps + 20))
        self._release_rows()
        scale = strategy.scale
        parts = steps_of(steps)
        z = multipliers(self.settings["first_noise_multiplier"], parts)
        released = "curvature_noise_std" in self.settings
        last = math.ceil((_LAST if released else _LAST_OF_NORMAL) * steps)
        whens = dict(
            zip(
                (*(int(p * steps) for p in _SCALES), steps - last),
                _SCALE_NAMES,
                strict=True,
            )
        )
        now = self.prior.gaussian
        path = _Path([], [], [])
        midway: Corrected | None = None
        for k in range(steps):
            at = within(now.mean[None], self.design.radius)[0]
            if scale is not None and k in whens:
                self._learn(scale, at, self.settings[whens[k]])
                path = _Path([], [], [])
            if released and k == int(_HALF * steps):
                midway = self._curvature("midway", at)
            access = self._access(at)
            path.positions.append(at)
            path.gradients.append(access.release(at, z[k], next(self.keys)))
            path.stds.append(access.clip * z[k])
            part = _FIRST if released else _LAST_OF_NORMAL
            count = min(math.ceil(part * len(path.stds)), last)
            now = self._next(path.mean(max(1, count), self.square), now, at, midway)
            console.report_steps(k + 1, steps)
        return self._concluded(path, last, now, released)

    # ------------------------------------------------------------------------------------------------
    # Rows, and the bounds that they set.

    def _release_rows(self) -> None:
        """Release G and what else is about rows alone; set the metric."""
        strategy = self.strategy
        settings = self.settings
        count = self.plan.num_records
        floored = "curvature_noise_std" in settings
        most = strategy.design(count, settings["gram_noise_std"] if floored else None)
        rows = strategy.rows(most)
        self.noisy = GramRelease(
            rows, settings["gram_noise_std"], settings["trace_noise_std"]
        ).release(self.read.x, next(self.keys))
        groups = strategy.options.group_effects
        if groups:
            alike = exchangeable(self.noisy.gram, groups)
            found = corrected(alike, self.noisy.gram, self.noisy.noise_std)
            self.gram = Denoised(found.matrix, found.error)
        else:
            self.gram = denoised(self.noisy, strategy.options.structure)
        row = mean_row(self.gram.gram, most.num_records, strategy.intercept)
        if strategy.sums_rows:
            total = SumRelease(rows, settings["sum_noise_std"])
            row = total.mean(self.read.x, next(self.keys))
        self.offset = (0.0, 0.0)
        if strategy.offset_bound is not None:
            self.offset = self._release_offsets(strategy.offset_bound, most.num_records)
        self.sharing = Sharing.guessed(count, 1)
        if strategy.together > 1:
            self.sharing = release_counts(
                self.read, strategy.together, settings["count_noise_std"], next(self.keys)
            )
        self.design = most._replace(num_records=self.sharing.num_rows)
        self.row = row * (most.num_records / self.design.num_records)
        self.metric = BoundedGradient.of(
            self.gram.gram, self.design, strategy.score, self.read.x, self.read.y
        )
        self.typical = self.metric.norm
        self.metric = dataclasses.replace(
            self.metric.shared(self.read.sharers, self.sharing.typical),
            offset=self.read.offset,
            own_weights=self.read.weights,
            present=self.read.present,
        )
        self.learnt = Learnt(
            strategy.score if strategy.scale is None else strategy.scale.first()
        )
        kronecker = np.eye(strategy.score.size)
        self.root = np.kron(self.metric.root, kronecker)
        self.inverse = np.kron(self.metric.inverse, kronecker)
        self.square = self.root @ self.root

    def _release_offsets(self, bound: float, count: int) -> tuple[float, float]:
        """Release the sums of offsets and of their squares; return their mean and variance."""
        each = np.clip(np.asarray(self.read.offset, np.float64) / bound, -1.0, 1.0)
        exact = weighted_sum(np.stack([each, each**2], axis=1), np.ones(len(each)))
        noisy = gaussian_release(
            exact, self.settings["offset_noise_std"], next(self.keys)
        )
        mean, square = np.clip(noisy / count, (-1.0, 0.0), 1.0)
        return bound * float(mean), bound**2 * max(0.0, float(square - mean**2))

    def _access(self, position: np.ndarray) -> BoundedGradient:
        """Return the access with the bounds that hold at a public position."""
        score = self.learnt.score
        clip = _clip(score, self.typical, self.design) * self.sharing.typical
        if "curvature_noise_std" not in self.settings:
            return dataclasses.replace(self.metric, score=score, bounds=Bounds(clip))
        longest = longest_row(self.typical, self.design.longest)
        leverage = score.leverage(clip, longest)
        if math.isinf(leverage):
            law = self._average(position)
            leverage = _LEVERAGE * clip * self.typical * math.sqrt(law.curvature)
        bounds = Bounds(clip, longest, leverage)
        return dataclasses.replace(self.metric, score=score, bounds=bounds)

    def _average(self, position: np.ndarray) -> AverageLaw:
        """Return the averages of the family's own score over normal predictors."""
        mean = float(self.row @ position)
        variance = float(position @ self.gram.gram @ position) / self.design.num_records
        return AverageLaw.at(
            self.learnt.score,
            mean + self.offset[0],
            max(variance - mean**2, 0.0) + self.offset[1],
            math.inf,
        )

    def _known(self) -> ScoredRows:
        """Return what normal rows make of the score."""
        kind = ScoredRows if self.strategy.score.size == 1 else SeveralPredictors
        score = self.learnt.score
        return kind(
            self.sharing.scored(score),
            self.gram.gram,
            self.design.num_records,
            self.row,
            score.clip,
            self.gram.error,
            self.offset,
        )

    # ------------------------------------------------------------------------------------------------
    # Releases at a position.

    def _learn(self, scale: Scale, position: np.ndarray, noise_std: float) -> None:
        """Release what the score has to know of its labels."""
        exact = self._access(position).labels(position, scale.statistic)
        noisy = gaussian_release(exact, noise_std, next(self.keys))
        self.learnt = scale.learnt(
            noisy, noise_std, self.learnt.score, self.design.num_records
        )

    def _curvature(self, name: str, position: np.ndarray) -> Corrected:
        """Release the curvature; return it in the metric."""
        access = self._access(position)
        std = self.settings[f"{name}_noise_std"]
        noisy = self._noisy(access.curvature(position), std)
        most = access.public.leverage
        model = self.inverse @ self._known().local(position).curvature @ self.inverse
        return corrected(model, most * noisy, most * std)

    def _noisy(self, exact: np.ndarray, std: float) -> np.ndarray:
        """Return a second moment with noise."""
        return symmetric(gaussian_release(svec(exact), std, next(self.keys)), len(exact))

    def _spread(self, position: np.ndarray, curvature: Corrected) -> Corrected:
        """Release the spread of scores; return B in the metric."""
        access = self._access(position)
        exact = (
            access.spread(position, self.plan.num_records)
            if self.strategy.options.covariance == "sandwich"
            else access.expected_spread(position)
        )
        std = self.settings["spread_noise_std"]
        noisy = self._noisy(exact, std)
        trace = gaussian_release(
            np.array([np.trace(exact)]),
            self.settings["spread_trace_noise_std"],
            next(self.keys),
        )[0]
        most = access.clip**2
        # The shape of the curvature, with the trace that was released.
        local = self._known().local(position)
        expected = float(np.trace(local.score) / np.trace(local.curvature))
        least = _LEAST_RATIO * expected * float(np.trace(curvature.matrix))
        model = curvature.matrix * (max(most * trace, least) / np.trace(curvature.matrix))
        return corrected(model, most * noisy, most * std)

    # ------------------------------------------------------------------------------------------------
    # What follows.

    def _in_metric(
        self, found: Corrected
    ) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Return a matrix and its error in the coefficients' own coordinates."""
        root = self.root
        return (
            root @ found.matrix @ root,
            lambda q: root @ found.error(root @ q @ root) @ root,
        )

    def _next(
        self,
        release: GradientRelease,
        now: Gaussian,
        at: np.ndarray,
        midway: Corrected | None,
    ) -> Gaussian:
        """Return the posterior given the gradients so far, no farther from ``at`` than predictors may move."""
        rough = dataclasses.replace(
            self._known(),
            error=noise_aware.isotropic_error(self.settings["gram_noise_std"]),
        )
        local = rough.local(now.mean)
        if midway is not None:
            # By as much as it differed from normal rows midway, it is taken to differ here.
            turn = self.root @ midway.turn @ self.inverse
            _, error = self._in_metric(midway)
            local = local._replace(
                curvature=turn @ local.curvature @ turn.T, curvature_error=error
            )
        prior = self.prior.best(release, local, now)
        found = prior.moved(
            noise_aware.posterior(
                prior.about_zero(release),
                local,
                prior.precision,
                now._replace(mean=now.mean - prior.means),
                rounds=2,
            )
        )
        step = (found.mean - at).reshape(self.design.size, -1)
        size = math.sqrt(
            max(0.0, float(np.sum(step * (self.gram.gram @ step))))
            / self.design.num_records
        )
        part = min(1.0, self.learnt.score.step / max(size, 1e-300))
        return found._replace(mean=at + part * (found.mean - at))

    def _concluded(
        self, path: _Path, last: int, now: Gaussian, released: bool
    ) -> Concluded:
        """Release curvature and spread where the gradients end; return the posterior."""
        at = within(now.mean[None], self.design.radius)[0]
        known = self._known()
        count = self.design.num_records
        release = path.mean(last, self.square)
        positions = np.array(path.positions[-last:])
        weights = np.array(path.stds[-last:]) ** -2.0
        weights = weights / weights.sum()
        doubts = [*self.learnt.doubts]
        fixed: Local | None = None
        turn = np.eye(len(at))
        if released:
            found = self._curvature("curvature", at)
            turn = self.root @ found.turn @ self.inverse
            matrix, error = self._in_metric(found)
            spread = self._spread(at, found)
            fixed = Local(matrix, self.root @ spread.matrix @ self.root, error)
            skewed = abs(self.learnt.shift) > _CLEAR * math.sqrt(
                self.learnt.shift_variance
            )
            if skewed and spread.deviation > _UNEVEN:
                doubts.append(_SKEWED)
            if self.learnt.shift_variance:
                along = known.shifted(at)
                release = release._replace(
                    gradient=release.gradient - self.learnt.shift * along,
                    noise=release.noise
                    + self.learnt.shift_variance * np.outer(along, along),
                )
            if found.uncertainty > _UNSURE:
                doubts.append(
                    f"the curvature is known to {found.uncertainty:.0%} in its weakest direction, which is mostly noise"
                )

        def law(posterior: Gaussian) -> tuple[GradientRelease, Local]:
            local = known.local(posterior.mean)
            if fixed is None:
                return release, local
            # By as much as it differed from normal rows where it was released, it differs here.
            local = fixed._replace(curvature=turn @ local.curvature @ turn.T)
            beyond = known.beyond(positions, weights, posterior.mean)
            return release._replace(gradient=release.gradient - beyond), local

        concluded = self.prior.concluded(law, now, count)
        covariance = concluded.posterior.covariance
        away = release.position - at
        far = math.sqrt(float(away @ np.linalg.solve(covariance, away)) / len(away))
        if far > _FAR:
            doubts.append(
                f"gradients end {far:.2g} posterior standard deviations from where they were on average"
            )
        evidence = dataclasses.replace(
            concluded.evidence,
            gram=self.noisy,
            structure=self.strategy.options.structure,
            doubts=tuple(doubts),
        )
        return concluded._replace(evidence=evidence)
