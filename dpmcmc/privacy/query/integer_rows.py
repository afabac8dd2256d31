r"""Rows and numbers of records as integers, whose products BLAS adds exactly, in float64.

A record's numbers are rounded once, by themselves, to a public grid of a power of two (:func:`unit_of`). Integers below
2^53 are exact in float64, and so are their products and sums as long as no partial sum is larger. No result then
depends on the order of a sum, on the kernel that BLAS picks for a row, or on the block that the row is in.

Widths, for at most :data:`MOST_ROWS` = 2^13 rows at once:

* a row has the norm 2^24 at most (:data:`ROW_BITS`): half a step is 2^-25 of its bound, what float32 keeps;
* a public vector that rows are multiplied by has the norm 2^28 at most (:data:`VECTOR_BITS`). By Cauchy–Schwarz every
  partial sum of x·θ is below 2^52;
* a number that rows are multiplied by and summed over is split into :data:`LIMBS` parts of 16 bits: 2^13·2^24·2^15 =
  2^52;
* a second moment of rows of 24 bits is that of two halves of 12 bits. One of rows of 20 bits (:data:`MOMENT_BITS`)
  needs no halves: 2^13·2^40 = 2^53.

BLAS must multiply and add (with or without fused operations), as OpenBLAS, MKL and Accelerate do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dpmcmc.errors import InputError

#: Largest norm of a row, of a public vector and of a row of a second moment, in bits of the grid.
ROW_BITS, VECTOR_BITS, MOMENT_BITS = 24, 28, 20
#: Rows that BLAS adds at once.
MOST_ROWS = 1 << 13
#: Parts of a number that rows are multiplied by, and bits of a part. The number is below 2^46.
LIMBS, LIMB_BITS, NUMBER_BITS = 3, 16, 46
#: Bits of half a row.
_HALF_BITS = 12


class Exact(NamedTuple):
    """Private numbers, exactly: integers times a public power of two. No method rounds but :attr:`floats`.

    Attributes:
        steps: Python integers, dtype object, of any shape.
        unit: power of two.
    """

    steps: np.ndarray
    unit: float

    @property
    def floats(self) -> np.ndarray:
        """The numbers, each rounded to float64."""
        return np.asarray(self.steps.astype(np.float64) * self.unit)

    def times(self, factor: float) -> Exact:
        """Return the numbers times a public float64, exactly."""
        numerator, denominator = factor.as_integer_ratio()
        return Exact(self.steps * numerator, self.unit / denominator)


def unit_of(bound: float, bits: int) -> float:
    """Return the power of two in which a public bound is within (2^(bits − 1), 2^bits].

    Raises:
        InputError: a bound so small or large that squares of its steps are no numbers of float64.
    """
    if not 1e-100 < bound < 1e100:
        raise InputError(f"a public bound of {bound:g} leaves float64; scale the column to between 1e-100 and 1e100")
    mantissa, exponent = math.frexp(bound)
    return 2.0 ** (exponent - bits - (mantissa == 0.5))


def squares(columns: np.ndarray) -> np.ndarray:
    """Return the sum of squares of each record, (n,), added column by column: a record's bits know no other record.

    Args:
        columns: (d, n), one record a column.
    """
    total = columns[0] * columns[0]
    for column in columns[1:]:
        total += column * column
    return total


@np.errstate(over="ignore", invalid="ignore")
def rounded_rows(x: np.ndarray, bound: float, bits: int = ROW_BITS) -> np.ndarray:
    """Return rows (n, d) as integers in units of ``unit_of(bound, bits)``, in float64, of norm at most the bound.

    Each entry is rounded to the nearest, which moves a row by √d/2 units at most. A row that is longer than the bound
    less that is scaled to it first; one whose norm is not finite becomes zero: no release may fail, or be less private,
    because of one record.

    Args:
        x: (n, d), of any type of number.
        bound: b > 0, finite.
        bits: of b in units.
    """
    size = x.shape[1]
    # Norm, scale and product are off by (d/2 + 5)·2^-53 of themselves at most.
    longest = bound / unit_of(bound, bits) * (1 - (size + 10) * 2.0**-53)
    longest = max(0.0, longest - math.sqrt(size) / 2)
    out = np.empty(x.shape)
    for at in row_blocks(len(x), max(1, IN_CACHE // max(1, size))):
        steps = np.asarray(x[at], np.float64) / unit_of(bound, bits)
        norms = np.sqrt(squares(steps.T))
        scale = np.where(norms > longest, longest / np.maximum(norms, 1e-300), 1.0)
        np.rint(steps * scale[:, None], out=out[at])
        out[at][~np.isfinite(norms)] = 0.0
    return out


@np.errstate(over="ignore", invalid="ignore")
def rounded_columns(columns: np.ndarray, bits: int = MOMENT_BITS, most: np.ndarray | float = 1.0) -> np.ndarray:
    """Return columns (d, n) in units of 2^-bits as integers, in float64, of norm at most √most.

    As :func:`rounded_rows`, for rows that few of which reach their bound: these alone are scaled. Squares of integers
    are added exactly, so that the bound is kept by every column that is returned.

    Args:
        columns: one row of a second moment a column; its norm may be anything.
        bits: at most MOMENT_BITS.
        most: squared bound of each, (n,) or a number, at most 1.
    """
    out = np.rint(columns * 2.0**bits)
    largest = np.broadcast_to(np.asarray(most) * 4.0**bits, out.shape[1:])
    found = squares(out)
    beyond = np.flatnonzero(~(found <= largest))
    if beyond.size:
        # A column and what it is rounded to differ by √d/2 at most, here and below; arithmetic adds less than 1.
        room = np.sqrt(largest[beyond]) - math.sqrt(len(out)) - 1
        scale = np.maximum(room, 0.0) / np.sqrt(found[beyond])
        scaled = np.rint(columns[:, beyond] * 2.0**bits * scale)
        scaled[:, ~np.isfinite(found[beyond])] = 0.0
        scaled[:, ~(squares(scaled) <= largest[beyond])] = 0.0
        out[:, beyond] = scaled
    return out


def rounded_vector(vector: np.ndarray) -> tuple[np.ndarray, float]:
    """Return a public vector (d,), or (d, K), rounded to a grid on which its product with rows is exact; and the grid.

    The grid is at most 2^-27 of the largest norm of a column, which is at most 2^28 steps of it once rounded.
    """
    vector = np.asarray(vector, np.float64)
    columns = vector.reshape(len(vector), -1)
    norm = float(np.max(np.linalg.norm(columns, axis=0), initial=0.0))
    if not norm > 1e-90:  # as good as 0
        return np.zeros_like(vector), 1.0
    # Rounding adds √d/2 steps, and float64 a part of (d + 10)·2^-53.
    room = 1 + math.sqrt(len(vector)) * 2.0 ** (1 - VECTOR_BITS)
    unit = unit_of(norm * room * (1 + (len(vector) + 10) * 2.0**-53), VECTOR_BITS)
    return np.rint(vector / unit) * unit, unit


def limbs(numbers: np.ndarray) -> np.ndarray:
    """Return integers below 2^46, (n,) or (n, K), as LIMBS parts of at most 2^15 in size, (n, LIMBS) or (n, LIMBS, K).

    Part k counts 2^(16k).
    """
    parts = np.empty((len(numbers), LIMBS, *numbers.shape[1:]))
    for part in range(LIMBS - 1):
        higher = np.rint(numbers * 2.0**-LIMB_BITS)
        parts[:, part] = numbers - higher * 2.0**LIMB_BITS
        numbers = higher
    parts[:, LIMBS - 1] = numbers
    return parts


def weighted_sum(rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return Σ number·row of integers, exactly, in parts that :func:`joined` puts together.

    Args:
        rows: (n, d), of :func:`rounded_rows`.
        numbers: integers below 2^46 in size, (n,) or (n, K), in float64.

    Returns:
        (LIMBS, d) or (LIMBS, d, K) int64.
    """
    parts = limbs(numbers)
    flat = parts.reshape(len(parts), math.prod(parts.shape[1:]))
    total = np.zeros((rows.shape[1], flat.shape[1]), np.int64)
    for at in row_blocks(len(rows)):
        total += (rows[at].T @ flat[at]).astype(np.int64)
    return np.moveaxis(total.reshape(rows.shape[1:] + parts.shape[1:]), 1, 0)


