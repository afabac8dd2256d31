"""Public facts of a regression's release: the bounds of its rows, and the path of its gradients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.count_score import CLIPS, Counts
from dpmcmc.inference.decompositions import eigh
from dpmcmc.mechanisms.noise_aware.descent import multipliers, shares
from dpmcmc.mechanisms.noise_aware.gradients import Design
from dpmcmc.mechanisms.noise_aware.metric import floor_of
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.mechanisms.noise_aware.prior import Prior
from dpmcmc.mechanisms.noise_aware.scale import Scale
from dpmcmc.privacy.query.gram_release import RowFacts
from dpmcmc.targets.base import require_bound
from dpmcmc.targets.generalised_linear import GeneralisedLinear

#: Most numbers d·K whose curvature is released; a release for more would be noise (docs/uncertainty.md).
MOST_RELEASED = 100
#: Part of the gradients that the posterior is made of where a curvature is released and where none is, and of those
#: so far that a position is made of; by how much the budget of gradients grows over a quarter of them.
LAST, LAST_OF_NORMAL, FIRST, _GROWTH = 0.4, 0.6, 0.4, 4.8
#: Candidates for κ of a classifier's score; those of counts are CLIPS.
_CLIPS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
#: By how much the variance under a clip further out may exceed that under the best one, in units of that without
#: privacy: in any case, for each unit that privacy adds under the best one, and at most; from so many records on.
_CHEAP, _DEARER, _MOST, _MANY = 0.06, 3.0, 0.3, 20_000
#: How many times as much it may be for counts, whose tails are longer than those of the law that centres their score.
_COUNTS = 2.5
#: Part of the largest eigenvalue of a curvature below which a direction holds nothing.
_HELD = 1e-6
#: Relative standard deviation of the scale of errors from row to row.
_SCALES_VARY = 0.4


def steps_of(steps: int) -> np.ndarray:
    """Return the part of all gradients' μ² that each of them gets, (steps,)."""
    return shares(steps, _GROWTH ** (4 / max(4, steps)))


