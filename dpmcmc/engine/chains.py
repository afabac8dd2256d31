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
import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.engine import blocks as lanes
from dpmcmc.engine.blocks import Blocks, BoundPlan, Lane
from dpmcmc.engine.hardware import hardware
from dpmcmc.engine.processes import Kept
from dpmcmc.engine.program import Program
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.engine.rows_on_disk import one_ahead
from dpmcmc.engine.work import Progress, Release, Session, Within, Work, released, work_of
from dpmcmc.errors import InputError
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.private_metric import PlannedMetric
from dpmcmc.planning.stages import Stage, Start
from dpmcmc.privacy.accounting.charging import charged_again
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.sampling import FixedSize
from dpmcmc.privacy.query.gaussian_release import gradient_rows
from dpmcmc.privacy.query.randomness import Streams, streams_of
from dpmcmc.storage.checkpoint import Checkpoint
from dpmcmc.storage.files import memory
from dpmcmc.storage.pytree import PyTree, size_of
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets.base import Target, check_bound
from dpmcmc.targets.transformed import Whitened, WhitenedRows, in_metric, metric_of_rows

# ----------------------------------------------------------------------------------------------------
# Refusals of records and starting points before a run computes anything from them.


def check_records(plan: Plan, data: PyTree, host: bool = False) -> PyTree:
    """Arrays of the right length, finite, float32 or int32, and of the values the target is for.

    Args:
        plan: its N and target.
        data: as of :func:`sample`.
        host: NumPy arrays, that a mesh takes its parts of; else on the device.

    Raises:
        ValueError: they are not.
    """
    targets.check_rows(data, plan.num_records, np.float32)

    def convert(leaf: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
        if isinstance(leaf, np.memmap):
            return leaf
        array = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
        if host:
            dtype = jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else jnp.asarray(array[:0]).dtype
            return np.asarray(array, dtype)
        return jnp.asarray(array, jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else None)

    targets.check(plan.target, data)
    return jax.tree.map(convert, data)


def check_on_disk(plan: Plan, data: PyTree) -> None:
    """Refuse what memory-mapped records cannot be run with; nothing is read.

    Raises:
        ValueError: full batches, or of a fixed size beyond half the records, which are drawn as what they leave out; a
            second moment from a batch of its own.
    """
    if not on_disk(data):
        return
    rate = plan.sampling.rate(plan.num_records)
    if rate == 1 or (isinstance(plan.sampling, FixedSize) and rate > 0.5):
        raise InputError(
            "sampling: memory-mapped records need minibatches, full ones would read the whole file in every step; use "
            "Poisson, or arrays in memory"
        )
    if plan.second is not None and plan.second.own_batch:
        raise InputError("own_batch: not with memory-mapped records; set it to false, or use arrays in memory")


def check_room(target: Target, draws: int, bytes_of_a_number: int = 8) -> None:
    """Refuse more draws than the machine's memory holds, where the system says how much it has.

    Args:
        target: bound, so that the shape of a draw is known.
        draws: of all chains.
        bytes_of_a_number: that each number of a draw takes; a chain's float32, as it is kept and as it is handed out.

    Raises:
        InputError: too many.
    """
    numbers = size_of(jax.eval_shape(target.init, jax.random.key(0)))
    room = memory()
    if room is not None and draws * numbers * bytes_of_a_number > room:
        raise InputError(
            f"draws: {draws:,} draws of {numbers:,} numbers take more than the {room / 2**30:.1f} GiB of this "
            "machine's memory; take fewer",
            "draws",
        )


def checked_starts(plan: Plan, target: Target, starts: PyTree) -> PyTree:
    """float32 starts of the right shapes, or None.

    Raises:
        ValueError: a private plan that does not cover them; another structure or shape than the target's parameters
            with a leading axis of chains; numbers that are not finite.
    """
    if starts is None:
        return None
    if plan.start is not None:
        raise InputError("starts: the run draws its own start; leave them out")
    if plan.private is not None and plan.starts is None:
        raise InputError(
            "starts need a plan whose guarantee covers them: plan(..., after=the guarantee of their release); a public "
            "start belongs in the target's init"
        )
    wanted = jax.eval_shape(target.init, jax.random.key(0))
    shapes = jax.tree.map(lambda leaf: (plan.chains, *leaf.shape), wanted)
    found = jax.tree.map(np.shape, starts)
    same: bool = jax.tree.structure(starts) == jax.tree.structure(wanted)  # type: ignore[operator]
    if not same or found != shapes:
        raise InputError(f"starts must have shapes {shapes}, one start for each chain, got {found}")
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(starts)):
        raise InputError("starts must be finite")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), starts)


