"""Rows grouped by owner, so that one owner is one record of the query.

An owner's own rows alone decide the padding and the rows left out. If one owner's rows change, every other owner's
record stays the same, bit for bit. Neighbours that differ in all rows of one owner therefore differ in one record.
``targets/per_owner.py`` says what such a record contributes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dpmcmc.data.checks import refuse_mask
from dpmcmc.errors import DataError

#: The leaf that says which places of an owner hold a row.
MASK = "mask"


def by_owner(
    rows: Mapping[str, np.ndarray],
    owner: np.ndarray,
    *,
    num_owners: int,
    records_per_owner: int,
) -> dict[str, np.ndarray]:
    """Return one record per owner, as :class:`dpmcmc.targets.PerOwner` takes them.

    The first ``records_per_owner`` rows of an owner are kept, in the order in which they stand. The order must not
    depend on other people's rows; for a random choice shuffle each owner's own rows beforehand. An owner without rows
    becomes a record of padding, which contributes nothing.

    Args:
        rows: arrays with one leading axis, (n, ...) each.
        owner: (n,) whole numbers 0 to num_owners − 1.
        num_owners: public number of owners, absent ones included.
        records_per_owner: m >= 1, public.

    Returns:
        The same arrays as (num_owners, m, ...), zeros in the padding, and ``mask`` (num_owners, m) bool.

    Raises:
        DataError: arrays that do not fit each other, numbers that are no owners, or an array named ``mask``.
    """
    check_counts(num_owners, records_per_owner)
    for name, array in rows.items():
        refuse_mask(array, f"data: {name!r}")
    arrays = {name: np.asarray(array) for name, array in rows.items()}
    if MASK in arrays:
        raise DataError(f"data: an array named {MASK!r} has no place beside owners, whose padding it names; rename it.")
    owner = read_owner(owner, num_owners)
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != len(owner):
            raise DataError(f"data: {name!r} has shape {array.shape} where there are {len(owner)} owners of rows.")
    # A stable sort keeps each owner's rows in their order; the place of a row is its rank among its owner's.
    order = np.argsort(owner, kind="stable")
    of_row = owner[order]
    place = np.arange(len(of_row)) - np.searchsorted(of_row, of_row)
    counted = place < records_per_owner
    at = of_row[counted], place[counted]
    shape = (num_owners, records_per_owner)
    out = {}
    for name, array in arrays.items():
        out[name] = np.zeros((*shape, *array.shape[1:]), array.dtype)
        out[name][at] = array[order[counted]]
    out[MASK] = np.zeros(shape, bool)
    out[MASK][at] = True
    return out


def read_owner(owner: np.ndarray, num_owners: int, name: str = "owner") -> np.ndarray:
    """Return ``owner`` as int64.

    Raises:
        DataError: not one whole number from 0 to num_owners − 1 per row.
    """
    refuse_mask(owner, f"data: {name!r}")
    owner = np.asarray(owner)
    how = "number the owners 0 to num_owners - 1 by a public list of them"
    if owner.ndim != 1 or owner.dtype.kind not in "iu":
        raise DataError(
            f"data: {name!r} has shape {owner.shape} and type {owner.dtype}, not one whole number a row: {how}."
        )
    outside = np.flatnonzero((owner < 0) | (owner >= num_owners))
    if outside.size:
        raise DataError(
            f"data: {name!r} has numbers outside 0 to {num_owners - 1}: {how}.",
            rows=outside,
        )
    return owner.astype(np.int64)


def check_counts(num_owners: int, records_per_owner: int) -> None:
    """Raise DataError unless both are whole numbers >= 1."""
    for name, value in (
        ("num_owners", num_owners),
        ("records_per_owner", records_per_owner),
    ):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise DataError(f"data.{name}: {value!r} is not a whole number >= 1.")
