"""The file of a ledger: lines of JSON, read and changed as a whole in one locked file, whatever it is called.

Assumed: The file system locks a file for one process, and keeps what it has flushed.
Held by: test_a_file_system_without_locks_is_called_that, test_a_kill_between_any_two_writes_leaves_all_or_nothing,
test_of_processes_that_race_for_the_last_of_a_budget_only_as_many_as_fit_get_it
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import sqlite3
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpmcmc.privacy.ledger import chain
from dpmcmc.privacy.ledger.chain import Append, BrokenChain, Entry, LedgerError
from dpmcmc.storage.atomic import flush_folder
from dpmcmc.storage.lock import lock, still_names, unlock

# ----------------------------------------------------------------------------------------------------
# One file, whatever it is called: locked, read and changed in place, with nothing beside it.
#
# A file may have many names: hard links, symbolic links, mount points, and the name it had before it was moved. A lock
# file, a journal and a write-ahead log go by a name. A process that opens the file by another name does not see them:
# it takes a budget that is being taken, or misses a run that a crash left in the log. So a ledger has none of these.
#
# **Lock.** ``flock`` on the open file, around every read and every change. It belongs to the inode, so it is one for
# all names, also over a bind mount and a container's mount of the single file.
#
# **Change.** The content goes from ``old`` to ``new`` in the inode itself:
#
#     1. append    padding, new, footer (place and length of new, SHA-256, magic)    fsync
#     2. overwrite from byte 0 with new                                              fsync
#     3. cut the file to the length of new                                           fsync
#
# A crash in step 1 leaves ``old`` as it was and an appendix without a valid footer, which nobody reads: lines end where
# the zeros of its padding begin. A crash after step 1 leaves an appendix with a valid footer. It is the content then,
# and the next change finishes steps 2 and 3 first. The change is made when step 1 is on the disk, and it is reported
# only then. The appendix begins at or after the length of ``new``, so step 2 does not touch it. A failure in step 2 or
# 3 loses nothing and is not reported.
#
# **One name.** More than one hard link is refused, although the lock covers it: editors, archives and backups break
# links apart, and two copies are two budgets. A path that names another file than the one that was locked is opened
# again.

#: Start and length of the appended content, its SHA-256, and a magic word.
_FOOTER = struct.Struct(">QQ32s16s")
_MAGIC = b"dpmcmc-ledger-01"
#: How often a path may name another file after the lock than before it.
_TRIES = 100


class Inode:
    """A locked file; made by :func:`locked`.

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
def locked(path: Path, patience: float) -> Iterator[Inode]:
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


def made(path: Path, content: bytes) -> None:
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
    """Remove the second name that a killed :func:`made` left."""
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


# ----------------------------------------------------------------------------------------------------
# Content of a ledger: a line about the file, and one of each entry.
#
# The first line holds the number and the hash of the last entry, the head, so lines that are cut off at the end are
# missed; the chain (``chain.py``) shows what was edited or removed elsewhere. It also holds the key of fingerprints.
# One process at a time sees and changes the ledger, whatever name it opens it by, so two runs cannot both take what is
# left. A change is put into the file as one: a crash or a full disk leaves the content before or the content after.
# No journal or log lies beside the file, and a copy of it is whole.

#: Name of the format in the first line, and its version; 1 and 2 were databases.
_FORMAT = "dpmcmc ledger"
_VERSION = 3
#: Seconds that a process waits for the others.
_PATIENCE = 120.0

#: Entries, (number, hash) of the last one that was written, and the key, or None without one.
Found = tuple[list[Entry], tuple[int, str], bytes | None]


def create(path: Path, key: bytes, entries: Sequence[Entry]) -> None:
    """Write a new ledger of these entries; it appears whole or not at all.

    Raises:
        LedgerError: the file exists, or cannot be written.
    """
    if path.exists():
        raise LedgerError(f"{path}: exists already, and a ledger's budget is fixed for good; choose another file.")
    if not path.parent.is_dir():
        raise LedgerError(f"{path}: its folder does not exist; make it first.")
    try:
        made(path, _lines(entries, key))
    except FileExistsError:
        raise LedgerError(f"{path}: was made by another process meanwhile; use that one.") from None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({error.strerror}); use a local disk with free space.") from None


