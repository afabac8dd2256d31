"""Factors of a formula that are made of a column: splines, polynomials and groups. All their numbers are public.

    bs(age, knots=[30, 45, 60], degree=3)   B-splines; the first is left out, as in R
    ns(age, knots=[30, 45, 60])             natural cubic splines
    poly(age, 2)                            Legendre polynomials of degree 1, 2, ...
    (1 | clinic), (age | clinic)            one column of 0 and 1 for each level, none left out; age times these

A basis is a function of the column on its range, mapped to [-1, 1]; the ends of the range are the outer knots. The
functions of one basis are multiplied by one public constant, so that a row's block has norm at most 1.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from dpmcmc.data.column_kinds import Column, Encoded, Levels, Range
from dpmcmc.data.formula import Call, Parsed
from dpmcmc.data.values import Values
from dpmcmc.errors import InputError

#: Room for the rounding of an encoded block to float32, relative.
_ROUNDING = 1e-6
#: Points of each piece at which the norm of natural splines is computed. The squared norm is a polynomial p of
#: degree 6 there. Markov's inequality bounds |p''| by 1680 max p on a piece of length 1, so that the largest value at
#: points 1/512 apart is at least (1 - 1680/(8·512²)) max p, and _BETWEEN times it is at least max p.
_POINTS, _BETWEEN = 513, 1.001


@dataclass(frozen=True)
class GroupEffect:
    """Columns of one effect that differs by group, for a prior that they share.

    Attributes:
        name: ``1|clinic`` of intercepts, ``age|clinic`` of slopes.
        group: column of the groups.
        columns: places of the encoded columns, one for each level of the group.
    """

    name: str
    group: str
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Basis:
    """Functions of one column.

    Args:
        call: which functions.
        column: the range of the column.

    Raises:
        InputError: a column without a range, or with missing values; knots that are not inside it, or not in order.
    """

    call: Call
    column: Range

    def __post_init__(self) -> None:
        name = f"{self.call.function}({self.call.column})"
        if not isinstance(self.column, Range) or self.column.missing:
            raise InputError(
                f"formula: {name} is for a column with a range and without missing=True; make a column of your own",
                "formula",
            )
        ends = (self.column.low, *self.call.knots, self.column.high)
        if not all(a < b for a, b in itertools.pairwise(ends)):
            raise InputError(
                f"formula: knots of {name} must lie inside the range ({self.column.low:g}, {self.column.high:g}) of "
                "the column, in increasing order",
                "formula",
            )

    @property
    def source(self) -> str:
        """Column of the table."""
        return self.call.column

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Ends of the encoded columns' names, after the factor's own name."""
        return tuple(f"[{k + 1}]" for k in range(self._at(np.zeros(1)).shape[1]))

    @functools.cached_property
    def scale(self) -> float:
        """Public constant that the functions are multiplied by."""
        largest = 1.0
        if self.call.function == "poly":
            largest = self.call.degree
        elif self.call.function == "ns":
            ends = self._knots
            points = np.linspace(ends[:-1], ends[1:], _POINTS).ravel()
            largest = _BETWEEN * float(np.max(np.sum(self._at(points) ** 2, axis=1)))
        return (1 - _ROUNDING) / math.sqrt(largest)

    def own_units(self, name: str) -> dict[str, dict[str, float]]:
        """Return each encoded column as a multiple of its function."""
        parts = (f"{name}{suffix}" for suffix in self.suffixes)
        return {part: {part: self.scale} for part in parts}

    def encode(self, column: Values) -> Encoded:
        """Return (N, k); raises as :meth:`Range.scaled`."""
        scaled, outside = self.column.scaled(column)
        return Encoded(self.scale * self._at(scaled), outside)

    @functools.cached_property
    def _knots(self) -> np.ndarray:
        """Knots on [-1, 1], the outer ones among them."""
        middle, half = self.column.middle_and_half
        inner = np.array(self.call.knots, np.float64)
        inner = np.log1p(inner) if self.column.scale == "log1p" else inner
        return np.array([-1.0, *(inner - middle) / half, 1.0])

    def _at(self, points: np.ndarray) -> np.ndarray:
        """Return the functions at points of [-1, 1], (n, k)."""
        from scipy.interpolate import (
            BSpline,
            CubicSpline,
        )  # a tenth of a second to import

        degree = self.call.degree
        knots = self._knots
        if self.call.function == "poly":
            return np.polynomial.legendre.legvander(points, degree)[:, 1:]
        if self.call.function == "ns":
            # Function k is 1 at knot k and 0 at the others; they add up to 1, so the first is left to the intercept.
            values = np.eye(len(knots))
            return CubicSpline(knots, values, bc_type="natural")(points)[:, 1:]
        knots = np.array([*[-1.0] * degree, *knots, *[1.0] * degree])
        values = np.eye(len(knots) - degree - 1)
        return np.clip(BSpline(knots, values, degree)(points)[:, 1:], 0.0, 1.0)


