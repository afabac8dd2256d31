"""Predicted width and accuracy of a noise-aware release, before any record is read.

Parameters come from the prior and rows from simulated designs. The noisy second moment of the rows is simulated too.
The release of the gradient then has the covariance that ``docs/uncertainty.md`` derives. This gives the posterior's
covariance S with the noise of privacy, and S₀ without it, for the same rows and prior. The release is taken as the
labels' own posterior plus noise: m ~ N(0, P⁻¹ − S), m₀ ~ N(m, S − S₀) and θ ~ N(m₀, S₀), so that θ ~ N(0, P⁻¹). The
loss of accuracy is that of predicting with m instead of m₀.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmcmc.data.structure import RowStructure, contrasts
from dpmcmc.estimators.simulated_rows import REAL, SimulatedDesign, simulated_rows
from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.denoised_moment import Denoised, denoised, error_of_noise, shrunk
from dpmcmc.inference.linear_score import Huber
from dpmcmc.inference.normal_law import Local, isotropic_error, symmetric_noise
from dpmcmc.inference.predicted_width import Predicted, predicted, variances
from dpmcmc.mechanisms.noise_aware.clipping import ScoreSums, candidates, clipped_off, widest_affordable, with_clip
from dpmcmc.mechanisms.noise_aware.expected_metric import ExpectedMetric
from dpmcmc.mechanisms.noise_aware.gradients import Design
from dpmcmc.mechanisms.noise_aware.metric import clip_of
from dpmcmc.mechanisms.noise_aware.residuals import BOUNDS_IN_STD
from dpmcmc.privacy.query.gram_release import NoisyGram

#: Simulated errors of the second moment.
_BOOTSTRAPS = 4
#: Most columns of which a projection gives the error of the second moment, and most of a rough outlook; beyond them it
#: would take minutes, and the error is taken as isotropic.
_MANY, _FEW = 200, 20
#: Draws of θ that an accuracy is averaged over.
_DRAWS = 40
#: Factor between designs beyond which a range is printed instead of one number.
_FACTOR = 1.5
#: Predicted width from which more cannot be said before the release; how much stronger effects are taken beside the
#: usual ones, and by what part that has to widen intervals to be said.
_LITTLE, STRONG, _WIDENED = 2.0, 4.0, 1.2


class ReleaseNoise(NamedTuple):
    """Noise of a release.

    Attributes:
        gram: std of a diagonal entry of the second moment.
        gradient: std of the mean gradient, in units of the clip norm; of the statistics of a linear regression, whose
            gradient is not clipped, in units of the gradient.
        clip: κ of the plan; None: that of the score.
        released: std of a diagonal entry of the second moment in its metric, and of the curvature where gradients end,
            over their bounds; None: neither is released, and the curvature has the error of the second moment.
        learnt: bound of a linear regression's score, in standard deviations of residuals, whose scale it learns; None:
            it does not.
    """

    gram: float
    gradient: float
    clip: float | None = None
    released: tuple[float, float] | None = None
    learnt: float | None = None


class Outlook(NamedTuple):
    """Predictions for one design.

    Attributes:
        covariances: S and S₀, (d, d).
        prior: variances of the prior, (d,).
        rows: simulated, (n, d).
        contrasts: of coefficients, (k, d); see :func:`~dpmcmc.data.structure.contrasts`.
    """

    covariances: Predicted
    prior: np.ndarray
    rows: np.ndarray
    contrasts: np.ndarray

    @property
    def width(self) -> float:
        """Mean over contrasts of an interval's width over that without privacy: same rows, same prior, no noise."""
        return self.covariances.width(self.contrasts)

    @property
    def learned(self) -> float:
        """Share of the prior's variance that the release removes, mean over contrasts."""
        private = variances(self.covariances.private, self.contrasts)
        return float(np.mean(1 - private / variances(np.diag(self.prior), self.contrasts)))

    def accuracy_lost(self, score: BoundedScore, rng: np.random.Generator) -> np.ndarray:
        """Return the loss of a binary model's expected accuracy that is due to privacy, (draws,).

        For each draw the private mean m, the mean m₀ without privacy and the truth are drawn, each around the one
        before.
        """
        size = (len(self.prior), _DRAWS)
        of_private, of_alone = self.covariances
        private = _root(np.diag(self.prior) - of_private) @ rng.normal(size=size)
        alone = private + _root(of_private - of_alone) @ rng.normal(size=size)
        p = score.mean(self.rows @ (alone + _root(of_alone) @ rng.normal(size=size)))  # type: ignore[attr-defined]
        right = [np.where(self.rows @ known > 0, p, 1 - p).mean(axis=0) for known in (private, alone)]
        return right[1] - right[0]


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))


