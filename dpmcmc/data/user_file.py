"""A user's own records, from an ``.npz`` file or from a table with a schema, checked before anything uses them.

The checks run before any release. Their messages quote nothing of the records. Nothing is scaled by what the file
contains, and the types of the arrays are decided by the file's types and never by its values.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dpmcmc.data import tables
from dpmcmc.data.base import (
    DataError,
    DataRequest,
    DataSet,
    DataSpec,
    Owners,
    clipped_rows,
    fixed_split,
)
from dpmcmc.data.checks import check_name, check_records, norms, refuse_mask
from dpmcmc.data.columnar import NAMES, paths_of
from dpmcmc.data.partitions import partitioned
from dpmcmc.errors import InputError
from dpmcmc.storage.arrays import npy_header, read_array
from dpmcmc.storage.files import open_regular
from dpmcmc.storage.stamps import Stamps, stamps_of

# ----------------------------------------------------------------------------------------------------
# Rows grouped by owner, so that one owner is one record of the query.
#
# An owner's own rows alone decide the padding and the rows left out. If one owner's rows change, every other owner's
# record stays the same, bit for bit. Neighbours that differ in all rows of one owner therefore differ in one record.

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
    owner = checked_owner(owner, num_owners)
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != len(owner):
            raise DataError(f"data: {name!r} has shape {array.shape} where there are {len(owner)} owners of rows.")
    # A stable sort keeps each owner's rows in their order; the place of a row is its rank among its owner's.
    order = np.argsort(owner, kind="stable")
    of_row = owner[order]
    place = np.arange(len(of_row)) - np.searchsorted(of_row, of_row)
    kept = place < records_per_owner
    at = of_row[kept], place[kept]
    shape = (num_owners, records_per_owner)
    out = {}
    for name, array in arrays.items():
        out[name] = np.zeros((*shape, *array.shape[1:]), array.dtype)
        out[name][at] = array[order[kept]]
    out[MASK] = np.zeros(shape, bool)
    out[MASK][at] = True
    return out


def checked_owner(owner: np.ndarray, num_owners: int, name: str = "owner") -> np.ndarray:
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
    found = partitioned(path, request.schema)
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
            seen = stamps_of(paths_of(path))
        table = tables.in_memory(path)
        rows, outside = request.schema.encode_counted(table)
        columns = request.schema.names
        found = tables.columns(table, more).items()
        # Numbers that are no owners' stay so as int64, which has no infinity.
        ends = (-1, 0 if owners is None else owners.count)
        arrays = {name: np.clip(column.whole_numbers(), *ends).astype(np.int64) for name, column in found}
    elif path.suffix.lower() in tables.SUFFIXES:
        raise DataError.at("schema", f"{tables.no_schema(path)}")
    else:
        arrays = _read(path, *names, *more)
        rows = checked_rows(
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
    train_rows, test_rows = fixed_split(count, _held_out(count, request))
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


def checked_rows(
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
        x[beyond] = clipped_rows(x[beyond].astype(np.float64), bound)
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
    owner = checked_owner(owner, owners.count, owners.array)
    count = len(rows["x"])
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


# ----------------------------------------------------------------------------------------------------
# Records larger than memory: a folder with one ``.npy`` file for each array, read where they lie.
#
#     my_folder/x.npy  (N, d) floats          my_folder/y.npy  (N,) class numbers, counts or real numbers
#     my_folder/x_test.npy, y_test.npy        if there are test rows; these are read into memory
#     my_folder/names.txt                     names of the d features, one a line, if you like
#
# ``load`` looks at every training record once, block by block, and returns memory-mapped arrays, of which a sampler
# reads the rows of its batches (``rows_on_disk.py``). The size of a file must agree with its header.
#
# Rows that pass ``row_bound`` by float32 rounding stay as they are, because a file is never written to. Nothing rests
# on the difference. A sampler clips every record's gradient whatever its row; a one-shot mechanism, whose proof needs
# the bound, draws such rows back itself.

_SUFFIX = "_test"


def is_folder(request: DataRequest) -> bool:
    """Whether a user's records are a folder of arrays, and no archive of them."""
    return request.schema is None and path_of(request).is_dir()


