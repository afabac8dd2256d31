"""Open a file that somebody named as input; anything but a regular file is refused at once.

A pipe without a writer would keep a reader waiting for ever, and a device may never end.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import BinaryIO, TextIO


def opened(path: str | os.PathLike[str]) -> BinaryIO:
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


def opened_text(path: str | os.PathLike[str], encoding: str = "utf-8", newline: str | None = None) -> TextIO:
    """The file, open for reading text.

    Raises:
        OSError: as :func:`opened`.
    """
    return io.TextIOWrapper(opened(path), encoding=encoding, newline=newline)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return all of a file.

    Raises:
        OSError: as :func:`opened`.
    """
    with opened(path) as stream:
        return stream.read()


def read_text(path: str | os.PathLike[str]) -> str:
    """Return all of a text file.

    Raises:
        OSError: as :func:`opened`.
        UnicodeDecodeError: it is no text.
    """
    with opened_text(path) as stream:
        return stream.read()
