r"""One vector, released once with Gaussian noise, in float64.

Value and noise are rounded to one public grid of a power of two, at most 2^-30 of the noise std, and added as integers:
the released bits are round(value) + round(noise), a post-processing of the Gaussian mechanism on the ROUNDED value.
Rounding moves either of two neighbouring values by at most √size·grid/2, so a sensitivity grows by √size·grid, which
:func:`gaussian_event` charges. ``KAPPA`` is charged on top for the noise's own float64 arithmetic.

A sum over records is an :class:`~dpmcmc.privacy.query.integer_rows.Exact` value: integers times a power of two, of any
size. It is rounded to the grid as an integer, so that no float64 comes between a sum and its release.

Its noise is drawn in integers from a ChaCha20 key (``accounting/gaussian.py``, with the proof). Its std is
2^30 to 2^31 steps of the grid, which the tables reach. Each number is then within a tiny distance of a post-processing
of the Gaussian mechanism on the rounded value, which a mechanism's plan charges for (``mechanisms/base.py``), and a
metric's (``planning/noise.py``).

Claim: A vector that is released once hides what a Gaussian mechanism hides, on the grid that it is rounded to.
Proof: rounding moves two values by √size·grid more, which is charged.
Held by: test_no_row_moves_the_gram_matrix_or_its_trace_beyond_the_charge,
test_calibrated_noise_meets_the_budget_with_rounding_charged, test_noise_is_added_to_the_rounded_value_as_integers,
"√2 dropped from the Gram matrix' sensitivity"
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.errors import CalibrationError, InputError
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.events import KAPPA, Adjacency
from dpmcmc.privacy.accounting.gaussian import LEVELS, gaussian_mu
from dpmcmc.privacy.query import integer_noise, randomness
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
from dpmcmc.privacy.query.per_record_gradients import Model
from dpmcmc.storage.compiled_programs import RUN_ONCE
from dpmcmc.storage.pytree import PyTree, length_of

#: Largest grid relative to the noise std.
GRID = 2.0**-30
#: Largest value in units of the grid; what is beyond is clamped to it.
_LARGEST = 2.0**61


def gaussian_release(value: np.ndarray | Exact, noise_std: float, key: jax.Array) -> np.ndarray:
    """Return ``value`` plus N(0, noise_std² I).

    Args:
        value: (size,) float64, finite, or exact. Coordinates beyond 2^30 noise stds are clamped, which moves no two
            values apart.
        noise_std: > 0, public.
        key: secret JAX key, used for nothing else; one of another generator is adopted (``randomness.adopted``).

    Returns:
        (size,) float64, on the grid.

    Raises:
        ValueError: a value that is not finite, or a noise std that is not positive.
    """
    unit = grid(noise_std)
    steps = on_grid(value, unit)
    noise = integer_noise.on_host(randomness.adopted(key), steps.size, noise_std / unit).reshape(steps.shape)
    return (steps + noise).astype(np.float64) * unit


def on_grid(value: np.ndarray | Exact, unit: float) -> np.ndarray:
    """Return a value as whole multiples of a power of two, each the nearest, int64, clamped.

    Raises:
        ValueError: a value that is not finite.
    """
    if isinstance(value, Exact):
        return _exact_on_grid(value, unit)
    value = np.asarray(value, np.float64)
    if not np.all(np.isfinite(value)):
        raise InputError("value: has entries that are not finite; nothing was released")
    clipped = np.clip(value, -_LARGEST * unit, _LARGEST * unit)
    return np.rint(clipped / unit).astype(np.int64)


def _exact_on_grid(value: Exact, unit: float) -> np.ndarray:
    """Return :func:`on_grid` of an exact value; integers alone are computed."""
    finer = math.frexp(unit)[1] - math.frexp(value.unit)[1]
    steps = value.steps
    if finer > 0:
        steps = (steps + (1 << (finer - 1))) >> finer
    else:
        steps = steps << -finer
    largest = int(_LARGEST)
    return np.clip(steps, -largest, largest).astype(np.int64)


def grid(noise_std: float) -> float:
    """Return the power of two that value and noise are rounded to, in (GRID/2, GRID] noise stds.

    Raises:
        ValueError: a noise std that is not finite and positive.
    """
    if not (noise_std > 0 and math.isfinite(noise_std)):
        raise InputError(f"noise_std: must be a finite number > 0, got {noise_std}")
    return 2.0 ** (math.frexp(noise_std)[1] - 1) * GRID


def gaussian_event(noise_std: float, sensitivity: float, size: int, adjacency: Adjacency) -> Event:
    """Return the charge of one :func:`gaussian_release`.

    Args:
        noise_std: of the release.
        sensitivity: largest l2 distance of the values of two neighbours UNDER THIS adjacency.
        size: number of coordinates.
        adjacency: under which a Gaussian event's neighbour moves by 2/z (replace_one) or 1/z.
    """
    moved = (sensitivity * (1 + KAPPA) + math.sqrt(size) * grid(noise_std)) / noise_std
    return Event("gaussian", adjacency.sensitivity / moved, 1.0, 1)


def calibrated_std(sensitivity: float, size: int, *, epsilon: float, delta: float) -> float:
    """Return the smallest noise std whose :func:`gaussian_event` meets (ε, δ), to about 1e-9 of it.

    Args:
        sensitivity: as for :func:`gaussian_event`.
        size: number of coordinates.
        epsilon: target ε.
        delta: target δ.

    Raises:
        CalibrationError: see :func:`mu_std`.
    """
    return mu_std(sensitivity, size, gaussian_mu(epsilon, delta))


def mu_std(sensitivity: float, size: int, mu: float) -> float:
    """Return the noise std at which neighbours are at most ``mu`` noise stds apart, with everything charged.

    Args:
        sensitivity: as for :func:`gaussian_event`.
        size: number of coordinates.
        mu: > 0.

    Raises:
        CalibrationError: mu so small that the grid would be seen.
    """
    left = mu * (1 - 1e-12) - math.sqrt(size) * GRID
    if not left > 0:
        raise CalibrationError(
            f"epsilon: so small a budget (mu {mu:.3g}) needs noise so large that it has no grid",
            "epsilon",
        )
    return sensitivity * (1 + KAPPA) / left


def noise_on_grid(key: jax.Array, size: int, noise_std: jax.Array, grid: jax.Array) -> jax.Array:
    """Return Gaussian noise as whole multiples of a grid, for a float64 sum that is rounded to it; (size,) float64.

    Args:
        key: used for nothing else.
        size: number of coordinates.
        noise_std: std of the noise, in units of the sum.
        grid: a power of two.
    """
    integer_noise.check_numbers(size)
    high, low = integer_noise.noise(key, size, (noise_std / grid).astype(jnp.float32), LEVELS[-1])
    return high.astype(jnp.float64) * 65536 + low


def standard_normal(key: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Return independent standard normals, float64, for draws whose law is not that of added noise.

    They are Box–Muller's, radius and angle each from 64 random bits: correct to a few 2^-53, tails to 9.4σ.

    Args:
        key: a JAX key.
        shape: of the result.
    """
    size = math.prod(shape)
    pairs = (size + 1) // 2
    words = np.asarray(jax.random.bits(key, (4, pairs), jnp.uint32)).astype(np.float64)

    def uniform(high: np.ndarray, low: np.ndarray) -> np.ndarray:
        return high * 2.0**-32 + (low + 0.5) * 2.0**-64

    # −log U, from whichever of U and 1 − U is small: neither end is rounded away.
    complement = uniform(2.0**32 - 1 - words[0], 2.0**32 - 1 - words[1])
    with np.errstate(divide="ignore"):
        exponential = np.where(
            words[0] < 2.0**31,
            -np.log(uniform(words[0], words[1])),
            -np.log1p(-np.minimum(complement, 0.75)),
        )
    radius = np.sqrt(2 * exponential)
    angle = 2 * np.pi * uniform(words[2], words[3])
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return both.reshape(-1)[:size].reshape(shape)


