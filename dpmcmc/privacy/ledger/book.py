"""Sum of a ledger's entries: runs, what they spent, and whether one more is admitted."""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpmcmc.privacy.accounting.events import Adjacency, round_down, round_up
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.ledger.chain import Entry, LedgerError
from dpmcmc.privacy.ledger.filters import Terms


@dataclass
class Run:
    """A run's reservation.

    Attributes:
        id: random.
        label: of the caller's.
        charges: (cost, overflow) of the reservation and of each extension.
        outcome: ``open`` | ``released`` | ``void``.
        begun: name of the start that began it or went on with it last; empty where only its outcome tells that one did;
            None before.
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


@dataclass
class Book:
    """The entries, replayed."""

    terms: Terms
    runs: dict[str, Run]
    fingerprints: set[str] = field(default_factory=set)
    columns: dict[str, str] = field(default_factory=dict)

    def about(self, fingerprint: str, columns: Mapping[str, str]) -> bool:
        """Return whether data are the ledger's: the same records, or a table whose columns that are known are the same.

        Args:
            fingerprint: of the records.
            columns: name -> fingerprint of the table's columns.
        """
        known = columns.keys() & self.columns.keys()
        same = bool(known) and all(
            hmac.compare_digest(columns[name], self.columns[name]) for name in known
        )
        return (
            same
            or not self.fingerprints
            or any(hmac.compare_digest(fingerprint, one) for one in self.fingerprints)
        )

    @property
    def spent(self) -> float:
        """Σ cost of all but void runs."""
        return math.fsum(cost for run in self._counted for cost, _ in run.charges)

    @property
    def overflow(self) -> float:
        """Σ β of all but void runs."""
        return math.fsum(beta for run in self._counted for _, beta in run.charges)

    @property
    def _counted(self) -> list[Run]:
        return [run for run in self.runs.values() if run.outcome != "void"]

    @property
    def overspent(self) -> str | None:
        """How the runs exceed the budget, as a clause, which no order of admissions allows; None where they do not."""
        terms = self.terms
        slack = 1 + 1e-9
        if terms.filter == "programme":
            twice = Counter(
                item for run in self._counted for item in run.items
            ) - Counter(terms.items)
            return (
                f"{twice.total()} runs more than the programme has are reserved"
                if twice
                else None
            )
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
            left = Counter(terms.items) - Counter(
                item for run in self._counted for item in run.items
            )
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


def fold(entries: Sequence[Entry], path: Path) -> Book:
    """Replay the entries.

    Raises:
        LedgerError: entries that no version of this library writes.
    """
    try:
        body = {k: v for k, v in entries[0].body.items() if k != "key_sha256"}
        book = Book(
            Terms(
                **(
                    body
                    | {
                        "items": tuple(body["items"]),
                        "adjacency": Adjacency(body["adjacency"]),
                    }
                )
            ),
            {},
        )
        for entry in entries[1:]:
            body = entry.body
            if entry.kind == "data":
                book.fingerprints.add(body["fingerprint"])
                book.columns |= body.get("columns", {})
            elif entry.kind == "begin":
                book.runs[entry.run].begun = str(body["by"])
            elif entry.kind == "settle":
                run = book.runs[entry.run]
                run.outcome = body["outcome"]
                # Versions before 0.2.0 wrote no entry of a run's beginning.
                run.begun = (
                    "" if run.begun is None and run.outcome == "released" else run.begun
                )
            elif entry.kind in ("reserve", "extend"):
                if entry.kind == "reserve":
                    book.runs[entry.run] = Run(entry.run, body["label"])
                book.runs[entry.run].charges.append(
                    (float(body["cost"]), float(body["overflow"]))
                )
                book.runs[entry.run].items += [body["item"]] if "item" in body else []
            else:
                raise KeyError(entry.kind)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LedgerError(
            f"{path}: the ledger says something unknown ({type(error).__name__}: {error}); update this library."
        ) from None
    return book


# ----------------------------------------------------------------------------------------------------
# Account of a ledger, for people: its terms, its runs, and what they have spent.


@dataclass(frozen=True)
class State:
    """Account of a ledger: its terms, its runs, and what they have spent.

    Attributes:
        terms: what was fixed at ``init``.
        spent, left: in the filter's unit; void runs cost nothing, open ones all they reserved.
        overflow_left: of the budget for deviations.
        epsilon: ε at the ledger's δ of a budget of just ``spent``; of a programme, its joint ε once a run was admitted.
            For people: the promise about runs chosen adaptively is the whole budget, fixed in advance.
        epsilon_left: ε at the ledger's δ of the largest single full-batch Gaussian run that is still admitted; of a
            programme 0.
        runs: every reservation in order.
        entries: how many.
        head: hash of the last entry.
        identified: whether the data's fingerprint is known.

    Example:
        >>> from dpmcmc.privacy import Ledger
        >>> terms = {"num_records": 1000, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-5}
        >>> ledger = Ledger.init("state.ledger", name="people", **terms)
        >>> state = ledger.state()
        >>> state.spent, state.entries
        (0.0, 1)
    """

    terms: Terms
    spent: float
    left: float
    overflow_left: float
    epsilon: float
    epsilon_left: float
    runs: tuple[Run, ...]
    entries: int
    head: str
    identified: bool

    @property
    def open(self) -> tuple[Run, ...]:
        """Reservations that were not settled, of runs that go on or crashed."""
        return tuple(run for run in self.runs if run.outcome == "open")


def account(entries: Sequence[Entry], path: Path) -> State:
    """Return the account of these entries of a ledger."""
    book = fold(entries, path)
    terms = book.terms
    left = max(0.0, terms.budget - book.spent)
    if terms.filter == "programme":
        epsilon = (terms.joint_epsilon or 0.0) if book.spent else 0.0
        epsilon_left = 0.0
    else:
        epsilon = min(
            terms.epsilon, terms.additive.epsilon(book.spent, terms.charged_delta)
        )
        epsilon_left = gaussian_epsilon(
            terms.additive.gaussian(left) * (1 - 1e-9), terms.delta
        )
    return State(
        terms=terms,
        spent=book.spent,
        left=left,
        overflow_left=max(0.0, terms.overflow - book.overflow),
        epsilon=epsilon,
        epsilon_left=epsilon_left,
        runs=tuple(book.runs.values()),
        entries=len(entries),
        head=entries[-1].hash,
        identified=bool(book.fingerprints),
    )
