"""How far out labels are clipped: as far as costs little.

The further out, the nearer is an estimate to the one without privacy where the model is wrong, and the larger is the
noise. Candidates are compared by laws of a score's sum and of its noise, which normal rows or simulated ones make.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.count_score import CLIPS, Counts
from dpmcmc.inference.decompositions import eigh

#: Candidates for κ of a classifier's score; those of counts are CLIPS.
_CLASSIFIER_CLIPS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
#: By how much the variance under a clip further out may exceed that under the best one, in units of that without
#: privacy: in any case, for each unit that privacy adds under the best one, and at most.
_ALWAYS_AFFORDED, _AFFORDED_FOR_PRIVACY, _MOST_AFFORDED = 0.06, 3.0, 0.3
#: Number of records from which on all of this is afforded.
_RECORDS_THAT_SHOW_A_WRONG_MODEL = 20_000
#: How many times as much is afforded for counts, whose tails are longer than those of the law that centres their score.
_TIMES_FOR_COUNTS = 2.5
#: Part of the largest eigenvalue of a curvature below which a direction holds nothing.
_LEAST_EIGENVALUE = 1e-6
#: Relative standard deviation of the scale of errors from row to row, a public guess.
_STD_OF_ERROR_SCALES = 0.4


def with_clip(score: BoundedScore, clip: float) -> BoundedScore:
    """Return a score with another κ."""
    return dataclasses.replace(score, clip=clip)  # type: ignore[type-var]


def candidates(score: BoundedScore) -> tuple[BoundedScore, ...]:
    """Return the scores of a family that clip ever further out, the nearest first."""
    clips = CLIPS if isinstance(score, Counts) else _CLASSIFIER_CLIPS
    return tuple(with_clip(score, clip) for clip in clips)


class ScoreSums(NamedTuple):
    """Laws of a score's sum and of its noise.

    Attributes:
        curvature: H, (k, k).
        spread: B, (k, k).
        noise: V, (k, k).
        clipped_off: of :func:`clipped_off`, (k, k); None: the score's mean at the truth is zero.
    """

    curvature: np.ndarray
    spread: np.ndarray
    noise: np.ndarray
    clipped_off: np.ndarray | None = None


def clipped_off(mean_size: float, gram: np.ndarray, num_rows: int) -> np.ndarray:
    r"""Return a bound on the covariance of Σ x (m(x) − E m), (d, d), m(x) what Huber's score clips off on average.

    Let o = |r| − c of a residual r beyond c, else 0. If the residuals of a row have the scale s and o the mean g(s),
    then d log g/d log s = E[|r|; |r| > c]/E[o]. So where errors are skewed to one side, m varies from row to row by
    v E[|r|; |r| > c], v the relative standard deviation of scales. With z = √N G^-½ x, Bessel's inequality says
    ‖E[z m]‖² <= E m². How scales vary with the rows is not released: v is public, and all of the variation is taken to
    lie along the rows. It may be that of any of their k directions, so a bound c is chosen as if it were that of each.
    The covariance that a posterior gets is a kth of it.

    Args:
        mean_size: E[|r|; |r| > c].
        gram: G, (d, d).
        num_rows: N.
    """
    return num_rows * (_STD_OF_ERROR_SCALES * mean_size) ** 2 * gram


def widest_affordable(sums: Sequence[ScoreSums], score: BoundedScore, num_records: int) -> int:
    """Return the number of the score that clips labels as far out as costs little.

    The cost is the geometric mean over directions of the variance of an estimate, over that without privacy. Where it
    holds what the score clips off residuals, the score of the least cost is taken.

    Args:
        sums: of scores that clip ever further out; the last one is taken for the score without privacy.
        score: one of them.
        num_records: N.
    """
    values, vectors = eigh(sums[-1].curvature)
    held = vectors[:, values > _LEAST_EIGENVALUE * values[-1]]

    def log_size(matrix: np.ndarray) -> float:
        return float(np.linalg.slogdet(held.T @ matrix @ held)[1]) / held.shape[1]

    alone = log_size(sums[-1].spread) - 2 * log_size(sums[-1].curvature)
    costs = []
    for one in sums:
        total = one.spread + one.noise
        if one.clipped_off is not None:
            total = total + one.clipped_off
        costs.append(math.exp(log_size(total) - 2 * log_size(one.curvature) - alone))
    least = min(costs)
    if sums[0].clipped_off is not None:
        return costs.index(least)
    most = affordable(least, score, num_records)
    return max(number for number, cost in enumerate(costs) if cost <= most)


def affordable(least: float, score: BoundedScore, num_records: int) -> float:
    """Return the variance that a clip further out may have, given that of the best; each over that without privacy."""
    added = max(least - 1, 0.0)
    # The error of a wrong model grows beside sampling noise as the root of N.
    shown = min(1.0, math.sqrt(num_records / _RECORDS_THAT_SHOW_A_WRONG_MODEL))
    if isinstance(score, Counts):
        shown *= _TIMES_FOR_COUNTS
    return max(least, 1.0) + min(_ALWAYS_AFFORDED + _AFFORDED_FOR_PRIVACY * added, _MOST_AFFORDED) * shown
