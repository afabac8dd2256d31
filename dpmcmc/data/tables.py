"""Columns of a table, wherever it comes from: pandas, polars, Arrow, NumPy, columns by name, a CSV, a Parquet file.

A column is taken by its name and read by ``containers.py``. All fields of a CSV are read as text: a reader that guesses
a column's type would let one row decide how another is read. A frame or an array that was made of mixed values before
it comes here has what its maker made of them.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np

from dpmcmc.data import columnar, formula, table_files
from dpmcmc.data.containers import read_values
from dpmcmc.data.values import Values
from dpmcmc.errors import DataError, InputError
from dpmcmc.storage.files import open_text


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
    if table_files.is_stored(data) or table_files.is_dask(data) or type(data).__name__ == _LAZY:
        return True
    return _fields(data) is not None or any(hasattr(data, name) for name in _INTERCHANGE)


def load_table(table: Table) -> Frame | Mapping[str, Any]:
    """Return a table whose columns can be taken by name; a file is read.

    Raises:
        DataError: there is no such file, or it is no table.
    """
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        return _csv(path) if path.suffix.lower() == ".csv" else table_files.read_table_files(path)
    if table_files.is_dataset(table):
        return table_files.read_dataset(table)
    if table_files.is_dask(table):
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
    present = _names(table)
    count = Counter(map(str, present))
    called = {str(name): name for name in present}
    for name in names:
        if count[name] != 1:
            raise DataError(
                f"data: the table has {count[name]} columns {name!r}, and the schema declares one; rename or add it."
            )
    found = {name: read_values(name, table[called[name]]) for name in names}  # type: ignore[index]
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
    with _reading(path) as (names, reader):
        # An empty line is the missing value of a table's only column.
        rows = [row or [""] for row in reader]
    ragged = [number for number, row in enumerate(rows) if len(row) != len(names)]
    if ragged:
        said = "every row, also an empty line, needs the fields of the header, and some have more or fewer: mend them."
        raise DataError(f"{path}: {said}", rows=ragged)
    return {name: [row[k].strip() or None for row in rows] for k, name in enumerate(names)}


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """(names, rows) of a CSV file that is open."""
    try:
        with open_text(path, "utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            names = [name.strip() for name in next(reader, [])]
            other = [said for sign, said in _SEPARATORS.items() if len(names) == 1 and sign in names[0]]
            if other:
                raise DataError(f"{path}: its columns are separated by {other[0]}; write it anew with commas.")
            if not names or len(set(names)) < len(names):
                raise DataError(f"{path}: the header names no column, or one twice: mend it.")
            yield names, reader
    except FileNotFoundError:
        raise DataError(f"data.path: there is no file {path}: correct the path.") from None
    except DataError:
        raise
    except UnicodeDecodeError:
        raise DataError(f"{path}: its letters are not in UTF-8; save it as UTF-8, as spreadsheets offer.") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is no CSV file with a header ({type(error).__name__}): write it anew.") from None


_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def read_header(path: Path) -> list[str]:
    """Return the names of a table file's columns; of a CSV no other line is read.

    Raises:
        DataError: it is no table with a header.
    """
    if path.suffix.lower() != ".csv":
        return column_names(_without_rows(path))
    with _reading(path) as (names, _):
        return names


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
            found = formula.parse_formula(asked, tuple(names))
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


def refuse_no_schema(table: Table, asked: str | Sequence[str] | None = None) -> InputError:
    """Return the refusal of a table that no schema says how to encode; it holds no value of the table."""
    made = template(_without_rows(table), asked)
    return InputError(
        "schema: a table needs one, of public ranges and levels, with Levels([0, 1]) for a number that is 0 or 1; fill "
        f"in, and plan with schema={made}"
    )


def _without_rows(table: Table) -> Frame | Mapping[str, Any]:
    """Return a table of the same columns; one in partitions is not read."""
    if table_files.is_dataset(table):
        return table.schema.empty_table()
    if table_files.is_dask(table):
        return table._meta
    path = Path(table) if isinstance(table, str | os.PathLike) else None
    if path is not None and path.suffix.lower() != ".csv":
        return columnar.open_columnar(table_files.list_table_files(path)[0]).schema.empty_table()
    return load_table(table)
