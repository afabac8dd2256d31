"""Kinds of a table's columns: what is public about the values of one column, and how a value becomes numbers.

    Range(17, 90)                       a number, mapped to [-1, 1] by the ends of its range
    Levels(["yes", "no"], other=True)   a word, mapped to one column of 0 and 1 for each level
    Counts(20)                          a whole number from 0; for labels alone

All constants are declared, and a value is encoded by itself alone. No message quotes a value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Gt

from dpmcmc.errors import Checked, DataError, InputError, check_fields

#: Names of the levels that a schema adds.
OTHER, MISSING = "other", "missing"
#: Types whose equal values have one text; equal times of two time zones, for example, have two.
_PLAIN = (str, int, float, bool)


class Values(NamedTuple):
    """One column of a table.

    Attributes:
        name: of the column.
        values: (N,) of numbers, booleans or objects.
        missing: (N,) bool.
    """

    name: str
    values: np.ndarray
    missing: np.ndarray

    def refuse(self, bad: np.ndarray, what: str, how: str) -> None:
        """Raise DataError where a row of ``bad``, (N,), is marked; it says how many are, and which is the first."""
        if bad.any():
            raise DataError(
                f"data: column {self.name!r} has {what} in {int(bad.sum())} rows (first: row {int(bad.argmax())}, "
                f"counted from 0): {how}."
            )

    def refuse_missing(self, allowed: bool) -> None:
        """Raise DataError where a value is missing, unless that is allowed."""
        if not allowed:
            self.refuse(
                self.missing, "no value", "no row is dropped; fill them by a public rule, or declare missing=True"
            )

    def numbers(self) -> np.ndarray:
        """Return the values as float64, (N,), NaN where one is missing.

        Raises:
            DataError: a value is no number.
        """
        how = "a column with a range or counts holds numbers; mend them, or declare levels"
        if self.values.dtype.kind in "fiub":
            return np.where(self.missing, np.nan, self.values.astype(np.float64))
        found = np.array([_number(value) for value in self.values], np.float64)
        self.refuse(np.isnan(found) & ~self.missing, "text, or another value that is no number", how)
        return np.where(self.missing, np.nan, found)

    def whole_numbers(self) -> np.ndarray:
        """Return the values as whole float64, (N,).

        Raises:
            DataError: a value is missing, or is no whole number.
        """
        self.refuse_missing(False)
        numbers = self.numbers()
        self.refuse(np.floor(numbers) != numbers, "a value that is no whole number", "mend them, or declare a range")
        return numbers

    def words(self) -> np.ndarray:
        """Return the values as texts, (N,) objects: 1, 1.0 and ``"1"`` are one level, however a table stores them."""
        known = functools.lru_cache(None, typed=True)(word)

        def text(value: object) -> str:
            if type(value) in _PLAIN:
                return known(value)
            hash(value)  # A list has none.
            return word(value)

        try:
            return np.array([text(value) for value in self.values.tolist()], object)
        except TypeError:
            raise DataError(f"data: column {self.name!r} holds lists: give one value for each row.") from None


class Encoded(NamedTuple):
    """A column in numbers.

    Attributes:
        block: (N, k) float64, entries within [-1, 1] and at most one of a row not 0; or (N,).
        outside: rows whose value was clipped, or sent to ``other``.
    """

    block: np.ndarray
    outside: int


@dataclass(frozen=True)
class Range:
    """Numbers with a public range; values beyond it are clipped to its ends.

    Args:
        low: smallest value.
        high: largest value.
        scale: ``linear``, or ``log1p``: the range is mapped on the scale of log(1 + value).
        missing: whether values may be missing; such a row has a column of its own, and 0 here.

    Raises:
        InputError: ends that are not finite, that are not in order, or that the scale does not take.

    Example:
        >>> from dpmcmc.data import Range
        >>> Range(0, 1e6, scale="log1p").scale
        'log1p'
    """

    low: float
    high: float
    scale: Literal["linear", "log1p"] = "linear"
    missing: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if not all(isinstance(end, int | float) and math.isfinite(end) for end in (self.low, self.high)):
            raise InputError(f"range: ends must be finite numbers, got {self.low!r} and {self.high!r}", "low")
        if not self.low < self.high:
            raise InputError(f"range: {self.low:g} is not below {self.high:g}; give the smaller end first", "low")
        if self.scale == "log1p" and self.low <= -1:
            raise InputError(f"range: scale log1p needs a lower end above -1, got {self.low:g}", "low")

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Ends of the encoded columns' names, after the column's own name."""
        return ("", f"={MISSING}") if self.missing else ("",)

    @property
    def middle_and_half(self) -> tuple[float, float]:
        """Middle and half the width of the range, on its scale."""
        low, high = (math.log1p(end) if self.scale == "log1p" else float(end) for end in (self.low, self.high))
        return (low + high) / 2, (high - low) / 2

    def own_units(self, name: str) -> dict[str, dict[str, float]]:
        """Return each encoded column as a sum: factors of the column's own value, of 1 (key "") and of ``missing``."""
        middle, half = self.middle_and_half
        value = {name: 1 / half, "": -middle / half}
        gone = f"{name}={MISSING}"
        return {name: value | {gone: middle / half}, gone: {gone: 1.0}} if self.missing else {name: value}

    def scaled(self, column: Values) -> Encoded:
        """Return the column on [-1, 1], (N,), NaN where a value is missing.

        Raises:
            DataError: values that are no numbers, or that are missing and may not be.
        """
        numbers = column.numbers()  # before missing values: a column of text has another remedy
        column.refuse_missing(self.missing)
        inside = np.clip(numbers, self.low, self.high)
        middle, half = self.middle_and_half
        on_scale = np.log1p(inside) if self.scale == "log1p" else inside
        outside = int(((numbers < self.low) | (numbers > self.high)).sum())
        return Encoded(np.clip((on_scale - middle) / half, -1.0, 1.0), outside)

    def encode(self, column: Values) -> Encoded:
        """Return (N, 1), or (N, 2) where values may be missing; raises as :meth:`scaled`."""
        scaled, outside = self.scaled(column)
        columns = (np.where(column.missing, 0.0, scaled), column.missing.astype(np.float64))
        return Encoded(np.stack(columns[: len(self.suffixes)], axis=1), outside)

    def decoded(self, block: np.ndarray) -> np.ndarray:
        """Return values within the range, (N,), of encoded columns (N, 1 or 2); NaN where one is missing."""
        middle, half = self.middle_and_half
        on_scale = middle + half * np.clip(block[:, 0].astype(np.float64), -1.0, 1.0)
        values = np.clip(np.expm1(on_scale) if self.scale == "log1p" else on_scale, self.low, self.high)
        return np.where(block[:, 1] > 0.5, np.nan, values) if self.missing else values


