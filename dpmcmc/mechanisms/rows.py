"""Records of a regression as a one-shot release sums them, and what is summed of their rows alone.

A record of the guarantee is a row, or an owner of at most m rows. Here both are (m, d), padded with zeros. Everything
is made of one record by itself: rows are rounded to a public grid within their bound (``integer_rows.py``), a network's
features are computed row by row, and weights are within [0, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dpmcmc.data.owners import MASK
from dpmcmc.privacy.query.integer_rows import (
    IN_CACHE,
    MOMENT_PARTS_BITS,
    NUMBER_BITS,
    ROW_BITS,
    Exact,
    joined,
    rounded_rows,
    row_blocks,
    second_moment,
    squares,
    unit_of,
    weighted_sum,
)
from dpmcmc.privacy.query.record_sums import Records
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target
from dpmcmc.targets.ordinal import OrdinalRegression

#: Grid of numbers within ±1 that are summed: 2^-30.
FINE_BITS = 30


@dataclass(frozen=True)
class Rows:
    """Preparation of records; see ``record_sums.py``.

    Attributes:
        target: of the records.
        row_bound: b, of a row that is summed.
    """

    target: Target
    row_bound: float

    def __call__(self, records: PyTree) -> dict[str, np.ndarray]:
        """Return rows ``x`` (n, m, d) in units of :attr:`unit`, and (n, m) each ``y``, ``there``, ``sharers`` and more.

        ``there`` is 0 for padding; ``sharers`` is the number of rows of a row's owner, and 1 for an owner of none.
        ``offset`` and ``weight`` are there if records have them.
        """
        if isinstance(self.target, OrdinalRegression):
            records = self.target.questions(records)
        x = np.asarray(records["x"], np.float64)
        y = np.asarray(records["y"], np.float64)
        count = len(x)
        if MASK in records:
            there = np.asarray(records[MASK], bool)
            x = np.where(there[..., None], x, 0.0)
            y = np.where(there, y, 0.0)
        else:
            there = np.ones((count, 1), bool)
        each = there.shape[1]
        flat = rounded_rows(x.reshape(count * each, x.shape[-1]), self.row_bound)
        sizes = np.maximum(there.sum(axis=1), 1)
        made = {
            "x": flat.reshape(count, each, x.shape[-1]),
            "y": y.reshape(count, each),
            "there": there.astype(np.float64),
            "sharers": np.repeat(sizes[:, None], each, axis=1).astype(np.float64),
        }
        if "offset" in records:
            offset = np.asarray(records["offset"], np.float64).reshape(count, each)
            # One that is no number has no integer, and must not move a sum beyond its bound.
            made["offset"] = np.where(np.isnan(offset), 0.0, offset)
        if "weight" in records:
            weight = np.asarray(records["weight"], np.float64).reshape(count, each)
            # Sensitivities rest on weights within [0, 1].
            made["weight"] = np.clip(np.nan_to_num(weight, nan=0.0), 0.0, 1.0)
        return made

    @property
    def unit(self) -> float:
        """Grid of ``x``, a power of two."""
        return unit_of(self.row_bound, ROW_BITS)

    def totals(self, records: Records, offset_bound: float | None) -> Totals:
        """Return what is summed of rows alone.

        Args:
            records: prepared by this.
            offset_bound: of what is added to predictors; None where nothing is.
        """
        moment, total, offsets, counts = records.total(RowSums(offset_bound))
        return Totals(
            self._moment(moment),
            Exact(total, self.unit),
            Exact(offsets, 2.0**-FINE_BITS),
            Exact(counts, 1.0),
        )

    def with_labels(self, records: Records, label_bound: float) -> tuple[Exact, Exact]:
        """Return (XᵀX (d, d), Xᵀy (d,)) of records prepared by this, with labels within ±``label_bound``."""
        moment, parts = records.total(LinearSums(label_bound))
        unit = self.unit * unit_of(label_bound, NUMBER_BITS)
        return self._moment(moment), Exact(joined(parts), unit)

    def _moment(self, parts: np.ndarray) -> Exact:
        return Exact(joined(parts, MOMENT_PARTS_BITS), self.unit**2)


class Totals(NamedTuple):
    """Private sums over rows.

    Attributes:
        gram: Σ x xᵀ, (d, d).
        rows: Σ x, (d,).
        offsets: Σ (o, o²) of offsets o in units of their bound, (2,).
        counts: of owners with 1 to m rows, (m,).
    """

    gram: Exact
    rows: Exact
    offsets: Exact
    counts: Exact


@dataclass(frozen=True)
class RowSums:
    """Σ x xᵀ, Σ x, sums of offsets and counts of owners, of records that :class:`Rows` prepared.

    Attributes:
        offset_bound: of offsets; None where there is none.
    """

    offset_bound: float | None = None

    def __call__(self, records: Any) -> tuple[np.ndarray, ...]:
        """Return what these records add; see ``record_sums.py``."""
        x = records["x"]
        each = x.shape[1]
        rows = x.reshape(-1, x.shape[2])
        offsets = np.zeros(2, np.int64)
        if self.offset_bound is not None:
            share = np.nan_to_num(records["offset"] / self.offset_bound)
            offset = np.clip(share, -1.0, 1.0).ravel()
            steps = np.rint(np.stack([offset, offset * offset]) * 2.0**FINE_BITS)
            offsets = steps.astype(np.int64).sum(axis=1)
        sizes = records["there"].sum(axis=1).astype(np.int64)
        counts = np.bincount(sizes, minlength=each + 1)[1:].astype(np.int64)
        total = rows.astype(np.int64).sum(axis=0)
        return second_moment(rows), total, offsets, counts


@dataclass(frozen=True)
class LinearSums:
    """Σ x xᵀ and Σ x y of records that :class:`Rows` prepared.

    Attributes:
        label_bound: Y > 0, of |y|.
    """

    label_bound: float

    def __call__(self, records: Any) -> tuple[np.ndarray, ...]:
        """Return what these records add; see ``record_sums.py``."""
        rows = records["x"].reshape(-1, records["x"].shape[2])
        unit = unit_of(self.label_bound, NUMBER_BITS)
        most = math.floor(self.label_bound / unit)
        labels = np.rint(np.nan_to_num(records["y"].ravel()) / unit)
        return second_moment(rows), weighted_sum(rows, np.clip(labels, -most, most))


@dataclass(frozen=True)
class Whitened:
    """Preparation of rows that adds ``norm``, at least ‖F⁻¹x‖ of each row, (n, m).

    Attributes:
        inverse: F⁻¹, public, (d, d), of ``integer_rows.rounded_vector``.
        unit: of ``x``.
    """

    inverse: np.ndarray
    unit: float

    def __call__(self, records: Any) -> dict[str, np.ndarray]:
        """Return the records with the norms of their rows in the metric."""
        x = records["x"]
        rows = x.reshape(-1, x.shape[2])
        norms = np.empty(len(rows))
        for at in row_blocks(len(rows), max(1, IN_CACHE // x.shape[2])):
            # F⁻¹x is exact.
            norms[at] = np.sqrt(squares(self.inverse @ rows[at].T))
        # Rounding makes none too small.
        norms *= (1 + (x.shape[2] + 10) * 2.0**-53) * self.unit
        return {**records, "norm": norms.reshape(x.shape[:2])}
