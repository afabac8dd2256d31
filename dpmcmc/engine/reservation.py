"""One run's place in a budget ledger: reserved before a record is read, settled after, found again when resumed."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting import run_length
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import Ledger, LedgerError
from dpmcmc.storage.checkpoint import Checkpoint
from dpmcmc.storage.fingerprint import fingerprint
from dpmcmc.storage.pytree import PyTree


def may_be_open(ledger: str | Path | None, checkpoint: Checkpoint) -> bool:
    """Whether a ledger holds budget for the run that a checkpoint names, or cannot be asked."""
    name = checkpoint.read_note("reservation")
    if ledger is None or name is None:
        return False
    try:
        book = Ledger(ledger)
        found = book.find(name)
        return found is not None and book.is_open(found)
    except LedgerError:
        return True


class Reservation:
    """The budget that one run holds; what a crash leaves stays spent.

    A copy, also in another process, is the same reservation: the ledger lets a run of one name begin under it, and says
    how it is settled.

    Args:
        ledger: or its path or URL.
        guarantee: of the whole run; None where there is none, which is refused.
        label: names the run in the ledger's history.
        checkpoint: of the run; one that was stopped finds its reservation again, whenever that was.
        num_records: N of the run.
        parts: whether runs under it read a part of the ledger's data set, as a fold is, whose records are not compared
            with it.

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
        parts: bool = False,
    ) -> None:
        if guarantee is None:
            raise InputError(
                "privacy.ledger: a run without a guarantee (privacy null, or known noise) cannot be charged; take the "
                "ledger out, or make the run private"
            )
        self.ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
        self._parts = parts
        planned = self.ledger.terms.num_records
        if None not in (planned, num_records) and planned != num_records:
            raise LedgerError(
                f"{self.ledger.path}: the run is planned for {num_records} records and the ledger is about {planned}; "
                "plan it for those, or take the ledger of its data."
            )
        name = None if checkpoint is None else checkpoint.read_note("reservation")
        found = None if name is None else self.ledger.find(name, guarantee)
        if name is None:
            # Written before the ledger is, so that a run that is killed in between is found by this name.
            name = f"{label} {secrets.token_hex(8)}"
            if checkpoint is not None:
                checkpoint.note(reservation=name)
        begun = checkpoint is not None and checkpoint.begun
        if found is not None and not begun and not self.ledger.is_open(found):
            raise LedgerError(
                f"{self.ledger.path}: run {name!r} was settled and has not begun here: this is a copy of a run that "
                "is done; start a new one."
            )
        self.receipt = self.ledger.reserve(guarantee, name) if found is None else found
        # This start does not settle what another start of the run reserved, until it has begun itself.
        self._settles = found is None
        self._events = run_length(guarantee.events)

    def identify(self, data: PyTree, columns: Callable[[], Mapping[str, np.ndarray]] = dict) -> None:
        """Refuse records of another data set than the ledger's.

        Args:
            data: records.
            columns: returns those of the table that the records were made of, by name; none of other records.

        Raises:
            LedgerError: they are.
        """
        if self._parts:
            return
        self.ledger.identify(
            lambda key: fingerprint(key, data),
            lambda key: {name: fingerprint(key, {name: column}) for name, column in columns().items()},
        )

    def start(self, guarantee: Guarantee | None, kept: Checkpoint | None = None) -> None:
        """The run of this guarantee begins to compute from records, or goes on.

        Args:
            guarantee: of the whole run.
            kept: its checkpoint, which has its keys and its name.

        Raises:
            LedgerError: it is not what was reserved, or another run has begun under the reservation.
        """
        if guarantee is None or run_length(guarantee.events) != self._events:
            raise LedgerError(f"{self.ledger.path}: the run is not the one that was reserved; reserve it by itself.")
        self.ledger.begin(self.receipt, None if kept is None else kept.name)
        self._settles = True

    def settle(self, ended: bool = True) -> None:
        """Spent where the run has begun, here or elsewhere; given back where nothing was computed from a record.

        Args:
            ended: whether the run has come to its end; where not, a run that has begun stays open, to go on.
        """
        if not self._settles:
            return
        try:
            self.ledger.settle(self.receipt) if ended else self.ledger.give_back(self.receipt)
        except (LedgerError, OSError) as error:
            # The run's result must not be lost.
            warnings.warn(
                f"{error} The run was not settled: what its ledger holds for it stays spent.",
                stacklevel=2,
            )
        self._settles = False
