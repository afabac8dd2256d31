"""Work on a plan: each stage is carried out in its order, and committed.

The work on the last stage carries the plan out. A stage that is a release is made once (:func:`released`), and the
chain after it takes what it released as arguments of its program. The program is compiled and tested before the budget
is spent, with numbers that stand for what will be released (:class:`ReleaseWork`). A kill before the commit costs
nothing: the resumed run makes the release again, to the same bits.

``work_table.py`` says who works on each kind of stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine.agreement import Kept, of_first, several
from dpmcmc.engine.result import Result
from dpmcmc.engine.steps import BoundPlan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target

#: Called on the host with (steps done, steps in all).
Progress = Callable[[int, int], None]


class Session(Protocol):
    """The part of a life that work on its plan needs."""

    @property
    def streams(self) -> Streams:
        """Keys of the run."""

    @property
    def secret(self) -> bool:
        """Whether the keys are secret, so that the run carries its guarantee."""

    @property
    def kept(self) -> Kept | None:
        """Checkpoint of the run, or None without one."""

    @property
    def guarantee(self) -> Guarantee | None:
        """Guarantee of the whole run, or None where its keys are known."""

    def begin(self) -> None:
        """Spend the budget: from here on something may be computed from a record."""


@dataclass(frozen=True)
class Within:
    """Session of work that another run does as a part of itself: that run has spent the budget, and commits.

    Attributes:
        streams: secret keys of the part.
        guarantee: of the part.
    """

    streams: Streams
    guarantee: Guarantee | None
    secret: bool = True
    kept: Kept | None = None

    def begin(self) -> None:
        """Do nothing: the run that the part belongs to has begun."""


class Work(Protocol):
    """Work on the last stage of a plan, which carries out those before it too; a life calls the methods in this order.

    Attributes:
        records: checked, as the computation takes them.
        takes_partitions: whether it asks nothing but sums, so that a table may be in partitions.
    """

    records: PyTree

    @property
    def takes_partitions(self) -> bool:
        """Return whether records may be a table in partitions."""

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None) -> None:
        """Refuse records and starts that do not fit the plan, and keep them.

        Args:
            data, starts, mesh: as of :func:`dpmcmc.sample`.
        """

    def carry_out(self, session: Session, progress: Progress | None) -> Result:
        """Compute and commit what the plan releases; ``session.begin`` comes before any of it touches a record.

        Raises:
            DivergedError: a chain left the range of floats.
        """


#: A chain's run in the units and from the starts that were released, and its records.
Given = tuple[BoundPlan, PyTree]


class StageWork(Protocol):
    """Work on a stage that releases something once.

    Attributes:
        stage: what it is about.
    """

    stage: Any

    def made(self, streams: Streams, guarantee: Guarantee | None) -> Any:
        """Read the records, and return what is released.

        Args:
            streams: keys of the stage.
            guarantee: of the whole run, which an error states.
        """

    def arrays(self, made: Any) -> dict[str, np.ndarray]:
        """Return what was released as arrays by name, which :meth:`of` takes."""

    def of(self, arrays: dict[str, np.ndarray]) -> Any:
        """Return what was released."""

    def streams(self, streams: Streams) -> Streams:
        """Return the keys of the stage, of those of the run."""


class MovingChains(Protocol):
    """Parts of a plan's chains that a stage before them may put another in the place of (``chains.py``)."""

    model: Target
    target: Target
    records: PyTree
    starts: PyTree


class ReleaseWork(StageWork, Protocol):
    """Work on a stage that releases something once, before a chain or alone.

    Attributes:
        records: as the chain takes them.
    """

    records: PyTree

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None) -> None:
        """Refuse records that the stage is not released from, and keep them; see :class:`Work`."""

    def stand_in(self, chains: MovingChains) -> None:
        """Put numbers in the place of what will be released, so that the chain's program can be compiled."""

    def given(self, made: Any, run: BoundPlan, records: PyTree) -> Given:
        """Return the chain's run with what was released, and its records."""


def part_of(streams: Streams, stage: int) -> Streams:
    """Return keys for one stage of a run whose stages draw from all of its streams."""
    return Streams(*(jax.random.fold_in(key, stage) for key in streams))


def released(stage: int, work: StageWork, streams: Streams, session: Session, last: bool) -> Any:
    """Return what a stage releases: what was committed of it, else what is made now and then committed.

    Args:
        stage: its number in the plan.
        work: on it.
        streams: its keys.
        session: of the run, which has begun.
        last: whether it is the last stage.
    """
    kept = session.kept
    before = None if kept is None else kept.load_stage(stage)
    if before is not None:
        return work.of(before)
    made = work.made(streams, session.guarantee)
    if several():  # all go on with what process 0 has made
        made = work.of(of_first(lambda: work.arrays(made)))
    if kept is not None:
        kept.commit_stage(stage, work.arrays(made), last)
    return made
