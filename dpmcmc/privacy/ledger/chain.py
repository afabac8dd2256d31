"""The chain of entries: each names the one before it by its hash, so none can be dropped or edited unnoticed.

Every entry carries a random nonce, so that a hash that leaves with a run (a receipt) says nothing about the entry.

Claim: An entry that was edited, dropped or rolled back is noticed.
Proof: each entry has the hash of the one before it, and a run's receipt has one that an older copy lacks.
Held by: test_file.py::test_what_was_edited_is_noticed, test_an_old_copy_is_noticed_by_a_receipt,
"ledger entry deleted", "ledger entry edited", "ledger rolled back"
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from dpmcmc.errors import InputError
from dpmcmc.privacy.ledger.place import Place

#: Hash that the first entry names as its predecessor's.
START = "0" * 64
#: How to mend a chain that is broken.
MEND = "do not spend from it; restore a copy that its receipts confirm (ledger show FILE --receipt RECEIPT)."


class LedgerError(InputError):
    """A sentence for the person who keeps the ledger.

    Example:
        >>> from dpmcmc.privacy import Ledger
        >>> Ledger("no_such.ledger")
        Traceback (most recent call last):
            ...
        dpmcmc.privacy.ledger.chain.LedgerError: no_such.ledger: no such ledger; make one with dpmcmc...
    """


class BrokenChain(LedgerError):
    """Entries were edited, removed or rolled back.

    Example:
        >>> from dpmcmc.privacy.ledger import BrokenChain, LedgerError
        >>> issubclass(BrokenChain, LedgerError)  # one handler takes both
        True
    """


class NotMade(LedgerError):
    """The server was lost before a change was made; the change is not there, and may be tried again."""


@dataclass(frozen=True)
class Entry:
    """One line of the ledger.

    Attributes:
        sequence: 1, 2, 3, ...
        kind: ``init`` | ``data`` | ``reserve`` | ``begin`` | ``settle`` | ``moved``; earlier versions wrote ``extend``
            too. A ledger that was copied into a database ends with ``moved``.
        run: id of the run it is about; empty for ``init``, ``data`` and ``moved``.
        time: UTC, ISO 8601.
        text: JSON of what it says.
        nonce: random.
        previous: hash of the entry before.
        hash: SHA-256 of all of these.

    Example:
        >>> from dpmcmc.privacy import Ledger
        >>> terms = {"num_records": 1000, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-5}
        >>> ledger = Ledger.init("entries.ledger", name="people", **terms)
        >>> [entry.kind for entry in ledger.history()]
        ['init']
    """

    sequence: int
    kind: str
    run: str
    time: str
    text: str
    nonce: str
    previous: str
    hash: str

    @property
    def body(self) -> dict[str, Any]:
        """Content of the entry."""
        return json.loads(self.text)

    def digest(self) -> str:
        """Value that ``hash`` must have."""
        fields = [
            self.sequence,
            self.kind,
            self.run,
            self.time,
            self.text,
            self.nonce,
            self.previous,
        ]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a plain dict."""
        fields = {name: value for name, value in self.__dict__.items() if name != "text"}
        return fields | {"body": self.body}


@dataclass(frozen=True)
class Receipt:
    """Proof of its reservation that a run keeps, and may publish without ``path``.

    Attributes:
        id: of the run.
        sequence: of the entry.
        hash: of the entry, and with it of all before.
        path: of the ledger; the address of one in a database.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import Ledger, account
        >>> terms = {"num_records": 1000, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-5}
        >>> ledger = Ledger.init("receipts.ledger", name="people", **terms)
        >>> guarantee = account(20.0, steps=1, sampling=Full(), num_records=1000, delta=1e-6)
        >>> receipt = ledger.reserve(guarantee, "first run")
        >>> ledger.confirm(receipt)  # raises where the ledger does not have it
        >>> receipt.sequence
        2
    """

    id: str
    sequence: int
    hash: str
    path: Place

    def to_json(self) -> dict[str, Any]:
        """Return what ``privacy.json`` holds under ``ledger``; no path, which is nobody else's business."""
        return {"id": self.id, "sequence": self.sequence, "hash": self.hash}


def following(entries: Sequence[Entry], kind: str, run: str, body: dict[str, Any]) -> Entry:
    """The entry that comes after ``entries``."""
    blank = Entry(
        sequence=len(entries) + 1,
        kind=kind,
        run=run,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        text=json.dumps(body, sort_keys=True, allow_nan=False),
        nonce=secrets.token_hex(16),
        previous=entries[-1].hash if entries else START,
        hash="",
    )
    return Entry(**(blank.__dict__ | {"hash": blank.digest()}))


def verify(entries: Sequence[Entry], head: tuple[int, str], where: Place, seen: int = 0) -> None:
    """Raise BrokenChain unless ``entries`` are whole, unedited and end at ``head``; ``seen`` of them are known."""
    previous = entries[seen - 1].hash if seen else START
    for place, entry in enumerate(entries[seen:], start=seen + 1):
        if entry.sequence != place:
            raise BrokenChain(f"{where}: entry {place} of the ledger is missing; {MEND}")
        if entry.previous != previous or entry.digest() != entry.hash:
            raise BrokenChain(f"{where}: entry {place} of the ledger, or one before it, was edited; {MEND}")
        previous = entry.hash
    if not entries or (entries[-1].sequence, entries[-1].hash) != tuple(head):
        raise BrokenChain(
            f"{where}: the ledger's last entry is {len(entries)} where entry {head[0]} was written last; {MEND}"
        )


def confirm(entries: Sequence[Entry], receipt: Receipt, where: Place) -> None:
    """Raise BrokenChain unless the entry that a receipt names is there with its hash."""
    if receipt.sequence > len(entries):
        raise BrokenChain(
            f"{where}: the ledger ends at entry {len(entries)}, before entry {receipt.sequence} of the receipt of run "
            f"{receipt.id}: an old copy was put back; restore the newest one."
        )
    entry = entries[receipt.sequence - 1] if receipt.sequence >= 1 else None
    if entry is None or entry.hash != receipt.hash or entry.run != receipt.id:
        raise BrokenChain(
            f"{where}: entry {receipt.sequence} is not the one that the receipt of run {receipt.id} names: another "
            "ledger, or an old copy that was gone on with; find the one that the run was reserved in."
        )


#: Adds an entry of a kind about a run, in the change that it was given for.
Append = Callable[[str, str, dict[str, Any]], Entry]


class Store(Protocol):
    """Keeper of entries: files (``file.py``), or databases (``postgres.py``)."""

    def create(self, where: Any, key: bytes, entries: Sequence[Entry]) -> None:
        """Make a ledger of these entries; it appears whole or not at all.

        Raises:
            LedgerError: there is one already, or it cannot be written.
        """

    def read(self, where: Any) -> tuple[list[Entry], bytes | None]:
        """(entries, key of fingerprints), the chain verified; None for who may not read the key.

        Raises:
            LedgerError: missing, damaged, of another version, or not a ledger.
            BrokenChain: edited or truncated.
        """

    def change(self, where: Any) -> AbstractContextManager[tuple[list[Entry], Append]]:
        """One change that nobody else shares: (verified entries, append); none is made if the block raises.

        Raises:
            NotMade: the server was lost before the change was made.
            LedgerError: as of :meth:`read`; or it cannot be changed.
        """