@dataclass(frozen=True)
class Facts:
    """Public facts of a regression, and the bounds that follow from them.

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

    @property
    def releases(self) -> bool:
        """Whether curvature and spread are released."""
        return self.prior.size <= MOST_RELEASED

    def clipped_at(self, clip: float) -> Self:
        """Return the facts with another κ."""
        return dataclasses.replace(
            self,
            score=dataclasses.replace(self.score, clip=clip),  # type: ignore[type-var]
        )

    def design(self, num_records: int, gram_noise_std: float | None = None) -> Design:
        """Return the public facts of the rows of records or owners, whose bounds are given.

        Args:
            num_records: N.
            gram_noise_std: σ of the Gram matrix where a curvature is released: the metric's floor is the size of its
                noise.
        """
        row = require_bound(self.target.row_bound, "row_bound", type(self.target).__name__)
        prior = self.prior
        size = prior.size // self.score.size
        rows = num_records * self.together
        floor = None
        if gram_noise_std is not None:
            floor = floor_of(gram_noise_std, rows, size, row)
        return Design(rows, size, row, prior.radius, floor)

    @property
    def prior(self) -> Prior:
        """The prior of the coefficients."""
        return Prior.of(self.options, self.target, self.score.size)

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

    @property
    def hidden(self) -> bool:
        """Whether noise hides most eigenvalues of the rows' second moment, and nothing else tells of its shape.

        It is released once, in many columns. Levels of a column leave many entries empty, which a projection knows.
        """
        structure = self.options.structure
        return not self.releases and (structure is None or not structure.blocks)

    def whitened(self, design: Design) -> RowFacts:
        """Return the public facts of rows in the metric, each scaled to be within 1."""
        return RowFacts(design.num_records, design.size, 1.0, together=self.together)

    def moments(self, design: Design) -> tuple[RowFacts, RowFacts]:
        """Return the public facts of curvature and spread, each of rows within 1."""
        size = design.size * self.score.size
        count = design.num_records
        return (
            RowFacts(count, size, 1.0, together=self.together),
            RowFacts(count, size, 1.0),
        )


def releases_curvature(settings: dict[str, float]) -> bool:
    """Return whether a plan with these settings releases a curvature."""
    return "curvature_noise_std" in settings


def further(score: BoundedScore) -> tuple[BoundedScore, ...]:
    """Return the scores of a family that clip ever further out, the nearest first."""
    clips = CLIPS if isinstance(score, Counts) else _CLIPS
    return tuple(
        dataclasses.replace(score, clip=clip)  # type: ignore[type-var]
        for clip in clips
    )


class Sums(NamedTuple):
    """Laws of a score's sum and of its noise.

    Attributes:
        curvature: H, (k, k).
        spread: B, (k, k).
        noise: V, (k, k).
        missed: bound of :func:`missed`, (k, k); None: the score's mean at the truth is zero.
    """

    curvature: np.ndarray
    spread: np.ndarray
    noise: np.ndarray
    missed: np.ndarray | None = None


def missed(beyond: float, gram: np.ndarray, num_rows: int) -> np.ndarray:
    r"""Return a bound on the covariance of Σ x (m(x) − E m), (d, d), m(x) what Huber's score leaves out on average.

    Let o = |r| − c of a residual r beyond c, else 0. If the residuals of a row have the scale s and o the mean g(s),
    then d log g/d log s = E[|r|; |r| > c]/E[o]. So where errors are skewed to one side, m varies from row to row by
    v E[|r|; |r| > c], v the relative standard deviation of scales. With z = √N G^-½ x, Bessel's inequality says
    ‖E[z m]‖² <= E m². How scales vary with the rows is not released: v is public, and all of the variation is taken to
    lie along the rows. It may be that of any of their k directions, so a bound c is chosen as if it were that of each.
    The covariance that a posterior gets is a kth of it.

    Args:
        beyond: E[|r|; |r| > c].
        gram: G, (d, d).
        num_rows: N.
    """
    return num_rows * (_SCALES_VARY * beyond) ** 2 * gram


def furthest(scores: Sequence[Sums], score: BoundedScore, num_records: int) -> int:
    """Return the number of the score that clips labels as far out as costs little.

    The cost is the geometric mean over directions of the variance of an estimate, over that without privacy. Where it
    holds what the score leaves out of residuals, the score of the least cost is taken.

    Args:
        scores: those that clip ever further out; the last one is taken for the score without privacy.
        score: one of them.
        num_records: N.
    """
    values, vectors = eigh(scores[-1].curvature)
    held = vectors[:, values > _HELD * values[-1]]

    def log_size(matrix: np.ndarray) -> float:
        return float(np.linalg.slogdet(held.T @ matrix @ held)[1]) / held.shape[1]

    alone = log_size(scores[-1].spread) - 2 * log_size(scores[-1].curvature)
    costs = []
    for one in scores:
        total = one.spread + one.noise
        if one.missed is not None:
            total = total + one.missed
        costs.append(math.exp(log_size(total) - 2 * log_size(one.curvature) - alone))
    if scores[0].missed is not None:
        return costs.index(min(costs))
    most = affordable(min(costs), score, num_records)
    return max(number for number, cost in enumerate(costs) if cost <= most)


def affordable(least: float, score: BoundedScore, num_records: int) -> float:
    """Return the variance that a clip further out may have, given that of the best; each over that without privacy.

    The further out, the nearer is the estimate to the one without privacy where the model is wrong.
    """
    dear = max(least - 1, 0.0)
    # The error of a wrong model grows beside sampling noise as the root of N.
    seen = min(1.0, math.sqrt(num_records / _MANY))
    if isinstance(score, Counts):
        seen *= _COUNTS
    return max(least, 1.0) + min(_CHEAP + _DEARER * dear, _MOST) * seen


def last_gradients(settings: dict[str, float], steps: int) -> float:
    """Return the noise multiplier of the mean of the gradients that a posterior is made of."""
    z = multipliers(settings["first_noise_multiplier"], steps_of(steps))
    part = LAST if releases_curvature(settings) else LAST_OF_NORMAL
    return float(np.sum(z[-math.ceil(part * steps) :] ** -2.0) ** -0.5)
