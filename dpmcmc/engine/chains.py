"""A sampler's plan is carried out as chains of steps, chunk by chunk, a block of chains at a time.

A chunk is one device call, of what ``program.py`` computes: select, query, step, so many times. Between chunks the host
keeps the thinned draws, reports progress, commits to the checkpoint and gives up a plan whose chain has diverged.
Padding steps at the end of the last chunk leave the state as it is and are not released.

``life.py`` runs one plan, or many that differ in numbers alone beside each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.engine import lanes as lane_calls
from dpmcmc.engine.agreement import Kept
from dpmcmc.engine.blocks import Blocks, BoundPlan
from dpmcmc.engine.chain_checks import check_on_disk, check_records, check_room, checked_starts
from dpmcmc.engine.commits import Commits
from dpmcmc.engine.drawn_ahead import one_ahead
from dpmcmc.engine.hardware import hardware
from dpmcmc.engine.program import Program
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.engine.work import Given, Progress, ReleaseWork, Session, Work, part_of, released
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.sampler_run import SamplerRun
from dpmcmc.privacy.accounting.charging import charged_again
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.query.randomness import Streams, streams_of
from dpmcmc.storage.checkpoint import Checkpoint
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target


class Chains:
    """Work on a sampler's plan.

    Attributes:
        records: checked, float32 and int32.
        model: the plan's target, bound to their shapes.
        target: what the chains move in: the model, or the model in a metric.
        starts: of the chains, leaves (chains, ...), or None for the target's own.
        stage: the run.
        before: work on the stages that are carried out before it.
    """

    records: PyTree
    model: Target
    target: Target
    starts: PyTree
    #: A step reads the rows of its batch.
    takes_partitions = False

    def __init__(self, plan: Plan, run: SamplerRun, before: Sequence[ReleaseWork] = ()) -> None:
        self._plan = plan
        self.stage = run
        self.before = before
        self._mesh: Mesh | None = None

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None, like: Work | None) -> None:
        """Refuse what :func:`dpmcmc.sample` says, and keep the records; see :class:`Work`."""
        plan = self._plan
        check_on_disk(plan, data)
        for stage in self.before:
            stage.read(data, None, None, None)
            data = stage.records
        if isinstance(like, Chains) and like._plan.target is plan.target and like._plan.num_records == plan.num_records:
            self.records = like.records
            self.model = like.model
        else:
            records = check_records(plan, data, host=mesh is not None)
            self.model = targets.bind(plan.target, targets.record_shapes(records))
            self.records = records if like is None else like.records
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
        (outcome,) = run_together(self.program(), [run], self.records, report, session.kept, begin)
        if isinstance(outcome, DivergedError):
            raise outcome
        return outcome

    def compile_and_test(self) -> None:
        """Compile the program for a private run, and test it, so that :meth:`carry_out` finds it so.

        Raises:
            MiscompiledError: the self-test failed.
        """
        run = self.bound(streams_of(None, self._plan.guarantee is not None)[0], True)
        Blocks(self.program(), [run], self.records, None).compiled_and_tested()

    def repeated(self, kept: Checkpoint) -> tuple[tuple[Event, ...], str]:
        """Releases that were not committed, and steps that may have been taken since the commit; see :class:`Work`."""
        plan = self._plan
        point = kept.point()
        guarantee = plan.guarantee
        if guarantee is None:
            return (), ""
        # Without a commit to say how far the run may have got, as far as it goes.
        first = 0
        until = plan.steps
        chains = plan.chains
        if point is not None and point.sure:
            first = point.step
            until = min(point.until, plan.steps)
            chains = min(point.shape[0], max(plan.chains - point.block, 0))
        again = dataclasses.replace(plan.schedule.part(first, until), chains=chains)
        lost = [work.stage.charge.again for at, work in enumerate(self.before) if kept.load_stage(at) is None]
        steps = charged_again(guarantee, again)
        return (
            *itertools.chain(*lost),
            *steps,
        ), f"steps {first} to {until} taken again on another platform"


def run_together(
    program: Program,
    runs: Sequence[BoundPlan],
    records: PyTree,
    report: Callable[[int], None] | None = None,
    kept: Kept | None = None,
    begin: Callable[[], Given | None] = lambda: None,
) -> list[Result | DivergedError]:
    """Run plans of one program, as many chains at a time as is fastest.

    Args:
        program: of every run, with at least the slots of each.
        runs: what to run.
        records: from :func:`check_records`.
        report: called with the steps done, summed over runs.
        kept: checkpoint of the one run; it goes on from there.
        begin: called when the program is compiled and has passed its self-test, before a step is taken on the records.
            An error of it ends the run. It may return the one run and its records with other numbers, of a released
            metric.

    Returns:
        Per run its Result, whose wall time is its share by steps, or a DivergedError.
    """
    started = time.perf_counter()
    blocks = Blocks(program, runs, records, None if kept is None else kept.point())
    steps_of_chunk = blocks.compiled_and_tested()
    compile_seconds = time.perf_counter() - started
    given = begin()
    if given is not None:
        blocks.take([given[0]], given[1])
    commits = Commits(blocks, kept)
    # A commit is of the states after its chunk, which a chunk that overlaps would have taken.
    overlap = kept is None and hardware(program.platform).overlaps
    _take_steps(blocks, steps_of_chunk, commits, report, overlap)
    return blocks.outcomes({"compile": compile_seconds, "run": commits.seconds}, kept)


def _take_steps(
    blocks: Blocks,
    steps_of_chunk: jax.stages.Compiled,
    commits: Commits,
    report: Callable[[int], None] | None,
    overlap: bool,
) -> None:
    """Take the steps of all blocks; on ``overlap`` a chunk is taken while draws of the one before come to the host."""
    width = blocks.sizes.steps
    done = 0.0
    # Threads, for a CPU computes a call in the thread that makes it.
    with (
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(blocks.sizes.lanes, "lane") as workers,
    ):
        for start, step in blocks.left():
            abreast = blocks.lanes_of(start, step)
            steps = blocks.rows(start)[-1].plan.steps
            for lane in abreast:
                stack.callback(lane.close)
            firsts = range(step, steps, width)
            take = functools.partial(lane_calls.take_chunk, workers, steps_of_chunk, abreast)
            taken = one_ahead(take, firsts, "chunk") if overlap else map(take, firsts)
            for first, outputs in zip(firsts, taken, strict=True):
                for lane, output in zip(abreast, outputs, strict=True):
                    lane_calls.hand_out(lane.rows, first, width, *output)
                done += blocks.chains_done(start, first)
                if report is not None:
                    report(round(done))
                if blocks.all_failed(start):
                    break
                commits.commit(abreast, first + width, steps)
            stack.close()
