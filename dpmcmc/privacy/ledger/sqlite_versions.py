"""Ledgers of versions 1 and 2: databases of SQLite, which the next change makes lines of JSON.

Version 2 was read and changed as it is now, so it is one file. Changes of version 1 went through SQLite's write-ahead
log beside the file, and other libraries know SQLite's locks alone. It is made lines when it is first opened, while
SQLite has it locked. A log goes by the name that the file was opened by. A log that a crash left under another name
cannot be seen here, so a ledger of version 1 must be opened where its runs were, and a mount of the single file is
refused. Older libraries refuse lines.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from dpmcmc.privacy.ledger.chain import Entry, LedgerError
from dpmcmc.privacy.ledger.file_refusals import DAMAGED, NO_LEDGER, REASONS, refuse_version
from dpmcmc.privacy.ledger.locked_file import Inode

#: Entries, (number, hash) of the last one that was written, and the key, or None without one.
Found = tuple[list[Entry], tuple[int, str], bytes | None]
#: How a database begins, what SQLite knows the ledger's format by, and what its header says of one with a log.
SQLITE = b"SQLite format 3\0"
_APPLICATION = 0x64704C67
_LOGGED = 2


def _header(content: bytes, place: int) -> int:
    """Return the whole number at a place of a database's header."""
    return int.from_bytes(content[place : place + 4], "big")


def may_have_log(content: bytes) -> bool:
    """Whether this is a ledger that SQLite itself may have changed through files beside it."""
    ours = content.startswith(SQLITE) and len(content) >= 100 and _header(content, 68) == _APPLICATION
    return ours and (_header(content, 60) == 1 or content[18] == _LOGGED)


def entries_of_database(content: bytes, path: Path) -> Found:
    """Return the entries of a database, unverified.

    Raises:
        LedgerError: it is damaged, or no ledger.
        sqlite3.Error: it is damaged.
    """
    if _header(content, 68) != _APPLICATION:
        raise LedgerError(f"{path}: {NO_LEDGER}.")
    if _header(content, 60) not in (1, 2):
        raise refuse_version(_header(content, 60), path)
    page = int.from_bytes(content[16:18], "big")
    length = (65536 if page == 1 else page) * _header(content, 28)
    if not 0 < length <= len(content):
        raise LedgerError(f"{path}: {DAMAGED}.")
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


@contextlib.contextmanager
def without_log(file: Inode) -> Iterator[None]:
    """Fold the log into a ledger of version 1, and keep older libraries out while it is made lines.

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
            raise LedgerError(f"{file.path}: {REASONS[sqlite3.SQLITE_BUSY]}.")
        # SQLite's own lock, for older libraries know no other. Nothing is changed through this connection.
        db.execute("BEGIN EXCLUSIVE")
        yield


def _mounted(path: Path) -> bool:
    """Whether a file is a mount point of its own."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not on every system
        return False
    points = (re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4]) for line in lines)
    return str(path) in points
