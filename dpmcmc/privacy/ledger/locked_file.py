"""One file, whatever it is called: locked, read and changed in place, with nothing beside it.

A file may have many names: hard links, symbolic links, mount points, and the name it had before it was moved. A lock
file, a journal and a write-ahead log go by a name. A process that opens the file by another name does not see them:
it takes a budget that is being taken, or misses a run that a crash left in the log. So a ledger has none of these.

**Lock.** ``flock`` on the open file, around every read and every change. It belongs to the inode, so it is one for
all names, also over a bind mount and a container's mount of the single file.

**Change.** The content goes from ``old`` to ``new`` in the inode itself:

    1. append    padding, new, footer (place and length of new, SHA-256, magic)    fsync
    2. overwrite from byte 0 with new                                              fsync
    3. cut the file to the length of new                                           fsync

A crash in step 1 leaves ``old`` as it was and an appendix without a valid footer, which nobody reads: lines end where
the zeros of its padding begin. A crash after step 1 leaves an appendix with a valid footer. It is the content then,
and the next change finishes steps 2 and 3 first. The change is made when step 1 is on the disk, and it is reported
only then. The appendix begins at or after the length of ``new``, so step 2 does not touch it. A failure in step 2 or
3 loses nothing and is not reported.

**One name.** More than one hard link is refused, although the lock covers it: editors, archives and backups break
links apart, and two copies are two budgets. A path that names another file than the one that was locked is opened
again.

Assumed: The file system locks a file for one process, and keeps what it has flushed.
Held by: test_a_file_system_without_locks_is_called_that, test_a_kill_between_any_two_writes_leaves_all_or_nothing,
test_of_processes_that_race_for_the_last_of_a_budget_only_as_many_as_fit_get_it
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import re
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from dpmcmc.privacy.ledger.chain import LedgerError
from dpmcmc.storage.atomic import flush_folder
from dpmcmc.storage.lock import lock, still_names, unlock

#: Start and length of the appended content, its SHA-256, and a magic word.
_FOOTER = struct.Struct(">QQ32s16s")
_MAGIC = b"dpmcmc-ledger-01"
#: How often a path may name another file after the lock than before it.
_TRIES = 100


class Inode:
    """A locked file; made by :func:`open_locked`.

    Attributes:
        path: that it was opened by.
        handle: its descriptor.
        writable: whether it may be changed.
    """

    def __init__(self, path: Path, handle: int, writable: bool = True) -> None:
        self.path = path
        self.handle = handle
        self.writable = writable

    def content(self) -> bytes:
        """Return the content after the last change."""
        whole = self._whole()
        appended = _appended(whole)
        return whole if appended is None else appended

    def replace(self, content: bytes) -> None:
        """Make this the content, on the disk before this returns.

        Raises:
            OSError: it is as it was.
        """
        if not self.writable:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path))
        appended = _appended(self._whole())
        if appended is not None:  # a change that was killed in step 2 or 3
            self._overwrite(appended)
        end = os.fstat(self.handle).st_size
        start = max(end, len(content))
        footer = _FOOTER.pack(start, len(content), hashlib.sha256(content).digest(), _MAGIC)
        try:
            self._write(end, bytes(start - end) + content + footer)
            os.fsync(self.handle)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self.handle, end)
            raise
        with contextlib.suppress(OSError):  # it is made; the next change finishes it
            self._overwrite(content)

    def check_place(self) -> None:
        """Raise LedgerError unless the path still names this file."""
        if not still_names(self.path, self.handle):
            raise LedgerError(
                f"{self.path}: was moved or replaced while it was in use, and what was reserved stays spent in the "
                "file that it was; find that one, and go on with it alone."
            )

    def check_links(self) -> None:
        """Raise LedgerError where the file has several hard links."""
        count = os.fstat(self.handle).st_nlink
        if count > 1:
            raise LedgerError(
                f"{self.path}: has {count} names (hard links), which can become {count} budgets; keep one and remove "
                f"the others (find FOLDER -samefile {self.path} lists them)."
            )

    def _whole(self) -> bytes:
        os.lseek(self.handle, 0, os.SEEK_SET)
        parts = []
        while part := os.read(self.handle, 1 << 24):
            parts.append(part)
        return b"".join(parts)

    def _overwrite(self, content: bytes) -> None:
        self._write(0, content)
        os.fsync(self.handle)
        os.ftruncate(self.handle, len(content))
        os.fsync(self.handle)

    def _write(self, place: int, content: bytes) -> None:
        os.lseek(self.handle, place, os.SEEK_SET)
        left = memoryview(content)
        while left:
            left = left[os.write(self.handle, left) :]


@contextlib.contextmanager
def open_locked(path: Path, patience: float) -> Iterator[Inode]:
    """The file of a ledger, locked against every other process and thread.

    Args:
        path: any of its names.
        patience: seconds to wait for others.

    Raises:
        LedgerError: there is none, it is no file, or it has several hard links.
        BlockingIOError: others kept it.
        OSError: it cannot be opened or locked.
    """
    for _ in range(_TRIES):
        handle, writable = _open(path)
        try:
            lock(handle, patience)
            if not still_names(path, handle):
                continue
            file = Inode(path, handle, writable)
            _forget_trial(file)
            file.check_links()
            yield file
            return
        finally:
            with contextlib.suppress(OSError):
                unlock(handle)
            os.close(handle)
    raise LedgerError(f"{path}: is replaced again and again by another process; keep the ledger to this library.")


def write_new(path: Path, content: bytes) -> None:
    """Write a new file, its owner's alone; it is there whole or not at all.

    Raises:
        FileExistsError: another file has the name.
        OSError: it cannot be written.
    """
    trial = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    handle = os.open(trial, os.O_CREAT | os.O_EXCL | os.O_RDWR | _BINARY, 0o600)
    try:
        lock(handle)  # whoever opens it meanwhile waits until it has one name
        Inode(trial, handle)._write(0, content)
        os.fsync(handle)
        # A link, unlike a rename, never replaces a file that another process made meanwhile.
        os.link(trial, path)
    finally:
        try:
            trial.unlink(missing_ok=True)
        finally:  # the lock ends even where the name stays
            os.close(handle)
    flush_folder(path.parent)


_BINARY = getattr(os, "O_BINARY", 0)


def _open(path: Path) -> tuple[int, bool]:
    """(descriptor, whether the file may be changed)."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except (
        FileNotFoundError,
        NotADirectoryError,
        ValueError,
    ):  # the last of a zero in the name
        raise LedgerError(f"{path}: no such ledger; make one with dpmcmc ledger init.") from None
    if not regular:
        raise LedgerError(f"{path}: is no file; make a ledger with dpmcmc ledger init.")
    try:
        return os.open(path, os.O_RDWR | _BINARY), True
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return os.open(path, os.O_RDONLY | _BINARY), False


def _forget_trial(file: Inode) -> None:
    """Remove the second name that a killed :func:`write_new` left."""
    if os.fstat(file.handle).st_nlink < 2:
        return
    path = file.path.resolve()
    for other in path.parent.glob(f".{glob.escape(path.name)}.*"):
        if re.fullmatch(r"[0-9a-f]{16}", other.name.removeprefix(f".{path.name}.")) and still_names(other, file.handle):
            other.unlink()


def _appended(whole: bytes) -> bytes | None:
    """The content of an appendix that is whole."""
    if len(whole) < _FOOTER.size:
        return None
    start, length, digest, magic = _FOOTER.unpack(whole[-_FOOTER.size :])
    if magic != _MAGIC or start + length + _FOOTER.size != len(whole):
        return None
    content = whole[start : start + length]
    return content if hashlib.sha256(content).digest() == digest else None
