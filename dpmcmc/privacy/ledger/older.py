"""Ledgers of version 1, whose changes went through SQLite's write-ahead log beside the file: read once, and renewed.

A log goes by the name that the file was opened by. A log that a crash left under another name cannot be seen here, so
a ledger of version 1 must be opened where its runs were, and a mount of the single file is refused.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from pathlib import Path

from dpmcmc.privacy.ledger.chain import LedgerError
from dpmcmc.privacy.ledger.inode import Inode

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
