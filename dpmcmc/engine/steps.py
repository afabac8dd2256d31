"""Steps of a run's chains: compiled and tested before the budget is spent, then taken chunk by chunk.

The program is compiled from shapes alone. ``chains.py`` says what is run, ``device_calls.py`` what a chunk is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.engine import lanes as lane_calls
from dpmcmc.engine import sizes
from dpmcmc.engine.commits import Commits
from dpmcmc.engine.compilation import compiled
from dpmcmc.engine.device_calls import Shape
from dpmcmc.engine.drawn_ahead import DrawnAhead
from dpmcmc.engine.kept_draws import KeptDraws
from dpmcmc.engine.lanes import Lane, layout_of
from dpmcmc.engine.mesh import CHAIN, DATA, spread
from dpmcmc.engine.program import Chain, Program, placed
from dpmcmc.engine.rows_on_disk import Supply
from dpmcmc.engine.self_test import check_steps
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.platforms import traced_for
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.commit import Point
from dpmcmc.storage.leaves import restored
from dpmcmc.storage.pytree import PyTree, num_bytes
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets.base import Target


class BoundPlan(NamedTuple):
    """A plan about to run.

    Attributes:
        plan: what to run.
        target: its target, bound to the records' shapes.
        streams: its keys.
        secret: whether they are, so that it carries its guarantee.
        starts: of its chains, leaves (chains, ...), or None for the target's own.
        metric: that the run has released, which the target is whitened by; None before that, or without one.
    """

    plan: Plan
    target: Target
    streams: Streams
    secret: bool
    starts: PyTree = None
    metric: ReleasedMetric | None = None


class Steps:
    """Steps of a run, compiled for its shapes.

    Args:
        program: of the run.
        run: what to run, with numbers and starts that stand for those that it releases first.
        records: from :func:`check_records`; their shapes are looked at.
        point: last commit of the run, or None where it begins.

    Attributes:
        point: the commit.
        shape: of a chunk.
        layout: of the chains.
    """

    def __init__(self, program: Program, run: BoundPlan, records: PyTree, point: Point | None) -> None:
        self._program = dataclasses.replace(program, supplied=on_disk(records))
        self._run = run
        self._shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), records)
        self.point = point
        position = jax.eval_shape(run.target.init, jax.random.key(0))
        each = sizes.chain_bytes(self._program, position, self._shapes)
        self.layout = layout_of(self._program, run.plan.chains, each, None if point is None else point.shape[0])
        work = each * self.layout.places // self.layout.lanes
        on_lanes = work, self.layout.lanes, program.platform, sizes.model_sums_rows(self._program)
        self._options = sizes.compiler_options(*on_lanes)
        alone = program.mesh is None and not self._program.supplied and self.layout.together == self.layout.chains
        self.shape = self._shape_of(position, each, alone and sizes.draws_ahead(*on_lanes))
        self._room = self.shape.steps // run.plan.thin + 1
        self._chains = self._chains_of(0)
        facts = (self.layout, self._room, tuple(self._options.items()), _facts((self._chains, records)))
        self._functions = compiled(self._program, self.shape, facts)

    def _shape_of(self, position: PyTree, each: int, ahead: bool) -> Shape:
        program, plan, places = self._program, self._run.plan, self.layout.places
        left = num_bytes(position)
        random = sizes.random_bytes(program, position)
        if program.supplied or ahead:
            left += random
        if program.supplied:
            left += program.slots * num_bytes(self._shapes) // program.num_records
        width = sizes.chunk_steps(plan.steps, left * places, each * places)
        if self.point is not None:
            width = self.point.shape[1]
        together = self.layout.together
        return Shape(width, sizes.drawn_steps(width, random * together, program.platform), together, ahead)

    def _chains_of(self, lane: int) -> Chain:
        """Chains of a lane, on their devices; beyond the last one, copies of it."""
        run = self._run
        size = self.layout.chains
        at = np.minimum(np.arange(lane * size, (lane + 1) * size, dtype=np.int32), run.plan.chains - 1)
        numbers = self._program.numbers(run.plan, run.target)
        starts = jax.tree.map(lambda leaf: np.asarray(leaf)[at], run.starts)
        return placed(Chain(numbers, run.streams, np.int32(run.plan.steps), at, starts), self._program.mesh)

    def compiled_and_tested(self) -> jax.stages.Compiled:
        """Executable of a chunk, which has passed its self-test where the run has a guarantee.

        Raises:
            MiscompiledError: it has not.
        """
        functions = self._functions
        with traced_for(self._program.platform):
            executable = functions.compile_chunk(self.arguments(), self._options)
            if self.shape.ahead:
                functions.compile_draw(self._chains, np.int32(0), self._schedule(0)[0])
        if self._run.secret and self._run.plan.guarantee is not None and not functions.tested:
            noise, _ = self._schedule(0)
            check_steps(self._program, functions, executable, self._chains, noise, self._room, self._shapes)
            functions.tested = True
        return executable

    def arguments(self) -> tuple[PyTree, ...]:
        """Arguments of a lane's first chunk, as arrays or shapes."""
        functions = self._functions
        states = jax.eval_shape(functions.start, self._chains)
        noise, kept = self._schedule(0)
        if self._program.supplied:
            given = Supply(self._shapes, functions.draw, self._program.mesh).shapes(self._chains, noise)
        else:
            given = jax.eval_shape(functions.prepared, self._padded(self._shapes))
        if self.shape.ahead:
            given = given, jax.eval_shape(functions.draw, self._chains, np.int32(0), noise)
        return states, self._chains, np.int32(0), noise, kept, given

    def _padded(self, shapes: PyTree) -> PyTree:
        """Shapes of records that a mesh shares out."""
        mesh = self._program.mesh
        devices = 1 if mesh is None else mesh.shape[DATA]
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0] + -leaf.shape[0] % devices, *leaf.shape[1:]), leaf.dtype),
            shapes,
        )

    def take(
        self,
        executable: jax.stages.Compiled,
        run: BoundPlan,
        records: PyTree,
        commits: Commits,
        report: Callable[[int], None] | None,
    ) -> KeptDraws:
        """Take the steps that are left; return what is kept, or how a chain diverged.

        Args:
            executable: from :meth:`compiled_and_tested`.
            run: what to run, of the shapes of the one that was compiled for.
            records: of it.
            commits: of the run.
            report: called with the steps done, or None.
        """
        self._run = run
        draws = KeptDraws(run.plan)
        first = 0
        if self.point is not None:
            structure = jax.tree.structure(jax.eval_shape(self._functions.chunk, *self.arguments())[1])
            draws.pieces = [jax.tree.unflatten(structure, leaves) for leaves in self.point.pieces]
            draws.norms = np.array(self.point.norms)
            first = run.plan.steps if self.point.complete else self.point.step
        width = self.shape.steps
        waiting: tuple[int, list[tuple]] | None = None

        def handed_out(chunk: tuple[int, list[tuple]]) -> None:
            draws.add(chunk[0], width, chunk[1])
            if report is not None:
                report(min(chunk[0] + width, run.plan.steps))

        # A thread of each lane takes its steps, and one draws ahead.
        with ThreadPoolExecutor(2 * self.layout.lanes, "lane") as workers:
            lanes = self._lanes(records, workers)
            for at in range(first, run.plan.steps, width):
                outputs = lane_calls.take_chunk(workers, executable, lanes, at, *self._schedule(at))
                if waiting is not None:
                    handed_out(waiting)
                waiting = (at, outputs)
                if commits.kept is not None:  # a commit is of the states after its chunk
                    handed_out(waiting)
                    waiting = None
                if draws.failure is not None:
                    break
                commits.commit([lane.states for lane in lanes], at + width, draws)
        if waiting is not None and draws.failure is None:
            handed_out(waiting)
        return draws

    def _given(self, records: PyTree, workers: Executor) -> Callable[[Chain, int, np.ndarray], PyTree]:
        """Return what gives a chunk of a lane its records, by first step and noise; ``records`` are prepared."""
        if self._program.supplied:
            return Supply(records, self._functions.draw, self._program.mesh).read
        if self.shape.ahead:
            assert self._functions.drawing is not None
            return DrawnAhead(records, self._functions.drawing, self._noise_from, self.shape.steps, workers).read
        return lambda *_: records

    def _noise_from(self, first: int) -> np.ndarray | None:
        """Noise of each step of the chunk that begins there; None beyond the last one."""
        return self._schedule(first)[0] if first < self._run.plan.steps else None

    def _lanes(self, records: PyTree, workers: Executor) -> list[Lane]:
        """Lanes of the chains, where the run begins or goes on."""
        mesh = self._program.mesh
        size = self.layout.chains
        if not self._program.supplied:
            records = self._functions.prepared(records if mesh is None else spread(records, mesh, DATA))
        found = []
        for k in range(self.layout.lanes):
            given = self._given(records, workers)
            chains = self._chains_of(k)
            states = self._functions.start(chains)
            if self.point is not None and self.point.states is not None:
                states = restored([leaf[k * size : (k + 1) * size] for leaf in self.point.states], states)
                states = states if mesh is None else spread(states, mesh, CHAIN)
            found.append(Lane(chains, states, given))
        return found

    def _schedule(self, first: int) -> tuple[np.ndarray, np.ndarray]:
        """(noise of each step of the chunk that begins there, offsets of the steps to keep)."""
        plan = self._run.plan
        width = self.shape.steps
        # A chain that has done its steps does not move, whatever the noise.
        at = np.minimum(np.arange(first, first + width), len(plan.noise_std) - 1)
        kept = np.zeros(self._room, np.int32)
        own = KeptDraws(plan).offsets(first, width)
        kept[: len(own)] = own
        return plan.noise_std[at].astype(np.float32), kept


def _facts(tree: PyTree) -> tuple:
    """Structure, shapes and dtypes of a pytree: a key for what is compiled for them."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((leaf.shape, str(leaf.dtype)) for leaf in leaves)
