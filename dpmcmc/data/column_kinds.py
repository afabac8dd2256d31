"""Kinds of a table's columns: what is public about the values of one column, and how a value becomes numbers.

    Range(17, 90)                       a number, mapped into [-1, 1] by the ends of its range
    Levels(["yes", "no"], other=True)   a word, mapped to one column of 0 and 1 for each level
    Counts(20)                          a whole number from 0; for labels alone

All constants are declared, and a value is encoded by itself alone. No message quotes a value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Gt, Le

from dpmcmc.data.checks import check_name
from dpmcmc.data.values import (
    LONGEST,
    OtherKind,
    Values,
    as_float,
    exact,
    is_missing,
    is_short,
    number,
    plain,
    shortest,
    spelled,
)
from dpmcmc.errors import Checked, InputError, check_fields, shown

#: Names of the levels that a schema adds.
OTHER, MISSING = "other", "missing"
#: A level as it was declared: a text, a truth value or a number.
Level = str | bool | int | float
#: Largest count of a label, which is stored in 32 bits.
_LARGEST_COUNT = np.iinfo(np.int32).max


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
        ends = (self.low, self.high)
        if not all(isinstance(end, int | float) and math.isfinite(number(end)) for end in ends):
            raise InputError(
                f"range: ends must be finite numbers, got {shown(self.low)} and {shown(self.high)}",
                "low",
            )
        if not self.low < self.high:
            raise InputError(
                f"range: {self.low:g} is not below {self.high:g}; give the smaller end first",
                "low",
            )
        if self.scale == "log1p" and self.low <= -1:
            raise InputError(f"range: scale log1p needs a lower end above -1, got {self.low:g}", "low")
        middle, half = self.middle_and_half
        if not (math.isfinite(middle) and 0 < half < math.inf and math.isfinite(1 / half)):
            raise InputError(
                f"range: {self.low:g} and {self.high:g} are too far apart, or too close, for 64-bit floats",
                "low",
            )

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Ends of the encoded columns' names, after the column's own name."""
        return ("", f"={MISSING}") if self.missing else ("",)

    @property
    def from_zero(self) -> Range:
        """The same range, divided by its larger end on its scale, for terms where a shift would be another model."""
        return _FromZero(self.low, self.high, self.scale, self.missing)

    @property
    def middle_and_half(self) -> tuple[float, float]:
        """Middle and half the width of the range, on its scale."""
        low, high = self._ends
        return (low + high) / 2, (high - low) / 2

    @property
    def _ends(self) -> tuple[float, float]:
        """Ends of the range, on its scale."""
        if self.scale == "log1p":
            return math.log1p(self.low), math.log1p(self.high)
        return float(self.low), float(self.high)

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
        columns = (
            np.where(column.missing, 0.0, scaled),
            column.missing.astype(np.float64),
        )
        return Encoded(np.stack(columns[: len(self.suffixes)], axis=1), outside)


@dataclass(frozen=True)
class _FromZero(Range):
    """A range whose 0 stays 0."""

    @property
    def middle_and_half(self) -> tuple[float, float]:
        """0, and the larger end of the range, on its scale."""
        return 0.0, max(map(abs, self._ends))


