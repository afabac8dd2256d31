"""The metric of a regression's releases, which two releases of the rows' second moment make, and bounds in it.

    F₁² = Ĝ₁/N + floor·I,      F² = F₁ (Ŝ + stds of Ŝ) F₁ / N,      Ŝ from Ĝ₁ and from Σ min(1, R²/‖z‖²) z zᵀ, z = F₁⁻¹x

The noise of the first release is as large in a direction in which rows hardly vary as in any other. Where declared
ranges are wide beside the values, most directions are of this kind. In the metric of the first release those that it
saw are alike, and the others are far longer than they were, so that the noise of the second is small beside them.

Everything here follows from public facts and released numbers. A plan takes stand-in rows for the real ones
(``expected_metric.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmcmc.data.structure import RowStructure
from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.corrected_matrix import Corrected, corrected
from dpmcmc.inference.curvature import normal_rows
from dpmcmc.inference.decompositions import roots
from dpmcmc.inference.denoised_moment import Denoised
from dpmcmc.inference.linear_score import Huber
from dpmcmc.inference.normal_law import moved_error
from dpmcmc.inference.released_metric import metric_floor

#: R² in units of a typical ‖z‖², and what is added to it.
_LONGEST_IN_TYPICAL, _LONGEST_ADDED = 3.0, 2.0
#: The same of the square of the length up to which a row has Huber's bound. A longer row has a smaller bound, which
#: costs less than a smaller one for all.
_HUBER_IN_TYPICAL, _HUBER_ADDED = 1.5, 0.5
#: R in units of ``longest_row``, and the part of the mean eigenvalue that the noise of an entry may be there, of a
#: curvature or of whitened rows. Rows beyond R are missing in part, which makes intervals wider; noise does more so.
_REACHES = ((8.0, 0.03), (4.0, 0.03), (2.0, 0.03), (1.0, 0.25))
#: R in these units where noise is more than that everywhere.
_LEAST_REACH = 0.6
#: L in units of the mean trace that rows add to a curvature, where the family's bound is larger or there is none. At
#: even odds it is about the family's bound; where a label is rare, hardly a row comes near that.
_LEVERAGE_IN_MEAN = 4.0
#: Least part of b², or of the mean row's square, in a metric.
_LEAST_PART = 1e-5
#: Least variance of a column, over that of one that is even over its range.
_LEAST_VARIANCE = 1e-6


def floor_of(gram_noise_std: float, num_rows: int, size: int, row_bound: float) -> float:
    """Return the part of the identity in F₁² where a curvature is released: the size of the Gram matrix' noise."""
    noise = metric_floor(row_bound**2, gram_noise_std, num_rows, size)
    return max(noise, _LEAST_PART * row_bound**2)


def clip_of(score: BoundedScore, norm: float, longest: float) -> float:
    """Return C of a score where a typical ‖F⁻¹x‖ is ``norm``."""
    if isinstance(score, Huber):
        return score.bound * min(math.sqrt(_HUBER_IN_TYPICAL * norm**2 + _HUBER_ADDED), longest)
    return score.clip * norm


def longest_row(norm: float, most: float) -> float:
    """Return R where a typical ‖F⁻¹x‖ is ``norm`` and no row is longer than ``most``."""
    return min(math.sqrt(_LONGEST_IN_TYPICAL * norm**2 + _LONGEST_ADDED), most)


def farthest_reach(noise_std: Callable[[float], float], mean: float) -> float:
    """Return R in units of ``longest_row``: the farthest at which noise is faint.

    Args:
        noise_std: of a diagonal entry, given R in these units.
        mean: eigenvalue of the matrix, the mean one.
    """
    for reach, faint in _REACHES:
        if noise_std(reach) <= faint * mean:
            return reach
    return _LEAST_REACH


def longest_whitened(norm: float, longest: float, noise_std: float, num_rows: int, size: int) -> float:
    """Return R of the second release of rows, in the metric of the first.

    Args:
        norm: of a typical row in that metric.
        longest: the most that a row may have.
        noise_std: of the release, over R².
        num_rows: N.
        size: d.
    """
    usual = longest_row(norm, longest)
    reach = farthest_reach(lambda reach: (reach * usual) ** 2 * noise_std, num_rows * norm**2 / size)
    return min(reach * usual, longest)


class Joined(NamedTuple):
    """Facts that two releases of rows tell.

    Attributes:
        rows: estimate of Σ x xᵀ, and the law of its error.
        square: F², (d, d).
        possible: count -> positive matrices that Σ x xᵀ may be, (count, d, d).
        least: Σ x xᵀ one standard deviation below its estimate, (d, d).
    """

    rows: Denoised
    square: np.ndarray
    possible: Callable[[int], np.ndarray]
    least: np.ndarray


