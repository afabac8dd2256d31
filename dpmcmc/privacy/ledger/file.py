"""Ledgers of version 1, whose changes went through SQLite's write-ahead log beside the file: read once, and renewed.

A log goes by the name that the file was opened by. A log that a crash left under another name cannot be seen here, so
a ledger of version 1 must be opened where its runs were, and a mount of the single file is refused.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import hashlib
import os
import re
import sqlite3
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dpmcmc.privacy.ledger import chain
from dpmcmc.privacy.ledger.chain import Entry, LedgerError
from dpmcmc.storage.files import flush_folder, lock, names, unlock

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
# A crash in step 1 leaves ``old`` as it was and an appendix without a valid footer, which nobody reads. A crash after
# step 1 leaves an appendix with a valid footer: it is the content, and the next change finishes steps 2 and 3 first.
# The change is made when step 1 is on the disk, and it is reported only then. The appendix begins at or after the
# length of ``new``, so step 2 does not touch it. A failure in step 2 or 3 loses nothing and is not reported.
#
# **One name.** More than one hard link is refused, although the lock covers it: editors, archives and backups break
# links apart, and two copies are two budgets. A path that names another file than the one that was locked is opened
# again.

#: Start and length of the appended content, its SHA-256, and a magic word.
_FOOTER = struct.Struct(">QQ32s16s")
_MAGIC = b"dpmcmc-ledger-01"
#: How a database of SQLite begins.
SQLITE = b"SQLite format 3\0"
#: How often a path may name another file after the lock than before it.
_TRIES = 100


class Inode:
    """A locked file; made by :func:`held`.

    Attributes:
        path: that it was opened by.
        handle: its descriptor.
        writable: whether it may be changed.
    """

    def __init__(self, path: Path, handle: int, writable: bool = True) -> None:
        self.path, self.handle, self.writable = path, handle, writable

    def content(self) -> bytes:
        """Return the content after the last change."""
        whole = self._whole()
        appended = _appended(whole)
        return whole[: _length(whole)] if appended is None else appended

    def replace(self, content: bytes) -> None:
        """Make this the content, on the disk before this returns.

        Raises:
            OSError: it is as it was.
        """
        if not self.writable:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path))
        self._finish()
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
        if not names(self.path, self.handle):
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

    def _finish(self) -> None:
        """Steps 2 and 3 of a change that was killed, or the end of one that was not made."""
        whole = self._whole()
        appended = _appended(whole)
        if appended is not None:
            self._overwrite(appended)
        elif len(whole) > _length(whole):
            os.ftruncate(self.handle, _length(whole))
            os.fsync(self.handle)

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
def held(path: Path, patience: float) -> Iterator[Inode]:
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
            if not names(path, handle):
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
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise LedgerError(f"{path}: is no file; make a ledger with dpmcmc ledger init.")
        try:
            return os.open(path, os.O_RDWR | _BINARY), True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return os.open(path, os.O_RDONLY | _BINARY), False
    except (FileNotFoundError, NotADirectoryError):
        raise LedgerError(f"{path}: no such ledger; make one with dpmcmc ledger init.") from None


def _forget_trial(file: Inode) -> None:
    """Remove the second name that a killed :func:`made` left."""
    if os.fstat(file.handle).st_nlink < 2:
        return
    path = file.path.resolve()
    for other in path.parent.glob(f".{glob.escape(path.name)}.*"):
        if re.fullmatch(r"[0-9a-f]{16}", other.name.removeprefix(f".{path.name}.")) and names(other, file.handle):
            other.unlink()


def cut_short(content: bytes) -> bool:
    """Whether an SQLite database lacks its end, by its own header."""
    return len(content) < _stated(content)


def _length(whole: bytes) -> int:
    """Bytes of an SQLite database, by its own header; all of anything else."""
    length = _stated(whole)
    return length if 0 < length <= len(whole) else len(whole)


def _stated(whole: bytes) -> int:
    """Bytes that an SQLite database says it has; 0 of anything else."""
    if not whole.startswith(SQLITE):
        return 0
    page, count = int.from_bytes(whole[16:18], "big"), int.from_bytes(whole[28:32], "big")
    return max(100, (65536 if page == 1 else page) * count)


def _appended(whole: bytes) -> bytes | None:
    """The content of an appendix that is whole."""
    if len(whole) < _FOOTER.size:
        return None
    start, length, digest, magic = _FOOTER.unpack(whole[-_FOOTER.size :])
    if magic != _MAGIC or start + length + _FOOTER.size != len(whole):
        return None
    content = whole[start : start + length]
    return content if hashlib.sha256(content).digest() == digest else None


#: The first version, and what SQLite's header says of a database with a write-ahead log.
_FIRST, _LOGGED = 1, 2


def is_older(content: bytes, application: int) -> bool:
    """Whether this is a ledger that SQLite itself may have changed through files beside it."""
    if len(content) < 100 or int.from_bytes(content[68:72], "big") != application:
        return False
    return int.from_bytes(content[60:64], "big") == _FIRST or content[18] == _LOGGED


def renew(file: Inode, patience: float, version: int) -> None:
    """Fold the log into the file, and make the file one of ``version``, which older libraries refuse.

    Raises:
        LedgerError: it is reached through a mount of the file alone.
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
        _fold_log(db, patience)
        # SQLite's own lock, for older libraries know no other. Nothing is changed through this connection.
        db.execute("BEGIN EXCLUSIVE")
        try:
            with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
                copy.deserialize(file.content())
                if copy.execute("PRAGMA user_version").fetchone()[0] == _FIRST:
                    copy.execute(f"PRAGMA user_version = {version}")
                file.replace(copy.serialize())
        finally:
            db.execute("ROLLBACK")


