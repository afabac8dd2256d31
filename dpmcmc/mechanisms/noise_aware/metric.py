"""The metric of a regression's releases, which two releases of the rows' second moment make, and bounds in it.

    F₁² = Ĝ₁/N + floor·I,      F² = F₁ (Ŝ + stds of Ŝ) F₁ / N,      Ŝ from Ĝ₁ and from Σ min(1, R²/‖z‖²) z zᵀ, z = F₁⁻¹x

The noise of the first release is as large in a direction in which rows hardly vary as in any other. Where declared
ranges are wide beside the values, most directions are of this kind. In the metric of the first release those that it
saw are alike, and the others are far longer than they were, so that the noise of the second is small beside them.

Everything here follows from public facts and released numbers. A plan takes stand-in rows for the real ones.
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
from dpmcmc.inference.normal_law import GradientRelease, Local
from dpmcmc.inference.released_metric import metric_floor

#: R² in units of a typical ‖z‖², and added to it; the same of the square of the length up to which a row has Huber's
#: bound. A longer row has a smaller bound, which costs less than a smaller one for all.
_LONGEST, _MORE, _USUAL, _ADDED = 3.0, 2.0, 1.5, 0.5
#: R in units of ``longest_row``, and the part of the mean eigenvalue that the noise of an entry may be there, of a
#: curvature or of whitened rows. Rows beyond R are missing in part, which makes intervals wider; noise does more so.
_REACHES, _SHORT = ((8.0, 0.03), (4.0, 0.03), (2.0, 0.03), (1.0, 0.25)), 0.6
#: L in units of the mean trace that rows add to a curvature, where the family's bound is larger or there is none. At
#: even odds it is about the family's bound; where a label is rare, hardly a row comes near that.
_LEVERAGE = 4.0
#: Curvatures that stand for all that a release is expected to leave possible.
_CURVATURES = 16
#: Least part of b², or of the mean row's square, in a metric.
_SMALLEST = 1e-5
#: Least variance of a column, over that of one that is even over its range.
_TINY = 1e-6


def floor_of(gram_noise_std: float, num_rows: int, size: int, row_bound: float) -> float:
    """Return the part of the identity in F₁² where a curvature is released: the size of the Gram matrix' noise."""
    noise = metric_floor(row_bound**2, gram_noise_std, num_rows, size)
    return max(noise, _SMALLEST * row_bound**2)


def clip_of(score: BoundedScore, norm: float, longest: float) -> float:
    """Return C of a score where a typical ‖F⁻¹x‖ is ``norm``."""
    if isinstance(score, Huber):
        return score.bound * min(math.sqrt(_USUAL * norm**2 + _ADDED), longest)
    return score.clip * norm


def longest_row(norm: float, most: float) -> float:
    """Return R where a typical ‖F⁻¹x‖ is ``norm`` and no row is longer than ``most``."""
    return min(math.sqrt(_LONGEST * norm**2 + _MORE), most)


def reach_of(noise_std: Callable[[float], float], mean: float) -> float:
    """Return R in units of ``longest_row``: the farthest at which noise is faint.

    Args:
        noise_std: of a diagonal entry, given R in these units.
        mean: eigenvalue of the matrix, the mean one.
    """
    for reach, faint in _REACHES:
        if noise_std(reach) <= faint * mean:
            return reach
    return _SHORT