def read(path: Path) -> tuple[list[Entry], bytes]:
    """(entries, key), the chain verified.

    Raises:
        LedgerError: missing, damaged, of another version, or not a ledger.
        BrokenChain: edited or truncated.
    """
    with _sentences(path), locked(path, _PATIENCE) as file:
        return _read(file)


@contextlib.contextmanager
def change(path: Path) -> Iterator[tuple[list[Entry], Append]]:
    """One change that nobody else shares: (verified entries, append); nothing is written if the block raises.

    Raises:
        LedgerError: as :func:`read`; or another process kept it for too long, the disk is full, or the file was moved.
    """
    with _sentences(path), locked(path, _PATIENCE) as file:
        entries, key = _read(file)
        before = len(entries)

        def append(kind: str, run: str, body: dict[str, Any]) -> Entry:
            entries.append(chain.following(entries, kind, run, body))
            return entries[-1]

        yield entries, append
        if len(entries) > before:
            file.replace(_lines(entries, key))
            file.check_place()


def _lines(entries: Sequence[Entry], key: bytes) -> bytes:
    """Return the content of a ledger with these entries."""
    last = entries[-1]
    about = {
        "format": _FORMAT,
        "version": _VERSION,
        "entries": last.sequence,
        "hash": last.hash,
        "key": key.hex(),
    }
    return "".join(f"{json.dumps(line)}\n" for line in [about, *(entry.__dict__ for entry in entries)]).encode()


def _read(file: Inode) -> tuple[list[Entry], bytes]:
    """Return entries and key of a locked file; damage of any kind is one sentence."""
    content = file.content()
    if _may_have_log(content):
        _renew(file)
        content = file.content()
    return _verified(content, file.path)


def _verified(content: bytes, path: Path) -> tuple[list[Entry], bytes]:
    try:
        entries, head, key = (_of_database if content.startswith(_SQLITE) else _of_lines)(content, path)
        chain.verify(entries, head, path)
    except LedgerError:
        raise
    except (
        TypeError,
        ValueError,
        RecursionError,
    ) as error:  # a value of another type, or text that is none
        raise LedgerError(f"{path}: {_DAMAGED}.") from error
    if key is None:
        raise BrokenChain(f"{path}: the ledger's key was removed; restore an untouched copy.")
    return entries, key


def _of_lines(content: bytes, path: Path) -> Found:
    # Text holds no zero: one is where a change was killed before it was made.
    *lines, rest = content.partition(b"\0")[0].split(b"\n")
    try:
        about = json.loads(lines[0])
        known = about["format"] == _FORMAT
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        known = False
    if not known:
        raise LedgerError(f"{path}: {_NO_LEDGER}.")
    if about.get("version") != _VERSION:
        raise _of_version(about.get("version"), path)
    if rest:
        raise BrokenChain(f"{path}: the ledger's last line is cut off; {chain.MEND}")
    key = about.get("key")
    entries = [Entry(**json.loads(line)) for line in lines[1:]]
    return (
        entries,
        (about.get("entries", 0), about.get("hash", "")),
        None if key is None else bytes.fromhex(key),
    )


def _of_version(version: object, path: Path) -> LedgerError:
    return LedgerError(f"{path}: is a ledger of version {version} and this library reads 1 to {_VERSION}; update it.")


# ----------------------------------------------------------------------------------------------------
# Ledgers of versions 1 and 2: databases of SQLite, which the next change makes lines of JSON.
#
# Version 2 was read and changed as it is now, so it is one file. Changes of version 1 went through SQLite's write-ahead
# log beside the file, and other libraries know SQLite's locks alone. It is made lines when it is first opened, while
# SQLite has it locked. A log goes by the name that the file was opened by. A log that a crash left under another name
# cannot be seen here, so a ledger of version 1 must be opened where its runs were, and a mount of the single file is
# refused. Older libraries refuse lines.

#: How a database begins, what SQLite knows the ledger's format by, and what its header says of one with a log.
_SQLITE = b"SQLite format 3\0"
_APPLICATION = 0x64704C67
_LOGGED = 2


def _header(content: bytes, place: int) -> int:
    """Return the whole number at a place of a database's header."""
    return int.from_bytes(content[place : place + 4], "big")