# ----------------------------------------------------------------------------------------------------
# Commits of a run's steps to its checkpoint, and how a run that was stopped finds where it was.
#
# A run without a checkpoint begins at its first step and commits nothing.


class Commits:
    """Commits of the one run whose chains are in these blocks, which are brought to its last commit.

    Args:
        blocks: about to take their steps.
        kept: checkpoint of the run, or None.
    """

    def __init__(self, blocks: Blocks, kept: Kept | None) -> None:
        self._blocks = blocks
        self._kept = kept
        self._point = blocks.point
        self._began = time.perf_counter()
        if self._point is not None:
            self._began -= self._point.seconds
            blocks.restore(self._point)
        elif kept is not None:
            self._point = kept.start((blocks.sizes.block, blocks.sizes.steps), len(blocks.traces))

    @property
    def seconds(self) -> float:
        """Seconds that the steps have taken, those before the run was stopped included."""
        return time.perf_counter() - self._began

    def commit(self, lanes: Sequence[Lane], after: int, steps: int) -> None:
        """Commit the steps that a block has taken, where that is due or the block is done.

        Args:
            lanes: of the block.
            after: its next step.
            steps: in all.
        """
        if self._kept is None or self._point is None or self._blocks.failed():
            return
        if after >= steps or self._kept.due(self._point, after):
            joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(lane.states for lane in lanes))
            self._kept.commit(self._point, after, joined, self._blocks.traces, steps, self.seconds)


# ----------------------------------------------------------------------------------------------------
# Stages before a chain: releases whose outcome the chain's program takes as arguments.
#
# The program is compiled and tested before the budget is spent, with numbers that stand for what will be released.
# Then each stage is released and committed to the checkpoint, so that a run that goes on has the same. Only where a
# kill came before that, and the run goes on on another platform, is it released again, with fresh keys and a second
# charge.

#: A chain's run in the units and from the starts that were released, and its records.
Given = tuple[BoundPlan, PyTree]


class Before(Release[Any], Protocol):
    """Work on a stage before a chain.

    Attributes:
        stage: what it is about.
    """

    stage: Stage

    def read(self, data: PyTree, mesh: Mesh | None) -> PyTree:
        """Refuse records that the stage is not released from; return them as the chain takes them."""

    def stand_in(self, chains: Chains) -> None:
        """Put numbers in the place of what will be released, so that the chain's program can be compiled."""

    def streams(self, streams: Streams) -> Streams:
        """Return the keys of the stage, of those of the run."""

    def given(self, made: Any, run: BoundPlan, records: PyTree) -> Given:
        """Return the chain's run with what was released, and its records."""


#: A chain that no run has: its first noise key is the metric's.
_CHAIN = 0xFFFFFFFF


