"""Account of a ledger, for people: its terms, its runs, and what they have spent.

``book.py`` adds the entries up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.ledger.book import Run, fold
from dpmcmc.privacy.ledger.chain import Entry
from dpmcmc.privacy.ledger.place import Place
from dpmcmc.privacy.ledger.terms import Terms


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


def account(entries: Sequence[Entry], path: Place) -> State:
    """Return the account of these entries of a ledger."""
    book = fold(entries, path)
    terms = book.terms
    left = max(0.0, terms.budget - book.spent)
    if terms.filter == "programme":
        epsilon = (terms.joint_epsilon or 0.0) if book.spent else 0.0
        epsilon_left = 0.0
    else:
        epsilon = min(terms.epsilon, terms.additive.epsilon(book.spent, terms.charged_delta))
        epsilon_left = gaussian_epsilon(terms.additive.gaussian(left) * (1 - 1e-9), terms.delta)
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