def _may_have_log(content: bytes) -> bool:
    """Whether this is a ledger that SQLite itself may have changed through files beside it."""
    ours = content.startswith(_SQLITE) and len(content) >= 100 and _header(content, 68) == _APPLICATION
    return ours and (_header(content, 60) == 1 or content[18] == _LOGGED)


def _of_database(content: bytes, path: Path) -> Found:
    if _header(content, 68) != _APPLICATION:
        raise LedgerError(f"{path}: {_NO_LEDGER}.")
    if _header(content, 60) not in (1, 2):
        raise _of_version(_header(content, 60), path)
    page = int.from_bytes(content[16:18], "big")
    length = (65536 if page == 1 else page) * _header(content, 28)
    if not 0 < length <= len(content):
        raise LedgerError(f"{path}: {_DAMAGED}.")
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.deserialize(content[:length])
        db.execute("PRAGMA trusted_schema = OFF")
        columns = "sequence, kind, run, time, text, nonce, previous, hash"
        entries = [Entry(*row) for row in db.execute(f"SELECT {columns} FROM entries ORDER BY sequence")]
        heads = db.execute("SELECT sequence, hash FROM head").fetchall()
        keys = [key for (key,) in db.execute("SELECT key FROM secret") if isinstance(key, bytes)]
    return (
        entries,
        heads[0] if len(heads) == 1 else (0, ""),
        keys[0] if len(keys) == 1 else None,
    )


def _renew(file: Inode) -> None:
    """Fold the log into a ledger of version 1, and make it lines.

    Raises:
        LedgerError: it is reached through a mount of the file alone; it is damaged.
        sqlite3.Error: an older library is using it; it is damaged.
        OSError: it cannot be written.
    """
    path = file.path.resolve()
    if _mounted(path):
        raise LedgerError(
            f"{file.path}: is a ledger of an older version of this library, mounted as a single file, so its log may "
            "lie elsewhere; open it once in its own folder (dpmcmc ledger show FILE)."
        )
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None)) as db:
        if db.execute("PRAGMA journal_mode = DELETE").fetchone()[0] != "delete":
            raise LedgerError(f"{file.path}: {_REASONS[sqlite3.SQLITE_BUSY]}.")
        # SQLite's own lock, for older libraries know no other. Nothing is changed through this connection.
        db.execute("BEGIN EXCLUSIVE")
        file.replace(_lines(*_verified(file.content(), file.path)))


def _mounted(path: Path) -> bool:
    """Whether a file is a mount point of its own."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not on every system
        return False
    points = (re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4]) for line in lines)
    return str(path) in points


# ----------------------------------------------------------------------------------------------------
# What the operating system or SQLite says, as one sentence: what, where, how to mend.


@contextlib.contextmanager
def _sentences(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise LedgerError(f"{path}: {_REASONS.get(code, _DAMAGED)}.") from error
    except BlockingIOError:
        raise LedgerError(
            f"{path}: other processes kept the ledger locked for {_PATIENCE:g} seconds; try again."
        ) from None
    except OSError as error:
        raise LedgerError(f"{path}: {_REFUSALS.get(error.errno or 0, _OTHERWISE).format(error.strerror)}.") from error


_DAMAGED = "the ledger is damaged; restore a copy that its receipts confirm"
_NO_LEDGER = "is not a ledger of this library; make one with dpmcmc ledger init"
_OLDER_CLOSED = (
    "the ledger is of an older version of this library and cannot be made one of this version; run as its owner, in a "
    "folder that is writable and has free space"
)
#: By SQLite's code, of a ledger of version 1; anything else is damage.
_REASONS = dict.fromkeys(
    (
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
    ),
    _OLDER_CLOSED,
)
_REASONS[sqlite3.SQLITE_BUSY] = "a process with an older version of this library is using the ledger; wait for it"
_FULL = "the disk is full ({}), and the ledger is as it was before; free space and try again"
_CLOSED = "the ledger cannot be changed ({}); run as its owner, on a disk that is writable"
_OTHERWISE = "the ledger cannot be used ({}); keep it on a local disk, see to the file and try again"
_REFUSALS = {errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EFBIG: _FULL}
_REFUSALS |= {errno.EACCES: _CLOSED, errno.EPERM: _CLOSED, errno.EROFS: _CLOSED}
_REFUSALS |= dict.fromkeys(
    (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS),
    "the ledger cannot be locked ({}), so two runs could take the same budget; keep it on a local disk",
)
