"""Values of a table, one at a time: what kind a value is of, its number and its text.

A value is a text, a truth value, a number (whole, real or decimal) or missing, and it is of no other kind: a date, a
list or an object of a class of one's own is refused. Every function here looks at one value, so that no row decides
how another is read. ``column_kinds.py`` has what a column declares of them.
"""

from __future__ import annotations

import functools
import math
import re
from decimal import Decimal, InvalidOperation
from numbers import Integral
from typing import NamedTuple

import numpy as np

from dpmcmc.errors import DataError

#: A value as every container gives it; None is missing.
Value = str | bool | int | float | Decimal | None
#: Types of values that need no conversion, and those among them that may stand for a missing value.
PLAIN: frozenset[type] = frozenset({str, bool, int, float, Decimal, type(None)})
_MAY_BE_MISSING = frozenset({float, Decimal, type(None)})
#: A number as JSON writes it: no zeros before it, no sign +.
_NUMERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
#: Digits of a whole number that Python writes out; it refuses more.
LONGEST = 4000


class OtherKind(TypeError):
    """A value is no text, truth value or number."""


class Values(NamedTuple):
    """One column of a table.

    Attributes:
        name: of the column.
        values: (N,) of objects, each a :data:`Value`; or of numbers or truth values, which say nothing where one is
            missing.
        missing: (N,) bool.
    """

    name: str
    values: np.ndarray
    missing: np.ndarray

    def refuse(self, bad: np.ndarray, what: str, how: str) -> None:
        """Raise DataError where a row of ``bad``, (N,), is marked; its ``rows`` are these."""
        if bad.any():
            raise DataError(f"data: column {self.name!r} has {what}: {how}.", rows=np.flatnonzero(bad))

    def refuse_missing(self, allowed: bool) -> None:
        """Raise DataError where a value is missing, unless that is allowed."""
        if not allowed:
            how = "no row is dropped; fill them by a public rule, or declare missing=True, unless it is the label"
            self.refuse(self.missing, "no value in some rows", how)

    def numbers(self) -> np.ndarray:
        """Return the values as float64, (N,), NaN where one is missing.

        Raises:
            DataError: a value is no number.
        """
        how = "a range or counts take plain numbers as 1000.5, not $1,000.50; mend them, or declare levels"
        if self.values.dtype != object:
            return np.where(self.missing, np.nan, self.values.astype(np.float64))
        found = np.array([number(value) for value in self.values], np.float64)
        self.refuse(
            np.isnan(found) & ~self.missing,
            "text, or another value that is no number",
            how,
        )
        return np.where(self.missing, np.nan, found)

    def whole_numbers(self) -> np.ndarray:
        """Return the values as whole float64, (N,).

        Raises:
            DataError: a value is missing, or is no whole number.
        """
        self.refuse_missing(False)
        numbers = self.numbers()
        self.refuse(
            np.floor(numbers) != numbers,
            "a value that is no whole number",
            "mend them, or declare a range",
        )
        return numbers

    def words(self) -> list[str | None]:
        """Return a text for each value, by which a ledger knows the column however it is stored."""
        known = functools.lru_cache(None, typed=True)(word)
        rows = zip(self.values.tolist(), self.missing.tolist(), strict=True)
        return [None if missing else known(value) for value, missing in rows]


def plain(value: object) -> Value:
    """Return a value as one of the types that stand for its kind.

    Raises:
        OtherKind: it is of none.
    """
    if type(value) in PLAIN:
        return value  # type: ignore[return-value]
    if isinstance(value, np.ma.core.MaskedConstant) or type(value).__name__ in (
        "NAType",
        "NaTType",
    ):
        return None
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral) and not isinstance(value, np.timedelta64):  # a whole number to NumPy
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, Decimal):
        return Decimal(value)
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "fiub" and np.ndim(value) == 0:  # type: ignore[arg-type]
        return plain(np.asarray(value)[()])
    raise OtherKind


def is_missing(value: Value) -> bool:
    """Return whether a value is None or not a number, quiet or signalling."""
    return value is None or (isinstance(value, Decimal) and value.is_nan()) or (type(value) is float and value != value)


def find_missing(values: list[Value]) -> np.ndarray:
    """Return which values are missing, (N,) bool."""
    if _MAY_BE_MISSING.isdisjoint(map(type, values)):
        return np.zeros(len(values), bool)
    return np.fromiter(map(is_missing, values), bool, len(values))


def number(value: Value) -> float:
    """Return the nearest float of a value, infinite beyond all floats; NaN where it is no number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def exact(value: int | float | Decimal) -> int | Decimal:
    """Return a finite number without rounding: a whole one as an int, another as the decimal that writes it.

    A float that is not whole stands for the shortest decimal that gives it back, as it is printed: 0.1 for 1/10.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else Decimal(repr(value))
    if isinstance(value, Decimal) and value == value.to_integral_value() and value.adjusted() < LONGEST:
        return int(value)
    return value


def is_short(value: int | float | Decimal) -> bool:
    """Return whether a number is finite and can be written out."""
    if isinstance(value, int):
        return abs(value) < 10**LONGEST
    number = Decimal(value)
    return number.is_finite() and -LONGEST < number.adjusted() < LONGEST and len(number.as_tuple().digits) < LONGEST


def as_float(value: Decimal) -> float | None:
    """Return the float that is printed as a number, or None."""
    near = float(value)
    return near if Decimal(repr(near)) == value else None


def shortest(value: int | Decimal) -> str:
    """Return the text of a number: digits of a whole one, else as Python prints a float, or all decimals."""
    if isinstance(value, int):
        return str(value)
    near = as_float(value)
    return format(value, "f").rstrip("0") if near is None else repr(near)


def spelled(text: str) -> Decimal | None:
    """Return the number that a text writes as JSON does; None of any other text, ``01`` among them."""
    if _NUMERAL.fullmatch(text) is None:
        return None
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of twenty digits
        return None


def word(value: Value) -> str:
    """Return a text that 1, 1.0 and ``"1"`` have in common, whichever a reader made of a value.

    A ledger knows a table by these texts, so they must stay what they are. Levels are compared exactly.
    """
    if isinstance(value, bool):
        return str(value).lower()
    found = number(value)
    if math.isfinite(found):
        return str(int(found)) if found == int(found) and abs(found) < 2**53 else repr(found)
    if isinstance(value, int):
        return hex(value)  # digits of so large a number are more than Python writes
    text = str(value).strip()
    return text.lower() if text.lower() in ("true", "false") else text