@dataclass(frozen=True)
class Levels:
    """Words, or numbers that stand for words, out of a public list.

    A level is compared as text, so 1, 1.0 and ``"1"`` are the same level.

    Args:
        levels: all of them, in the order of their columns.
        other: whether a value that is no level becomes the level ``other``; otherwise it is refused.
        missing: whether a missing value becomes the level ``missing``; otherwise it is refused.

    Raises:
        InputError: no level, or one that is there twice.

    Example:
        >>> from dpmcmc.data import Levels
        >>> Levels(["office", "field"], other=True).levels
        ('office', 'field')
    """

    levels: tuple[str, ...]
    other: bool = False
    missing: bool = False

    def __post_init__(self) -> None:
        given = self.levels
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise InputError(f"levels must be a list, got {given!r}", "levels")
        object.__setattr__(self, "levels", tuple(word(level) for level in given))
        if not self.levels:
            raise InputError("levels: the list is empty; name every level", "levels")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise InputError(
                f"levels: {', '.join(twice)} is there twice (1, 1.0 and '1' are one level, and so are the level "
                "that other=True or missing=True adds and one of that name)",
                "levels",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Every level, with those that ``other`` and ``missing`` add."""
        return (*self.levels, *([OTHER] if self.other else []), *([MISSING] if self.missing else []))

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Ends of the encoded columns' names, after the column's own name."""
        return tuple(f"={name}" for name in self.names)

    def own_units(self, name: str) -> dict[str, dict[str, float]]:
        """Return each encoded column as a sum: the first one is 1 (key "") less the others."""
        first, *others = (f"{name}{suffix}" for suffix in self.suffixes)
        return {first: {"": 1.0} | dict.fromkeys(others, -1.0)}

    def named(self, column: Values) -> tuple[np.ndarray, int]:
        """Return (level of every row, (N,) objects; rows sent to ``other``).

        Raises:
            DataError: a value that is no level, or is missing, where the schema has no level for it.
        """
        column.refuse_missing(self.missing)
        words, known = column.words(), set(self.levels)
        unknown = np.array([value not in known for value in words], bool) & ~column.missing
        if not self.other:
            column.refuse(unknown, "a value that is no level", "complete the public list of levels, or give other=True")
        words[unknown], words[column.missing] = OTHER, MISSING
        return words, int(unknown.sum())

    def encode(self, column: Values) -> Encoded:
        """Return one column of 0 and 1 for each level, (N, k); raises as :meth:`named`."""
        from sklearn.preprocessing import OneHotEncoder

        names = np.array(self.names, object)
        words, outside = self.named(column)
        encoder = OneHotEncoder(categories=[names], sparse_output=False).fit(names[:, None])
        return Encoded(encoder.transform(words[:, None]), outside)

    def decoded(self, block: np.ndarray) -> np.ndarray:
        """Return the level of the largest of the encoded columns (N, k), (N,) objects; None is a missing value."""
        names = np.array([*self.names[:-1], None] if self.missing else self.names, object)
        return names[np.argmax(block, axis=1)]


@dataclass(frozen=True)
class Counts(Checked):
    """Whole numbers from 0 to a public largest one; a larger count is clipped to it. For labels.

    Args:
        largest: count.

    Example:
        >>> from dpmcmc.data import Counts
        >>> Counts(largest=20).largest
        20
    """

    largest: Annotated[int, Gt(0)]


Column = Range | Levels | Counts


def column_of(name: str, given: object) -> Column:
    """Return a column's kind from what a schema says of it: a kind itself, or a mapping as in YAML.

    Raises:
        InputError: about ``columns.NAME``: it says nothing that is known.
    """
    if isinstance(given, Range | Levels | Counts):
        return given
    known: dict[str, Callable[..., Column]] = {"range": _range, "levels": Levels, "counts": Counts}
    keys = [key for key in known if isinstance(given, Mapping) and key in given]
    try:
        if not isinstance(given, Mapping) or len(keys) != 1:
            raise InputError(f"must be {{range: [low, high]}}, {{levels: [...]}} or {{counts: largest}}, got {given!r}")
        return known[keys[0]](given[keys[0]], **{key: value for key, value in given.items() if key != keys[0]})
    except (InputError, TypeError) as error:
        raise InputError(f"{name}: {error}", f"columns.{name}") from None


def _range(ends: Sequence[float], **options: object) -> Range:
    if not isinstance(ends, Sequence) or len(ends) != 2:
        raise InputError(f"range must be [low, high], got {ends!r}")
    low, high = ends
    return Range(low, high, **options)  # type: ignore[arg-type]


def to_yaml(column: Column) -> dict[str, object]:
    """Return what a YAML says of a column; defaults are left out."""
    if isinstance(column, Counts):
        return {"counts": column.largest}
    if isinstance(column, Range):
        first, scale = {"range": [column.low, column.high]}, {"scale": column.scale}
        return first | (scale if column.scale != "linear" else {}) | ({"missing": True} if column.missing else {})
    flags = {name: True for name in (OTHER, MISSING) if getattr(column, name)}
    return {"levels": list(column.levels), **flags}


def word(value: object) -> str:
    """Return a value as the text that levels are compared by."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    number = _number(value)
    if math.isfinite(number):
        return str(int(number)) if number == int(number) and abs(number) < 2**53 else repr(number)
    return text


def _number(value: object) -> float:
    """Return a value as a number; NaN where it is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
