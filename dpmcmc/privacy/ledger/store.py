"""The ledger's file: SQLite in WAL mode, every change one durable transaction.

``BEGIN IMMEDIATE`` lets one writer at a time see and change the ledger, so two runs cannot both take what is left;
``synchronous=FULL`` puts a commit on the disk before it is reported. Triggers keep out accidents (an UPDATE or a DELETE
typed into sqlite3), the chain (``chain.py``) shows what went around them. A connection lives for one operation: none is
inherited by a fork, and nearly always the log is folded back into the file, so that a copy of the file is whole.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dpmcmc.privacy.ledger import chain
from dpmcmc.privacy.ledger.chain import Entry, LedgerError

#: "dpLg": what ``file`` and SQLite know the format by; and its version.
_APPLICATION, _VERSION = 0x64704C67, 1
#: Seconds that a writer waits for the others.
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
    trial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        # Owner-only from the start; SQLite gives its log the same mode.
        os.close(os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with _sentences(path), contextlib.closing(_connect(trial)) as db:
            if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise LedgerError(f"{path}: this file system cannot hold a write-ahead log; use a local disk.")
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            db.execute(f"PRAGMA user_version = {_VERSION}")
            db.executescript(_SCHEMA)
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO head VALUES (1, 0, ?)", (chain.START,))
            db.execute("INSERT INTO secret VALUES (1, ?)", (key,))
            _insert(db, chain.following([], "init", "", body))
            db.execute("COMMIT")
        _synchronise(trial)
        # A link, unlike a rename, never replaces a file that another process made meanwhile.
        os.link(trial, path)
        _synchronise(path.parent)
    except FileExistsError:
        raise LedgerError(f"{path}: was made by another process meanwhile; use that one.") from None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written ({error.strerror}); use a local disk with free space.") from None
    finally:
        for name in (trial, *(trial.with_name(trial.name + end) for end in ("-wal", "-shm"))):
            name.unlink(missing_ok=True)


def read(path: Path) -> tuple[list[Entry], bytes]:
    """(entries, key), the chain verified.

    Raises:
        LedgerError: missing, damaged, of another version, or not a ledger.
        BrokenChain: edited or truncated.
    """
    with _sentences(path), contextlib.closing(_connect(path)) as db:
        db.execute("BEGIN")
        return _verified(db, path)


@contextlib.contextmanager
def change(path: Path) -> Iterator[tuple[list[Entry], Append]]:
    """One transaction that no other writer shares: (verified entries, append); undone if the block raises.

    Raises:
        LedgerError: as :func:`read`; or another process kept it for too long, or the disk is full.
    """
    with _sentences(path), contextlib.closing(_connect(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            entries, _ = _verified(db, path)

            def append(kind: str, run: str, body: dict[str, Any]) -> Entry:
                entry = chain.following(entries, kind, run, body)
                _insert(db, entry)
                entries.append(entry)
                return entry

            yield entries, append
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


def _connect(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise LedgerError(f"{path}: no such ledger; make one with python -m dpmcmc.ledger init.")
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=_PATIENCE, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA trusted_schema = OFF")
    except sqlite3.Error:
        db.close()
        raise
    return db


def _insert(db: sqlite3.Connection, entry: Entry) -> None:
    db.execute(
        "INSERT INTO entries VALUES (:sequence, :kind, :run, :time, :text, :nonce, :previous, :hash)", entry.__dict__
    )
    db.execute("UPDATE head SET sequence = ?, hash = ?", (entry.sequence, entry.hash))


def _verified(db: sqlite3.Connection, path: Path) -> tuple[list[Entry], bytes]:
    """Everything in the file, inside a transaction of the caller's."""
    if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise LedgerError(f"{path}: is not a ledger of this library; make one with python -m dpmcmc.ledger init.")
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
    if len(keys) != 1:
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
    """Turn what SQLite says into one sentence: what, where, how to mend."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise LedgerError(f"{path}: {_REASONS.get(code, str(error) + '; see to the file and try again')}.") from error


_REASONS = {
    sqlite3.SQLITE_BUSY: f"other processes kept the ledger locked for {_PATIENCE:g} seconds; try again",
    sqlite3.SQLITE_READONLY: "the ledger cannot be written; run as its owner, on a disk that is writable",
    sqlite3.SQLITE_IOERR: "the disk failed or is full; free space, look with ledger show, and try again",
    sqlite3.SQLITE_FULL: "the disk is full, and the ledger is as it was before; free space and try again",
    sqlite3.SQLITE_CORRUPT: "the ledger is damaged; restore a copy that its receipts confirm",
    sqlite3.SQLITE_CANTOPEN: "the ledger cannot be opened; run as its owner, in a folder that is writable",
    sqlite3.SQLITE_NOTADB: "is not a ledger of this library; make one with python -m dpmcmc.ledger init",
}


def _synchronise(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
