"""A second moment of rows, G = Σ x xᵀ, its trace, and the sum of rows, each released once with Gaussian noise.

Rows have ‖x‖ <= b, which the access enforces: a longer row is scaled to b. Distances are in Frobenius norm, the l2
norm of :func:`svec`:

    replace_one              ‖xxᵀ − x'x'ᵀ‖² = ‖x‖⁴ + ‖x'‖⁴ − 2(x·x')² <= 2b⁴;   the trace moves by b² at most
    add_remove, zero_out     ‖xxᵀ‖ = ‖x‖² <= b²;                                the trace moves by b² at most

The sum Σ x moves by 2b at most under replace_one, and by b under the others.

An owner of at most m rows adds A = Σ x xᵀ, positive semi-definite with ‖A‖ <= tr A <= m b². Two such matrices have
⟨A, A'⟩ >= 0, so ‖A − A'‖² <= ‖A‖² + ‖A'‖²: every distance above is m times as long.

Each row is rounded to a public grid by itself, and stays within b (``integer_rows.py``). Sums of rounded rows and of
their products are exact, so neighbours' sums differ by the records that differ, and nothing is charged for rounding.
The trace costs nothing where rows are declared to have norm 1 and N is public; ``add_remove`` does not tell N from
N ± 1, so there it is always released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.query.gaussian_release import gaussian_event, gaussian_release, mu_std
from dpmcmc.privacy.query.integer_rows import (
    MOMENT_PARTS_BITS,
    ROW_BITS,
    Exact,
    joined,
    rounded_rows,
    row_blocks,
    second_moment,
    svec_of,
    unit_of,
)

#: A released trace is taken for no smaller than this part of N·b².
_SMALLEST_TRACE = 0.01


class RowFacts(NamedTuple):
    """Public facts of the rows of two neighbours.

    Attributes:
        num_records: the larger N of the two.
        size: d.
        row_bound: b.
        unit_norm: whether every row is declared to have norm 1. No guarantee rests on it.
        together: m, rows that one record of the guarantee may have; ``num_records`` counts rows, m for each of them.
    """

    num_records: int
    size: int
    row_bound: float
    unit_norm: bool = False
    together: int = 1

    @property
    def largest_trace(self) -> float:
        """Largest trace of G, N·b²."""
        return self.num_records * self.row_bound**2

    def moved(self, adjacency: Adjacency) -> tuple[float, float]:
        """Return how far neighbours' sums may lie apart: (svec(G), tr G)."""
        replaced = adjacency == Adjacency.REPLACE_ONE
        one = self.together * self.row_bound**2
        return one * (math.sqrt(2) if replaced else 1.0), one

    def trace_declared(self, adjacency: Adjacency) -> bool:
        """Return whether tr G = N is public; the number of owners' rows is not."""
        return self.unit_norm and adjacency != Adjacency.ADD_REMOVE and self.together == 1


class NoisyGram(NamedTuple):
    """A released Gram matrix with an estimate of its trace.

    Attributes:
        gram: G plus symmetric noise, (d, d).
        noise_std: σ of its diagonal; σ/√2 off it.
        trace: of G, declared or an estimate.
        trace_std: of the estimate; 0 where it is declared.
    """

    gram: np.ndarray
    noise_std: float
    trace: float
    trace_std: float


@dataclass(frozen=True)
class GramRelease:
    """The noise of one release of G and of its trace, settled before a record is read.

    Attributes:
        rows: public facts.
        noise_std: σ of G's diagonal.
        trace_std: of the trace's noise; 0 where the trace is declared.
    """

    rows: RowFacts
    noise_std: float
    trace_std: float

    @classmethod
    def calibrate(cls, rows: RowFacts, adjacency: Adjacency, mu: float, trace_mu: float) -> GramRelease:
        """Return the release whose parts cost ``mu`` and ``trace_mu``; their squares add up.

        Args:
            rows: public facts.
            adjacency: which data sets are neighbours.
            mu: μ of G.
            trace_mu: μ of the trace; not spent where the trace is declared.

        Raises:
            CalibrationError: see :func:`mu_std`.
        """
        moves, trace_moves = rows.moved(adjacency)
        trace_std = 0.0 if rows.trace_declared(adjacency) else mu_std(trace_moves, 1, trace_mu)
        return cls(rows, mu_std(moves, entries(rows.size), mu), trace_std)

    @property
    def numbers(self) -> int:
        """Numbers that noise is added to."""
        return entries(self.rows.size) + bool(self.trace_std)

    def events(self, adjacency: Adjacency) -> tuple[Event, ...]:
        """Return what the release costs."""
        moves, trace_moves = self.rows.moved(adjacency)
        gram = gaussian_event(self.noise_std, moves, entries(self.rows.size), adjacency)
        if not self.trace_std:
            return (gram,)
        return gram, gaussian_event(self.trace_std, trace_moves, 1, adjacency)

    def release(self, x: np.ndarray, key: jax.Array) -> NoisyGram:
        """Read the rows (N, d) and return G and its trace with noise.

        Args:
            x: rows; one that is longer than b is scaled to b.
            key: secret JAX key, used for nothing else.
        """
        return self.of_sum(gram_of(x, self.rows.row_bound), key)

    def of_sum(self, exact: Exact, key: jax.Array) -> NoisyGram:
        """Return G and its trace with noise, given G, of rows within b; see :meth:`release`."""
        gram_key, trace_key = jax.random.split(key)
        gram = symmetric(gaussian_release(svec_of(exact), self.noise_std, gram_key), self.rows.size)
        if not self.trace_std:
            return NoisyGram(gram, self.noise_std, float(self.rows.num_records), 0.0)
        released = gaussian_release(trace_of(exact), self.trace_std, trace_key)
        # The noisy matrix has a trace too, with noise of its own; both are weighted by their precision.
        stds = np.array([self.trace_std, self.noise_std * math.sqrt(self.rows.size)])
        weights = stds**-2 / np.sum(stds**-2)
        largest = self.rows.largest_trace
        trace = float(
            np.clip(
                weights @ [released[0], np.trace(gram)],
                _SMALLEST_TRACE * largest,
                largest,
            )
        )
        return NoisyGram(gram, self.noise_std, trace, float(np.sum(stds**-2) ** -0.5))