@dataclass(frozen=True)
class Levels:
    """Words, or numbers that stand for words, out of a public list.

    A value is compared by its kind and without rounding. A level that is a number takes numbers that are equal to it,
    and texts that write such a number as JSON does: 1 takes 1.0, ``Decimal("1.0")``, ``"1"`` and ``"1.0"``. A level
    that is a text takes that text, and a number or truth value whose text it is: ``"1"`` takes 1 and 1.0, and neither
    ``"1.0"`` nor ``"01"``. True takes True and the texts ``"true"`` and ``"True"``, and no number. Spaces around a text
    do not count.

    Args:
        levels: all of them, in the order of their columns.
        other: whether a value that is no level becomes the level ``other``; otherwise it is refused.
        missing: whether a missing value becomes the level ``missing``; otherwise it is refused.
        ordered: whether the levels of a label rise in their order, which gives an ordinal regression.

    Raises:
        InputError: no level, one that is there twice, or one that is no text, number or truth value.

    Example:
        >>> from dpmcmc.data import Levels
        >>> Levels(["office", "field"], other=True).levels
        ('office', 'field')
    """

    levels: tuple[Level, ...]
    other: bool = False
    missing: bool = False
    ordered: bool = False
    #: Types of the levels, since True is equal to 1.
    _kinds: tuple[type, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = self.levels
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise InputError(f"levels must be a list, got {shown(given)}", "levels")
        object.__setattr__(self, "levels", tuple(map(_declared, given)))
        object.__setattr__(self, "_kinds", tuple(map(type, self.levels)))
        if not self.levels:
            raise InputError("levels: the list is empty; name every level", "levels")
        self._known  # noqa: B018  # refuses a level that is there twice
        twice = set(self.texts).intersection(self.names[len(self.levels) :])
        if twice:
            raise _twice(min(twice))

    @functools.cached_property
    def texts(self) -> tuple[str, ...]:
        """Every declared level as a text."""
        return tuple(map(_text, self.levels))

    @property
    def names(self) -> tuple[str, ...]:
        """Every level as a text, with those that ``other`` and ``missing`` add."""
        return (
            *self.texts,
            *([OTHER] if self.other else []),
            *([MISSING] if self.missing else []),
        )

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Ends of the encoded columns' names, after the column's own name."""
        return tuple(f"={name}" for name in self.names)

    @functools.cached_property
    def _known(self) -> dict[type, dict]:
        """Type of a value -> value -> number of its level."""
        known: dict[type, dict] = {kind: {} for kind in (str, bool, int, float, Decimal)}
        for code, level in enumerate(self.levels):
            for key in _met(level):
                if known[type(key)].setdefault(key, code) != code:
                    raise _twice(self.texts[code])
        for kind in (float, Decimal):  # equal to an int where they are whole
            known[kind] |= known[int]
        return known

    @functools.cached_property
    def _spelled(self) -> dict[int | Decimal, int]:
        """Number of the level -> its place, of levels that were declared as numbers."""
        return {exact(level): k for k, level in enumerate(self.levels) if not isinstance(level, str | bool)}

    def _of_text(self, text: str) -> int:
        """Return the place of the level that takes a text, -1 where none does."""
        text = text.strip()
        code = self._known[str].get(text, -1)
        found = spelled(text) if code < 0 and self._spelled else None
        return code if found is None else self._spelled.get(found, -1)

    def codes(self, column: Values) -> tuple[np.ndarray, int]:
        """Return (number of every row's level in :attr:`names`, (N,) int; rows sent to ``other``).

        Raises:
            DataError: a value that is no level, or is missing, where the schema has no level for it.
        """
        column.refuse_missing(self.missing)
        known = self._known
        objects = column.values.tolist()
        if column.values.dtype == object:
            texts = {value for value in objects if type(value) is str}
            known = known | {
                str: {text: self._of_text(text) for text in texts},
                type(None): {},
            }
        codes = np.array([known[type(value)].get(value, -1) for value in objects], np.int64)
        unknown = (codes < 0) & ~column.missing
        if not self.other:
            how = "complete the public list of levels, or give other=True, unless it is the label"
            column.refuse(unknown, "a value that is no level", how)
        codes[unknown] = len(self.levels)
        codes[column.missing] = len(self.names) - 1
        return codes, int(unknown.sum())

    def encode(self, column: Values) -> Encoded:
        """Return one column of 0 and 1 for each level, (N, k); raises as :meth:`codes`."""
        codes, outside = self.codes(column)
        block = np.zeros((len(codes), len(self.names)))
        block[np.arange(len(codes)), codes] = 1.0
        return Encoded(block, outside)


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

    largest: Annotated[int, Gt(0), Le(_LARGEST_COUNT)]


def _declared(given: object) -> Level:
    """Return a level as a text, a truth value or a finite number.

    Raises:
        InputError: it is none.
    """
    try:
        level = plain(given)
    except OtherKind:
        level = None
    if level is None or is_missing(level):
        raise InputError(
            "levels: each must be a text, a number or a truth value (in YAML quote it), and missing=True stands for a "
            "missing value",
            "levels",
        )
    if isinstance(level, str):
        return check_name(level.strip(), "levels")
    if isinstance(level, bool):
        return level
    if not is_short(level):
        raise InputError(f"levels: numbers must be finite and of at most {LONGEST} digits", "levels")
    found = exact(level)
    near = found if isinstance(found, int) else as_float(found)
    return shortest(found) if near is None else near


def _text(level: Level) -> str:
    if isinstance(level, str):
        return level
    return str(level).lower() if isinstance(level, bool) else shortest(exact(level))


def _met(level: Level) -> list[str | bool | int | float | Decimal]:
    """Return what a level takes, apart from texts that write a number otherwise."""
    if isinstance(level, bool):
        return [level, *(form(str(level)) for form in (str, str.lower, str.upper))]
    if not isinstance(level, str):
        return _equal(exact(level))
    truth = [value for value in (True, False) if str(value).lower() == level.lower()]
    found = spelled(level)
    numeral = found is not None and is_short(found) and shortest(exact(found)) == level
    return [
        level,
        *truth,
        *(_equal(exact(found)) if found is not None and numeral else []),
    ]


def _equal(number: int | Decimal) -> list[str | bool | int | float | Decimal]:
    """Return the numbers that are equal to one; a float that is not whole is the decimal that it is printed as."""
    near = None if isinstance(number, int) else as_float(number)
    return [number] if near is None else [number, near]


def _twice(level: str) -> InputError:
    return InputError(
        f"levels: {level} is there twice (1, 1.0 and '1' are one level, and so are the level that other=True or "
        "missing=True adds and one of that name)",
        "levels",
    )


Column = Range | Levels | Counts


def column_of(name: str, given: object) -> Column:
    """Return a column's kind from what a schema says of it: a kind itself, or a mapping as in YAML.

    Raises:
        InputError: about ``columns.NAME``: it says nothing that is known.
    """
    if isinstance(given, Range | Levels | Counts):
        return given
    known: dict[str, Callable[..., Column]] = {
        "range": _range,
        "levels": Levels,
        "counts": Counts,
    }
    keys = [key for key in known if isinstance(given, Mapping) and key in given]
    try:
        if not isinstance(given, Mapping) or len(keys) != 1:
            raise InputError(
                f"must be {{range: [low, high]}}, {{levels: [...]}} or {{counts: largest}}, got {shown(given)}"
            )
        return known[keys[0]](
            given[keys[0]],
            **{key: value for key, value in given.items() if key != keys[0]},
        )
    except (InputError, TypeError) as error:
        raise InputError(f"{name}: {error}", f"columns.{name}") from None


def _range(ends: Sequence[float], **options: object) -> Range:
    if not isinstance(ends, Sequence) or len(ends) != 2:
        raise InputError(f"range must be [low, high], got {shown(ends)}")
    low, high = ends
    return Range(low, high, **options)  # type: ignore[arg-type]


def to_yaml(column: Column) -> dict[str, object]:
    """Return what a YAML says of a column; defaults are left out."""
    if isinstance(column, Counts):
        return {"counts": column.largest}
    if isinstance(column, Range):
        first = {"range": [column.low, column.high]}
        scale = {"scale": column.scale}
        return first | (scale if column.scale != "linear" else {}) | ({"missing": True} if column.missing else {})
    flags = {
        name: True
        for name, said in (
            (OTHER, column.other),
            (MISSING, column.missing),
            ("ordered", column.ordered),
        )
        if said
    }
    return {"levels": list(column.levels), **flags}
