"""What the operating system or SQLite says of a ledger's file, as one sentence: what, where, how to mend."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from dpmcmc.privacy.ledger.chain import LedgerError

#: Version of the lines of a ledger; 1 and 2 were databases.
VERSION = 3
#: Seconds that a process waits for the others.
PATIENCE = 120.0


def refuse_version(version: object, path: Path) -> LedgerError:
    """Return the refusal of a ledger of a later version."""
    return LedgerError(f"{path}: is a ledger of version {version} and this library reads 1 to {VERSION}; update it.")


@contextlib.contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Raise LedgerError for what the system or SQLite refuses inside."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise LedgerError(f"{path}: {REASONS.get(code, DAMAGED)}.") from error
    except BlockingIOError:
        raise LedgerError(
            f"{path}: other processes kept the ledger locked for {PATIENCE:g} seconds; try again."
        ) from None
    except OSError as error:
        raise LedgerError(f"{path}: {_REFUSALS.get(error.errno or 0, _OTHERWISE).format(error.strerror)}.") from error


DAMAGED = "the ledger is damaged; restore a copy that its receipts confirm"
NO_LEDGER = "is not a ledger of this library; make one with dpmcmc ledger init"
_OLDER_CLOSED = (
    "the ledger is of an older version of this library and cannot be made one of this version; run as its owner, in a "
    "folder that is writable and has free space"
)
#: By SQLite's code, of a ledger of version 1; anything else is damage.
REASONS = dict.fromkeys(
    (
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
    ),
    _OLDER_CLOSED,
)
REASONS[sqlite3.SQLITE_BUSY] = "a process with an older version of this library is using the ledger; wait for it"
_FULL = "the disk is full ({}), and the ledger is as it was before; free space and try again"
_CLOSED = "the ledger cannot be changed ({}); run as its owner, on a disk that is writable"
_OTHERWISE = "the ledger cannot be used ({}); keep it on a local disk, see to the file and try again"
_REFUSALS = {errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EFBIG: _FULL}
_REFUSALS |= {errno.EACCES: _CLOSED, errno.EPERM: _CLOSED, errno.EROFS: _CLOSED}
_REFUSALS |= dict.fromkeys(
    (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS),
    "the ledger cannot be locked ({}), so two runs could take the same budget; keep it on a local disk",
)