def _fold_log(db: sqlite3.Connection, patience: float) -> None:
    """Leave write-ahead logging, which needs the ledger alone."""
    end = time.monotonic() + patience
    while True:
        try:
            if db.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete":
                return
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
        time.sleep(0.02)


def _mounted(path: Path) -> bool:
    """Whether a file is a mount point of its own."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not on every system
        return False
    points = (re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4]) for line in lines)
    return str(path) in points


# ----------------------------------------------------------------------------------------------------
# Content of a ledger: an SQLite database, read and changed as a whole in one locked file (``file.py``).
#
# One process at a time sees and changes the ledger, whatever name it opens it by, so two runs cannot both take what is
# left. A change is made in memory and put into the file as one: a crash or a full disk leaves the content before or the
# content after. Triggers keep out accidents (an UPDATE or a DELETE typed into sqlite3), the chain (``chain.py``) shows
# what went around them. SQLite itself never opens the file, so no journal or log lies beside it, and a copy is whole.

#: "dpLg": what ``file`` and SQLite know the format by; and its version. Version 1 kept a log beside the file.
_APPLICATION, _VERSION = 0x64704C67, 2
#: Seconds that a process waits for the others.
_PATIENCE = 120.0

_SCHEMA = """
CREATE TABLE entries (sequence INTEGER PRIMARY KEY, kind TEXT NOT NULL, run TEXT NOT NULL, time TEXT NOT NULL,
    text TEXT NOT NULL, nonce TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), sequence INTEGER NOT NULL, hash TEXT NOT NULL);
CREATE TABLE secret (id INTEGER PRIMARY KEY CHECK (id = 1), key BLOB NOT NULL);
CREATE TRIGGER entries_follow BEFORE INSERT ON entries
    WHEN NEW.sequence IS NOT (SELECT sequence + 1 FROM head) OR NEW.previous IS NOT (SELECT hash FROM head)
    BEGIN SELECT RAISE(ABORT, 'entries are appended in order'); END;
CREATE TRIGGER entries_stay BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END;
CREATE TRIGGER entries_keep BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are never edited'); END;
CREATE TRIGGER head_single BEFORE INSERT ON head WHEN EXISTS (SELECT 1 FROM head)
    BEGIN SELECT RAISE(ABORT, 'there is one head'); END;
