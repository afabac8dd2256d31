"""Values of one column, whatever holds it: pandas, polars, Arrow, NumPy, a list.

Values keep their kind, and a missing value is told by that value alone. A container's own conversion to NumPy is not
used where it looks at the whole column: it turns whole numbers into reals where one is missing, and takes the last
entry of a dictionary for a missing value. A type of columns that holds no numbers, texts or truth values is refused
by its name, whatever the values are. The columns of a table are found in ``tables.py``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpmcmc.data.values import PLAIN, OtherKind, Values, find_missing, plain
from dpmcmc.errors import DataError

if TYPE_CHECKING:
    import pyarrow

#: A column of a library that is not imported here, as it need not be installed.
Held: TypeAlias = Any
#: Values, (N,), and which are missing, (N,) bool; None: the values say it themselves.
Read = tuple[np.ndarray, np.ndarray | None]


class _Refused(Exception):
    """A column that no schema takes; the text says why."""


def read_values(name: str, column: object) -> Values:
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
    objects = values.tolist()
    if not PLAIN.issuperset(map(type, objects)):
        found = Values(name, values, np.zeros(0, bool))
        other = np.fromiter(map(_is_of_another_kind, objects), bool, len(objects))
        found.refuse(
            other,
            "values that are no number, text or truth value",
            "turn dates, bytes and others into these",
        )
        values = _objects([plain(value) for value in objects])
    missing = find_missing(values.tolist())
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