def joined(
    inverse: np.ndarray,
    gram: np.ndarray,
    released: np.ndarray,
    noise_std: float,
    own: Callable[[np.ndarray], np.ndarray],
    num_rows: int,
    lengthened: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Joined:
    """Return what two releases tell.

    Args:
        inverse: F₁⁻¹ of the first, (d, d).
        gram: Ĝ₁, (d, d).
        released: second moment of the rows F₁⁻¹x, (d, d).
        noise_std: of its diagonal.
        own: Q -> Cov[E u] of the error E of Ĝ₁.
        num_rows: N.
        lengthened: estimate of the rows' second moment in the metric of the first -> T, (d, d): T Ŝ Tᵀ is what the
            second would be of rows that were not shortened; None: they were not.
    """
    model = inverse @ gram @ inverse
    own_error = moved_error(own, inverse)

    def whitened(turn: np.ndarray) -> Corrected:
        """Return the whitened rows' second moment, whose release T lengthens."""
        std = noise_std * float(np.linalg.norm(turn, 2)) ** 2
        return corrected(model, turn @ released @ turn.T, std, own_error)

    if lengthened is None:
        seen = whitened(np.eye(len(model)))
    else:
        # How far rows were shortened follows from their second moment, first taken from the first release alone.
        seen = whitened(lengthened(whitened(lengthened(model)).matrix))
    root = np.linalg.inv(inverse)
    known = seen.matrix + seen.stds + _LEAST_PART * np.trace(seen.matrix) * np.eye(len(root))
    square = root @ known @ root / num_rows
    return Joined(
        Denoised(root @ seen.matrix @ root, moved_error(seen.error, root)),
        square,
        lambda count: root @ seen.possible(count) @ root,
        root @ seen.least @ root,
    )


def lengthening(root: np.ndarray, moment: np.ndarray, row: np.ndarray, within: float, bound: float) -> np.ndarray:
    """Return T, (d, d), with T S Tᵀ = M, M the second moment of normal rows and S that of the same rows shortened.

    Args:
        root: F, (d, d): rows are F⁻¹x.
        moment: M, (d, d), of a mean row.
        row: the mean row, (d,).
        within: length to which longer rows are shortened.
        bound: b, the most that a row x has.
    """
    rows = normal_rows(moment, row)
    length = np.linalg.norm(rows @ root, axis=1)
    rows = rows * np.minimum(1.0, bound / np.maximum(length, 1e-300))[:, None]
    short = np.minimum(1.0, within / np.maximum(np.linalg.norm(rows, axis=1), 1e-300))
    rows_moment = rows.T @ rows / len(rows)
    shortened = rows * short[:, None]
    left = shortened.T @ shortened / len(rows)
    # Rows hold nothing in some directions, which stay as they are.
    tied = _LEAST_PART * np.trace(rows_moment) * np.eye(len(row))
    return roots(rows_moment + tied)[0] @ roots(left + tied)[1]


def spreads(known: np.ndarray, gram: np.ndarray, structure: RowStructure) -> np.ndarray | None:
    """Return by how much wider an effect's prior is per standard deviation of its column than over its range, (d,).

    A column that is even over its range has 1. So have a level and a column that varies more. A coefficient is wider by
    the root of a third over the variance, in units of the intercept's square, which is the largest of any column.
    Variances are estimates with one standard deviation of their error on top, so noise makes no prior wide.

    Args:
        known: estimate of the rows' second moment with its error on top, (d, d), of a mean row.
        gram: estimate alone, (d, d), of a mean row.
        structure: of the rows; None is returned where it declares no intercept, which shows the means of columns.
    """
    at = structure.constant
    if at is None:
        return None
    variances = np.diag(known) - known[at] ** 2 / known[at, at]
    even = np.full(len(known), max(gram[at, at], 0.0) / 3)
    found = np.sqrt(np.maximum(even, variances) / np.maximum(variances, _LEAST_VARIANCE * even))
    found[[at, *itertools.chain(*structure.blocks)]] = 1.0
    return found


def curvature_bounds(
    score: BoundedScore, clip: float, norm: float, most: float, trace: float, num_rows: int, size: int, noise_std: float
) -> tuple[float, float]:
    """Return R, up to which rows weigh in full in a curvature, and L, a bound on the trace that a row adds to it.

    Rows as long as noise affords weigh in full.

    Args:
        score: of the family.
        clip: C.
        norm: a typical ‖F⁻¹x‖.
        most: the largest one.
        trace: of the curvature in the metric, as far as it is known.
        num_rows: N.
        size: of the curvature.
        noise_std: of its release, over L.
    """
    usual = longest_row(norm, most)
    mean = max(trace / num_rows, _LEAST_PART)

    def bounds(reach: float) -> tuple[float, float]:
        longest = min(reach * usual, most)
        return longest, min(score.leverage(clip, longest), reach * _LEVERAGE_IN_MEAN * mean)

    return bounds(farthest_reach(lambda reach: bounds(reach)[1] * noise_std, trace / size))
