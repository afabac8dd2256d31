"""A regression's access to records: bounded scores, their curvature and variance, each summed in a public metric.

Everything is summed at a public position θ, in a public metric F, with public bounds. Sums leave with Gaussian noise
(``regression_run.py``), and nothing else of a record does.

Bounds. With z = F⁻¹x, ψ the family's bounded score at η = x·θ (``inference/scores``) and Λ its curvature, a record
adds

    u z ψ  to the gradient,     u² ψ² z zᵀ  to the spread,     v Λ z zᵀ  to the curvature,

    ‖ψ‖ <= C/(u‖z‖),     v = u·min(1, R²/‖z‖²)·min(1, L/leverage),

u in [0, 1] the row's own public-range weight, times min(1, 8c/‖z‖) with c a length at which a row's limit is the
typical one. So u and v see x and θ alone, and no label:

* ‖u z ψ‖ <= C: a replaced record moves the whitened sum by 2C at most, and an added or removed one by C;
* the spread is a Gram matrix of rows within C: it moves by √2·C² at most;
* the curvature is one of rows within √L, where L bounds v tr(Λ)‖z‖² (``BoundedScore.leverage``, or the weight): √2·L.

B is the variance of the estimating equation Σ u z ψ = 0, and H its curvature. In rows beyond R or L it is smaller, so
that intervals are wider. Weights v in the equation itself would move its solution where the model is wrong for long
rows: one coefficient of a real table then had a coverage of .1. An owner's k rows have C/k each, and together add a
curvature of trace m·L at most (``owners.py``).

Sums are exact (``record_sums.py``). x, θ and F⁻¹ are on public grids on which x·θ and z are exact
(``integer_rows.py``). All that follows is computed of one record's own numbers, element by element. It is then
rounded to integers, and a hard clip on the integers stands behind each bound: neither rounding nor a label that the
model does not know moves a record beyond it.

* The gradient is F⁻¹ Σ x r of integers r = uψ/C. Each |r| is at most C⁻¹ of the limit, rounded down, so that the
  whitened x r is within 1.
* Spread and curvature are second moments of rows √h·z, rounded to integers whose norm is within the bound exactly.
* Statistics of labels are rounded toward zero, which keeps them within their range. Those of a row of zeros are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.linear_score import FARTHEST_ROW
from dpmcmc.mechanisms.rows import FINE_BITS, Whitened
from dpmcmc.privacy.query.integer_rows import (
    IN_CACHE,
    MOMENT_BITS,
    NUMBER_BITS,
    ROW_BITS,
    Exact,
    joined,
    moment_of_columns,
    product,
    rounded_columns,
    rounded_vector,
    squares,
    unit_of,
    weighted_sum,
)
from dpmcmc.privacy.query.record_sums import Records, Sum

#: A typical whitened row is taken for no shorter than this, whatever was released.
_LEAST_TYPICAL_NORM = 0.1
#: Least length of a weighted row, in units of C: a shorter one has the limit of one so long.
_LEAST_WEIGHTED_LENGTH = 1e-9
#: Bits of the number uψ/C of a typical row that is at its limit. One of a shorter row may be 2^12 times as large.
_TYPICAL_BITS = 33
#: Rows whose statistics are looked at together, so that they stay in cache.
_ROWS_AT_ONCE = 1 << 10
#: Pivot of a matrix h, in units of its trace, below which it is taken for 0.
_LEAST_PIVOT = 1e-12


class Design(NamedTuple):
    """Public facts of the rows and of the positions at which gradients are released.

    Attributes:
        num_records: the larger N of two neighbours.
        size: d.
        row_bound: b, enforced on every row.
        radius: the farthest public position from 0.
        floor: part of the identity in F²; None: b²/d, the mean eigenvalue of rows as long as their bound.
    """

    num_records: int
    size: int
    row_bound: float
    radius: float
    floor: float | None = None

    @property
    def ridge(self) -> float:
        """Part of the identity in F²."""
        return self.row_bound**2 / self.size if self.floor is None else self.floor

    @property
    def longest(self) -> float:
        """Largest ‖F⁻¹x‖ of a row, b/√floor."""
        return self.row_bound / math.sqrt(self.ridge)

    @property
    def largest_trace(self) -> float:
        """Largest trace of the Gram matrix, N·b²."""
        return self.num_records * self.row_bound**2

    def metric(self, gram: np.ndarray) -> np.ndarray:
        """Return F² = G/N + floor·I of a Gram matrix, (d, d)."""
        return gram / self.num_records + np.eye(self.size) * self.ridge

    def whitened_norm(self, gram: np.ndarray, inverse: np.ndarray | None = None) -> float:
        """Return a typical ‖F⁻¹x‖, √(tr(F⁻²G)/N), given F⁻¹ (d, d); None: that of :meth:`metric`."""
        if inverse is None:
            square = float(np.trace(np.linalg.solve(self.metric(gram), gram)))
        else:
            square = float(np.sum((inverse @ gram) * inverse))
        return math.sqrt(max(square / self.num_records, _LEAST_TYPICAL_NORM**2))


class Bounds(NamedTuple):
    """Public bounds in the metric.

    Attributes:
        clip: C, of a record's score.
        longest: R: the weight of a longer row in the curvature falls with its square.
        leverage: L, of v tr(Λ)‖z‖²; infinite where no curvature is released.
    """

    clip: float
    longest: float = math.inf
    leverage: float = math.inf


class Weighted(NamedTuple):
    """Some rows at one position, of all records one after the other.

    Attributes:
        x: integers, (n, d).
        y: labels, (n,).
        eta: predictors, (n,) or (n, K).
        limit: of ‖ψ‖, (n,).
        weight: u, (n,).
        norm: at least ‖F⁻¹x‖, (n,).
        sharers: k, number of rows that share C with each, (n,).
    """

    x: np.ndarray
    y: np.ndarray
    eta: np.ndarray
    limit: np.ndarray
    weight: np.ndarray
    norm: np.ndarray
    sharers: np.ndarray


@dataclass(frozen=True)
class BoundedGradient:
    """The access to records in the metric of a released Gram matrix: public numbers alone.

    Attributes:
        design: public facts.
        score: of the family.
        root, inverse: F and F⁻¹, (d, d); the inverse is on a grid.
        inverse_unit: its grid.
        norm: a typical ‖F⁻¹x‖, times a typical number of rows that share C.
        bounds: public; C = κ times the typical norm, and no other, where the score is not known better.
    """

    design: Design
    score: BoundedScore
    root: np.ndarray
    inverse: np.ndarray
    inverse_unit: float
    norm: float
    bounds: Bounds

    @classmethod
    def of(
        cls,
        gram: np.ndarray,
        design: Design,
        score: BoundedScore,
        square: np.ndarray | None = None,
    ) -> BoundedGradient:
        """Make the metric of a released Gram matrix, (d, d).

        Args:
            gram: released.
            design: public facts.
            score: of the family.
            square: F², positive definite; None: G/N and the design's floor.
        """
        values, vectors = eigh(design.metric(gram) if square is None else square)
        values = np.maximum(
            values,
            design.ridge if square is None else values[-1] * np.finfo(np.float32).eps,
        )
        rough = (vectors / np.sqrt(values)) @ vectors.T
        inverse, unit = rounded_vector((rough + rough.T) / 2)
        # Whatever it was rounded to is the metric.
        values, vectors = eigh(inverse)
        root = (vectors / values) @ vectors.T
        norm = design.whitened_norm(gram, inverse)
        return cls(design, score, root, inverse, unit, norm, Bounds(score.clip * norm))

    @property
    def unit(self) -> float:
        """Grid of rows."""
        return unit_of(self.design.row_bound, ROW_BITS)

    @property
    def longest(self) -> float:
        """Largest ‖F⁻¹x‖ of a row."""
        return self.design.row_bound * float(np.linalg.norm(self.inverse, 2))

    @property
    def clip(self) -> float:
        """C, public."""
        return self.bounds.clip

    @property
    def number_bits(self) -> int:
        """Bits by which uψ/C is multiplied before it is rounded."""
        return _TYPICAL_BITS + math.frexp(self.norm)[1]

    def prepared(self, records: Records) -> Records:
        """Return rows (:class:`Rows`) with their norms in the metric, which every sum below takes."""
        return records.prepared(Whitened(self.inverse, self.unit))

    def gradient(self, records: Records, position: np.ndarray) -> Exact:
        """Return Σ u F⁻¹ x ψ / C, (d,), or (d·K,) for K predictors. Private: it must not leave."""
        (parts,) = records.total(partial(self.added_scores, self.columns(position)))
        total = Exact(joined(parts), self.unit * 2.0**-self.number_bits)
        whitened = product(self.inverse, self.inverse_unit, total)
        return Exact(whitened.steps.ravel(), whitened.unit)

    def rows(self, records: Records, longest: float) -> Exact:
        """Return Σ min(1, R²/‖z‖²) z zᵀ / R² for R = ``longest``, (d, d). Private: it must not leave."""
        return _moment(records, partial(self.added_rows, longest))

    def curvature(self, records: Records, position: np.ndarray) -> Exact:
        """Return Σ v slope ⊗ z zᵀ / L, (d·K, d·K). Private: it must not leave."""
        return _moment(records, partial(self.added_curvature, self.columns(position)))

    def expected_spread(self, records: Records, position: np.ndarray) -> Exact:
        """Return Σ u² V ⊗ z zᵀ / C², as the model says scores vary, (d·K, d·K). Private: it must not leave."""
        return _moment(records, partial(self.added_expected_spread, self.columns(position)))

    def spread(self, records: Records, position: np.ndarray) -> Exact:
        """Return Σ g gᵀ / C² over records' summed scores g, (d·K, d·K). Private: it must not leave."""
        return _moment(records, partial(self.added_spread, self.columns(position)))

    def labels(self, records: Records, position: np.ndarray, of: Callable[..., np.ndarray]) -> Exact:
        """Return Σ of(η, y), (k,), for what ``scale.py`` asks of labels. Private: it must not leave."""
        (total,) = records.total(partial(self.added_labels, self.columns(position), of))
        return Exact(total, 2.0**-FINE_BITS)

    def columns(self, vector: np.ndarray) -> np.ndarray:
        """Return a position as predictors take it, (d,), or (d, K) for K, on the grid on which they are exact."""
        shape = (self.design.size, self.score.size)[: 1 + (self.score.size > 1)]
        return rounded_vector(np.reshape(vector, shape))[0]

    # Numbers of one row, each by itself.

    def predictors(self, records: Any, columns: np.ndarray) -> np.ndarray:
        """Return η of rows, (n,) or (n, K)."""
        x = records["x"]
        eta = (x.reshape(-1, x.shape[2]) @ columns) * self.unit
        if "offset" not in records:
            return eta
        offset = records["offset"].ravel()
        return eta + (offset if eta.ndim == 1 else offset[:, None])

    def weighted(self, records: Any, columns: np.ndarray) -> Weighted:
        """Return rows of some records at a position of :meth:`columns`, with their limits and weights."""
        bounds = self.bounds
        x, norm, sharers = (
            records["x"],
            records["norm"].ravel(),
            records["sharers"].ravel(),
        )
        length = np.maximum(norm, 1e-100)
        weight = np.minimum(1.0, FARTHEST_ROW * bounds.clip / self.score.limit / length)
        if "weight" in records:
            weight = weight * records["weight"].ravel()
        # No limit is so large that a law of a score overflows, as one of a weight of 0 would be.
        least = bounds.clip * _LEAST_WEIGHTED_LENGTH
        limit = bounds.clip / np.maximum(weight * norm * sharers, least)
        return Weighted(
            x.reshape(-1, x.shape[2]),
            records["y"].ravel(),
            self.predictors(records, columns),
            limit,
            weight,
            norm,
            sharers,
        )

    def held(self, at: Weighted) -> np.ndarray:
        """Return v of rows, (n,)."""
        bounds = self.bounds
        shorter = np.minimum(1.0, bounds.longest / np.maximum(at.norm, 1e-100))
        held = at.weight * (shorter * shorter)
        own = self.score.leverage(bounds.clip, bounds.longest)
        if bounds.leverage < own:
            # The family bounds no leverage, or one that hardly a row comes near, so the weight does.
            slopes = self.score.law(at.eta, at.limit).curvature
            trace = slopes if slopes.ndim == 1 else _trace(slopes)
            leverage = held * trace * at.norm * at.norm
            most = bounds.leverage / np.maximum(leverage, np.finfo(float).tiny)
            held = held * np.minimum(1.0, most)
        return held

    def whitened(self, x: np.ndarray) -> np.ndarray:
        """Return z of integer rows (n, d), one a column, (d, n); exact."""
        return (self.inverse @ x.T) * self.unit

    def no_moment(self) -> np.ndarray:
        """Return a second moment of no row, (d·K, d·K) int64."""
        size = self.design.size * self.score.size
        return np.zeros((size, size), np.int64)

    def in_cache(self, count: int, each: int = 1) -> Iterator[slice]:
        """Yield slices of rows, whole owners of ``each``, whose columns stay in a processor's cache."""
        numbers = self.design.size * self.score.size * each
        step = each * max(1, IN_CACHE // numbers)
        for start in range(0, count, step):
            yield slice(start, start + step)

    def second_moment(self, x: np.ndarray, h: np.ndarray, most: np.ndarray) -> np.ndarray:
        """Return Σ h ⊗ z zᵀ in steps of 4^-MOMENT_BITS, (d·K, d·K) int64.

        Args:
            x: integer rows, (n, d).
            h: not negative, (n,) or (n, K, K).
            most: largest trace of h ⊗ z zᵀ, at most 1, (n,); a row beyond it is scaled to it.
        """
        moment = self.no_moment()
        for block in self.in_cache(len(x)):
            z = self.whitened(x[block])
            roots = [np.sqrt(np.maximum(h[block], 0.0))] if h.ndim == 1 else _roots(h[block])
            columns = [_columns(z, root) for root in roots]
            whole = rounded_columns(np.concatenate(columns), most=most[block])
            for start in range(0, len(whole), len(moment)):
                moment += moment_of_columns(whole[start : start + len(moment)])
        return moment

    def bounded(self, at: Weighted) -> np.ndarray:
        """Return ψ of rows, (n,) or (n, K)."""
        return within_limit(self.score.residual(at.eta, at.y, at.limit), at.limit)

    # Each method returns integers that some records add to a sum (``record_sums.py``). Positions are those of
    # :meth:`columns`.

    def added_rows(self, longest: float, records: Any) -> tuple[np.ndarray, ...]:
        """Return z zᵀ/R², (d, d), of rows scaled to R = ``longest`` where they are longer."""
        size = self.design.size
        rows = records["x"].reshape(-1, size)
        moment = np.zeros((size, size), np.int64)
        for block in self.in_cache(len(rows)):
            moment += moment_of_columns(rounded_columns(self.whitened(rows[block]) / longest))
        return (moment,)

    def added_scores(self, columns: np.ndarray, records: Any) -> tuple[np.ndarray, ...]:
        """Return integers uψ/C times rows, in parts that ``joined`` puts together: (LIMBS, d) or (LIMBS, d, K)."""
        at = self.weighted(records, columns)
        scale = at.weight * (2.0**self.number_bits / self.clip)
        # Float64's arithmetic, here and below, is off by less than 2^-40 of it.
        room = 2.0**self.number_bits * (1 - 2.0**-40)
        most = np.minimum(room / np.maximum(at.norm * at.sharers, 1e-100), 2.0 ** (NUMBER_BITS - 1))
        return (weighted_sum(at.x, whole_within(_times(scale, self.bounded(at)), most)),)

    def added_spread(self, columns: np.ndarray, records: Any) -> tuple[np.ndarray, ...]:
        """Return g gᵀ/C² of records' summed scores g, (d·K, d·K)."""
        at = self.weighted(records, columns)
        each = records["x"].shape[1]
        scores = _times(at.weight / self.clip, self.bounded(at))
        moment = self.no_moment()
        for block in self.in_cache(len(scores), each):
            whitened = _columns(self.whitened(at.x[block]), scores[block])
            # An owner's rows one after the other.
            total = whitened[:, ::each]
            for row in range(1, each):
                total = total + whitened[:, row::each]
            moment += moment_of_columns(rounded_columns(total))
        return (moment,)

    def added_curvature(self, columns: np.ndarray, records: Any) -> tuple[np.ndarray, ...]:
        """Return v slope ⊗ z zᵀ/L, (d·K, d·K)."""
        at = self.weighted(records, columns)
        slope = self.score.slope(at.eta, at.y, at.limit)
        h = _times(self.held(at) / self.bounds.leverage, slope)
        return (self.second_moment(at.x, h, np.ones(len(h))),)

    def added_expected_spread(self, columns: np.ndarray, records: Any) -> tuple[np.ndarray, ...]:
        """Return u² V ⊗ z zᵀ/C², (d·K, d·K)."""
        at = self.weighted(records, columns)
        h = _times(at.weight * at.weight / self.clip**2, self.score.law(at.eta, at.limit).variance)
        # An owner's k rows have a kth of C each, so that their traces are at most 1 together.
        return (self.second_moment(at.x, h, 1 / at.sharers),)

    def added_labels(
        self,
        columns: np.ndarray,
        of: Callable[..., np.ndarray],
        records: Any,
    ) -> tuple[np.ndarray, ...]:
        """Return numbers within ±1 of labels, (k,), for ``of``: (η, y) -> (n, k), each number of one row."""
        eta = self.predictors(records, columns)
        # A row of zeros is an absent record under add_remove: it adds nothing, here as to all other sums.
        there = records["there"].ravel() * (records["norm"].ravel() > 0)
        y, there = records["y"].ravel(), there * 2.0**FINE_BITS
        total = np.zeros(0, np.int64)
        for start in range(0, max(1, len(y)), _ROWS_AT_ONCE):
            block = slice(start, start + _ROWS_AT_ONCE)
            # Whatever is no number becomes 1.
            found = np.fmax(np.fmin(of(eta[block], y[block]), 1.0), -1.0)
            steps = np.trunc(found * there[block, None]).sum(axis=0).astype(np.int64)
            total = steps if start == 0 else total + steps
        return (total,)


def _moment(records: Records, of: Sum) -> Exact:
    """Return a second moment of rows within 1, exactly. Private: it must not leave."""
    (total,) = records.total(of)
    return Exact(total, 4.0**-MOMENT_BITS)


def _roots(h: np.ndarray) -> list[np.ndarray]:
    """Return the columns L_k, (n, K) each, of h = Σ_k L_k L_kᵀ, (n, K, K), by Cholesky's rule, element by element."""
    size = h.shape[1]
    left = np.ascontiguousarray(np.moveaxis(h, 0, -1))
    least = left[0, 0].copy()
    for k in range(1, size):
        least += left[k, k]
    least *= _LEAST_PIVOT
    found = []
    for k in range(size):
        pivot = left[k, k]
        held = pivot > np.maximum(least, 1e-300)
        column = left[k] * np.where(held, 1 / np.sqrt(np.where(held, pivot, 1.0)), 0.0)
        column[:k] = 0.0
        found.append(np.ascontiguousarray(column.T))
        left = left - column[:, None] * column[None]
    return found


def _columns(z: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return z ⊗ score of each row, (d, n) or (d·K, n), for z (d, n) and scores (n,) or (n, K)."""
    if scores.ndim == 1:
        return z * scores
    return (z[:, None] * np.ascontiguousarray(scores.T)[None]).reshape(-1, z.shape[1])


def _trace(slopes: np.ndarray) -> np.ndarray:
    """Return the traces of (n, K, K), (n,)."""
    total = slopes[:, 0, 0].copy()
    for k in range(1, slopes.shape[1]):
        total += slopes[:, k, k]
    return total


def _times(weight: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return weights (n,) times scores, slopes or variances, (n, ...)."""
    return weight.reshape(-1, *[1] * (of.ndim - 1)) * of


def whole_within(numbers: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Return numbers (n,) or (n, K) as integers of norm at most ``most`` (n,); numbers are finite."""
    if numbers.ndim == 1:
        most = np.floor(most)
        return np.minimum(np.maximum(np.rint(numbers), -most), most)
    # Rounding adds √K/2 at most, and float64 less than a part of 2^-40, which ``most`` has room for.
    longest = np.maximum(most - math.sqrt(numbers.shape[1]) / 2, 0.0)
    norms = np.sqrt(squares(numbers.T))
    shrunk = np.where(norms > longest, longest / np.maximum(norms, 1e-200), 1.0)
    return np.rint(numbers * shrunk[:, None])


def within_limit(scores: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return scores (N,) or (N, K) of norm at most ``limit`` (N,); one that is not finite becomes zero."""
    scores = np.where(np.isfinite(scores), scores, 0.0)
    if scores.ndim == 1:
        return np.minimum(np.maximum(scores, -limit), limit)
    norms = np.sqrt(squares(scores.T))
    # The margin keeps rounding of norm and product below the limit.
    shrunk = np.where(norms > limit * (1 - 1e-13), limit * (1 - 1e-12) / np.maximum(norms, 1e-200), 1.0)
    return scores * shrunk[:, None]
