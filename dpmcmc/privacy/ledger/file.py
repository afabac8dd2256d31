"""The file of a ledger: a line of JSON about the file, and one of each entry.

The first line holds the number and the hash of the last entry, the head, so lines that are cut off at the end are
missed; the chain (``chain.py``) shows what was edited or removed elsewhere. It also holds the key of fingerprints.
One process at a time sees and changes the ledger, whatever name it opens it by (``locked_file.py``), so two runs cannot
both take what is left. A change is put into the file as one: a crash or a full disk leaves the content before or the
content after. No journal or log lies beside the file, and a copy of it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpmcmc.privacy.ledger import chain
from dpmcmc.privacy.ledger.chain import Append, BrokenChain, Entry, LedgerError
from dpmcmc.privacy.ledger.locked_file import Inode, open_locked, write_new

#: Name of the format in the first line, and its version; 1 and 2 were databases, which begin with ``_DATABASE``.
_FORMAT = "dpmcmc ledger"
_VERSION = 3
_DATABASE = b"SQLite format 3\0"
#: Seconds that a process waits for the others.
_PATIENCE = 120.0


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
        write_new(path, _lines(entries, key))
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
    with _refusing(path), open_locked(path, _PATIENCE) as file:
        return _read(file)


@contextlib.contextmanager
def change(path: Path) -> Iterator[tuple[list[Entry], Append]]:
    """One change that nobody else shares: (verified entries, append); nothing is written if the block raises.

    Raises:
        LedgerError: as :func:`read`; or another process kept it for too long, the disk is full, or the file was moved.
    """
    with _refusing(path), open_locked(path, _PATIENCE) as file:
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
    path = file.path
    try:
        entries, head, key = _of_lines(file.content(), path)
        chain.verify(entries, head, path)
    except LedgerError:
        raise
    except (TypeError, ValueError, RecursionError) as error:  # a value of another type, or text that is none
        raise LedgerError(f"{path}: {_DAMAGED}.") from error
    if key is None:
        raise BrokenChain(f"{path}: the ledger's key was removed; restore an untouched copy.")
    return entries, key


def _of_lines(content: bytes, path: Path) -> tuple[list[Entry], tuple[int, str], bytes | None]:
    """Return entries, (number, hash) of the last one that was written, and the key, or None without one."""
    if content.startswith(_DATABASE):
        raise LedgerError(
            f"{path}: is a database, as ledgers of versions 1 and 2 were; the library that made it says what is left "
            "of its budget (dpmcmc ledger show): make a new ledger of that."
        )
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
        version = about.get("version")
        raise LedgerError(
            f"{path}: is a ledger of version {version} and this library reads version {_VERSION}; update it."
        )
    if rest:
        raise BrokenChain(f"{path}: the ledger's last line is cut off; {chain.MEND}")
    key = about.get("key")
    entries = [Entry(**json.loads(line)) for line in lines[1:]]
    return (
        entries,
        (about.get("entries", 0), about.get("hash", "")),
        None if key is None else bytes.fromhex(key),
    )


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise LedgerError for what the system refuses inside."""
    try:
        yield
    except BlockingIOError:
        raise LedgerError(
            f"{path}: other processes kept the ledger locked for {_PATIENCE:g} seconds; try again."
        ) from None
    except OSError as error:
        raise LedgerError(f"{path}: {_REFUSALS.get(error.errno or 0, _OTHERWISE).format(error.strerror)}.") from error


_DAMAGED = "the ledger is damaged; restore a copy that its receipts confirm"
_NO_LEDGER = "is not a ledger of this library; make one with dpmcmc ledger init"
_FULL = "the disk is full ({}), and the ledger is as it was before; free space and try again"
_CLOSED = "the ledger cannot be changed ({}); run as its owner, on a disk that is writable"
_OTHERWISE = "the ledger cannot be used ({}); keep it on a local disk, see to the file and try again"
_REFUSALS = {errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EFBIG: _FULL}
_REFUSALS |= {errno.EACCES: _CLOSED, errno.EPERM: _CLOSED, errno.EROFS: _CLOSED}
_REFUSALS |= dict.fromkeys(
    (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS),
    "the ledger cannot be locked ({}), so two runs could take the same budget; keep it on a local disk",
)
