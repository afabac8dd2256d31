"""A user's own records, from an ``.npz`` file or from a table with a schema, checked before anything uses them.

The checks run before any release. Their messages quote nothing of the records. Nothing is scaled by what the file
contains, and the types of the arrays are decided by the file's types and never by its values.
"""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from dpmcmc.data import frames
from dpmcmc.data.base import DataRequest, DataSet, DataSpec, Owners
from dpmcmc.data.checks import check_records, norms
from dpmcmc.data.encoding import clipped_rows
from dpmcmc.data.owners import by_owner, checked_owner
from dpmcmc.data.split import fixed_split
from dpmcmc.errors import DataError
from dpmcmc.storage.regular_file import opened


def describe(request: DataRequest) -> DataSpec:
    """Return what the configuration declares about the file; the file is not opened, nor need it exist yet."""
    owners, schema = request.owners, request.schema
    bound = math.inf if request.row_bound is None else float(request.row_bound)
    return DataSpec(
        name=Path(str(request.path)).stem,
        num_records=request.num_records if owners is None else owners.count - _held_out(owners.count, request),
        num_features=request.num_features if schema is None else schema.num_features,
        num_classes=None if schema is None else schema.outcome.num_classes,
        public=request.public,
        row_bound=bound if schema is None else schema.row_bound,
        encoding=None,
        description="Records of a user's file.",
        records_per_owner=request.records_per_owner,
        structure=None if schema is None else schema.structure,
        schema=schema,
    )


def path_of(request: DataRequest) -> Path:
    """Return the path of the file or folder; nothing is opened."""
    return Path(request.base_dir or ".") / os.path.expanduser(str(request.path))


def load(request: DataRequest) -> DataSet:
    """Reads arrays ``request.x`` (n, d) and ``request.y`` (n,), or a table; holds out ``test_fraction`` of the rows.

    ``x`` is real or integer and becomes float32. ``y`` becomes int32 class numbers or counts if it is stored as
    integers or booleans, float32 if stored as floats. The training set has n - floor(n * test_fraction) rows,
    which must equal ``num_records`` where that is declared. The test set is None when nothing is held out.

    With ``request.owner``, (n,) whole numbers, it is owners that are held out, floor(num_owners * test_fraction) of
    them with all their rows, and the training set has one record for each of the others.

    Raises:
        DataError: the file or an array is missing, or the records break a declared or necessary condition.
    """
    spec, path, owners, names = describe(request), path_of(request), request.owners, (request.x, request.y)
    more, outside = [] if owners is None else [owners.array], None
    source = None if request.schema is None else path
    if request.schema is not None:
        table = frames.in_memory(path)
        (rows, outside), columns = request.schema.encode_counted(table), request.schema.names
        found = frames.columns(table, more).items()
        # Numbers that are no owners' stay so as int64, which has no infinity.
        ends = (-1, 0 if owners is None else owners.count)
        arrays = {name: np.clip(column.whole_numbers(), *ends).astype(np.int64) for name, column in found}
    elif path.suffix.lower() in frames.SUFFIXES:
        raise DataError.at("schema", f"{frames.no_schema(path)}")
    else:
        arrays = _read(path, *names, *more)
        rows = checked_rows(arrays[request.x], arrays[request.y], names, path, spec.row_bound, request.num_features)
        columns = tuple(f"{request.x}[{k}]" for k in range(rows["x"].shape[1]))
    x, y = rows["x"], rows["y"]
    if owners is not None:
        train, test = _split_owners(request, owners, rows, arrays[owners.array], path)
        return DataSet(spec, train, test, request.public, "user file", {}, columns, outside, source)
    train_rows, test_rows = fixed_split(x.shape[0], _held_out(x.shape[0], request))
    if spec.num_records not in (None, train_rows.size):
        raise DataError.at(
            "num_records",
            f"declares {spec.num_records} training records, but the file leaves {train_rows.size} ({x.shape[0]} rows, "
            f"{test_rows.size} held out): correct the declaration or {path}",
        )
    train = {"x": x[train_rows], "y": y[train_rows]}
    test = {"x": x[test_rows], "y": y[test_rows]} if test_rows.size else None
    return DataSet(spec, train, test, request.public, "user file", {}, columns, outside, source)