@dataclass(frozen=True)
class Group:
    """The levels of a column as groups: none is compared with the first.

    Args:
        source: column of the table.
        levels: public list of the groups.

    Raises:
        InputError: a column without levels.
    """

    source: str
    levels: Levels

    def __post_init__(self) -> None:
        if not isinstance(self.levels, Levels):
            raise InputError(
                f"formula: (1 | {self.source}) needs public groups; declare Levels of {self.source}",
                "formula",
            )

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Ends of the encoded columns' names, after the factor's own name."""
        return self.levels.suffixes

    def encode(self, column: Values) -> Encoded:
        """Return one column of 0 and 1 for each group, (N, k); raises as :meth:`Levels.codes`."""
        return self.levels.encode(column)


#: Something that features are products of.
Factor = Range | Levels | Basis | Group


def make_factors(found: Parsed, columns: dict[str, Column]) -> dict[str, Factor]:
    """Return the factors of a formula that are no columns, by name.

    Raises:
        InputError: a column that cannot be what the formula makes of it.
    """
    for name in found.categorical:
        if not isinstance(columns[name], Levels):
            raise InputError(
                f"formula: C({name}) is for a column of levels, and {name} is declared as numbers; declare Levels of "
                f"{name}, or leave C() out",
                "formula",
            )
    calls = {
        name: Basis(call, columns[call.column])  # type: ignore[arg-type]
        for name, call in found.calls.items()
    }
    groups = {
        name: Group(column, columns[column])  # type: ignore[arg-type]
        for name, column in found.groups.items()
    }
    made: dict[str, Factor] = {**calls, **groups}
    for name in made:
        if name in columns:
            raise InputError(f"formula: {name} is a column too; rename the column", "columns")
    for term in found.terms:
        slope, *rest = term
        if rest and rest[-1] in groups and not _is_slope(columns[slope]):
            raise InputError(
                f"formula: the slope {slope} of {rest[-1]} must be a column with a range and without missing=True; for "
                "levels, make a column of both and take its groups",
                "formula",
            )
    return made


def _is_slope(column: Column) -> bool:
    return isinstance(column, Range) and not column.missing


def read_exposure(name: str, column: Column) -> Range:
    """Return the range of the column whose log is the offset.

    Raises:
        InputError: it has none, or one that is not positive.
    """
    if not isinstance(column, Range) or column.missing or not column.low > 0:
        raise InputError(
            f"offset: the log of {name} needs Range(low, high) with low > 0, without missing=True",
            "offset",
        )
    return column


def read_weights(name: str, column: Column, mean: float | None) -> Range:
    """Return the range of the column of weights.

    Args:
        name: of the column.
        column: what is declared of it.
        mean: public mean of the weights, or None.

    Raises:
        InputError: it has none, or one with negative numbers; a mean outside the range.
    """
    if not isinstance(column, Range) or column.missing or column.low < 0:
        raise InputError(
            f"weights: {name} needs Range(low, high) with low >= 0, without missing=True",
            "weights",
        )
    if mean is not None and not (type(mean) in (int, float) and mean > 0 and column.low <= mean <= column.high):
        raise InputError(
            f"mean_weight: must be a public number > 0 within the range of {name}",
            "mean_weight",
        )
    return column


def clip_to_range(column: Range, values: Values, positive: bool) -> Encoded:
    """Return numbers within a range, (N,).

    Args:
        column: the range.
        values: of the table.
        positive: whether 0 is refused as negative numbers are.

    Raises:
        DataError: a number is missing, or too small.
    """
    numbers = values.numbers()
    values.refuse_missing(False)
    small = numbers <= 0 if positive else numbers < 0
    what = "a number that is not above 0" if positive else "a negative number"
    values.refuse(small, what, "mend them")
    inside = np.clip(numbers, column.low, column.high)
    return Encoded(inside, int((inside != numbers).sum()))
