"""Columns of a table, wherever it comes from: pandas, polars, Arrow, NumPy, columns by name, a CSV, a Parquet file.

A column is taken by its name and read by ``containers``. All fields of a CSV are read as text: a reader that guesses a
column's type would let one row decide how another is read. A frame or an array that was made of mixed values before it
comes here has what its maker made of them.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeGuard

import numpy as np

from dpmcmc.data import columnar, formula
from dpmcmc.errors import DataError, InputError
from dpmcmc.storage.files import open_text

if TYPE_CHECKING:
    import pyarrow


# ----------------------------------------------------------------------------------------------------
# Values of a table, one at a time: what kind a value is of, its number and its text.
#
# A value is a text, a truth value, a number (whole, real or decimal) or missing, and it is of no other kind: a date, a
# list or an object of a class of one's own is refused. Every function here looks at one value, so that no row decides
# how another is read.

#: A value as every container gives it; None is missing.
Cell = str | bool | int | float | Decimal | None
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
        values: (N,) of objects, each a :data:`Cell`; or of numbers or truth values, which say nothing where one is
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
        how = "a column with a range or counts holds numbers; mend them, or declare levels"
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


def plain(value: object) -> Cell:
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


def is_missing(value: Cell) -> bool:
    """Return whether a value is None or not a number, quiet or signalling."""
    return value is None or (isinstance(value, Decimal) and value.is_nan()) or (type(value) is float and value != value)


def missing_of(values: list[Cell]) -> np.ndarray:
    """Return which values are missing, (N,) bool."""
    if _MAY_BE_MISSING.isdisjoint(map(type, values)):
        return np.zeros(len(values), bool)
    return np.fromiter(map(is_missing, values), bool, len(values))


def number(value: Cell) -> float:
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


def word(value: Cell) -> str:
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


# ----------------------------------------------------------------------------------------------------
# Values of one column, whatever holds it: pandas, polars, Arrow, NumPy, a list.
#
# Values keep their kind, and a missing value is told by that value alone. A container's own conversion to NumPy is not
# used where it looks at the whole column: it turns whole numbers into reals where one is missing, and takes the last
# entry of a dictionary for a missing value. A type of columns that holds no numbers, texts or truth values is refused
# by its name, whatever the values are.

#: A column of a library that is not imported here, as it need not be installed.
Held: TypeAlias = Any
#: Values, (N,), and which are missing, (N,) bool; None: the values say it themselves.
Read = tuple[np.ndarray, np.ndarray | None]


class _Refused(Exception):
    """A column that no schema takes; the text says why."""


def values_of(name: str, column: object) -> Values:
    """Return a column's values.

    Raises:
        DataError: its type holds no numbers, texts or truth values, or one of its values is of another kind.
    """
    try:
        values, missing = _read(column)
    except _Refused as refused:
        raise DataError(f"data: column {name!r} {refused}.") from None
    if values.dtype != object:
        if values.dtype.itemsize > 8:  # a long double
            with np.errstate(over="ignore"):
                values = values.astype(np.float64)
        nan = values != values
        return Values(name, values, nan if missing is None else nan | missing)
    if missing is not None:
        values = _without(values, missing)
    cells = values.tolist()
    if not PLAIN.issuperset(map(type, cells)):
        found = Values(name, values, np.zeros(0, bool))
        other = np.fromiter(map(_is_of_another_kind, cells), bool, len(cells))
        found.refuse(
            other,
            "values that are no number, text or truth value",
            "turn dates, bytes and others into these",
        )
        values = _objects([plain(cell) for cell in cells])
    missing = missing_of(values.tolist())
    return Values(name, _without(values, missing), missing)


def _without(values: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Return objects, None where one is missing."""
    out = values.copy()
    out[missing] = None
    return out


def _is_of_another_kind(value: object) -> bool:
    try:
        plain(value)
    except OtherKind:
        return True
    return False


def _read(column: Held) -> Read:
    """Return what a container holds.

    Raises:
        _Refused: its type is none that a schema takes.
    """
    library = {kind.__module__.partition(".")[0] for kind in type(column).__mro__}
    if "pandas" in library and np.ndim(column) == 1:
        return _pandas(column)
    if "polars" in library and isinstance(column, sys.modules["polars"].Series):
        return _polars(column)
    if "pyarrow" in library and isinstance(column, _arrow_columns()):
        return _arrow(column)
    if hasattr(column, "__array__") and not hasattr(column, "columns"):
        return _numpy(column if isinstance(column, np.ndarray) else np.asarray(column))
    if isinstance(column, Sequence) and not isinstance(column, str | bytes | bytearray):
        # NumPy would choose one type for a list, and one row would decide how the others are read.
        return _objects(column), None
    raise _Refused(f"is of type {type(column).__name__}: give an array or a list with one value for each row")


