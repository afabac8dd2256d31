r"""Releases of a regression with a bounded score, and how they share the budget; all of it is public.

With ‖x‖ <= b enforced on every row, each release is a Gaussian one of a sum over records at a public position:

1. the Gram matrix G = Σ x xᵀ and, unless it is declared, its trace: a metric F and the bounds that hold in it. A family
   whose curvature rests on the mean row gets Σ x too, where no intercept is declared in whose column G has it;
2. where the curvature is released, the second moment of rows again, whitened by F. Both make the metric F of
   everything below (``metric.py``);
3. K gradients of all records (``gradients.py``). Later ones get more of the budget. Each is taken at the posterior's
   mean given those before it (``descent.py``), or where a sampler's step leads (``langevin.py``). The posterior rests
   on the last two fifths, which have nine tenths of their budget;
4. three times on the way the scale of labels (``scale.py``), where the score has one that is not declared. It, or the
   path midway, says how far out labels can be clipped at little cost (``clipping.py``);
5. where the gradients end, their curvature H and the spread B of scores.

Rows taken as normal give H and B for nothing, and are .2 to .5 off where rows are not normal. The releases correct them
as far as noise lets them (``inference/corrected_matrix.py``). Beyond :data:`MOST_RELEASED` numbers a release would be
noise: nothing of 2 and 5 is released, and H has the error of the Gram matrix alone.

B is of the scores themselves (``covariance: sandwich``) or of what the model says of them (``model``). With the first,
intervals are for the parameter θ* at which the mean score is zero, whether or not the model is true (Huber 1967, White
1982): the best-fitting coefficients.

``regression_width.py`` predicts how wide intervals will be, and ``regression_run.py`` carries the plan out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.mechanisms.noise_aware.clipping import with_clip
from dpmcmc.mechanisms.noise_aware.dispersion import Dispersion
from dpmcmc.mechanisms.noise_aware.gradients import Design
from dpmcmc.mechanisms.noise_aware.metric import floor_of
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.mechanisms.noise_aware.owners import counts_moved
from dpmcmc.mechanisms.noise_aware.prior import Prior
from dpmcmc.mechanisms.noise_aware.release import (
    FIRST_GRADIENT,
    Release,
    below,
    calibrated,
    moment,
    multipliers,
    shares,
    trace,
)
from dpmcmc.mechanisms.noise_aware.residuals import Residuals
from dpmcmc.mechanisms.noise_aware.strategy import Calibrated
from dpmcmc.mechanisms.one_shot import PrivacySpec
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.query.gram_release import RowFacts
from dpmcmc.targets.base import require_bound
from dpmcmc.targets.generalised_linear import GeneralisedLinear

#: Most numbers d·K whose curvature is released; a release for more would be noise (docs/uncertainty.md).
MOST_RELEASED = 100
#: Gradients that the position settles in, at least.
FEWEST_STEPS = 16
#: Part of the gradients that a posterior is made of, where a curvature is released and where none is. A position is
#: made of the same part of those before it.
_LATEST_PART, _LATEST_PART_OF_NORMAL_ROWS = 0.4, 0.6
#: By how much the budget of a gradient grows over a quarter of the path.
_GROWTH_OVER_A_QUARTER = 4.8
#: Parts of the gradients before which a scale is released the first and the second time, and part of a scale's budget
#: that each of the three times has.
_SCALE_STARTS, _SCALE_PARTS = (0.25, 0.45), (0.15, 0.15, 0.7)
#: Part of the gradients before the path says how far out labels can be clipped, where no scale is learnt.
_CLIP_START = 0.5

#: Names of noise stds in the settings.
GRAM, WHITENED, CURVATURE = ("gram_noise_std", "trace_noise_std"), "whitened_noise_std", "curvature_noise_std"
ROW_SUM, OFFSETS, OWNERS = "sum_noise_std", "offset_noise_std", "count_noise_std"
SCALES = ("early_scale_noise_std", "middle_scale_noise_std", "scale_noise_std")
SPREAD = ("spread_noise_std", "spread_trace_noise_std")
#: Shares of μ²: of one number or a few (the trace of G, the sum of rows, offsets, counts of owners), and of a scale.
_SHARE_OF_FEW, _SHARE_OF_SCALE = 0.01, 0.07


class _Shares(NamedTuple):
    """Shares of μ² where a curvature is released.

    Attributes:
        gram: of the Gram matrix.
        whitened: of the rows' second moment in the metric of the first.
        curvature: of H.
        spread: of B.
        spread_trace: of its trace.
    """

    gram: float
    whitened: float
    curvature: float
    spread: float
    spread_trace: float


#: Shares by the most coefficients that have them. The few numbers of a small metric take little, and where records are
#: few an interval follows from H as much as from the gradients.
_SHARES_BY_SIZE = (
    (3, _Shares(0.05, 0.03, 0.1, 0.015, 0.01)),
    (10, _Shares(0.1, 0.05, 0.08, 0.03, 0.01)),
    (30, _Shares(0.2, 0.05, 0.08, 0.03, 0.01)),
    (MOST_RELEASED, _Shares(0.3, 0.05, 0.08, 0.03, 0.01)),
)
#: Candidates for the Gram matrix' share of μ² where no curvature is released.
_GRAM_SHARES = (0.2, 0.3, 0.4, 0.5)


class Budget(NamedTuple):
    """The releases of a run in the order in which they are charged, and μ² shared among them.

    Attributes:
        mu: μ of all releases.
        releases: all of them.
        gradients_share: part of μ² of all gradients together, which is what the others leave.
    """

    mu: float
    releases: tuple[Release, ...]
    gradients_share: float

    def calibrated(self, spec: PrivacySpec) -> Calibrated:
        """Return the events of all releases, and their noise stds by name."""
        events, stds = calibrated(self.releases, self.mu, spec)
        return events, {"gram_share": self.releases[0].share, **stds}

    @property
    def stds(self) -> dict[str, float]:
        """Noise std of each release, by name."""
        return {one.name: one.std(self.mu) for one in self.releases}


@dataclass(frozen=True)
class RegressionPlan:
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
    scale: Residuals | Dispersion | None = None
    together: int = 1

    def clipped_at(self, clip: float) -> Self:
        """Return the facts with another κ."""
        return dataclasses.replace(self, score=with_clip(self.score, clip))

    @functools.cached_property
    def prior(self) -> Prior:
        """The prior of the coefficients."""
        return Prior.of(self.options, self.target, self.score.size)

    @property
    def has_curvature(self) -> bool:
        """Whether curvature and spread are released."""
        return self.prior.size <= MOST_RELEASED

    @property
    def intercept(self) -> int | None:
        """Column of the declared intercept."""
        return None if self.options.structure is None else self.options.structure.constant

    @property
    def sums_rows(self) -> bool:
        """Whether Σ x is released."""
        return self.score.needs_mean_row and self.intercept is None

    @property
    def hidden(self) -> bool:
        """Whether noise hides most eigenvalues of the rows' second moment, and nothing else tells of its shape.

        It is released once, in many columns. Levels of a column leave many entries empty, which a projection knows.
        """
        structure = self.options.structure
        return not self.has_curvature and (structure is None or not structure.blocks)

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

    def rows(self, design: Design) -> RowFacts:
        """Return the public facts of the Gram matrix."""
        structure = self.options.structure
        unit_norm = structure is not None and structure.unit_norm
        return RowFacts(design.num_records, design.size, design.row_bound, unit_norm, self.together)

    # The gradients.

    @property
    def latest_part(self) -> float:
        """Part of the gradients that a position and the posterior are made of."""
        return _LATEST_PART if self.has_curvature else _LATEST_PART_OF_NORMAL_ROWS

    @property
    def latest(self) -> int:
        """Number of the gradients that the posterior is made of."""
        return math.ceil(self.latest_part * self.options.steps)

    @property
    def lessons(self) -> dict[int, str]:
        """Gradients before which the score learns of its labels: number -> name of the scale's noise; "" of no scale.

        Each is at a gradient of its own, however few there are.
        """
        steps = self.options.steps
        if not self.has_curvature:
            return {}
        if self.scale is None:
            return {int(_CLIP_START * steps): ""}
        last = steps - self.latest
        early, middle = (min(int(part * steps), last - left) for part, left in zip(_SCALE_STARTS, (2, 1), strict=True))
        return dict(zip((early, middle, last), SCALES, strict=True))

    @property
    def legs(self) -> list[tuple[range, str | None]]:
        """Gradients from one lesson to the next, and the name of the lesson after them; None: there is none.

        Where gradients are few, a lesson may come before the first of them.
        """
        steps = self.options.steps
        after = {steps - self.latest: None, steps: None} | self.lessons
        return [(range(start, stop), after[stop]) for start, stop in itertools.pairwise([0, *sorted(after)])]

    @property
    def gradient_parts(self) -> np.ndarray:
        """Part of all gradients' μ² that each of them gets, (steps,).

        A sampler keeps one temperature only under noise of one size. So its gradients get as much as each other from
        one lesson to the next.
        """
        steps = self.options.steps
        parts = shares(steps, _GROWTH_OVER_A_QUARTER ** (4 / max(4, steps)))
        if self.options.sampler is None:
            return parts
        return np.concatenate([np.full(len(leg), np.mean(parts[leg])) for leg, _ in self.legs if leg])

    def last_gradients(self, settings: dict[str, float]) -> float:
        """Return the noise multiplier of the mean of the gradients that the posterior is made of."""
        z = multipliers(settings[FIRST_GRADIENT], self.gradient_parts)
        return float(np.sum(z[-self.latest :] ** -2.0) ** -0.5)

    # The releases.

    @property
    def gram_shares(self) -> tuple[float, ...]:
        """Candidates for the Gram matrix' share of μ²."""
        if self.options.gram_share is not None:
            return (self.options.gram_share,)
        return (self._shares.gram,) if self.has_curvature else _GRAM_SHARES

    @property
    def _shares(self) -> _Shares:
        return next(shares for most, shares in _SHARES_BY_SIZE if self.prior.size <= most)

    def budget(self, spec: PrivacySpec, gram_share: float) -> Budget:
        """Return the releases in the order in which they are charged."""
        design = self.design(spec.most_records)
        size = self.prior.size
        adjacency = spec.adjacency
        rows = self.rows(design)
        few = self._few(spec, design, rows)
        scale = self._scale(adjacency)
        whitened: list[Release] = []
        ends: list[Release] = []
        if self.has_curvature:
            whitened, ends = self.of_curvature(rows, adjacency)
        of_rows = (moment(GRAM[0], rows, adjacency, gram_share), *few, *whitened)
        of_labels = (*scale, *ends)
        left = 1 - sum(one.share for one in (*of_rows, *of_labels))
        parts = self.gradient_parts
        gradients = Release(FIRST_GRADIENT, spec.moved, size, left * parts[0], parts)
        return Budget(below(spec.mu), (*of_rows, gradients, *of_labels), left)

    def of_curvature(self, rows: RowFacts, adjacency: Adjacency) -> tuple[list[Release], list[Release]]:
        """Return the second release of rows, and those where gradients end."""
        # Rows within 1, m of an owner; an owner's summed score is within 1.
        shares = self._shares
        whitened = rows._replace(row_bound=1.0)
        curved = whitened._replace(size=self.prior.size)
        scores = curved._replace(together=1)
        ends = [
            moment(CURVATURE, curved, adjacency, shares.curvature),
            moment(SPREAD[0], scores, adjacency, shares.spread),
            trace(SPREAD[1], scores, adjacency, shares.spread_trace),
        ]
        return [moment(WHITENED, whitened, adjacency, shares.whitened)], ends

    def _few(self, spec: PrivacySpec, design: Design, rows: RowFacts) -> list[Release]:
        """Return releases of one number of rows, or of a few."""
        adjacency = spec.adjacency
        declared = rows.trace_declared(adjacency)
        found = [trace(GRAM[1], rows, adjacency, 0.0 if declared else _SHARE_OF_FEW)]
        if self.sums_rows:
            moved = spec.moved * self.together * design.row_bound
            found.append(Release(ROW_SUM, moved, design.size, _SHARE_OF_FEW))
        if self.target.offset_bound is not None:
            # (o, o²) of an offset o within ±1: |o − o'| <= 2 and |o² − o'²| <= 1.
            moved = self.together * math.sqrt(5 if adjacency == Adjacency.REPLACE_ONE else 2)
            found.append(Release(OFFSETS, moved, 2, _SHARE_OF_FEW))
        if self.together > 1:
            found.append(Release(OWNERS, counts_moved(adjacency), self.together, _SHARE_OF_FEW))
        return found

    def _scale(self, adjacency: Adjacency) -> list[Release]:
        """Return the releases of the scale of labels."""
        scale = self.scale
        if scale is None:
            return []
        moved = self.together * scale.moved(adjacency)
        parts = zip(SCALES, _SCALE_PARTS, strict=True)
        return [Release(name, moved, scale.size, _SHARE_OF_SCALE * part) for name, part in parts]


def releases_curvature(settings: dict[str, float]) -> bool:
    """Return whether a plan with these settings releases a curvature."""
    return CURVATURE in settings
