"""Columns of a table, wherever it comes from: pandas, polars, Arrow, a mapping of arrays, a CSV or a Parquet file.

A column is taken by its name, and whether a value is missing is decided by that value alone. All fields of a CSV are
read as text, and a list is read value by value: a reader that guesses a column's type would let one row decide how
another is read. A frame or an array that was made of mixed values before it comes here has what its maker made of them.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np

from dpmcmc.data import columnar, formula
from dpmcmc.data.column_kinds import Values
from dpmcmc.errors import DataError, InputError
from dpmcmc.storage.regular_file import opened_text


class Frame(Protocol):
    """A table that gives a column by its name: pandas, polars or Arrow's."""

    def __getitem__(self, name: str) -> Any:
        """Return a column."""


#: A table that a schema encodes: in memory, arrays or lists by name, or the path of a file.
Table = Frame | Mapping[str, Any] | str | os.PathLike
#: Ends of the names of files that are tables.
SUFFIXES = (".csv", *columnar.SUFFIXES)


def is_table(data: object) -> TypeGuard[Table]:
    """Return whether data are a table, and not the pytree of arrays that a target takes."""
    return isinstance(data, str | os.PathLike) or any(
        hasattr(data, name) for name in ("__dataframe__", "__arrow_c_stream__", "__arrow_c_array__")
    )


def in_memory(table: Table) -> Frame | Mapping[str, Any]:
    """Return a table whose columns can be taken by name; a file is read.

    Raises:
        DataError: there is no such file, or it is no table.
    """
    if not isinstance(table, str | os.PathLike):
        return table
    path = Path(table)
    if path.suffix.lower() == ".csv":
        return _csv(path)
    return columnar.table(path)


def column_names(table: Frame | Mapping[str, Any]) -> list[str]:
    """Return the names of a table's columns."""
    if isinstance(table, Mapping):
        return list(table)
    found = getattr(table, "column_names", None)
    return [str(name) for name in (table.columns if found is None else found)]  # type: ignore[attr-defined]


def columns(table: Frame | Mapping[str, Any], names: list[str]) -> dict[str, Values]:
    """Return these columns of a table.

    Raises:
        DataError: a column is not there, is there twice, or is longer than another.
    """
    there = column_names(table)
    for name in names:
        if there.count(name) != 1:
            raise DataError(
                f"data: the table has {there.count(name)} columns {name!r}, and the schema declares one; rename or add "
                "it."
            )
    found = {name: _values(name, table[name]) for name in names}
    lengths = {name: len(column.values) for name, column in found.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"data: columns differ in length ({lengths}): give one value for each row.")
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


def texts(table: Table, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return columns as bytes that no schema changes, by name; those that cannot be read are left out."""
    there, found = in_memory(table), {}
    for name in names:
        with contextlib.suppress(DataError):
            (column,) = columns(there, [name]).values()
            words = column.words()
            words[column.missing] = None
            found[name] = np.frombuffer(json.dumps(words.tolist()).encode(), np.uint8)
    return found


def _values(name: str, column: object) -> Values:
    # An array has its type. NumPy would choose one for a list, and one row would decide how the others are read.
    values = np.asarray(column, None if hasattr(column, "__array__") else object)
    if values.ndim != 1:
        raise DataError(f"data: column {name!r} has shape {values.shape}: give one value for each row.")
    if values.dtype.kind in "fiub":
        return Values(name, values, values != values)  # NaN
    if values.dtype.kind in "mM":
        raise DataError(f"data: column {name!r} holds {values.dtype}: turn dates into numbers or words.")
    values = values.astype(object)
    return Values(name, values, np.array([_is_missing(value) for value in values], bool))


def _is_missing(value: object) -> bool:
    """None, NaN, NaT or pandas.NA."""
    if isinstance(value, str):  # nearly all; the rest takes ten times as long
        return False
    nan = isinstance(value, Number) and bool(value != value)
    return nan or value is None or type(value).__name__ in ("NAType", "NaTType")


def _csv(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of a CSV file with a header, all texts; an empty field is a missing value."""
    try:
        with opened_text(path, "utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            rows, names = list(reader), reader.fieldnames or []
    except FileNotFoundError:
        raise DataError(f"data.path: there is no file {path}: correct the path.") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is no CSV file with a header ({type(error).__name__}): write it anew.") from None
    ragged = [number for number, row in enumerate(rows) if None in row or None in row.values()]
    if ragged or not names or len(set(names)) < len(names):
        what = f"row {ragged[0]}, counted from 0, differs from it" if ragged else "it names no column, or one twice"
        raise DataError(f"{path}: every row needs the fields of the header, and {what}: mend it.")
    return {name.strip(): np.array([row[name].strip() or None for row in rows], object) for name in names}


def template(table: Frame | Mapping[str, Any], asked: str | Sequence[str] | None = None) -> str:
    """Return a schema to fill in, made of column names, their types and a formula alone.

    Args:
        table: with columns; no value is looked at.
        asked: a formula, or names of columns, which alone are listed; None: all.
    """
    names, label = column_names(table), "..."
    if isinstance(asked, str):
        with contextlib.suppress(InputError):  # a formula that cannot be read: all columns are listed
            found, terms, _ = formula.parsed(asked, tuple(names))
            label, names = found or label, list(dict.fromkeys([*itertools.chain(*terms), *([found] if found else [])]))
    elif asked is not None:
        names = [name for name in asked if name in names]
    lines = (f"{name!r}: {_proposed(table[name])}" for name in names)
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
    made = template(in_memory(table), asked)
    return InputError(
        "schema: a table needs one, of public ranges and levels, with Levels([0, 1]) for a number that is 0 or 1; fill "
        f"in, and plan with schema={made}"
    )
