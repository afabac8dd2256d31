"""Sum of a ledger's entries: runs, what they spent, and whether one more is admitted."""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.accounting.shown_numbers import round_down, round_up
from dpmcmc.privacy.ledger.chain import Entry, LedgerError
from dpmcmc.privacy.ledger.place import Place
from dpmcmc.privacy.ledger.terms import Terms


@dataclass
class Run:
    """A run's reservation.

    Attributes:
        id: random.
        label: of the caller's.
        charges: (cost, overflow) of the reservation, and of what earlier versions charged for steps taken again.
        outcome: ``open`` | ``released`` | ``void``.
        begun: name of the run that began under it; empty where only its outcome tells that one did; None before.
        items: of a programme.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import Ledger, account
        >>> terms = {"num_records": 1000, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-5}
        >>> ledger = Ledger.init("runs.ledger", name="people", **terms)
        >>> guarantee = account(20.0, steps=1, sampling=Full(), num_records=1000, delta=1e-6)
        >>> receipt = ledger.reserve(guarantee, "first run")
        >>> (run,) = ledger.state().runs
        >>> run.label, run.outcome
        ('first run', 'open')
    """

    id: str
    label: str
    charges: list[tuple[float, float]] = field(default_factory=list)
    outcome: str = "open"
    begun: str | None = None
    items: list[str] = field(default_factory=list)

    @property
    def read(self) -> bool:
        """Whether it may have computed something from a record."""
        return self.begun is not None or len(self.charges) > 1


