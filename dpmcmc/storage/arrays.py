"""Arrays in files, which may be a stranger's: room is made for what a file holds, never for what a header claims.

``numpy.load`` would make room for the shape that a header states, for as much as a member claims to unpack to, or
advise to unpickle.

A sealed file of arrays begins with its SHA-256, so that a part of one is never taken for the whole.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.files import read_bytes


def npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return (shape, whether by columns, type) that a ``.npy`` stream states; whoever reads on must not believe it."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    return readers[np.lib.format.read_magic(stream)](stream)


def read_array(stream: IO[bytes], size: int) -> np.ndarray:
    """Return the array of a ``.npy`` stream of so many bytes.

    Raises:
        InputError: its clause says what the stream holds in place of an array of numbers.
        ValueError, KeyError: it is no ``.npy`` of a known version.
    """
    shape, by_columns, dtype = npy_header(stream)
    if dtype.hasobject:
        raise InputError("Python objects")
    if math.prod(shape) * dtype.itemsize != size - stream.tell():
        raise InputError(f"not the {shape} numbers that its header states")
    order: Any = "F" if by_columns else "C"
    return np.frombuffer(stream.read(), dtype).reshape(shape, order=order)


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` that ``numpy.savez`` wrote, which does not compress.

    Raises:
        InputError: its arrays are said to be larger than it is.
        ValueError, KeyError, zipfile.BadZipFile: it is damaged.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        asked = sum(entry.file_size for entry in entries)
        if asked > len(content):
            raise InputError(f"its arrays ask for {asked:,} bytes, and it has {len(content):,}")
        found = {}
        for entry in entries:
            with archive.open(entry) as member:
                name = entry.filename.removesuffix(".npy")
                found[name] = read_array(member, entry.file_size).copy()
        return found


def seal(path: Path, arrays: dict[str, np.ndarray], last: bool = True) -> str:
    """Write a file that only its owner reads, and return its digest; ``last`` as of ``write_atomically``."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    digest = hashlib.sha256(buffer.getvalue())
    whole = digest.digest() + buffer.getvalue()
    write_atomically(path, lambda temporary: temporary.write_bytes(whole), 0o600, last)
    return digest.hexdigest()


def unseal(path: Path) -> tuple[str, dict[str, np.ndarray]] | None:
    """(digest, arrays) of a file that is whole, else None."""
    try:
        whole = read_bytes(path)
    except OSError:
        return None
    if hashlib.sha256(whole[32:]).digest() != whole[:32]:
        return None
    try:
        return whole[:32].hex(), arrays_of(whole[32:])
    except (ValueError, KeyError, zipfile.BadZipFile):
        return None
