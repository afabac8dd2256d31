"""A sampler's plan is carried out as chains of steps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.engine.blocks import BoundPlan, DivergedError, compile_and_test, run_together
from dpmcmc.engine.checks import check_on_disk, check_records, checked_starts
from dpmcmc.engine.program import Program
from dpmcmc.engine.result import Result
from dpmcmc.engine.template import template
from dpmcmc.engine.work import Progress, Work, work_of
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.charging import charged_again
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.query.randomness import Streams, streams_of
from dpmcmc.storage.commit_point import Point
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target

if TYPE_CHECKING:
    from dpmcmc.engine.life import Life


class Chains:
    """Work on a sampler's plan.

    Attributes:
        records: checked, float32 and int32.
        target: the plan's, bound to their shapes.
    """

    records: PyTree
    target: Target

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._mesh: Mesh | None = None
        self._starts: PyTree = None

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None, like: Work | None) -> None:
        """Refuse what :func:`dpmcmc.sample` says, and keep the records; see :class:`Work`."""
        plan = self._plan
        check_on_disk(plan, data)
        if isinstance(like, Chains) and like._plan.target is plan.target and like._plan.num_records == plan.num_records:
            self.records, self.target = like.records, like.target
        else:
            records = check_records(plan, data, host=mesh is not None)
            self.records = records if like is None else like.records
            self.target = targets.bind(plan.target, targets.record_shapes(records))
        self._mesh, self._starts = mesh, checked_starts(plan, self.target, starts)

    def bound(self, streams: Streams, secret: bool) -> BoundPlan:
        """Return the plan with these keys."""
        return BoundPlan(self._plan, self.target, streams, secret, starts=self._starts)

    def _program(self) -> Program:
        return Program.of(self._plan, template(self.target), template(self._plan.sampler), mesh=self._mesh)

    def carry_out(self, life: Life, progress: Progress | None) -> Result:
        """Take the steps, chunk by chunk; see :class:`Work`."""
        report = None if progress is None else lambda done: progress(done, self._plan.steps)
        run = self.bound(life.streams, life.secret)
        (outcome,) = run_together(self._program(), [run], self.records, report, life.kept, life.begin)
        if isinstance(outcome, DivergedError):
            raise outcome
        return outcome

    def compile_and_test(self) -> None:
        """Compile the program for a private run, and test it, so that :meth:`carry_out` finds it so."""
        compile_and_test(self._program(), [self.bound(streams_of(None)[0], True)], self.records)

    def repeated(self, point: Point | None) -> tuple[tuple[Event, ...], str]:
        """Steps that may have been taken since the commit; see :class:`Work`."""
        plan = self._plan
        assert plan.guarantee is not None
        assert plan.noise_multipliers is not None
        # Without a commit to say how far the run may have got, as far as it goes.
        first, until, chains = 0, plan.steps, plan.chains
        if point is not None and point.sure:
            first, until = point.step, min(point.until, plan.steps)
            chains = min(point.shape[0], max(plan.chains - point.block, 0))
        again = plan.schedule.with_noise(plan.noise_multipliers[first:until])
        events = charged_again(plan.guarantee, dataclasses.replace(again, chains=chains))
        return events, f"steps {first} to {until} taken again on another platform"


@work_of.register
def _(plan: Plan) -> Work:
    return Chains(plan)
