"""A user's own records, from an ``.npz`` file or from a table with a schema, checked before anything uses them.

The checks run before any release. Their messages quote nothing of the records. Nothing is scaled by what the file
contains, and the types of the arrays are decided by the file's types and never by its values.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from pathlib import Path

import numpy as np

from dpmcmc.data import tables
from dpmcmc.data.base import DataSet, DataSpec
from dpmcmc.data.checks import check_records, norms
from dpmcmc.data.owners import by_owner, read_owner
from dpmcmc.data.partitions import find_partitions
from dpmcmc.data.request import DataRequest, Owners
from dpmcmc.data.row_maps import clip_rows
from dpmcmc.data.split import split_rows
from dpmcmc.data.table_files import list_table_files
from dpmcmc.errors import DataError, InputError
from dpmcmc.storage.arrays import read_array
from dpmcmc.storage.files import open_regular
from dpmcmc.storage.stamps import Stamps, stamps_of


def describe(request: DataRequest) -> DataSpec:
    """Return what the configuration declares about the file; the file is not opened, nor need it exist yet."""
    owners = request.owners
    schema = request.schema
    bound = math.inf if request.row_bound is None else float(request.row_bound)
    path = Path(str(request.path))
    return DataSpec(
        name=(path.parent if is_glob(path) else path).stem,
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
        privatised=request.privatised,
    )


def is_glob(path: Path) -> bool:
    """Whether a path stands for all files whose names fit it."""
    return any(letter in path.name for letter in "*?[") and not path.exists()


def path_of(request: DataRequest) -> Path:
    """Return the path of the file or folder; nothing is opened."""
    return Path(request.base_dir or ".") / os.path.expanduser(str(request.path))


def in_partitions(request: DataRequest) -> DataSet | None:
    """Return a table that is read where it is computed; None of a file that is read whole.

    Rows that are held out, and owners, whose rows lie anywhere, need the whole table.

    Raises:
        DataError: there is no such file, or one is damaged.
    """
    if request.schema is None or request.test_fraction or request.owner is not None:
        return None
    path = path_of(request)
    found = find_partitions(path, request.schema)
    if found is None:
        return None
    names = request.schema.names
    return DataSet(
        describe(request),
        found.shaped(1),
        None,
        request.public,
        "user file",
        {},
        names,
        table=path,
        partitions=found,
    )


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
    spec = describe(request)
    path = path_of(request)
    owners = request.owners
    names = (request.x, request.y)
    more = [] if owners is None else [owners.array]
    outside = None
    source = None if request.schema is None else path
    seen: Stamps = {}
    if request.schema is not None:
        with contextlib.suppress(DataError):  # the reader raises it too
            seen = stamps_of(list_table_files(path))
        table = tables.load_table(path)
        rows, outside = request.schema.encode_counted(table)
        columns = request.schema.names
        found = tables.columns(table, more).items()
        # Numbers that are no owners' stay so as int64, which has no infinity.
        ends = (-1, 0 if owners is None else owners.count)
        arrays = {name: np.clip(column.whole_numbers(), *ends).astype(np.int64) for name, column in found}
    elif path.suffix.lower() in tables.SUFFIXES:
        raise DataError.at("schema", f"{tables.refuse_no_schema(path)}")
    else:
        arrays = _read(path, *names, *more)
        rows = read_rows(
            arrays[request.x],
            arrays[request.y],
            names,
            path,
            spec.row_bound,
            request.num_features,
        )
        columns = tuple(f"{request.x}[{k}]" for k in range(rows["x"].shape[1]))
    count = len(rows["x"])
    about = (columns, outside, source, None, seen)
    if owners is not None:
        train, test = _split_owners(request, owners, rows, arrays[owners.array], path)
        return DataSet(spec, train, test, request.public, "user file", {}, *about)
    train_rows, test_rows = split_rows(count, _held_out(count, request))
    if spec.num_records not in (None, train_rows.size):
        raise DataError.at(
            "num_records",
            f"declares {spec.num_records} training records, but the file leaves {train_rows.size} ({count} rows, "
            f"{test_rows.size} held out): correct the declaration or {path}",
        )
    train = {name: array[train_rows] for name, array in rows.items()}
    test = {name: array[test_rows] for name, array in rows.items()}
    if not test_rows.size:
        test = None
    return DataSet(spec, train, test, request.public, "user file", {}, *about)


def read_rows(
    x: np.ndarray,
    y: np.ndarray,
    names: tuple[str, str],
    path: Path,
    bound: float,
    num_features: int | None = None,
) -> dict[str, np.ndarray]:
    """Return ``{"x": float32 (N, d), "y": int32 or float32 (N,)}`` of rows in memory.

    Rows beyond the bound by rounding are drawn back onto it. For the arguments see
    :func:`dpmcmc.data.checks.check_records`.

    Raises:
        DataError: they are no such rows.
    """
    check_records(x, y, names, str(path), bound, num_features)
    x = x.astype(np.float32)
    y = y.astype(np.float32 if y.dtype.kind == "f" else np.int32)
    beyond = norms(x) > bound
    if beyond.any():
        x[beyond] = clip_rows(x[beyond].astype(np.float64), bound)
    return {"x": x, "y": y}


def _held_out(count: int, request: DataRequest) -> int:
    return math.floor(count * request.test_fraction)


def _split_owners(
    request: DataRequest,
    owners: Owners,
    rows: dict[str, np.ndarray],
    owner: np.ndarray,
    path: Path,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    """(training owners as records, rows of the others or None); which owner is on which side is public."""
    owner = read_owner(owner, owners.count, owners.array)
    count = len(rows["x"])
    if len(owner) != count:
        raise DataError(
            f"{path}: {request.x!r} has {count} rows and {owners.array!r} has {len(owner)}: store one owner for each "
            "row."
        )
    training, _ = split_rows(owners.count, _held_out(owners.count, request))
    in_training = np.isin(owner, training)
    try:
        train = by_owner(
            {name: array[in_training] for name, array in rows.items()},
            np.searchsorted(training, owner[in_training]),
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
    return train, None if in_training.all() else {name: array[~in_training] for name, array in rows.items()}


def _read(path: Path, *names: str) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise DataError(f"data.path: there is no file {path}: correct the path (a relative one starts at the config).")
    try:
        with open_regular(path) as stream:
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


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, path: Path) -> np.ndarray:
    """Return one array of an archive."""
    with archive.open(info) as member:
        try:
            return read_array(member, info.file_size)
        except InputError as what:
            raise DataError(
                f"{path} is damaged, or {name!r} holds {what}: write plain numbers with numpy.savez."
            ) from None