class Metric:
    """Work on the release of a private metric, which the chain then runs in the units of.

    Args:
        plan: of the run.
        metric: the stage.
    """

    def __init__(self, plan: Plan, metric: PlannedMetric) -> None:
        self.stage: Stage = metric
        self._plan = plan
        self._metric = metric
        self._target: Target = plan.target
        self._records: PyTree = None

    def read(self, data: PyTree, mesh: Mesh | None) -> PyTree:
        """Refuse records on disk; see :class:`Before`."""
        if on_disk(data):
            raise InputError(
                "metric: memory-mapped records are not whitened; use arrays in memory, or leave metric out"
            )
        return data

    def stand_in(self, chains: Chains) -> None:
        """Put a metric in the place of the one that will be released; see :class:`Before`.

        Raises:
            ValueError: a row beyond the public bound.
        """
        of_rows = self._metric.asked.of_rows
        self._target = chains.model
        self._records = chains.records
        if of_rows:
            check_bound(
                self._records["x"],
                self._metric.release.rows.row_bound,
                "the metric's guarantee",
            )
        whitened = in_metric(self._target, of_rows or metric_of_rows(self._target))
        chains.target = whitened
        chains.records = whitened.before(self._records)

    def streams(self, streams: Streams) -> Streams:
        """The run's own keys, of which no chain has the metric's; see :class:`Before`."""
        return streams

    def made(self, streams: Streams, guarantee: Guarantee | None) -> ReleasedMetric:
        """Release the metric; see :class:`Release`."""
        asked = self._metric.asked
        release = self._metric.release
        records = self._records
        target = self._target
        key = streams.at(_CHAIN, 0).noise
        if asked.of_rows:
            noisy = release.release(np.asarray(records["x"]), key)
        else:
            noisy = release.release(gradient_rows(target, target.init(jax.random.key(0)), records), key)
            std = noisy.noise_std * math.sqrt(len(noisy.gram))
            trace = float(np.clip(np.trace(noisy.gram), std, release.rows.largest_trace))
            noisy = noisy._replace(trace=trace, trace_std=std)
        return ReleasedMetric(
            asked.name,
            noisy,
            num_records=self._plan.num_records,
            bound=release.rows.row_bound,
            clip=self._metric.clip,
            clip_ratio=asked.ratio,
            structure=asked.structure if asked.of_rows else None,
        )

    def arrays(self, made: ReleasedMetric) -> dict[str, np.ndarray]:
        """Return its arrays and its facts; see :class:`Release`."""
        return {
            "facts": np.frombuffer(json.dumps(made.facts()).encode(), np.uint8),
            **made.arrays(),
        }

    def of(self, arrays: dict[str, np.ndarray]) -> ReleasedMetric:
        """Return the metric; see :class:`Release`."""
        return ReleasedMetric.of(arrays, json.loads(arrays.pop("facts").tobytes()))

    def given(self, made: ReleasedMetric, run: BoundPlan, records: PyTree) -> Given:
        """Return the run in the units of the metric, and its records; see :class:`Before`."""
        assert isinstance(run.target, WhitenedRows | Whitened)
        target = run.target.at(made.root, made.inverse)
        if self._plan.verdict.from_path:
            # The posterior asks for the error of the second moment, which is computed beside the chain.
            ahead = (np.zeros_like(made.root),)
            Thread(target=made.denoised.error, args=ahead, daemon=True).start()
        return run._replace(target=target, metric=made), target.records(records)


class DrawnRandomness:
    """Work on a draw that every chain starts from.

    Args:
        plan: of the run.
        start: the stage.
    """

    def __init__(self, plan: Plan, start: Start) -> None:
        self.stage: Stage = start
        self._plan = plan
        self._work = work_of(start.release)

    def read(self, data: PyTree, mesh: Mesh | None) -> PyTree:
        """Refuse what the draw refuses, which reads all records whatever the mesh; see :class:`Before`."""
        self._work.read(data, None, None, None)
        return self._work.records

    def stand_in(self, chains: Chains) -> None:
        """Put zeros in the place of the start; see :class:`Before`."""
        shapes = jax.eval_shape(chains.model.init, jax.random.key(0))
        chains.starts = jax.tree.map(lambda leaf: jnp.zeros((self._plan.chains, *leaf.shape), jnp.float32), shapes)

    def streams(self, streams: Streams) -> Streams:
        """Return keys of the draw, which are none of the chain's; see :class:`Before`."""
        return _part(streams, 0)

    def made(self, streams: Streams, guarantee: Guarantee | None) -> PyTree:
        """Draw; leaves (1, ...); see :class:`Release`."""
        result = self._work.carry_out(Within(streams, guarantee), None)
        return result.flat_draws()

    def arrays(self, made: PyTree) -> dict[str, np.ndarray]:
        """Return the leaves of the draw; see :class:`Release`."""
        return {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(made))}

    def of(self, arrays: dict[str, np.ndarray]) -> PyTree:
        """Return the draw; see :class:`Release`."""
        target = targets.bind(self._plan.target, targets.record_shapes(self._work.records))
        structure = jax.tree.structure(jax.eval_shape(target.init, jax.random.key(0)))
        return jax.tree.unflatten(structure, [arrays[str(i)] for i in range(len(arrays))])

    def given(self, made: PyTree, run: BoundPlan, records: PyTree) -> Given:
        """Return the run from the draw; see :class:`Before`."""
        chains = self._plan.chains
        starts = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf, jnp.float32), chains, axis=0), made)
        return run._replace(starts=starts), records