def _arrow_columns() -> tuple[type, ...]:
    arrow = sys.modules["pyarrow"]
    return arrow.Array, arrow.ChunkedArray


def _objects(values: Sequence[object]) -> np.ndarray:
    return np.fromiter(values, object, len(values))


def _numpy(array: np.ndarray) -> Read:
    if array.ndim != 1:
        raise _Refused(f"has shape {array.shape}: give one value for each row")
    missing = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else None
    values = np.asarray(array)
    if values.dtype.kind in "OUT":
        return values.astype(object), missing
    if values.dtype.kind not in "fiub":
        raise _no_place(values.dtype.type.__name__.strip("_"))
    return values, missing


def _no_place(kind: object) -> _Refused:
    short = re.split(r"[<(\[{]", str(kind))[0]  # brackets may list the levels of the column
    return _Refused(f"holds {short}: turn it into numbers, texts or truth values")


def _taken(entries: Read, codes: Read) -> Read:
    """Return the entry of a dictionary that each code names; a code below 0 is missing."""
    values, gone = entries
    at, missing = codes
    absent = (at < 0) | (False if missing is None else missing)
    if (at[~absent] >= len(values)).any():
        raise _Refused("is damaged, because it names an entry that its dictionary lacks: make it anew")
    if not len(values):
        return np.full(len(at), None, object), None
    at = np.where(absent, 0, at).astype(np.int64)
    return values[at], absent if gone is None else absent | gone[at]


def _pandas(column: Held) -> Read:
    """Read a Series, an Index or an array of pandas."""
    dtype = column.dtype
    pandas = sys.modules["pandas"]
    array: Held = column.array if isinstance(column, pandas.Series | pandas.Index) else column
    kind = type(dtype).__name__
    if isinstance(dtype, np.dtype):
        return _numpy(np.asarray(column))
    if kind == "CategoricalDtype":
        return _taken(_pandas(array.categories), (np.asarray(array.codes), None))
    if kind == "SparseDtype":
        return _numpy(np.asarray(array))
    if kind == "ArrowDtype" or (kind == "StringDtype" and dtype.storage != "python"):
        return _arrow(array.__arrow_array__())
    if kind == "StringDtype":
        return np.asarray(array, object), None
    if kind == "BooleanDtype" or hasattr(dtype, "numpy_dtype"):  # numbers with a mask
        return array.to_numpy(dtype.numpy_dtype, na_value=0), np.asarray(array.isna())
    raise _no_place(dtype)


def _polars(column: Held) -> Read:
    """Read a Series of polars."""
    kind = column.dtype.base_type().__name__
    dtype = column.dtype
    if kind == "Boolean" or (dtype.is_integer() and not kind.endswith("128")) or dtype.is_float():
        return column.fill_null(False if kind == "Boolean" else 0).to_numpy(), column.is_null().to_numpy()
    if kind in (
        "Int128",
        "UInt128",
        "Decimal",
        "String",
        "Categorical",
        "Enum",
        "Null",
        "Object",
    ):
        return _objects(column.to_list()), None
    raise _no_place(dtype)


def _arrow(column: pyarrow.Array | pyarrow.ChunkedArray) -> Read:
    """Read an array of Arrow chunk by chunk, since each chunk may have a dictionary of its own."""
    import pyarrow

    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    parts = [_chunk(chunk) for chunk in chunks or [pyarrow.array([], column.type)]]
    if len(parts) == 1:
        return parts[0]
    masks = [np.zeros(len(values), bool) if missing is None else missing for values, missing in parts]
    return np.concatenate([values for values, _ in parts]), np.concatenate(masks)


