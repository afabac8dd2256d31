"""How many runs of this process no ledger was charged for, and what their guarantees add up to.

A guarantee covers one run, and without a ledger nothing adds runs up. So each result says how many runs the process has
begun on tables with as many records under the same adjacency, the run itself among them. Whether two tables are the
same is a function of private records, so nothing is asked of the records: the count is at least that of the runs on one
table, and it is a function of public facts alone. It is of one process, so it is neither saved nor pickled.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.privacy.accounting.events import round_up
from dpmcmc.privacy.accounting.guarantee import Guarantee


@dataclass(frozen=True)
class Uncharged:
    """Runs of this process without a ledger, on tables of one number of records, under one adjacency.

    Attributes:
        runs: how many, up to this one.
        num_records: N.
        epsilon, delta: sums over the runs.

    Example:
        >>> from dpmcmc.engine.uncharged import Uncharged
        >>> print(Uncharged(runs=3, num_records=5000, epsilon=3.0, delta=3e-5))
        run 3 of this process on 5,000 records without a ledger; if these are one table, epsilon adds up to 3 and...
    """

    runs: int
    num_records: int
    epsilon: float
    delta: float

    def __str__(self) -> str:
        return (
            f"run {self.runs:,} of this process on {self.num_records:,} records without a ledger; if these are one "
            f"table, epsilon adds up to {round_up(self.epsilon)} and delta to {round_up(self.delta)}; a ledger keeps "
            "them within one budget"
        )


_LOCK = threading.Lock()
#: By (N, adjacency).
_SEEN: dict[tuple[int, str], Uncharged] = {}


def counted(plan: AnyPlan, guarantee: Guarantee | None) -> Uncharged | None:
    """Count a run that begins, and return the count; None of a run without a guarantee."""
    if guarantee is None:
        return None
    about = (plan.num_records, str(guarantee.adjacency))
    with _LOCK:
        before = _SEEN.get(about, Uncharged(0, plan.num_records, 0.0, 0.0))
        now = Uncharged(
            before.runs + 1,
            plan.num_records,
            before.epsilon + guarantee.epsilon,
            before.delta + guarantee.delta,
        )
        _SEEN[about] = now
    return now