def _part(streams: Streams, stage: int) -> Streams:
    """Return keys for one stage of a run whose stages draw from all of its streams."""
    return Streams(*(jax.random.fold_in(key, stage) for key in streams))


def _works_before(plan: Plan) -> tuple[Before, ...]:
    """Return the work on each stage before a plan's chain that the run itself carries out."""
    found: list[Before] = []
    for stage in plan.before:
        if isinstance(stage, PlannedMetric):
            found.append(Metric(plan, stage))
        if isinstance(stage, Start):
            found.append(DrawnRandomness(plan, stage))
    return tuple(found)


# ----------------------------------------------------------------------------------------------------
# All stages of a sampler's plan: releases, then the chain.


class Chains:
    """Work on a sampler's plan.

    Attributes:
        records: checked, float32 and int32.
        model: the plan's target, bound to their shapes.
        target: what the chains move in: the model, or the model in a metric.
        starts: of the chains, leaves (chains, ...), or None for the target's own.
        before: work on the stages that the run itself carries out before the chain.
    """

    records: PyTree
    model: Target
    target: Target
    starts: PyTree
    #: A step reads the rows of its batch.
    takes_partitions = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.before = _works_before(plan)
        self._mesh: Mesh | None = None

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None, like: Work | None) -> None:
        """Refuse what :func:`dpmcmc.sample` says, and keep the records; see :class:`Work`."""
        plan = self._plan
        check_on_disk(plan, data)
        for stage in self.before:
            data = stage.read(data, mesh)
        if isinstance(like, Chains) and like._plan.target is plan.target and like._plan.num_records == plan.num_records:
            self.records = like.records
            self.model = like.model
        else:
            records = check_records(plan, data, host=mesh is not None)
            self.model, rows = targets.on_rows(targets.bind(plan.target, targets.record_shapes(records)), records)
            self.records = rows if like is None else like.records
        check_room(self.model, plan.num_draws * plan.chains)
        self._mesh = mesh
        self.target = self.model
        self.starts = checked_starts(plan, self.model, starts)
        for stage in self.before:
            stage.stand_in(self)

    def bound(self, streams: Streams, secret: bool) -> BoundPlan:
        """Return the plan with these keys."""
        own = streams if self._plan.start is None else _part(streams, 1)
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
        if plan.private is None:
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
        steps = charged_again(plan.private.guarantee, again)
        return (
            *itertools.chain(*lost),
            *steps,
        ), f"steps {first} to {until} taken again on another platform"


@work_of.register
def _(plan: Plan) -> Work:
    return Chains(plan)


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
            take = functools.partial(lanes.take_chunk, workers, steps_of_chunk, abreast)
            taken = one_ahead(take, firsts, "chunk") if overlap else map(take, firsts)
            for first, outputs in zip(firsts, taken, strict=True):
                for lane, output in zip(abreast, outputs, strict=True):
                    lanes.hand_out(lane.rows, first, width, *output)
                done += blocks.chains_done(start, first)
                if report is not None:
                    report(round(done))
                if blocks.all_failed(start):
                    break
                commits.commit(abreast, first + width, steps)
            stack.close()
