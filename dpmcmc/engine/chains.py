"""Work on a sampler's plan: records are read and checked, stages before the chains released, and steps taken.

``steps.py`` compiles and takes the steps. Padding steps at the end of the last chunk leave the states as they are, and
are not released.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.engine.agreement import Kept
from dpmcmc.engine.chain_checks import check_on_disk, check_records, check_room, checked_starts
from dpmcmc.engine.chain_end import ChainEndWork
from dpmcmc.engine.commits import Commits
from dpmcmc.engine.program import Program
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.engine.steps import BoundPlan, Steps
from dpmcmc.engine.work import Given, Progress, ReleaseWork, Session, part_of, released
from dpmcmc.planning.path import recorded_blocks
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.sampler_run import SamplerRun
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.randomness import Streams, streams_of
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, target_offers
from dpmcmc.targets.whitened import Whitened, WhitenedRows


class Chains:
    """Work on a sampler's plan.

    Attributes:
        records: checked, float32 and int32.
        model: the plan's target, bound to their shapes.
        target: what the chains move in: the model, or the model in a metric.
        starts: of the chains, leaves (chains, ...), or None for the target's own.
        stage: the run.
        before: work on the stages that are carried out before it.
        end: work on the releases where the chains end, or None.
    """

    records: PyTree
    model: Target
    target: Target
    starts: PyTree
    #: A step reads the rows of its batch.
    takes_partitions = False

    def __init__(
        self, plan: Plan, run: SamplerRun, before: Sequence[ReleaseWork] = (), end: ChainEndWork | None = None
    ) -> None:
        self._plan = plan
        self.stage = run
        self.before = before
        self.end = end
        self._mesh: Mesh | None = None

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None) -> None:
        """Refuse what :func:`dpmcmc.sample` says, and keep the records; see :class:`Work`."""
        plan = self._plan
        check_on_disk(plan, data)
        given = data
        for stage in self.before:
            stage.read(data, None, None)
            data = stage.records
        if self.end is not None:
            self.end.read(given, mesh)
        self.records = check_records(plan, data, host=mesh is not None)
        self.model = targets.bind(plan.target, targets.record_shapes(self.records))
        check_room(self.model, plan.num_draws * plan.chains)
        self._mesh = mesh
        self.target = self.model
        self.starts = checked_starts(plan, self.model, starts)
        for stage in self.before:
            stage.stand_in(self)

    def bound(self, streams: Streams, secret: bool) -> BoundPlan:
        """Return the plan with these keys."""
        own = streams if self._plan.start is None else part_of(streams, 1)
        return BoundPlan(self._plan, self.target, own, secret, starts=self.starts)

    def program(self) -> Program:
        """Program of the plan."""
        return Program.of(self._plan, self.target, self._mesh)

    def begin(self, session: Session) -> Given | None:
        """Spend the budget, and release the stages before the chain.

        Returns:
            The run with what was released, and its records; None where there is no such stage.
        """
        session.begin()
        if not self.before:
            return None
        run = self.bound(session.streams, session.secret)
        records = self.records
        for at, stage in enumerate(self.before):
            made = released(at, stage, stage.streams(session.streams), session, last=False)
            run, records = stage.given(made, run, records)
        return run, records

    def carry_out(self, session: Session, progress: Progress | None) -> Result:
        """Take the steps, chunk by chunk; see :class:`Work`."""
        report = None if progress is None else lambda done: progress(done, self._plan.steps)
        run = self.bound(session.streams, session.secret)
        begin = functools.partial(self.begin, session)
        chain = run_chains(self.program(), run, self.records, report, session.kept, begin)
        if self.end is None:
            return chain
        self.end.chain = chain
        streams = self.end.streams(session.streams)
        return dataclasses.replace(chain, evidence=released(len(self.before), self.end, streams, session, last=True))

    def compile_and_test(self) -> None:
        """Compile the program for a private run, and test it, so that :meth:`carry_out` finds it so.

        Raises:
            MiscompiledError: the self-test failed.
        """
        run = self.bound(streams_of(None, self._plan.guarantee is not None)[0], True)
        Steps(self.program(), run, self.records, None).compiled_and_tested()


def run_chains(
    program: Program,
    run: BoundPlan,
    records: PyTree,
    report: Callable[[int], None] | None = None,
    kept: Kept | None = None,
    begin: Callable[[], Given | None] = lambda: None,
) -> Result:
    """Run a plan's chains.

    Args:
        program: of the run.
        run: what to run.
        records: from :func:`check_records`.
        report: called with the steps done.
        kept: checkpoint of the run; it goes on from there.
        begin: called when the program is compiled and has passed its self-test, before a step is taken on the records.
            An error of it ends the run. It may return the run and its records with other numbers, of a released metric.

    Raises:
        DivergedError: a chain left the range of floats.
        MiscompiledError: the program failed its self-test.
    """
    started = time.perf_counter()
    steps = Steps(program, run, records, None if kept is None else kept.point())
    executable = steps.compiled_and_tested()
    seconds = {"compile": time.perf_counter() - started}
    run, records = begin() or (run, records)
    plan = run.plan
    shape = (steps.layout.places, steps.shape.steps)
    commits = Commits(kept, steps.point, shape, plan.chains, plan.steps, plan.end is None)
    draws = steps.take(executable, run, records, commits, report)
    seconds["run"] = commits.seconds
    guarantee = plan.guarantee if run.secret else None
    if draws.failure is not None:
        raise DivergedError(*draws.failure, guarantee)
    return _concluded(run, draws.joined(), guarantee, seconds)


def _concluded(run: BoundPlan, kept: PyTree, guarantee: Guarantee | None, seconds: dict[str, float]) -> Result:
    """Return the result of a run in its model's own coordinates.

    Args:
        run: what was run.
        kept: (positions, infos) of its chains, leaves (chains, draws, ...).
        guarantee: of the run.
        seconds: by what they went to.
    """
    positions, info = kept
    target = run.target
    means = None
    if recorded_blocks(run.plan) is not None:
        info, means = info
        if means.scatter is not None:
            means = means._replace(scatter=means.scatter[:, -1])
    if run.metric is not None:
        assert isinstance(target, WhitenedRows | Whitened)
        positions = target.positions(positions)
        target = target.target
    draws = positions
    to_own = target_offers(target).constrain
    if to_own is not None:
        draws = jax.tree.map(np.asarray, jax.jit(jax.vmap(jax.vmap(to_own)))(positions))
    return Result(run.plan, draws, positions, info, guarantee, seconds, metric=run.metric, means=means)
