"""A lock on a file that ends with the process that holds it.

The lock belongs to the inode, so it locks every name of one file. On Linux and macOS it is ``flock``, which does not
interact with SQLite's own locks (``fcntl``). On a network file system the mount decides: NFS passes ``flock`` to the
server, or with ``local_lock=flock`` keeps it to one machine.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np

# ----------------------------------------------------------------------------------------------------
# Files that are complete or absent, even after a kill, a full disk or a loss of power.


def write_atomically(path: Path, write: Callable[[Path], object], mode: int = 0o644, last: bool = True) -> None:
    """Call ``write(temporary_path)`` beside ``path``, then rename; nothing is left behind on failure.

    The content reaches the disk before the name does, and the name before this returns.

    Args:
        path: of the file.
        write: fills the file it is given.
        mode: who may read the file: everybody by default.
        last: whether to flush the folder too. The flush after the last of several files puts all their names on disk.

    Raises:
        OSError: the file could not be written; what stood at ``path`` before still does.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        os.chmod(temporary, mode)
        _flush(temporary, os.O_RDWR)
        os.replace(temporary, path)
        if last:
            flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def check_room(folder: Path, size: int) -> None:
    """Raise OSError, with the folder as its file name, unless so many bytes can be written in it now."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=".room.")
    try:
        if hasattr(os, "posix_fallocate"):  # not on every system
            os.posix_fallocate(handle, 0, max(1, size))
    except OSError as error:
        reason = f"{os.strerror(error.errno or 0)}, {size / 1e6:.1f} MB are needed"
        raise OSError(error.errno, reason, str(folder)) from None
    finally:
        os.close(handle)
        os.unlink(name)


def flush_folder(path: Path) -> None:
    """Flush the names in a folder to the disk; on Windows, where a folder cannot be opened, renaming is durable."""
    if os.name != "nt":
        _flush(path, os.O_RDONLY)


def _flush(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ----------------------------------------------------------------------------------------------------
# Open a file that somebody named as input; anything but a regular file is refused at once.
#
# A pipe without a writer would keep a reader waiting for ever, and a device may never end.


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


# ----------------------------------------------------------------------------------------------------
# Files of arrays that begin with their SHA-256, so that a part of one is never taken for the whole.


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
        with np.load(io.BytesIO(whole[32:]), allow_pickle=False) as file:
            return whole[:32].hex(), dict(file)
    except (ValueError, TypeError, AttributeError):
        return None


#: Byte of a file that Windows locks: beyond every content, for there a locked byte cannot be read.
_FAR = 1 << 30


def lock(handle: int, patience: float = 0.0) -> None:
    """Lock an open file until :func:`unlock`, until it is closed, or until the process ends.

    Args:
        handle: of the file, open for writing.
        patience: seconds to wait for others.

    Raises:
        BlockingIOError: another holds it.
        OSError: it cannot be locked; ``strerror`` says why.
    """
    end = time.monotonic() + patience
    while True:
        try:
            _lock(handle)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
        time.sleep(random.uniform(0.001, 0.02))


def unlock(handle: int) -> None:
    """Release the lock, also if a forked child still has the file open."""
    if os.name == "nt":
        import msvcrt

        os.lseek(handle, _FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)


def names(path: Path, handle: int) -> bool:
    """Whether a path still names an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> None:
    if os.name == "nt":
        import errno
        import msvcrt

        os.lseek(handle, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                raise BlockingIOError(error.errno, error.strerror) from None
            raise
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