def checked_rows(
    x: np.ndarray, y: np.ndarray, names: tuple[str, str], path: Path, bound: float, num_features: int | None = None
) -> dict[str, np.ndarray]:
    """Return ``{"x": float32 (N, d), "y": int32 or float32 (N,)}`` of rows in memory.

    Rows beyond the bound by rounding are drawn back onto it. For the arguments see
    :func:`dpmcmc.data.checks.check_records`.

    Raises:
        DataError: they are no such rows.
    """
    check_records(x, y, names, str(path), bound, num_features)
    x, y = x.astype(np.float32), y.astype(np.float32 if y.dtype.kind == "f" else np.int32)
    beyond = norms(x) > bound
    if beyond.any():
        x[beyond] = clipped_rows(x[beyond].astype(np.float64), bound)
    return {"x": x, "y": y}


def _held_out(count: int, request: DataRequest) -> int:
    return math.floor(count * request.test_fraction)


def _split_owners(
    request: DataRequest, owners: Owners, rows: dict[str, np.ndarray], owner: np.ndarray, path: Path
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    """(training owners as records, rows of the others or None); which owner is on which side is public."""
    owner, count = checked_owner(owner, owners.count, owners.array), len(rows["x"])
    if len(owner) != count:
        raise DataError(
            f"{path}: {request.x!r} has {count} rows and {owners.array!r} has {len(owner)}: store one owner for each "
            "row."
        )
    training, _ = fixed_split(owners.count, _held_out(owners.count, request))
    kept = np.isin(owner, training)
    try:
        train = by_owner(
            {name: array[kept] for name, array in rows.items()},
            np.searchsorted(training, owner[kept]),
            num_owners=len(training),
            records_per_owner=owners.rows,
        )
    except MemoryError:
        raise DataError.at(
            "records_per_owner",
            f"{len(training)} owners with room for {owners.rows} rows each are more than there is memory for: declare "
            "fewer",
        ) from None
    # Owners without rows leave nothing to test on.
    return train, None if kept.all() else {name: array[~kept] for name, array in rows.items()}


def _read(path: Path, *names: str) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise DataError(f"data.path: there is no file {path}: correct the path (a relative one starts at the config).")
    try:
        with opened(path) as stream:
            if stream.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise DataError(f"{path} holds a single array: store both arrays together with numpy.savez.")
            with zipfile.ZipFile(stream) as archive:
                entries = archive.infolist()
                held = {info.filename.removesuffix(".npy"): info for info in entries}
                twice = [name for name in names if sum(e.filename.removesuffix(".npy") == name for e in entries) > 1]
                if twice:
                    raise DataError(
                        f"{path} has more than one array {', '.join(map(repr, twice))} (x and x.npy are one name): "
                        "keep the right one."
                    )
                missing = [name for name in names if name not in held]
                if missing:
                    raise DataError(
                        f"{path} has no array {', '.join(map(repr, missing))}; it has "
                        f"{', '.join(held) or 'none'}: name the arrays with data.x and data.y."
                    )
                return {name: _array(archive, held[name], name, path) for name in names}
    except DataError:
        raise
    except MemoryError:
        raise DataError(f"{path} holds more than there is memory for: store fewer or smaller arrays.") from None
    except Exception as reason:  # a damaged archive makes zipfile and NumPy raise anything
        raise DataError(
            f"{path} is damaged, is no .npz archive, or holds Python objects ({type(reason).__name__}): write plain "
            "numbers with numpy.savez."
        ) from reason


def npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return (shape, whether by columns, type) that a ``.npy`` stream states; whoever reads on must not believe it."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    return readers[np.lib.format.read_magic(stream)](stream)


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, path: Path) -> np.ndarray:
    """One array of an archive; room is made for what the file holds, never for what a header claims.

    ``numpy.load`` would allocate the shape that a damaged header states, or advise to unpickle.
    """
    with archive.open(info) as member:
        shape, by_columns, dtype = npy_header(member)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != info.file_size - member.tell():
            what = "Python objects" if dtype.hasobject else f"not the {shape} numbers that its header states"
            raise DataError(f"{path} is damaged, or {name!r} holds {what}: write plain numbers with numpy.savez.")
        return np.frombuffer(member.read(), dtype).reshape(shape, order="F" if by_columns else "C")