@dataclass(frozen=True, eq=False)
class OutlookFacts:
    """Public facts that an outlook rests on.

    Attributes:
        score: of the model's family.
        scales: standard deviations of the prior, (d,).
        row_bound: bound on ‖x‖.
        structure: of the rows, or None.
        truths: standard deviations that simulated parameters have, (d,); None: those of the prior.
        strength: factor of the simulated parameters beside.
    """

    score: BoundedScore
    scales: np.ndarray
    row_bound: float
    structure: RowStructure | None
    truths: np.ndarray | None = None
    strength: float = 1.0

    @functools.lru_cache(maxsize=8)  # noqa: B019  # a question lives as long as one suggestion
    def _simulated(self, design: SimulatedDesign) -> tuple[np.ndarray, np.ndarray]:
        """Return rows (n, d) of a design, and a parameter (d,) from the prior, scaled so that predictors have their
        expected spread."""
        rng = np.random.default_rng(0)
        rows = simulated_rows(design, len(self.scales), self.row_bound, self.structure, rng)
        scales = self.scales if self.truths is None else self.truths
        truth = scales * rng.normal(size=len(scales))
        expected = math.sqrt(np.mean((rows * scales) ** 2) * len(scales))
        if not math.isfinite(self.score.clip):  # the prior ignores that labels are bounded
            expected = min(expected, math.sqrt(self.score.dispersion))  # type: ignore[attr-defined]
        return rows, truth * self.strength * expected / max(float(np.sqrt(np.mean((rows @ truth) ** 2))), 1e-12)

    def outlook(
        self,
        design: SimulatedDesign,
        num_records: int,
        noise: ReleaseNoise,
        rough: bool = False,
    ) -> Outlook:
        """Return the predictions for a release with this noise.

        Args:
            design: of the rows.
            num_records: N.
            noise: of the release.
            rough: take the error of the second moment as isotropic beyond few columns, which saves most of the time.
                Beyond many columns it is isotropic in any case.
        """
        rows, truth = self._simulated(design)
        size = len(truth)
        each = num_records / len(rows)
        eta = rows @ truth
        precision = np.diag(self.scales**-2.0)

        # Without privacy: the model's own curvature and score.
        spread = design.noise**2 if noise.learnt else 1.0
        free = self.score.law(eta, math.inf)
        curvature = each * _second_moment(rows, free.curvature)
        alone = np.linalg.inv(precision + curvature / spread)

        if not (noise.learnt or math.isfinite(self.score.clip)):
            return self._of_statistics(rows, truth, num_records, noise, design, alone, rough)
        metric = self._metric(each * rows.T @ rows, num_records, noise, REAL.index(design) + 1, rough)
        offered, sums, means = self._scores(noise, design.noise), [], []
        for score in offered:
            law = score.law(eta, score.limit)
            clip = clip_of(score, metric.norm, metric.longest)
            sums.append(
                ScoreSums(
                    each * _second_moment(rows, law.curvature),
                    each * _second_moment(rows, law.variance),
                    (noise.gradient * clip) ** 2 * metric.square,
                    clipped_off(score.mean_beyond, metric.gram, num_records) if isinstance(score, Huber) else None,
                )
            )
            means.append(float(np.mean(law.curvature)))
        number = widest_affordable(sums, self.score, num_records)
        chosen, score = sums[number], offered[number]
        total = chosen.noise
        if chosen.clipped_off is not None:
            total = total + chosen.clipped_off / metric.norm**2
        clip = clip_of(score, metric.norm, metric.longest)
        local = metric.local(chosen.curvature, chosen.spread, score, clip, means[number], total, precision, num_records)
        covariances = predicted(local, total, precision, alone)
        return Outlook(covariances, self.scales**2, rows, contrasts(self.structure, size))

    def _metric(
        self,
        moment: np.ndarray,
        num_records: int,
        noise: ReleaseNoise,
        seed: int,
        rough: bool,
    ) -> ExpectedMetric:
        """Return the metric of rows with this second moment, (d, d)."""
        if noise.released is None:
            design = Design(num_records, len(moment), self.row_bound, math.inf)
            return ExpectedMetric.of_one_release(self._denoised(moment, noise, seed, rough), design)
        own = error_of_noise(NoisyGram(moment, noise.gram, float(np.trace(moment)), 0.0), self.structure)
        stds = (noise.gram, *noise.released)
        return ExpectedMetric.of_two_releases(moment, stds, num_records, self.row_bound, own)

    def _scores(self, noise: ReleaseNoise, std: float) -> tuple[BoundedScore, ...]:
        """Return the scores of which the release takes one."""
        if noise.learnt:
            std = std * math.sqrt(self.score.dispersion)  # type: ignore[attr-defined]
            return tuple(Huber.of(std, bound) for bound in BOUNDS_IN_STD)
        if noise.released is not None:
            return candidates(self.score)
        clip = noise.clip or self.score.clip
        return (with_clip(self.score, clip),)

    def _of_statistics(
        self,
        rows: np.ndarray,
        truth: np.ndarray,
        num_records: int,
        noise: ReleaseNoise,
        design: SimulatedDesign,
        alone: np.ndarray,
        rough: bool,
    ) -> Outlook:
        """Return the predictions for a release of XᵀX and Xᵀy, whose gradient is taken at 0."""
        size = len(truth)
        moment = num_records / len(rows) * rows.T @ rows
        gram, error = self._denoised(moment, noise, REAL.index(design) + 1, rough)
        curved = 1 / self.score.dispersion  # type: ignore[attr-defined]
        at = np.outer(truth, truth)
        local = Local(curved * gram, curved * moment, lambda q: curved**2 * error(q + at))
        variance = np.eye(size) * noise.gradient**2
        precision = np.diag(self.scales**-2.0)
        covariances = predicted(local, variance, precision, alone)
        return Outlook(covariances, self.scales**2, rows, contrasts(self.structure, size))

    def _denoised(self, moment: np.ndarray, noise: ReleaseNoise, seed: int, rough: bool) -> Denoised:
        """Return the estimate of a second moment of rows from a simulated release of it."""
        size = len(moment)
        noisy = moment + noise.gram * symmetric_noise(np.random.default_rng(seed), size)
        known = NoisyGram(noisy, noise.gram, float(np.trace(moment)), 0.0)
        if not math.isfinite(self.score.clip):
            known = shrunk(known._replace(trace=max(float(np.trace(noisy)), noise.gram)))
        if size > (_FEW if rough else _MANY):
            return Denoised(moment, isotropic_error(noise.gram / 2))
        return denoised(known, self.structure, bootstraps=_BOOTSTRAPS)

    def strong_width(self, num_records: int, noise: ReleaseNoise) -> float:
        """Return the predicted width where effects are :data:`STRONG` times as strong, in the middle design."""
        strong = dataclasses.replace(self, strength=STRONG)
        return strong.outlook(REAL[2], num_records, noise, rough=True).width

    def outlooks(self, num_records: int, noise: ReleaseNoise, rough: bool = False) -> list[Outlook]:
        """Return the outlook of every design, or for many columns of the third one alone."""
        designs = REAL if len(self.scales) <= _MANY else REAL[2:3]
        return [self.outlook(design, num_records, noise, rough) for design in designs]


