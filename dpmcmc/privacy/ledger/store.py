"""Content of a ledger: an SQLite database, read and changed as a whole in one locked file (``inode.py``).

One process at a time sees and changes the ledger, whatever name it opens it by, so two runs cannot both take what is
left. A change is made in memory and put into the file as one: a crash or a full disk leaves the content before or the
content after. Triggers keep out accidents (an UPDATE or a DELETE typed into sqlite3), the chain (``chain.py``) shows
what went around them. SQLite itself never opens the file, so no journal or log lies beside it, and a copy is whole.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dpmcmc.privacy.ledger import chain, inode, older
from dpmcmc.privacy.ledger.chain import Entry, LedgerError

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
        inode.made(path, content)
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
    with _sentences(path), inode.held(path, _PATIENCE) as file, _database(file) as db:
        return _read(db, path)


@contextlib.contextmanager
def change(path: Path) -> Iterator[tuple[list[Entry], Append]]:
    """One transaction that nobody else shares: (verified entries, append); undone if the block raises.

    Raises:
        LedgerError: as :func:`read`; or another process kept it for too long, the disk is full, or the file was moved.
    """
    with _sentences(path), inode.held(path, _PATIENCE) as file, _database(file) as db:
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
def _database(file: inode.Inode) -> Iterator[sqlite3.Connection]:
    """The content of a locked file, in memory."""
    if older.is_older(file.content(), _APPLICATION):
        older.renew(file, _PATIENCE, _VERSION)
    content = file.content()
    if not content.startswith(inode.SQLITE):
        raise LedgerError(f"{file.path}: {_REASONS[sqlite3.SQLITE_NOTADB]}.")
    if inode.cut_short(content):
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
