"""Checks of a user's own records: finite, within the declared bound, and of a class that exists.

Arrays are looked at block by block, so that those on disk need not fit in memory. Messages speak of single rows: they
go to the data holder.
"""

from __future__ import annotations

import math

import numpy as np

from dpmcmc.errors import DataError
from dpmcmc.storage.row_blocks import blocks

#: A row that was normalised to the bound elsewhere may pass it by float32 rounding. Beyond this relative slack the
#: row is the data holder's to mend.
ROUNDING_SLACK = 1e-5
LARGEST_CLASS = np.iinfo(np.int32).max
#: Advice to whoever has labels that are no class numbers.
RELABEL = "number the classes from 0 (-1 and 1 become 0 and 1), or store floats for regression"


class Marked:
    """Rows that were found bad, counted over blocks.

    Attributes:
        count: how many.
        first: the first one's number, counted from 0.
        value: what is wrong with it.
    """

    def __init__(self) -> None:
        self.count, self.first = 0, 0
        self.value: object = None

    def add(self, start: int, bad: np.ndarray, values: np.ndarray) -> None:
        """Mark ``bad`` (rows,) of the block that begins at row ``start``."""
        if bad.any() and not self.count:
            at = int(bad.argmax())
            self.first, self.value = start + at, values[at]
        self.count += int(bad.sum())


def norms(x: np.ndarray) -> np.ndarray:
    """l2 norms of rows (N, d), float64: in float32 the sum's own rounding could decide on which side a row falls."""
    return np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))


def check_records(
    x: np.ndarray, y: np.ndarray, names: tuple[str, str], where: str, bound: float, num_features: int | None = None
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
        DataError: what is wrong, and with which row first.
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
    """Refuse integers (N,) that are no class numbers or counts: how many, and the first."""
    if y.dtype.kind in "fb":
        return
    bad = Marked()
    for start, part in blocks(y):
        bad.add(start, (part < 0) | (part > LARGEST_CLASS), part)
    if bad.count:
        raise DataError(
            f"{where}: {name!r} has {bad.count} integers that are no class numbers (first: row {bad.first}, counted "
            f"from 0, value {bad.value}): {RELABEL}."
        )


def check_rows(x: np.ndarray, y: np.ndarray, bound: float, where: str) -> None:
    """Refuse rows that are not finite in float32, or whose norm is above the bound by more than rounding.

    Args:
        x: (N, d).
        y: (N,).
        bound: on the l2 norm of a row of x; ``inf`` for none.
        where: the file, for the message.

    Raises:
        DataError: how many, and the first.
    """
    infinite, beyond = Marked(), Marked()
    for start, block in blocks({"x": x, "y": y}):
        # A float64 beyond float32 becomes inf, and is then reported as such.
        with np.errstate(all="ignore"):
            rows = block["x"].astype(np.float32, copy=False)
            infinite.add(start, ~(np.isfinite(rows).all(axis=1) & np.isfinite(block["y"].astype(np.float32))), rows)
            if not math.isinf(bound):
                sizes = norms(rows)
                beyond.add(start, sizes > bound * (1.0 + ROUNDING_SLACK), sizes)
    if infinite.count:
        raise DataError(
            f"{where}: {infinite.count} rows hold NaN or a value too large for float32 (first: row {infinite.first}, "
            "counted from 0): repair or remove them."
        )
    if beyond.count:
        raise DataError(
            f"{where}: {beyond.count} rows have an l2 norm above data.row_bound = {bound:g} (first: row "
            f"{beyond.first}, counted from 0, norm {beyond.value:.6g}): rescale the features, or raise row_bound."
        )