class _Sum:
    """Exact sum of floats, which grows and shrinks by one without adding up the others again."""

    #: A float is a whole number of these.
    _UNIT = 1 << 1074

    def __init__(self) -> None:
        self._units = 0

    def add(self, value: float, sign: int) -> None:
        """Add a float, or take it away where ``sign`` is -1.

        Raises:
            OverflowError, ValueError: it is not finite.
        """
        numerator, denominator = value.as_integer_ratio()
        self._units += sign * numerator * (self._UNIT // denominator)

    def __float__(self) -> float:
        return self._units / self._UNIT  # the nearest float, as math.fsum has it


class Book:
    """The entries, replayed.

    Attributes:
        terms: what was fixed at ``init``.
        runs: by id.
        fingerprints: of the records.
        columns: name -> fingerprint of the table's columns.
        moved: address of the database that the ledger was copied into, and is spent from now; None where it was not.
        last: entry that was replayed last.
    """

    def __init__(self, first: Entry) -> None:
        body = {k: v for k, v in first.body.items() if k != "key_sha256"}
        items, adjacency = tuple(body["items"]), Adjacency(body["adjacency"])
        self.terms = Terms(**(body | {"items": items, "adjacency": adjacency}))
        self.runs: dict[str, Run] = {}
        self.fingerprints: set[str] = set()
        self.columns: dict[str, str] = {}
        self.moved: str | None = None
        self.last = first
        self._spent = _Sum()
        self._overflow = _Sum()

    def take(self, entry: Entry) -> None:
        """Replay the next entry.

        Raises:
            KeyError, TypeError, AttributeError, ValueError, OverflowError: no version of this library writes it.
        """
        body = entry.body
        if entry.kind == "data":
            self.fingerprints.add(body["fingerprint"])
            self.columns |= body.get("columns", {})
        elif entry.kind == "moved":
            self.moved = str(body["to"])
        elif entry.kind == "begin":
            self.runs[entry.run].begun = str(body["by"])
        elif entry.kind == "settle":
            run = self.runs[entry.run]
            self._count(run.charges if run.outcome != "void" else [], -1)
            run.outcome = body["outcome"]
            self._count(run.charges if run.outcome != "void" else [], 1)
            # Versions before 0.2.0 wrote no entry of a run's beginning.
            begun = run.begun is not None or run.outcome != "released"
            run.begun = run.begun if begun else ""
        elif entry.kind in ("reserve", "extend"):
            if entry.kind == "reserve":
                self.runs[entry.run] = Run(entry.run, body["label"])
            run = self.runs[entry.run]
            charge = (float(body["cost"]), float(body["overflow"]))
            self._count([charge] if run.outcome != "void" else [], 1)
            run.charges.append(charge)
            run.items += [body["item"]] if "item" in body else []
        else:
            raise KeyError(entry.kind)
        self.last = entry

    def _count(self, charges: Sequence[tuple[float, float]], sign: int) -> None:
        for cost, overflow in charges:
            self._spent.add(cost, sign)
            self._overflow.add(overflow, sign)

    def about(self, fingerprint: str, columns: Mapping[str, str]) -> bool:
        """Return whether data are the ledger's: the same records, or a table whose columns that are known are the same.

        Args:
            fingerprint: of the records.
            columns: name -> fingerprint of the table's columns.
        """
        known = columns.keys() & self.columns.keys()
        same = bool(known) and all(hmac.compare_digest(columns[name], self.columns[name]) for name in known)
        return same or not self.fingerprints or any(hmac.compare_digest(fingerprint, one) for one in self.fingerprints)

    @property
    def spent(self) -> float:
        """Σ cost of all but void runs."""
        return float(self._spent)

    @property
    def overflow(self) -> float:
        """Σ β of all but void runs."""
        return float(self._overflow)

    @property
    def _counted(self) -> list[Run]:
        return [run for run in self.runs.values() if run.outcome != "void"]

    @property
    def overspent(self) -> str | None:
        """How the runs exceed the budget, as a clause, which no order of admissions allows; None where they do not."""
        terms = self.terms
        slack = 1 + 1e-9
        if terms.filter == "programme":
            twice = Counter(item for run in self._counted for item in run.items) - Counter(terms.items)
            return f"{twice.total()} runs more than the programme has are reserved" if twice else None
        for spent, budget in (
            (self.spent, terms.budget),
            (self.overflow, terms.overflow),
        ):
            if spent > budget * slack:
                return f"{round_up(spent, 3)} is spent where the budget is {budget:.4g}"
        return None

    def refusal(self, charge: dict) -> str | None:
        """Why a charge is not admitted, as a clause; None where it is."""
        terms = self.terms
        if terms.filter == "programme":
            left = Counter(terms.items) - Counter(item for run in self._counted for item in run.items)
            if left[charge["item"]]:
                return None
            return f"it is none of the {left.total()} of {len(terms.items)} runs that are left of the programme"
        if math.fsum([self.spent, charge["cost"]]) > terms.budget:
            rest = max(0.0, terms.budget - self.spent)
            worth = round_down(
                gaussian_epsilon(terms.additive.gaussian(rest) * (1 - 1e-9), terms.delta),
                3,
            )
            return (
                f"it costs {round_up(charge['cost'], 3)} in {terms.unit} and {round_down(rest, 3):g} of "
                f"{terms.budget:.4g} is left (worth a Gaussian release of epsilon {worth:g} at delta {terms.delta:g})"
            )
        if math.fsum([self.overflow, charge["overflow"]]) > terms.overflow:
            return (
                f"its batch overflow or approximate draws have probability {round_up(charge['overflow'], 3)} and "
                f"{round_down(terms.overflow - self.overflow, 3):g} of {terms.overflow:.3g} is left"
            )
        return None


def fold(entries: Sequence[Entry], path: Place, book: Book | None = None) -> Book:
    """Replay the entries.

    Args:
        entries: all of them.
        path: of the ledger.
        book: in which the first of them are replayed already; the others are added to it. None: a new one.

    Raises:
        LedgerError: entries that no version of this library writes.
    """
    try:
        book = Book(entries[0]) if book is None else book
        for entry in entries[book.last.sequence :]:
            book.take(entry)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise LedgerError(
            f"{path}: the ledger says something unknown ({type(error).__name__}: {error}); update this library."
        ) from None
    return book
