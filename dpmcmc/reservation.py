"""One run's place in a budget ledger: reserved before a record is read, settled after, found again when resumed."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpmcmc.checkpoint import Checkpoint, fingerprint
from dpmcmc.privacy import Event, Guarantee, Ledger, LedgerError


class Reservation:
    """The budget that one run holds; what a crash leaves stays spent.

    Args:
        ledger: or its path.
        guarantee: of the whole run; None where there is none, which is refused.
        label: names the run in the ledger's history.
        checkpoint: of the run; one that was stopped finds its reservation again, whenever that was.
        num_records: N of the run.

    Raises:
        LedgerError: over budget, another adjacency or number of records, not a ledger.
        ValueError: a run without a guarantee.
    """

    def __init__(
        self,
        ledger: Ledger | str | Path,
        guarantee: Guarantee | None,
        label: str,
        checkpoint: Checkpoint | None = None,
        num_records: int | None = None,
    ) -> None:
        if guarantee is None:
            raise ValueError(
                "privacy.ledger: a run without a guarantee (privacy null, or known noise) cannot be charged; take the "
                "ledger out, or make the run private"
            )
        self.ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
        planned = self.ledger.terms.num_records
        if None not in (planned, num_records) and planned != num_records:
            raise LedgerError(
                f"{self.ledger.path}: the run is planned for {num_records} records and the ledger is about {planned}; "
                "plan it for those, or take the ledger of its data."
            )
        name = None if checkpoint is None else checkpoint.noted("reservation")
        found = None
        if name is None:
            # Written before the ledger is, so that a run that is killed in between is found by this name.
            name = secrets.token_hex(8)
            if checkpoint is not None:
                checkpoint.note(reservation=name)
        else:
            found = self.ledger.find(f"{label} {name}", guarantee)
        #: Whether the run may have computed something from a record, now or before it was stopped.
        self.begun = checkpoint is not None and checkpoint.begun
        self.receipt = self.ledger.reserve(guarantee, f"{label} {name}") if found is None else found
        self._open = found is None or self.ledger.is_open(found)
        self._identified: Any = None

    def identify(self, data: Any) -> None:
        """Refuse records of another data set than the ledger's.

        Raises:
            LedgerError: they are.
        """
        if data is self._identified:
            return
        self.ledger.identify(lambda key: fingerprint(key, data))
        self._identified = data

    def extend(self, events: tuple[Event, ...], why: str) -> None:
        """Charge what the run does beyond its guarantee, before it does."""
        self.ledger.extend(self.receipt, events, why)

    def settle(self) -> None:
        """Spent where the run has begun; given back where it ended before it computed anything from a record."""
        if self._open:
            self.ledger.settle(self.receipt, "released" if self.begun else "void")
            self._open = False


@contextlib.contextmanager
def reserved(
    ledger: Reservation | Ledger | str | Path | None,
    guarantee: Guarantee | None,
    label: str,
    checkpoint: Checkpoint | None = None,
    num_records: int | None = None,
) -> Iterator[Reservation | None]:
    """Reserve for what runs inside, which says when it has ``begun``, and settle.

    An error before that gives the reservation back; one after it leaves it spent and open, for the run to go on under.
    A Reservation of the caller's is the caller's to settle.
    """
    if ledger is None or isinstance(ledger, Reservation):
        yield ledger
        return
    held = Reservation(ledger, guarantee, label, checkpoint, num_records)
    try:
        yield held
    except Exception:
        if not held.begun:
            held.settle()
        raise
    held.settle()