def _chunk(array: pyarrow.Array) -> Read:
    """Read an array of Arrow by its type."""
    from pyarrow import types

    kind = array.type
    if types.is_dictionary(kind):
        return _taken(_chunk(array.dictionary), _chunk(array.indices))
    if types.is_run_end_encoded(kind):
        places = np.arange(array.offset, array.offset + len(array))
        return _taken(
            _chunk(array.values),
            (np.searchsorted(_chunk(array.run_ends)[0], places, "right"), None),
        )
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if types.is_null(kind):
        return np.full(len(array), None, object), None
    if types.is_boolean(kind) or types.is_integer(kind):
        filler = False if types.is_boolean(kind) else 0
        return array.fill_null(filler).to_numpy(zero_copy_only=False), missing
    if types.is_floating(kind):
        return array.to_numpy(zero_copy_only=False), missing
    if types.is_decimal(kind):
        return _objects(array.to_pylist()), missing
    if str(kind) in ("string", "large_string", "string_view"):
        return _texts(array), missing
    raise _no_place(kind)


def _texts(array: pyarrow.Array) -> np.ndarray:
    """Return texts as objects; bytes that are no UTF-8 become surrogates, in their own row alone."""
    import pyarrow

    try:
        return _objects(array.to_pylist()) if str(array.type) == "string_view" else array.to_numpy(zero_copy_only=False)
    except (UnicodeDecodeError, pyarrow.ArrowException):  # it quotes the text
        held = (scalar.as_buffer() for scalar in array)
        decoded = (None if one is None else one.to_pybytes().decode("utf-8", "surrogateescape") for one in held)
        return np.fromiter(decoded, object, len(array))


class Frame(Protocol):
    """A table that gives a column by its name: pandas, polars or Arrow's."""

    def __getitem__(self, name: str) -> Any:
        """Return a column."""


#: A query of polars, which is no table yet.
_LAZY = "LazyFrame"
#: How libraries hand a table to others.
_INTERCHANGE = ("__dataframe__", "__arrow_c_stream__", "__arrow_c_array__")
#: A table that a schema encodes: in memory, arrays or lists by name, the path of a file, or one in partitions.
Table = Frame | Mapping[str, Any] | str | os.PathLike
#: Ends of the names of files that are tables.
SUFFIXES = (".csv", *columnar.SUFFIXES)


def is_table(data: object) -> TypeGuard[Table]:
    """Return whether data are a table, and not the pytree of arrays that a target takes."""
    if columnar.is_stored(data) or columnar.is_dask(data) or type(data).__name__ == _LAZY:
        return True
    return _fields(data) is not None or any(hasattr(data, name) for name in _INTERCHANGE)


def in_memory(table: Table) -> Frame | Mapping[str, Any]:
    """Return a table whose columns can be taken by name; a file is read.

    Raises:
        DataError: there is no such file, or it is no table.
    """
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        return _csv(path) if path.suffix.lower() == ".csv" else columnar.table(path)
    if columnar.is_dataset(table):
        return columnar.of_dataset(table)
    if columnar.is_dask(table):
        raise DataError(
            "data: this needs all rows in one memory, and a Dask DataFrame holds them in partitions: give what its "
            "compute() returns, or take noise_aware, which reads partitions."
        )
    if isinstance(table, Mapping) or _fields(table) is not None:
        return table
    kind = type(table).__name__
    if kind == _LAZY:
        raise DataError("data: a LazyFrame is a query and holds no rows yet: give what its collect() returns.")
    if hasattr(table, "columns"):
        if _library(table):
            return table
        if hasattr(table, "__arrow_c_stream__"):
            import pyarrow

            return pyarrow.table(table)
    raise DataError(
        f"data: an object of type {kind} is no table: give a data frame of pandas or polars, a table of Arrow, arrays "
        "by name, or the path of a file."
    )


def _library(data: object) -> bool:
    """Return whether an object is one of pandas, polars or Arrow."""
    return any(kind.__module__.partition(".")[0] in ("pandas", "polars", "pyarrow") for kind in type(data).__mro__)


def _fields(data: object) -> tuple[str, ...] | None:
    """Return the names of the fields of a structured array of NumPy; None of anything else."""
    return data.dtype.names if isinstance(data, np.ndarray) else None


def _names(table: Frame | Mapping[str, Any]) -> list[object]:
    """Return what a table calls its columns."""
    if isinstance(table, Mapping):
        return list(table)
    found = _fields(table) or getattr(table, "column_names", None)
    return list(table.columns if found is None else found)  # type: ignore[attr-defined]


def column_names(table: Frame | Mapping[str, Any]) -> list[str]:
    """Return the names of a table's columns."""
    return [*map(str, _names(table))]


