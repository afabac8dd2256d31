"""Files that somebody named as input: regular files alone are read, and none that is larger than it may be.

A pipe without a writer would keep a reader waiting for ever, and a device may never end. Nothing is written here
(``atomic.py``), and a file's format is its reader's business.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from typing import Any, TextIO


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """The file, open for reading bytes.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe, a socket or a device.
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer. Regular files ignore it.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))


def open_text(path: str | os.PathLike[str], encoding: str = "utf-8", newline: str | None = None) -> TextIO:
    """The file, open for reading text.

    Raises:
        OSError: as :func:`open_regular`.
    """
    return io.TextIOWrapper(open_regular(path), encoding=encoding, newline=newline)


def read_bytes(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Return all of a file.

    Args:
        path: of the file.
        most: bytes that it may have; None: as many as this machine has memory.

    Raises:
        OSError: as :func:`open_regular`; it is longer.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        room = memory() if most is None else most
        if room is not None and size > room:
            why = f"it has {size:,} bytes, and {room:,} are read at most"
            raise OSError(errno.EFBIG, why, os.fspath(path))
        return stream.read()


def memory() -> int | None:
    """Return the bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


#: Bytes of a JSON file, at most; Python's objects may take 25 times as many. A plan of 10,000 columns has 1 MB.
_MOST_JSON = 1 << 25


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the table that a JSON file holds.

    Raises:
        OSError: as :func:`read_bytes`.
        ValueError, RecursionError: it is no JSON, or too deep.
        TypeError: it holds something else.
    """
    said = json.loads(read_bytes(path, _MOST_JSON))
    if not isinstance(said, dict):
        raise TypeError(f"{os.path.basename(path)} is not a table")
    return said


def read_table(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the table that a JSON file holds; an empty one where there is none."""
    try:
        return read_json(path)
    except (OSError, ValueError, RecursionError, TypeError):
        return {}


def read_text(path: str | os.PathLike[str]) -> str:
    """Return all of a text file.

    Raises:
        OSError: as :func:`open_regular`.
        UnicodeDecodeError: it is no text.
    """
    with open_text(path) as stream:
        return stream.read()