def _second_moment(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return Σ w x xᵀ, (d, d)."""
    return (rows * weights[:, None]).T @ rows


def mean_width(outlooks: list[Outlook]) -> float:
    """Return the geometric mean of the designs' widths; the first and the last of several are extremes."""
    real = outlooks[1:-1] or outlooks
    return math.exp(float(np.mean([math.log(one.width) for one in real])))


def width_line(outlooks: list[Outlook], strong: float) -> str:
    """Return the predicted width of intervals in words.

    Args:
        outlooks: of the designs.
        strong: predicted width where effects are strong; only the release tells whether they are.
    """
    typical = mean_width(outlooks)
    widths = [one.width for one in outlooks]
    low = min(widths)
    high = max(widths)
    if high <= _FACTOR * typical and typical <= _FACTOR * low:
        said = f"predicted about {typical:.3g} times as wide as without privacy ({low:.3g} to {high:.3g}"
    else:
        said = f"predicted between {low:.3g} and {high:.3g} times as wide as without privacy ({typical:.3g} typically"
    said = f"intervals: {said}, by how much of their ranges columns fill): same table, same prior, no noise"
    if typical > _LITTLE:
        said += "; the release tells so little that they may be several times as wide as that"
    elif strong > _WIDENED * typical:
        said += f"; about {strong:.3g} times where effects are {STRONG:g} times as strong as usual"
    return said


def accuracy_line(outlooks: list[Outlook], score: BoundedScore) -> str:
    """Return the predicted loss of a binary model's accuracy in words."""
    rng = np.random.default_rng(0)
    lost = 100 * np.concatenate([one.accuracy_lost(score, rng) for one in outlooks])
    mean = float(np.mean(lost))
    error = float(np.std(lost) / math.sqrt(len(lost)))
    if mean < max(0.1, 2 * error):
        return f"accuracy: less than {max(0.1, mean + 2 * error):.1g} points below that without privacy"
    return f"accuracy: about {mean:.2g} ± {2 * error:.1g} points below that without privacy, for truths from the prior"
