"""A sampler's plan is carried out as chains of steps, chunk by chunk, a block of chains at a time.

A chunk is one device call, of what ``program.py`` computes: select, query, step, so many times. Between chunks the host
keeps the thinned draws, reports progress, commits to the checkpoint and gives up a plan whose chain has diverged.
Padding steps at the end of the last chunk leave the state as it is and are not released.

``life.py`` runs one plan; ``sweep.py`` runs many that differ in numbers alone beside each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.engine import blocks as lanes
from dpmcmc.engine.ahead import one_ahead
from dpmcmc.engine.blocks import Blocks, BoundPlan, Lane
from dpmcmc.engine.hardware import hardware
from dpmcmc.engine.program import Program
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.engine.work import Progress, Session, Work, work_of
from dpmcmc.errors import InputError
from dpmcmc.inference.noise_aware import ReleasedMetric
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.charging import charged_again
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.sampling import FixedSize
from dpmcmc.privacy.query.gaussian_release import gradient_rows
from dpmcmc.privacy.query.randomness import Streams, streams_of
from dpmcmc.storage.checkpoint import Checkpoint, Point
from dpmcmc.storage.fingerprint import on_disk
from dpmcmc.storage.pytree import PyTree, size_of
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
    memory = _memory()
    if memory is not None and draws * numbers * bytes_of_a_number > memory:
        raise InputError(
            f"draws: {draws:,} draws of {numbers:,} numbers take more than the {memory / 2**30:.1f} GiB of this "
            "machine's memory; take fewer",
            "draws",
        )


def _memory() -> int | None:
    """Return the bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def checked_starts(plan: Plan, target: Target, starts: PyTree) -> PyTree:
    """float32 starts of the right shapes, or None.

    Raises:
        ValueError: a private plan that does not cover them; another structure or shape than the target's parameters
            with a leading axis of chains; numbers that are not finite.
    """
    if starts is None:
        return None
    if plan.privacy is not None and plan.after is None:
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

    def __init__(self, blocks: Blocks, kept: Checkpoint | None) -> None:
        self._blocks, self._kept, self._point = blocks, kept, blocks.point
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
# A metric is released before a run's first step: refusals, the reading of the records, and the run in its units.
#
# The program of a run in a metric takes F as an argument, so it is compiled and tested before the budget is
# spent, as any other; the released F is then one of its arguments. A released metric is committed to the checkpoint, so
# that a run that goes on has the same one. Only where a kill came before that, and the run goes on on another platform,
# is it released again, with fresh keys and a second charge.

#: A chain that no run has: its first noise key is the metric's.
_CHAIN = 0xFFFFFFFF


def check_metric(plan: Plan, records: PyTree, mesh: Mesh | None) -> None:
    """Refuse what a metric is not released from; nothing is computed that could leave.

    Raises:
        ValueError: records on disk, several processes, or a row beyond the public bound.
    """
    if plan.metric is None:
        return
    if on_disk(records):
        raise InputError("metric: memory-mapped records are not whitened; use arrays in memory, or leave metric out")
    if mesh is not None and jax.process_count() > 1:
        raise InputError("metric: is released by one process alone; use one process, or leave metric out")
    if not plan.metric.asked.of_rows:
        return
    check_bound(records["x"], plan.metric.release.rows.row_bound, "the metric's guarantee")


def stand_in(plan: Plan, target: Target) -> WhitenedRows | Whitened:
    """Return the bound target in a stand-in for the metric that the run will release."""
    assert plan.metric is not None
    return in_metric(target, plan.metric.asked.of_rows or metric_of_rows(target))