def again_within(norm: float, longest: float, noise_std: float, num_rows: int, size: int) -> float:
    """Return R of the second release of rows, in the metric of the first.

    Args:
        norm: of a typical row in that metric.
        longest: the most that a row may have.
        noise_std: of the release, over R².
        num_rows: N.
        size: d.
    """
    usual = longest_row(norm, longest)
    reach = reach_of(lambda reach: (reach * usual) ** 2 * noise_std, num_rows * norm**2 / size)
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
    root = np.linalg.inv(inverse)
    model = inverse @ gram @ inverse

    def with_rows(turn: np.ndarray) -> Corrected:
        return corrected(
            model,
            turn @ released @ turn.T,
            noise_std * float(np.linalg.norm(turn, 2)) ** 2,
            lambda q: inverse @ own(inverse @ q @ inverse) @ inverse,
        )

    found = with_rows(np.eye(len(root)) if lengthened is None else lengthened(model))
    if lengthened is not None:
        found = with_rows(lengthened(found.matrix))
    known = found.matrix + found.stds
    known = known + _SMALLEST * np.trace(found.matrix) * np.eye(len(root))
    return Joined(
        Denoised(
            root @ found.matrix @ root,
            lambda q: root @ found.error(root @ q @ root) @ root,
        ),
        root @ known @ root / num_rows,
        lambda count: root @ found.possible(count) @ root,
        root @ found.least @ root,
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
    tied = _SMALLEST * np.trace(rows_moment) * np.eye(len(row))
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
    found = np.sqrt(np.maximum(even, variances) / np.maximum(variances, _TINY * even))
    found[[at, *itertools.chain(*structure.blocks)]] = 1.0
    return found


def leverage_of(score: BoundedScore, clip: float, longest: float, reach: float, mean: float) -> float:
    """Return L, a bound on the trace that a row adds to the curvature.

    Args:
        score: of the family.
        clip: C.
        longest: R.
        reach: R in units of ``longest_row``.
        mean: of this trace over rows, as far as it is known; infinite where it is not.
    """
    return min(score.leverage(clip, longest), reach * _LEVERAGE * max(mean, _SMALLEST))


class Planned(NamedTuple):
    """The metric that a plan expects, before a record is read.

    Attributes:
        square: F², (d, d).
        norm: a typical ‖F⁻¹x‖.
        longest: the largest one.
        error: Q -> Cov[E u] of the error of the rows' second moment.
    """

    square: np.ndarray
    norm: float
    longest: float
    error: Callable[[np.ndarray], np.ndarray]

    def curvature(
        self,
        curvature: np.ndarray,
        score: BoundedScore,
        clip: float,
        mean: float,
        noise_std: float,
        num_rows: int,
    ) -> tuple[Corrected, np.ndarray]:
        """Return what the release of a curvature is expected to tell of it, and F, (d, d).

        Args:
            curvature: H, (d, d).
            score: of the family.
            clip: C.
            mean: curvature of a row's score in its predictor, the mean one.
            noise_std: of the release, over L.
            num_rows: N.
        """
        root, inverse = roots(self.square)
        model = inverse @ curvature @ inverse
        usual = longest_row(self.norm, self.longest)
        leverage = float(np.trace(model)) / num_rows

        def noise(reach: float) -> float:
            longest = min(reach * usual, self.longest)
            return noise_std * leverage_of(score, clip, longest, reach, leverage)

        std = noise(reach_of(noise, float(np.trace(model)) / len(model)))
        return corrected(
            model,
            model,
            std,
            lambda q: mean**2 * (inverse @ self.error(inverse @ q @ inverse) @ inverse),
        ), root


def expected(
    local: Local,
    noise: np.ndarray,
    precision: np.ndarray,
    found: Corrected,
    root: np.ndarray,
) -> Local:
    """Return a model of the gradient with the error that a release of its curvature is expected to leave.

    Args:
        local: model of the gradient.
        noise: V of its release, (d, d).
        precision: P of the prior.
        found: what the release is expected to tell of the curvature, in the metric.
        root: F, (d, d).
    """
    turns = root @ found.turns(_CURVATURES) @ np.linalg.inv(root)
    lifted = local.curvature + root @ found.lift @ root
    zero = np.zeros(len(root))
    return local._replace(curvatures=turns @ lifted @ turns.swapaxes(-1, -2)).under(
        GradientRelease(zero, zero, noise), precision
    )


def planned(
    gram: np.ndarray,
    first_std: float,
    second_std: float,
    num_rows: int,
    row_bound: float,
    own: Callable[[np.ndarray], np.ndarray],
) -> Planned:
    """Return the metric to expect of rows with a second moment.

    Args:
        gram: Σ x xᵀ, (d, d).
        first_std: noise of its first release.
        second_std: of the second, over R².
        num_rows: N.
        row_bound: b.
        own: Q -> Cov[E u] of the error E of the first.
    """
    size = len(gram)
    floor = floor_of(first_std, num_rows, size, row_bound)
    inverse = roots(gram / num_rows + floor * np.eye(size))[1]
    whitened = inverse @ gram @ inverse
    norm = math.sqrt(float(np.trace(whitened)) / num_rows)
    longest = row_bound / math.sqrt(floor)
    within = again_within(norm, longest, second_std, num_rows, size)
    found = joined(inverse, gram, whitened, within**2 * second_std, own, num_rows)
    square = found.square
    norm = math.sqrt(float(np.trace(np.linalg.solve(square, gram))) / num_rows)
    longest = row_bound / math.sqrt(float(np.linalg.eigvalsh(square)[0]))
    return Planned(square, norm, longest, found.rows.error)