# ----------------------------------------------------------------------------------------------------
# Gradients of all records at a public point, one row each: what the second moment of a metric is taken of.

#: Rows at once; every block has as many, so that a row's rounding does not depend on its place.
_ROWS = 512


def gradient_rows(model: Model, params: PyTree, records: PyTree) -> np.ndarray:
    """Return −∇ log p(record | params) raveled, (N, p) float32. Private: it must not leave.

    Args:
        model: with a log-likelihood of one record.
        params: public point.
        records: pytree, leaves (N, ...).
    """

    def row(record: PyTree) -> jax.Array:
        return ravel_pytree(jax.grad(lambda p: -model.log_likelihood(p, record))(params))[0]

    rows = jax.jit(jax.vmap(row), compiler_options=RUN_ONCE)
    count = length_of(records)
    last = np.arange(_ROWS)
    found = []
    for i in range(0, count, _ROWS):
        at = np.minimum(i + last, count - 1)
        block = jax.tree.map(lambda leaf, at=at: jnp.asarray(np.asarray(leaf)[at]), records)
        found.append(np.asarray(rows(block))[: count - i])
    return np.concatenate(found)


# ----------------------------------------------------------------------------------------------------
# A second moment of rows, G = Σ x xᵀ, its trace, and the sum of rows, each released once with Gaussian noise.
#
# Rows have ‖x‖ <= b, which the access enforces: a longer row is scaled to b. Distances are in Frobenius norm, the l2
# norm of :func:`svec`:
#
#     replace_one              ‖xxᵀ − x'x'ᵀ‖² = ‖x‖⁴ + ‖x'‖⁴ − 2(x·x')² <= 2b⁴;   the trace moves by b² at most
#     add_remove, zero_out     ‖xxᵀ‖ = ‖x‖² <= b²;                                the trace moves by b² at most
#
# The sum Σ x moves by 2b at most under replace_one, and by b under the others.
#
# An owner of at most m rows adds A = Σ x xᵀ, positive semi-definite with ‖A‖ <= tr A <= m b². Two such matrices have
# ⟨A, A'⟩ >= 0, so ‖A − A'‖² <= ‖A‖² + ‖A'‖²: every distance above is m times as long.
#
# Each row is rounded to a public grid by itself, and stays within b (``integer_rows.py``). Sums of rounded rows and of
# their products are exact, so neighbours' sums differ by the records that differ, and nothing is charged for rounding.
# The trace costs nothing where rows are declared to have norm 1 and N is public; ``add_remove`` does not tell N from
# N ± 1, so there it is always released.

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