@dataclass(frozen=True)
class SumRelease:
    """The noise of one release of Σ x, settled before a record is read.

    Attributes:
        rows: public facts.
        noise_std: of each coordinate.
    """

    rows: RowFacts
    noise_std: float

    @classmethod
    def calibrate(cls, rows: RowFacts, adjacency: Adjacency, mu: float) -> SumRelease:
        """Return the release that costs ``mu``; raises as :func:`mu_std`."""
        return cls(rows, mu_std(cls._moved(rows, adjacency), rows.size, mu))

    @staticmethod
    def _moved(rows: RowFacts, adjacency: Adjacency) -> float:
        return adjacency.sensitivity * rows.together * rows.row_bound

    def event(self, adjacency: Adjacency) -> Event:
        """Return what the release costs."""
        return gaussian_event(self.noise_std, self._moved(self.rows, adjacency), self.rows.size, adjacency)

    def mean(self, exact: Exact, key: jax.Array) -> np.ndarray:
        """Return the mean row, (d,), shrunk as far as its noise asks for (James and Stein).

        Args:
            exact: Σ x, (d,), of rows within b.
            key: secret JAX key, used for nothing else.
        """
        released = gaussian_release(exact, self.noise_std, key)
        noise = self.noise_std**2 * len(released)
        kept = max(0.0, 1 - noise / max(float(released @ released), np.finfo(float).tiny))
        return kept * released / self.rows.num_records


def within(x: np.ndarray, row_bound: float) -> np.ndarray:
    """Return rows (N, ...) in float64, each of norm at most ``row_bound``.

    A longer row is scaled to the bound, and one whose norm is not finite becomes zero: no release may fail, or be less
    private, because of one record.
    """
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(x.reshape(len(x), -1), axis=1)
        # The margin keeps rounding of norm and product below the bound.
        scale = np.where(
            norms > row_bound * (1 - 1e-13),
            row_bound * (1 - 1e-12) / np.maximum(norms, 1e-300),
            1.0,
        )
        out = x * scale.reshape((-1,) + (1,) * (x.ndim - 1))
    out[~np.isfinite(norms)] = 0.0
    return out


def gram_of(x: np.ndarray, row_bound: float) -> Exact:
    """Return Σ x xᵀ, (d, d), exactly, over rows (N, d) that are rounded and brought within the bound.

    A record may be a matrix A of rows, (N, k, d), with ‖A‖ <= b: it adds AᵀA. Neighbours lie no farther apart than for
    one row, since ‖AᵀA − A'ᵀA'‖² <= ‖AᵀA‖² + ‖A'ᵀA'‖² <= 2b⁴, both being positive semi-definite.
    """
    size = x.shape[-1]
    parts = np.zeros((3, size, size), np.int64)
    for at in row_blocks(len(x)):
        block = x[at].reshape(-1, math.prod(x.shape[1:]))
        parts += second_moment(rounded_rows(block, row_bound).reshape(-1, size))
    unit = unit_of(row_bound, ROW_BITS)
    return Exact(joined(parts, MOMENT_PARTS_BITS), unit**2)


def trace_of(matrix: Exact) -> Exact:
    """Return the trace of an exact matrix, (1,)."""
    return Exact(np.array([np.trace(matrix.steps)], object), matrix.unit)


def entries(size: int) -> int:
    """Return the number of entries of :func:`svec`, d(d + 1)/2."""
    return size * (size + 1) // 2


def svec(matrix: np.ndarray) -> np.ndarray:
    """Return the diagonal and √2 times the upper triangle of a symmetric matrix, (d(d + 1)/2,)."""
    row, column = np.triu_indices(len(matrix))
    return matrix[row, column] * _scale(row, column)


def symmetric(values: np.ndarray, d: int) -> np.ndarray:
    """Return the matrix (d, d) whose :func:`svec` these are."""
    row, column = np.triu_indices(d)
    matrix = np.zeros((d, d))
    matrix[row, column] = matrix[column, row] = values / _scale(row, column)
    return matrix


def _scale(row: np.ndarray, column: np.ndarray) -> np.ndarray:
    return np.where(row == column, 1.0, math.sqrt(2))