CREATE TRIGGER head_stays BEFORE DELETE ON head BEGIN SELECT RAISE(ABORT, 'the head is never removed'); END;
CREATE TRIGGER head_moves BEFORE UPDATE ON head
    WHEN NEW.sequence IS NOT OLD.sequence + 1
        OR NEW.hash IS NOT (SELECT hash FROM entries WHERE sequence = NEW.sequence)
    BEGIN SELECT RAISE(ABORT, 'the head moves with its entry'); END;
CREATE TRIGGER secret_single BEFORE INSERT ON secret WHEN EXISTS (SELECT 1 FROM secret)
    BEGIN SELECT RAISE(ABORT, 'there is one key'); END;
CREATE TRIGGER secret_stays BEFORE DELETE ON secret BEGIN SELECT RAISE(ABORT, 'the key is never removed'); END;
CREATE TRIGGER secret_keeps BEFORE UPDATE ON secret BEGIN SELECT RAISE(ABORT, 'the key is never edited'); END;
"""

#: Adds an entry of a kind about a run, in the transaction that it was given for.
Append = Callable[[str, str, dict[str, Any]], Entry]


def create(path: Path, key: bytes, body: dict[str, Any]) -> None:
    """Write a new ledger whose first entry says ``body``; it appears whole or not at all.

    Raises:
        LedgerError: the file exists, or cannot be written.
    """
    if path.exists():
        raise LedgerError(f"{path}: exists already, and a ledger's budget is fixed for good; choose another file.")
    if not path.parent.is_dir():
        raise LedgerError(f"{path}: its folder does not exist; make it first.")
    with _sentences(path), contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        db.execute(f"PRAGMA user_version = {_VERSION}")
        db.executescript(_SCHEMA)
        db.execute("BEGIN")
        db.execute("INSERT INTO head VALUES (1, 0, ?)", (chain.START,))
        db.execute("INSERT INTO secret VALUES (1, ?)", (key,))
        _insert(db, chain.following([], "init", "", body))
        db.execute("COMMIT")
        content = db.serialize()
    try:
        made(path, content)
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
    with _sentences(path), held(path, _PATIENCE) as file, _database(file) as db:
        return _read(db, path)


@contextlib.contextmanager
def change(path: Path) -> Iterator[tuple[list[Entry], Append]]:
    """One transaction that nobody else shares: (verified entries, append); undone if the block raises.

    Raises:
        LedgerError: as :func:`read`; or another process kept it for too long, the disk is full, or the file was moved.
    """
    with _sentences(path), held(path, _PATIENCE) as file, _database(file) as db:
        entries, _ = _read(db, path)
        before = len(entries)
        db.execute("BEGIN")

        def append(kind: str, run: str, body: dict[str, Any]) -> Entry:
            entry = chain.following(entries, kind, run, body)
            _insert(db, entry)
            entries.append(entry)
            return entry

        yield entries, append
        db.execute("COMMIT")
        if len(entries) > before:
            file.replace(db.serialize())
            file.check_place()


@contextlib.contextmanager
def _database(file: Inode) -> Iterator[sqlite3.Connection]:
    """The content of a locked file, in memory."""
    if is_older(file.content(), _APPLICATION):
        renew(file, _PATIENCE, _VERSION)
    content = file.content()
    if not content.startswith(SQLITE):
        raise LedgerError(f"{file.path}: {_REASONS[sqlite3.SQLITE_NOTADB]}.")
    if cut_short(content):
        raise LedgerError(f"{file.path}: {_REASONS[sqlite3.SQLITE_CORRUPT]}.")
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.deserialize(content)
        db.execute("PRAGMA trusted_schema = OFF")
        yield db


def _insert(db: sqlite3.Connection, entry: Entry) -> None:
    db.execute(
        "INSERT INTO entries VALUES (:sequence, :kind, :run, :time, :text, :nonce, :previous, :hash)", entry.__dict__
    )
    db.execute("UPDATE head SET sequence = ?, hash = ?", (entry.sequence, entry.hash))


def _read(db: sqlite3.Connection, path: Path) -> tuple[list[Entry], bytes]:
    """Everything in the file, inside a transaction of the caller's; damage of any kind is one sentence."""
    try:
        return _verified(db, path)
    except LedgerError:
        raise
    except (TypeError, ValueError) as error:  # a value of another type, or text that is none
        raise LedgerError(f"{path}: {_REASONS[sqlite3.SQLITE_CORRUPT]}.") from error