def joined(parts: np.ndarray, bits: int = LIMB_BITS) -> np.ndarray:
    """Return the integers whose parts are the leading axis, dtype object; part k counts 2^(bits·k)."""
    total = parts[-1].astype(object)
    for part in parts[-2::-1]:
        total = (total << bits) + part
    return total


def second_moment(rows: np.ndarray) -> np.ndarray:
    """Return Σ x xᵀ of integer rows of 24 bits, exactly, in parts of :data:`MOMENT_PARTS_BITS`; (3, d, d) int64."""
    size = rows.shape[1]
    total = np.zeros((3, size, size), np.int64)
    for at in row_blocks(len(rows), max(_FEWEST, IN_CACHE // max(1, size))):
        high = np.rint(rows[at] * 2.0**-_HALF_BITS)
        low = rows[at] - high * 2.0**_HALF_BITS
        cross = high.T @ low
        for part, one in zip(total, (low.T @ low, cross + cross.T, high.T @ high), strict=True):
            part += one.astype(np.int64)
    return total


#: Bits by which the parts of :func:`second_moment` differ.
MOMENT_PARTS_BITS = _HALF_BITS


def moment_of_columns(columns: np.ndarray) -> np.ndarray:
    """Return Σ v vᵀ of integer columns (d, n) of 20 bits, exactly, (d, d) int64."""
    total = np.zeros((len(columns), len(columns)), np.int64)
    for at in row_blocks(columns.shape[1]):
        part = columns[:, at]
        total += (part @ part.T).astype(np.int64)
    return total


def row_blocks(count: int, at_once: int = MOST_ROWS) -> Iterator[slice]:
    """Yield slices of rows, as many at once as BLAS may add or as are given."""
    for start in range(0, count, min(at_once, MOST_ROWS)):
        yield slice(start, start + min(at_once, MOST_ROWS))


#: Numbers that stay in a processor's cache, and fewest rows that are worth a product.
IN_CACHE, _FEWEST = 1 << 15, 256


def product(matrix: np.ndarray, unit: float, vector: Exact) -> Exact:
    """Return a public matrix times an exact vector, exactly.

    Args:
        matrix: (d, d), symmetric, of :func:`rounded_vector`; d at most 2^18.
        unit: its grid.
        vector: (d,) or (d, K), its integers below 2^127.
    """
    integers = matrix / unit
    left = vector.steps
    total: np.ndarray = np.zeros(left.shape, object)
    for piece in range(_PIECES):
        low = ((left + (1 << 15)) & 0xFFFF) - (1 << 15)
        left = (left - low) >> 16
        # Cauchy–Schwarz: 2^28·√d·2^15 is below 2^53.
        part = (integers @ low.astype(np.float64)).astype(np.int64)
        total = total + (part.astype(object) << 16 * piece)
    return Exact(total, unit * vector.unit)


#: Parts of 16 bits of an integer below 2^127.
_PIECES = 8


def stacked(*vectors: Exact) -> Exact:
    """Return exact vectors one after the other, exactly, in the finest of their units."""
    unit = min(vector.unit for vector in vectors)
    finer = (math.frexp(vector.unit)[1] - math.frexp(unit)[1] for vector in vectors)
    steps = [vector.steps << bits for vector, bits in zip(vectors, finer, strict=True)]
    return Exact(np.concatenate(steps), unit)


#: √2 times 2^60, rounded down: what off-diagonal entries of a symmetric matrix are multiplied by. A Frobenius norm is
#: then no longer than it is.
_ROOT_TWO, _ROOT_TWO_BITS = math.isqrt(2 << 120), 60


def svec_of(matrix: Exact) -> Exact:
    """Return the diagonal and √2 times the upper triangle of an exact symmetric matrix, (d(d + 1)/2,).

    √2 is rounded down at its sixtieth bit.
    """
    row, column = np.triu_indices(len(matrix.steps))
    factors = np.where(row == column, 1 << _ROOT_TWO_BITS, _ROOT_TWO).astype(object)
    steps = matrix.steps[row, column] * factors
    return Exact(steps, matrix.unit * 2.0**-_ROOT_TWO_BITS)
