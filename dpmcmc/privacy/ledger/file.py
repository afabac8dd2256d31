"""The file of a ledger: a line of JSON about the file, and one of each entry.

The first line holds the number and the hash of the last entry, the head, so lines that are cut off at the end are
missed; the chain (``chain.py``) shows what was edited or removed elsewhere. It also holds the key of fingerprints.
One process at a time sees and changes the ledger, whatever name it opens it by (``locked_file.py``), so two runs cannot
both take what is left. A change is put into the file as one: a crash or a full disk leaves the content before or the
content after. No journal or log lies beside the file, and a copy of it is whole.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpmcmc.privacy.ledger import chain
from dpmcmc.privacy.ledger.chain import Append, BrokenChain, Entry, LedgerError
from dpmcmc.privacy.ledger.file_refusals import DAMAGED, NO_LEDGER, PATIENCE, VERSION, refuse_version, refusing
from dpmcmc.privacy.ledger.locked_file import Inode, open_locked, write_new
from dpmcmc.privacy.ledger.sqlite_versions import SQLITE, Found, entries_of_database, may_have_log, without_log

#: Name of the format in the first line.
_FORMAT = "dpmcmc ledger"


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
    with refusing(path), open_locked(path, PATIENCE) as file:
        return _read(file)


@contextlib.contextmanager
def change(path: Path) -> Iterator[tuple[list[Entry], Append]]:
    """One change that nobody else shares: (verified entries, append); nothing is written if the block raises.

    Raises:
        LedgerError: as :func:`read`; or another process kept it for too long, the disk is full, or the file was moved.
    """
    with refusing(path), open_locked(path, PATIENCE) as file:
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
        "version": VERSION,
        "entries": last.sequence,
        "hash": last.hash,
        "key": key.hex(),
    }
    return "".join(f"{json.dumps(line)}\n" for line in [about, *(entry.__dict__ for entry in entries)]).encode()


def _read(file: Inode) -> tuple[list[Entry], bytes]:
    """Return entries and key of a locked file; damage of any kind is one sentence."""
    content = file.content()
    if may_have_log(content):
        with without_log(file):
            file.replace(_lines(*_verified(file.content(), file.path)))
        content = file.content()
    return _verified(content, file.path)


def _verified(content: bytes, path: Path) -> tuple[list[Entry], bytes]:
    try:
        entries, head, key = (entries_of_database if content.startswith(SQLITE) else _of_lines)(content, path)
        chain.verify(entries, head, path)
    except LedgerError:
        raise
    except (
        TypeError,
        ValueError,
        RecursionError,
    ) as error:  # a value of another type, or text that is none
        raise LedgerError(f"{path}: {DAMAGED}.") from error
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
        raise LedgerError(f"{path}: {NO_LEDGER}.")
    if about.get("version") != VERSION:
        raise refuse_version(about.get("version"), path)
    if rest:
        raise BrokenChain(f"{path}: the ledger's last line is cut off; {chain.MEND}")
    key = about.get("key")
    entries = [Entry(**json.loads(line)) for line in lines[1:]]
    return (
        entries,
        (about.get("entries", 0), about.get("hash", "")),
        None if key is None else bytes.fromhex(key),
    )