def released(plan: Plan, target: Target, records: PyTree, streams: Streams, kept: Checkpoint | None) -> ReleasedMetric:
    """Release the metric of a run that has begun, and commit it; or take what was committed.

    Args:
        plan: with a metric.
        target: bound, in its own coordinates.
        records: checked.
        streams: keys of the run.
        kept: its checkpoint, or None.
    """
    assert plan.metric is not None
    assert plan.privacy is not None
    before = None if kept is None else kept.metric()
    if before is not None:
        return ReleasedMetric.of(before, json.loads(before.pop("facts").tobytes()))
    asked, release = plan.metric.asked, plan.metric.release
    key = streams.at(_CHAIN, 0).noise
    if asked.of_rows:
        noisy = release.release(np.asarray(records["x"]), key)
    else:
        noisy = release.release(gradient_rows(target, target.init(jax.random.key(0)), records), key)
        std = noisy.noise_std * math.sqrt(len(noisy.gram))
        trace = float(np.clip(np.trace(noisy.gram), std, release.rows.largest_trace))
        noisy = noisy._replace(trace=trace, trace_std=std)
    metric = ReleasedMetric(
        asked.name,
        noisy,
        num_records=plan.num_records,
        bound=release.rows.row_bound,
        clip=plan.privacy.clip,
        clip_ratio=asked.ratio,
        structure=asked.structure if asked.of_rows else None,
    )
    if kept is not None:
        facts = np.frombuffer(json.dumps(metric.facts()).encode(), np.uint8)
        kept.keep_metric({"facts": facts, **metric.arrays()})
    return metric


def run_in(run: BoundPlan, metric: ReleasedMetric, records: PyTree) -> tuple[BoundPlan, PyTree]:
    """Return a run in the units of its released metric, and its records as it takes them."""
    assert isinstance(run.target, WhitenedRows | Whitened)
    target = run.target.at(metric.root, metric.inverse)
    return run._replace(target=target, metric=metric), target.records(records)


#: A run in the units of the metric that it has released, and its records.
Given = tuple[BoundPlan, PyTree]


class Chains:
    """Work on a sampler's plan.

    Attributes:
        records: checked, float32 and int32.
        model: the plan's target, bound to their shapes.
        target: what the chains move in: the model, or the model in a metric.
    """

    records: PyTree
    model: Target
    target: Target

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._mesh: Mesh | None = None
        self._starts: PyTree = None
        self._metric_committed = False

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None, like: Work | None) -> None:
        """Refuse what :func:`dpmcmc.sample` says, and keep the records; see :class:`Work`."""
        plan = self._plan
        check_on_disk(plan, data)
        if isinstance(like, Chains) and like._plan.target is plan.target and like._plan.num_records == plan.num_records:
            self.records, self.model = like.records, like.model
        else:
            records = check_records(plan, data, host=mesh is not None)
            self.model, rows = targets.on_rows(targets.bind(plan.target, targets.record_shapes(records)), records)
            self.records = rows if like is None else like.records
        check_metric(plan, self.records, mesh)
        check_room(self.model, plan.num_draws * plan.chains)
        self._mesh, self._starts = mesh, checked_starts(plan, self.model, starts)
        self.target = self.model
        if plan.metric is not None:
            self.target = stand_in(plan, self.model)
            self.records = self.target.before(self.records)

    def bound(self, streams: Streams, secret: bool) -> BoundPlan:
        """Return the plan with these keys."""
        return BoundPlan(self._plan, self.target, streams, secret, starts=self._starts)

    def program(self) -> Program:
        """Program of the plan."""
        return Program.of(self._plan, self.target, self._mesh)

    def begin(self, session: Session) -> Given | None:
        """Spend the budget, and release the metric; returns the run in its units, or None without one."""
        kept = session.kept
        self._metric_committed = kept is not None and kept.metric() is not None
        session.begin()
        if self._plan.metric is None:
            return None
        metric = released(self._plan, self.model, self.records, session.streams, kept)
        return run_in(self.bound(session.streams, session.secret), metric, self.records)

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
        again = dataclasses.replace(plan.schedule.part(first, until), chains=chains)
        events = charged_again(plan.guarantee, again)
        if plan.metric is not None and not self._metric_committed:
            events = (*plan.metric.events, *events)
        return events, f"steps {first} to {until} taken again on another platform"


@work_of.register
def _(plan: Plan) -> Work:
    return Chains(plan)


def run_together(
    program: Program,
    runs: Sequence[BoundPlan],
    records: PyTree,
    report: Callable[[int], None] | None = None,
    kept: Checkpoint | None = None,
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
    width, done = blocks.sizes.steps, 0.0
    # Threads, for a CPU computes a call in the thread that makes it.
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(blocks.sizes.lanes, "lane") as workers:
        for start, step in blocks.left():
            abreast, steps = blocks.lanes_of(start, step), blocks.rows(start)[-1].plan.steps
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