def columns(table: Frame | Mapping[str, Any], names: list[str]) -> dict[str, Values]:
    """Return these columns of a table.

    Raises:
        DataError: a column is not there, is there twice, is longer than another, or has no row.
    """
    there = _names(table)
    count = Counter(map(str, there))
    called = {str(name): name for name in there}
    for name in names:
        if count[name] != 1:
            raise DataError(
                f"data: the table has {count[name]} columns {name!r}, and the schema declares one; rename or add it."
            )
    found = {name: values_of(name, table[called[name]]) for name in names}  # type: ignore[index]
    first = names[0] if names else ""
    for name in names:
        if len(found[name].values) != len(found[first].values):
            raise DataError(f"data: columns {first!r} and {name!r} differ in length: give one value for each row.")
        if not len(found[name].values):
            raise DataError("data: the table has no row: give one that has.")
    return found


@dataclass(frozen=True)
class EncodedTable:
    """Records, and the table that a schema made them of.

    Attributes:
        records: arrays as a target takes them.
        table: which a ledger knows the records by.
    """

    records: dict[str, np.ndarray]
    table: Table


def _csv(path: Path) -> dict[str, list[str | None]]:
    """Return the columns of a CSV file with a header, all texts; an empty field is a missing value, a line is a row."""
    try:
        with open_text(path, "utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            names = [name.strip() for name in next(reader, [])]
            # An empty line is the missing value of a table's only column.
            rows = [row or [""] for row in reader]
    except FileNotFoundError:
        raise DataError(f"data.path: there is no file {path}: correct the path.") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is no CSV file with a header ({type(error).__name__}): write it anew.") from None
    if not names or len(set(names)) < len(names):
        raise DataError(f"{path}: the header names no column, or one twice: mend it.")
    ragged = [number for number, row in enumerate(rows) if len(row) != len(names)]
    if ragged:
        said = "every row, also an empty line, needs the fields of the header, and some have more or fewer: mend them."
        raise DataError(f"{path}: {said}", rows=ragged)
    return {name: [row[k].strip() or None for row in rows] for k, name in enumerate(names)}


def template(table: Frame | Mapping[str, Any], asked: str | Sequence[str] | None = None) -> str:
    """Return a schema to fill in, made of column names, their types and a formula alone.

    Args:
        table: with columns; no value is looked at.
        asked: a formula, or names of columns, which alone are listed; None: all.
    """
    names = column_names(table)
    label = "..."
    if isinstance(asked, str):
        with contextlib.suppress(InputError):  # a formula that cannot be read: all columns are listed
            found = formula.parsed(asked, tuple(names))
            label = found.label or label
            names = found.columns
    elif asked is not None:
        names = [name for name in asked if name in names]
    called = {str(name): name for name in _names(table)}
    lines = (f"{name!r}: {_proposed(table[called[name]])}" for name in names)  # type: ignore[index]
    return f"Schema({{{', '.join(lines)}}}, label={label!r})"


def _proposed(column: object) -> str:
    """Return what a schema may say of a column, from its type alone."""
    kind = str(getattr(column, "dtype", getattr(column, "type", ""))).lower()
    # A type may list the levels of its column, so only its beginning is looked at.
    if kind.startswith("bool"):
        return "Levels([False, True])"
    numeric = kind.startswith(("int", "uint", "float", "double", "decimal"))
    return "Range(low, high)" if numeric else "Levels([...])"


def no_schema(table: Table, asked: str | Sequence[str] | None = None) -> InputError:
    """Return the refusal of a table that no schema says how to encode; it holds no value of the table."""
    made = template(_without_rows(table), asked)
    return InputError(
        "schema: a table needs one, of public ranges and levels, with Levels([0, 1]) for a number that is 0 or 1; fill "
        f"in, and plan with schema={made}"
    )


def _without_rows(table: Table) -> Frame | Mapping[str, Any]:
    """Return a table of the same columns; one in partitions is not read."""
    if columnar.is_dataset(table):
        return table.schema.empty_table()
    if columnar.is_dask(table):
        return table._meta
    path = Path(table) if isinstance(table, str | os.PathLike) else None
    if path is not None and path.suffix.lower() != ".csv":
        return columnar.opened(columnar.paths_of(path)[0]).schema.empty_table()
    return in_memory(table)
