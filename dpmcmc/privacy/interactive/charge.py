"""Cost of an interactive release: one guarantee for all its answers, reserved before a record is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.storage.fingerprint import fingerprint
from dpmcmc.storage.pytree import PyTree


class Ledger(Protocol):
    """Methods that are needed of a ledger (``dpmcmc.privacy.ledger``)."""

    def reserve(self, guarantee: Guarantee, label: str) -> Any:
        """Return a receipt; raise if the budget does not allow the guarantee."""

    def identify(self, fingerprint: Callable[[bytes], str]) -> None:
        """Raise if the records are not those that the ledger is about."""

    def settle(self, receipt_or_id: Any, outcome: str) -> None:
        """Record the outcome of a reservation."""


def pure(epsilon: float, count: int, adjacency: str, *assumptions: str) -> Guarantee:
    """Return the guarantee of ``count`` releases, adaptively chosen, of ``epsilon`` each and δ = 0."""
    return Guarantee.from_events(
        (Event("pure", 0.0, 1.0, count, epsilon=epsilon),),
        delta=0.0,
        adjacency=adjacency,
        accountant="one_sample",
        release="estimate",
        assumptions=assumptions,
    )


class Charge:
    """A guarantee on its way through a ledger; with no ledger, nothing happens.

    Args:
        guarantee: guarantee of all answers.
        ledger: the ledger, or None.
        label: name of the release in the ledger.
        records: the records that are asked about, a pytree; the ledger must be about them.

    Raises:
        ValueError: a ledger, and no records.
    """

    def __init__(self, guarantee: Guarantee, ledger: Ledger | None, label: str, records: PyTree) -> None:
        if ledger is not None and records is None:
            raise InputError(
                "records: give those that are asked about, for the ledger to tell whether they are its own"
            )
        self.guarantee = guarantee
        self._ledger, self._label, self._records = ledger, label, records
        self._receipt: Any = None
        self._reserved = self._settled = False

    def reserve(self) -> None:
        """Reserve the price before the first look; if the ledger raises, nothing has been looked at."""
        if self._ledger is not None and not self._reserved:
            self._receipt = self._ledger.reserve(self.guarantee, self._label)
            try:
                self._ledger.identify(lambda key: fingerprint(key, self._records))
            except BaseException:
                self._ledger.settle(self._receipt, "void")
                raise
        self._reserved = True

    def settle(self) -> None:
        """Settle before the first answer leaves: the whole price is spent by then."""
        if self._ledger is not None and not self._settled:
            self._ledger.settle(self._receipt, "released")
        self._settled = True
