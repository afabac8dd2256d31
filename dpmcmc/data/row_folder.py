"""Records larger than memory: a folder with one ``.npy`` file for each array, read where they lie.

    my_folder/x.npy  (N, d) floats          my_folder/y.npy  (N,) class numbers, counts or real numbers
    my_folder/x_test.npy, y_test.npy        if there are test rows; these are read into memory
    my_folder/names.txt                     names of the d features, one a line, if you like

:func:`load_folder` looks at every training record once, block by block, and returns memory-mapped arrays, of which a
sampler reads the rows of its batches (``engine/rows_on_disk.py``). The size of a file must agree with its header.

Rows that pass ``row_bound`` by float32 rounding stay as they are, because a file is never written to. Nothing rests
on the difference. A sampler clips every record's gradient whatever its row; a one-shot mechanism, whose proof needs
the bound, draws such rows back itself.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from dpmcmc.data.base import DataSet
from dpmcmc.data.checks import check_name, check_records
from dpmcmc.data.conversion import NAMES
from dpmcmc.data.request import DataRequest
from dpmcmc.data.user_file import describe, path_of, read_rows
from dpmcmc.errors import DataError
from dpmcmc.storage.arrays import npy_header
from dpmcmc.storage.files import open_regular

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
    test = read_rows(found["x"], found["y"], (names["x"], names["y"]), folder, bound)
    if test["x"].shape[1] != num_features:
        raise DataError(
            f"{folder}: {names['x']!r} has {test['x'].shape[1]} features and {request.x!r} has {num_features}: store "
            "the same ones."
        )
    return test
