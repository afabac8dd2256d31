"""A lock on a file that ends with the process that holds it.

The lock belongs to the inode, so it locks every name of one file. On Linux and macOS it is ``flock``, which does not
interact with SQLite's own locks (``fcntl``). On a network file system the mount decides: NFS passes ``flock`` to the
server, or with ``local_lock=flock`` keeps it to one machine.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

#: Byte of a file that Windows locks: beyond every content, for there a locked byte cannot be read.
_LOCKED_BYTE = 1 << 30


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

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)


def still_names(path: Path, handle: int) -> bool:
    """Whether a path still names an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> None:
    if os.name == "nt":
        import errno
        import msvcrt

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                raise BlockingIOError(error.errno, error.strerror) from None
            raise
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
