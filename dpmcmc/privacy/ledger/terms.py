"""Terms that ``init`` fixes for good: the promise, the filter, and the budget that follows from them.

Whether a run is admitted under them is decided in ``book.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpmcmc.privacy.accounting import (
    overflow_probability,
)
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_up
from dpmcmc.privacy.ledger.chain import LedgerError
from dpmcmc.privacy.ledger.filters import FILTERS, Filter, best_order, make_filter, split_delta
from dpmcmc.privacy.ledger.programme import joint_epsilon, key_of_run

#: Share of δ kept for deviations (batch overflow, approximate draws); costs about a percent of a Rényi budget.
BUDGET_OVERFLOW_SHARE = 0.1
#: Beyond these float64 loses the budget.
_LARGEST_ORDER = 1_000_000
_SMALLEST_DELTA = 1e-250


@dataclass(frozen=True)
class Promise:
    """Bound that all runs on a data set together stay within.

    Attributes:
        name: of the data set.
        num_records: N, or None where it was not declared.
        adjacency: of every run.
        epsilon, delta: for all runs together.
        filter: one of ``filters.FILTERS``.
        order: of filter renyi; None for the best one, and for every other filter.
    """

    name: str
    num_records: int | None
    adjacency: Adjacency
    epsilon: float
    delta: float
    filter: str
    order: int | None

    def check(self) -> None:
        """Raise LedgerError for numbers that make no promise."""
        epsilon = self.epsilon
        delta = self.delta
        records = self.num_records
        order = self.order
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise LedgerError(f"epsilon must be a finite number > 0, got {epsilon}.")
        if not _SMALLEST_DELTA <= delta < 1:
            raise LedgerError(f"delta must be at least {_SMALLEST_DELTA:g} and below 1, got {delta}.")
        if records is not None and records < 1:
            raise LedgerError(f"num_records must be at least 1, got {records}.")
        if records is not None and delta >= 1 / records:
            raise LedgerError(
                f"delta {delta:g} is not below 1/N = {1 / records:.3g}, so publishing a random record outright would "
                "meet it; use a smaller delta."
            )
        if self.filter not in FILTERS:
            raise LedgerError(f"filter must be one of {', '.join(FILTERS)}, got {self.filter!r}.")
        if order is not None and (self.filter != "renyi" or not 2 <= order <= _LARGEST_ORDER or order != int(order)):
            raise LedgerError(
                f"order must be a whole number from 2 to {_LARGEST_ORDER}, of filter renyi alone; got {order} with "
                f"{self.filter}."
            )


@dataclass(frozen=True)
class Terms(Promise):
    """Terms fixed at ``init``: the promise, and the budget that follows from it.

    Attributes:
        budget: in the filter's unit; of a programme, its number of runs.
        overflow: budget of the probability that a step or a draw was not the one that is charged.
        items: of a programme, see ``programme.key_of_run``.
        joint_epsilon: of a programme.

    Example:
        >>> from dpmcmc.privacy import Ledger
        >>> terms = {"num_records": 1000, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-5}
        >>> ledger = Ledger.init("terms.ledger", name="people", **terms)
        >>> ledger.terms.epsilon, ledger.terms.filter
        (1.0, 'renyi')
    """

    budget: float
    overflow: float
    items: tuple[str, ...] = ()
    joint_epsilon: float | None = None

    @property
    def unit(self) -> str:
        """Unit of ``budget``, for people."""
        return "runs of the programme" if self.filter == "programme" else self.additive.unit

    @property
    def additive(self) -> Filter:
        """The filter, of all but a programme."""
        return make_filter(self.filter, self.order)

    @property
    def charged_delta(self) -> float:
        """δ' left to the charged steps; the rest is for deviations."""
        return self.delta - self.overflow * (1 + math.exp(min(self.epsilon, 700.0)))


def fix_terms(promise: Promise, items: Sequence[Guarantee], typical: Sequence[Event], share: float) -> Terms:
    """Return the terms that keep a promise, with their budget.

    Args:
        promise: for all runs together.
        items: guarantees of the runs of a programme, and of that filter alone.
        typical: events of a run, for the default order.
        share: of δ that is kept for deviations.

    Raises:
        LedgerError: numbers that make no budget.
        UnsupportedCombination: a programme that no accountant covers.
    """
    promise.check()
    if (promise.filter == "programme") != bool(items):
        raise LedgerError("filter programme needs the guarantees of its runs, and no other filter takes them.")
    if not 0 <= share < 1:
        raise LedgerError(f"overflow_share must lie in [0, 1), got {share}.")
    return _programme(promise, items) if items else _additive(promise, typical, share)


def _programme(promise: Promise, items: Sequence[Guarantee]) -> Terms:
    """Terms of runs that are all fixed in advance."""
    adjacency = promise.adjacency
    epsilon = promise.epsilon
    delta = promise.delta
    if any(g.adjacency != adjacency for g in items):
        raise LedgerError(f"every run of the programme must promise adjacency {adjacency}.")
    joint = joint_epsilon(items, adjacency, delta)
    if not joint <= epsilon:
        raise LedgerError(
            f"the programme's {len(items)} runs cost epsilon {round_up(joint)} together at delta {delta:g}, more "
            f"than {epsilon:g}; lower the epsilon of its runs or raise the ledger's."
        )
    beta = math.fsum(overflow_probability(g.events) for g in items)
    names = tuple(key_of_run(g.events) for g in items)
    return Terms(
        **promise.__dict__,
        budget=float(len(items)),
        overflow=beta,
        items=names,
        joint_epsilon=joint,
    )


def _additive(promise: Promise, typical: Sequence[Event], share: float) -> Terms:
    """Terms of runs that may be chosen by earlier results."""
    epsilon = promise.epsilon
    delta = promise.delta
    order = promise.order
    charged, beta = split_delta(epsilon, delta, share)
    if promise.filter == "renyi" and order is None:
        order = best_order(epsilon, charged, typical, promise.adjacency)
    budget = make_filter(promise.filter, order).budget(epsilon, charged)
    if not budget > 0:
        raise LedgerError(
            f"epsilon {epsilon:g} at delta {delta:g} leaves nothing to spend at order {order}; choose a larger order."
        )
    return Terms(**(promise.__dict__ | {"order": order}), budget=budget, overflow=beta)
