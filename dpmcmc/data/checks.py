"""Checks of a user's own records: finite, within the declared bound, and of a class that exists.

Arrays are looked at block by block, so that those on disk need not fit in memory. Messages quote no value, count or
row of the records: which rows are bad is in ``DataError.rows``, for the data holder.
"""

from __future__ import annotations

import math

import jax
import numpy as np

from dpmcmc.errors import DataError, InputError
from dpmcmc.storage.record_blocks import blocks

#: A row that was normalised to the bound elsewhere may pass it by float32 rounding. Beyond this relative slack the
#: row is the data holder's to mend.
ROUNDING_SLACK = 1e-5
LARGEST_CLASS = np.iinfo(np.int32).max
#: Rows that a refusal keeps for the data holder.
_MOST_ROWS = 1000
#: Types of the arrays that a target takes.
_NUMBERS = (np.integer, np.floating, np.bool_)
#: Advice to whoever has labels that are no class numbers.
RELABEL = "number the classes from 0 (-1 and 1 become 0 and 1), or store floats for regression"


def check_name(name: str, about: str) -> str:
    """Return a name of a column or a level, if files can hold it.

    Raises:
        InputError: about ``about``: it has a character NUL, or half of a pair of surrogates, which no text file takes.
    """
    if "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InputError(
            f"{about}: the name {name!r} holds NUL or a surrogate, which no file can; rename it",
            about,
        )
    return name


def refuse_mask(array: object, name: str) -> None:
    """Refuse a masked array of records, whatever its values are: what reads records would not see the mask."""
    if isinstance(array, np.ma.MaskedArray):
        raise DataError(
            f"{name} is a masked array, and records have no missing values: fill them by a public rule, or give a "
            "table with a schema that declares missing=True."
        )


def refuse_other(array: object, name: str) -> None:
    """Refuse what is no array of numbers of NumPy or JAX, such as a data frame among the arrays.

    JAX's own refusal would quote its rows.
    """
    refuse_mask(array, name)
    dtype = getattr(array, "dtype", None if hasattr(array, "__array__") else np.asarray(array).dtype)
    # To NumPy, a difference of times is a whole number.
    plain = isinstance(dtype, np.dtype) and dtype.kind != "m"
    if not isinstance(array, jax.Array) and not (
        plain and any(jax.dtypes.issubdtype(dtype, kind) for kind in _NUMBERS)
    ):
        raise DataError(
            f"{name} is of type {type(array).__name__} and holds no plain numbers: give an array of numbers, or the "
            "whole table and a plan with a schema."
        )


class Marked:
    """Numbers of rows that were found bad, over blocks; none beyond the first thousand or so are kept."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def add(self, start: int, bad: np.ndarray) -> None:
        """Mark ``bad`` (rows,) of the block that begins at row ``start``."""
        if len(self.rows) < _MOST_ROWS:
            self.rows += (start + np.flatnonzero(bad)[:_MOST_ROWS]).tolist()

    def refuse(self, message: str) -> None:
        """Raise DataError with a message where a row was marked; its ``rows`` are these."""
        if self.rows:
            raise DataError(message, rows=self.rows)


def norms(x: np.ndarray) -> np.ndarray:
    """l2 norms of rows (N, d), float64: in float32 the sum's own rounding could decide on which side a row falls."""
    return np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))


def check_records(
    x: np.ndarray,
    y: np.ndarray,
    names: tuple[str, str],
    where: str,
    bound: float,
    num_features: int | None = None,
) -> None:
    """Refuse arrays that are not one row of finite real numbers and one label for each record.

    Args:
        x: (N, d).
        y: (N,); integers are class numbers or counts.
        names: of both arrays, for the message.
        where: the file, for the message.
        bound: on the l2 norm of a row of x; ``inf`` for none.
        num_features: d, where it was declared.

    Raises:
        DataError: what is wrong; its ``rows`` say with which rows.
    """
    x_name, y_name = names
    if x.dtype.kind not in "fiub":
        raise DataError(f"{where}: {x_name!r} has type {x.dtype}: store the features as real numbers.")
    if x.ndim != 2 or 0 in x.shape:
        raise DataError(f"{where}: {x_name!r} has shape {x.shape}: store a table of one row per record, (N, d).")
    if num_features not in (None, x.shape[1]):
        raise DataError.at(
            "num_features",
            f"declares {num_features} features, and {x_name!r} in {where} has {x.shape[1]}: correct the declaration or "
            "the file",
        )
    if y.ndim != 1:
        raise DataError(f"{where}: {y_name!r} has shape {y.shape}: store one label per record, (N,).")
    if y.dtype.kind not in "fiub":
        raise DataError(f"{where}: {y_name!r} has type {y.dtype}: store class numbers, or real numbers for regression.")
    if len(x) != len(y):
        raise DataError(
            f"{where}: {x_name!r} has {len(x)} rows and {y_name!r} has {len(y)}: store one label for each row."
        )
    _check_labels(y, y_name, where)
    check_rows(x, y, bound, where)


def _check_labels(y: np.ndarray, name: str, where: str) -> None:
    """Refuse integers (N,) that are no class numbers or counts."""
    if y.dtype.kind in "fb":
        return
    bad = Marked()
    for start, part in blocks(y):
        bad.add(start, (part < 0) | (part > LARGEST_CLASS))
    bad.refuse(f"{where}: {name!r} has integers that are no class numbers: {RELABEL}.")


def check_rows(x: np.ndarray, y: np.ndarray, bound: float, where: str) -> None:
    """Refuse rows that are not finite in float32, or whose norm is above the bound by more than rounding.

    Args:
        x: (N, d).
        y: (N,).
        bound: on the l2 norm of a row of x; ``inf`` for none.
        where: the file, for the message.

    Raises:
        DataError: there are some; its ``rows`` say which.
    """
    infinite = Marked()
    beyond = Marked()
    for start, block in blocks({"x": x, "y": y}):
        # A float64 beyond float32 becomes inf, and is then reported as such.
        with np.errstate(all="ignore"):
            rows = block["x"].astype(np.float32, copy=False)
            infinite.add(
                start,
                ~(np.isfinite(rows).all(axis=1) & np.isfinite(block["y"].astype(np.float32))),
            )
            if not math.isinf(bound):
                beyond.add(start, norms(rows) > bound * (1.0 + ROUNDING_SLACK))
    infinite.refuse(f"{where}: some rows hold NaN or a value too large for float32: repair or remove them.")
    beyond.refuse(
        f"{where}: some rows have an l2 norm above data.row_bound = {bound:g}: rescale the features, or raise "
        "row_bound."
    )
