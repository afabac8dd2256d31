"""Work on a plan, looked up by the plan's type: each room registers its own kind, so the engine knows no mechanism."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

from jax.sharding import Mesh

from dpmcmc.engine.result import Result
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import AnyPlan
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.checkpoint import Checkpoint, Point
from dpmcmc.storage.pytree import PyTree

#: Called on the host with (steps done, steps in all).
Progress = Callable[[int, int], None]


class Session(Protocol):
    """The part of a life that work on its plan needs.

    Attributes:
        streams: keys of the run.
        secret: whether they are, so that the run carries its guarantee.
        kept: its checkpoint, or None without one.
    """

    streams: Streams
    secret: bool
    kept: Checkpoint | None

    @property
    def guarantee(self) -> Guarantee | None:
        """Guarantee of the whole run, or None where its keys are known."""

    def begin(self) -> None:
        """Spend the budget: from here on something may be computed from a record."""


class Work(Protocol):
    """Work on one plan; a life calls the methods in this order.

    Attributes:
        records: checked, as the computation takes them.
    """

    records: PyTree

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None, like: Work | None) -> None:
        """Refuse records and starts that do not fit the plan, and keep them.

        Args:
            data, starts, mesh: as of :func:`dpmcmc.sample`.
            like: work that has read the same data for another plan, whose records are shared; or None.
        """

    def carry_out(self, session: Session, progress: Progress | None) -> Result:
        """Compute and commit what the plan releases; ``session.begin`` comes before any of it touches a record.

        Raises:
            DivergedError: a chain left the range of floats.
        """

    def repeated(self, point: Point | None) -> tuple[tuple[Event, ...], str]:
        """Return (events of what is computed a second time after this commit, a sentence for the ledger)."""


@functools.singledispatch
def work_of(plan: AnyPlan) -> Work:
    """Return the work on a plan, by the plan's type.

    Raises:
        ValueError: nobody carries out such a plan.
    """
    raise InputError(f"plan: {type(plan).__name__} is no plan; make one with dpmcmc.plan or a mechanism's plan")
