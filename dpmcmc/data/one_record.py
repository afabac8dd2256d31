"""One person's own record, from a small file, encoded as a run's data set encodes each of its records.

Every encoding here acts on each row alone, by public constants (``row_maps.py``, ``schema.py``). So one row needs no
other to be encoded, and becomes the same numbers that it has among the others.

Messages quote no value, as those about a whole data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dpmcmc.data import user_file
from dpmcmc.data.raw_records import RAW_RECORDS, finite_numbers
from dpmcmc.data.registry import describe
from dpmcmc.data.request import DataRequest
from dpmcmc.data.tables import SUFFIXES, column_names, columns, load_table
from dpmcmc.errors import DataError

#: Name of the label in a file of an encoded record.
LABEL = "y"

#: Most encoded columns that a refusal names one by one.
_FEW = 8


def read_record(
    source: Path, request: DataRequest, names: Sequence[str] | None
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return (the record, leaves (1, ...), columns whose value was moved inside its public range or levels).

    Args:
        source: a table of one row, with the columns of the run's own table or raw data set, or with the encoded columns
            ``names`` and ``y``; or an .npz with the arrays of the run's. Where records are owners, it has all rows of
            one owner.
        request: of the run's data; only its public facts are used.
        names: of the encoded columns, in their order; None: not known.

    Raises:
        DataError: there is no such file, it is no one record, or a value that the run's data could not hold.
    """
    if not source.exists():
        raise DataError(f"{source}: there is no such file: correct the path.")
    rows, outside = _rows(source, request, names)
    owners = request.owners
    if owners is not None:
        owner = np.zeros(len(rows["x"]), np.int64)
        rows = user_file.by_owner(rows, owner, num_owners=1, records_per_owner=owners.rows)
    elif len(rows["x"]) != 1:
        raise DataError(f"{source}: has more rows than one, and a record is one row: leave the others out.")
    return rows, outside


def _rows(
    source: Path, request: DataRequest, names: Sequence[str] | None
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    if request.schema is not None:
        rows, counts = request.schema.encode_counted(_table(source))
        return rows, tuple(name for name, count in counts.items() if count)
    if source.suffix.lower() not in SUFFIXES:
        return user_file.load(_alone(source, request)).train, ()
    table = _table(source)
    present = set(column_names(table))
    raw = RAW_RECORDS.get(str(request.name))
    if raw is not None and raw.label in present:
        lacks = [name for name in raw.names if name not in present]
        if lacks:
            raise DataError(
                f"{source}: lacks the column {lacks[0]!r}; a record of this run is a row of {', '.join(raw.names)}: "
                "write it so."
            )
        return raw.encoded(columns(table, raw.names), str(request.encoding)), ()
    if names is None or LABEL not in present:
        own = "" if raw is None else f"{', '.join(raw.names)}; or of "
        encoded = f"{_said(names)} and {LABEL}" if names else "an .npz with x and y"
        raise DataError(f"{source}: a record of this run is a row of {own}{encoded}: write it so.")
    lacks = [name for name in names if name not in present]
    if lacks:
        raise DataError(
            f"{source}: lacks the column {lacks[0]!r}; a record of this run is a row of {_said(names)} and {LABEL}: "
            "write it so."
        )
    found = columns(table, [*names, LABEL])
    x = np.stack([finite_numbers(found[name]) for name in names], axis=1)
    y = finite_numbers(found[LABEL])
    # A text file does not tell a class number or a count from a real number that is whole.
    y = y.astype(np.int64) if np.all(np.floor(y) == y) else y
    bound = describe(request).row_bound
    return user_file.read_rows(x, y, ("x", LABEL), source, bound), ()


def _said(names: Sequence[str]) -> str:
    """Return the encoded columns in words; of many, the first two and the last."""
    if len(names) <= _FEW:
        return f"the encoded columns {', '.join(names)}"
    return f"the {len(names)} encoded columns {names[0]}, {names[1]}, …, {names[-1]}"


def _table(source: Path) -> Mapping[str, object]:
    if source.suffix.lower() not in SUFFIXES:
        raise DataError(f"{source}: is no table: give a CSV with a header and one row.")
    return load_table(source)  # type: ignore[return-value]  # its columns can be taken by name


def _alone(source: Path, request: DataRequest) -> DataRequest:
    """Return the request of a file that holds one record as the run's file held many."""
    said = describe(request)
    bound = said.row_bound if np.isfinite(said.row_bound) else None
    return DataRequest(
        path=str(source),
        x=request.x,
        y=request.y,
        row_bound=bound,
        num_features=said.num_features,
    )