def _verified(db: sqlite3.Connection, path: Path) -> tuple[list[Entry], bytes]:
    if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise LedgerError(f"{path}: is not a ledger of this library; make one with dpmcmc ledger init.")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != _VERSION:
        raise LedgerError(f"{path}: is a ledger of version {version} and this library reads {_VERSION}; update it.")
    if _schema(db) != _expected_schema():
        raise chain.BrokenChain(
            f"{path}: the ledger's tables or triggers were changed; do not spend from it, restore an untouched copy."
        )
    entries = [Entry(*row) for row in db.execute("SELECT * FROM entries ORDER BY sequence")]
    heads = db.execute("SELECT sequence, hash FROM head").fetchall()
    keys = db.execute("SELECT key FROM secret").fetchall()
    chain.verify(entries, heads[0] if len(heads) == 1 else (0, ""), path)
    if len(keys) != 1 or not isinstance(keys[0][0], bytes):
        raise chain.BrokenChain(f"{path}: the ledger's key was removed; restore an untouched copy.")
    return entries, keys[0][0]


def _schema(db: sqlite3.Connection) -> list[tuple]:
    return db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()


@functools.cache
def _expected_schema() -> list[tuple]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA)
        return _schema(db)


@contextlib.contextmanager
def _sentences(path: Path) -> Iterator[None]:
    """Turn what SQLite or the operating system says into one sentence: what, where, how to mend."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        said = " ".join(str(error).split())  # SQLite quotes the schema, line by line
        raise LedgerError(f"{path}: {_REASONS.get(code, said + '; see to the file and try again')}.") from error
    except BlockingIOError:
        raise LedgerError(
            f"{path}: other processes kept the ledger locked for {_PATIENCE:g} seconds; try again."
        ) from None
    except OSError as error:
        raise LedgerError(f"{path}: {_REFUSALS.get(error.errno or 0, _OTHERWISE).format(error.strerror)}.") from error


_REASONS = {
    sqlite3.SQLITE_BUSY: "a process with an older version of this library is using the ledger; wait for it",
    sqlite3.SQLITE_READONLY: "the ledger cannot be written; run as its owner, on a disk that is writable",
    sqlite3.SQLITE_IOERR: "the disk failed or is full; free space, look with ledger show, and try again",
    sqlite3.SQLITE_CANTOPEN: "the ledger cannot be opened; run as its owner, in a folder that is writable",
    sqlite3.SQLITE_FULL: "the disk is full, and the ledger is as it was before; free space and try again",
    sqlite3.SQLITE_CORRUPT: "the ledger is damaged; restore a copy that its receipts confirm",
    sqlite3.SQLITE_NOTADB: "is not a ledger of this library; make one with dpmcmc ledger init",
}
_FULL = "the disk is full ({}), and the ledger is as it was before; free space and try again"
_CLOSED = "the ledger cannot be changed ({}); run as its owner, on a disk that is writable"
_OTHERWISE = "the ledger cannot be used ({}); keep it on a local disk, see to the file and try again"
_REFUSALS = {errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EFBIG: _FULL}
_REFUSALS |= {errno.EACCES: _CLOSED, errno.EPERM: _CLOSED, errno.EROFS: _CLOSED}
_REFUSALS |= dict.fromkeys(
    (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS),
    "the ledger cannot be locked ({}), so two runs could take the same budget; keep it on a local disk",
)