def load_folder(request: DataRequest) -> DataSet:
    """Maps ``x`` (N, d), of a float type, and ``y`` (N,), of any real type, and checks every record, block by block.

    The test rows, where there are any, are as :func:`dpmcmc.data.user_file.load` makes them.

    Raises:
        DataError: a file is missing, damaged or laid out by columns, the records break a declared or necessary
            condition, or the request wants what only records in memory can have.
    """
    folder = path_of(request)
    _check_request(request, folder)
    train: dict[str, np.ndarray] = {
        name: _mapped(folder, array, "float" if name == "x" else "real") for name, array in _names(request)
    }
    x = train["x"]
    y = train["y"]
    spec = describe(request)
    if request.num_records not in (None, len(x)):
        raise DataError.at(
            "num_records",
            f"declares {request.num_records} training records, and {request.x}.npy has {len(x)}: correct the "
            f"declaration or {folder}",
        )
    check_records(x, y, (request.x, request.y), str(folder), spec.row_bound, request.num_features)
    columns = _columns(folder, x.shape[1]) or tuple(f"{request.x}[{k}]" for k in range(x.shape[1]))
    test = _test_rows(request, folder, spec.row_bound, x.shape[1])
    return DataSet(spec, train, test, request.public, "user file", {}, columns)


def _columns(folder: Path, count: int) -> tuple[str, ...]:
    """Return the features' names that the folder states, or none."""
    path = folder / NAMES
    try:
        found = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    except (OSError, ValueError) as reason:
        raise DataError(f"{path} cannot be read ({type(reason).__name__}): write names in UTF-8, one a line.") from None
    for name in found:
        check_name(name, str(path))
    if found and len(found) != count:
        raise DataError(f"{path} has {len(found)} names, one a line, for {count} features: mend or remove it.")
    return tuple(found)


def _names(request: DataRequest) -> tuple[tuple[str, str], ...]:
    return ("x", request.x), ("y", request.y)


def _check_request(request: DataRequest, folder: Path) -> None:
    """Refuse what would need the whole of a file in memory, and names that lead elsewhere."""
    if request.test_fraction:
        raise DataError.at(
            "test_fraction",
            f"rows cannot be held out of {folder}, whose files are not read as a whole; leave it "
            f"out, and store test rows as {request.x}{_SUFFIX}.npy and {request.y}{_SUFFIX}.npy",
        )
    if request.owner is not None:
        raise DataError(
            f"data.owner: an owner's rows lie anywhere in {folder}, whose files are not read as a whole; store records "
            "of owners in one .npz file."
        )
    for key, name in _names(request):
        if Path(name).name != name:
            raise DataError(f"data.{key}: {name!r} is no name of a file in {folder}; give it without folder and .npy.")


def _mapped(folder: Path, name: str, wanted: str) -> np.memmap:
    """Return a file's array as a memory map; only its header has been read."""
    path = folder / f"{name}.npy"
    if not path.is_file():
        raise DataError(
            f"data.path: there is no file {path}: store arrays of these names with numpy.save, or correct the path."
        )
    try:
        with open_regular(path) as stream:
            shape, by_columns, dtype = npy_header(stream)
            start = stream.tell()
            size = stream.seek(0, os.SEEK_END)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): mend its permissions.") from None
    except Exception as reason:  # a damaged header makes NumPy raise anything
        raise DataError(
            f"{path} is damaged or is no .npy file ({type(reason).__name__}): write plain numbers with numpy.save."
        ) from None
    if dtype.hasobject:
        raise DataError(f"{path} holds Python objects: write plain numbers with numpy.save.")
    if dtype.kind not in ("f" if wanted == "float" else "fiub") or not dtype.isnative:
        kind = "float32" if wanted == "float" else "whole numbers or floats"
        raise DataError(f"{path} has type {dtype}: store {kind} in the byte order of this machine.")
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != size - start:
        raise DataError(
            f"{path} is damaged: its header states {shape} numbers of {dtype.itemsize} bytes, and {size - start} bytes "
            "follow; write it again with numpy.save."
        )
    if 0 in shape:
        raise DataError(f"{path} has shape {shape}: store at least one record.")
    if by_columns and len(shape) > 1:
        raise DataError(
            f"{path} is laid out by columns (Fortran order), so a row lies in many places: write it with "
            "numpy.save(path, numpy.ascontiguousarray(x))."
        )
    return np.memmap(path, dtype, "r", start, shape)


def _test_rows(request: DataRequest, folder: Path, bound: float, num_features: int) -> dict[str, np.ndarray] | None:
    """Test rows in memory, or None where there are none."""
    names = {key: f"{name}{_SUFFIX}" for key, name in _names(request)}
    if not any((folder / f"{name}.npy").exists() for name in names.values()):
        return None
    found = {key: np.array(_mapped(folder, name, "real")) for key, name in names.items()}
    test = checked_rows(found["x"], found["y"], (names["x"], names["y"]), folder, bound)
    if test["x"].shape[1] != num_features:
        raise DataError(
            f"{folder}: {names['x']!r} has {test['x'].shape[1]} features and {request.x!r} has {num_features}: store "
            "the same ones."
        )
    return test
