"""Blocks of cells, laid out before a step is taken; a cell is one chain of one plan.

The cells of all runs of a program stand one after another. As many as are fastest make a block, and a block has a lane
for each core. A program is compiled once for all blocks and tested here; ``chains.py`` takes the steps.
"""

from __future__ import annotations

import contextvars
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine import sizes
from dpmcmc.engine.agreement import Kept
from dpmcmc.engine.compilation import Compiled, Executable, Options, compiled, state_shapes
from dpmcmc.engine.lanes import KeptDraws, Lane, joined, lane_schedules, split
from dpmcmc.engine.mesh import CHAIN, DATA, spread
from dpmcmc.engine.program import Cells, Program
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.engine.rows_on_disk import supply_of
from dpmcmc.engine.run_elsewhere import with_charged_again
from dpmcmc.engine.self_test import check_steps
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.planning.path import recorded_blocks
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.platforms import traced_for
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.commit import Point
from dpmcmc.storage.leaves import restored
from dpmcmc.storage.pytree import PyTree, num_bytes
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets.base import Target, target_offers
from dpmcmc.targets.whitened import Whitened, WhitenedRows


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


class Blocks:
    """Runs of one program, ready to take their steps.

    Args:
        program: of every run, with at least the slots of each.
        runs: what to run.
        records: from :func:`check_records`.
        point: last commit of the one run, or None where it begins.

    Attributes:
        point: the commit.
        traces: draws that are kept of each chain.
        sizes: how much is computed at a time.
    """

    def __init__(
        self,
        program: Program,
        runs: Sequence[BoundPlan],
        records: PyTree,
        point: Point | None,
    ) -> None:
        supplied = on_disk(records)
        self._program = dataclasses.replace(program, supplied=True) if supplied else program
        self._runs = runs
        self.point = point
        # Chains that end together stand side by side, so that none waits for another.
        numbered = (i for i, run in enumerate(runs) for _ in range(run.plan.chains))
        self._owners = sorted(numbered, key=lambda i: runs[i].plan.steps)
        self.traces = [KeptDraws(runs[i].plan) for i in self._owners]
        self._cells = _cells(self._program, runs, self._owners)
        self.sizes, ahead = self._measured(records)
        size = self.sizes
        shapes = (size.block, size.lanes, size.room, _facts((self._cells, records)))
        self._functions = compiled(self._program, size.steps, ahead, shapes)
        self._shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), records)
        self._first = self._started(0)
        self._records = records if supplied else self._prepared(records)

    def take(self, runs: Sequence[BoundPlan], records: PyTree) -> None:
        """Take other numbers than the program was compiled with, and other records, of the same shapes."""
        self._runs = runs
        self._cells = _cells(self._program, runs, self._owners)
        self._first = self._started(0)
        self._records = self._prepared(records)

    def _prepared(self, records: PyTree) -> PyTree:
        mesh = self._program.mesh
        return self._functions.prepared(records if mesh is None else spread(records, mesh, DATA))

    def _measured(self, records: PyTree) -> tuple[sizes.Sizes, bool]:
        """(sizes of the blocks and chunks, those of its checkpoint where the run goes on; whether to draw ahead)."""
        program = self._program
        shapes, drawn = state_shapes(program, self._cells)
        block = sizes.cells_at_once(program, shapes, records) if self.point is None else self.point.shape[0]
        lanes = sizes.lanes_of(block, program)
        work = block * sizes.cell_bytes(program, shapes, records)
        drawn_ahead = sizes.draws_ahead(work // lanes, lanes, program.platform, sizes.model_sums_rows(program))
        ahead = program.supplied or (program.mesh is None and drawn_ahead)
        step_bytes = num_bytes(shapes) // len(self._owners)
        if ahead:
            step_bytes += num_bytes(drawn)
        if program.supplied:
            step_bytes += program.slots * num_bytes(records) // program.num_records
        longest = self._runs[self._owners[-1]].plan.steps
        steps = sizes.chunk_steps(longest, step_bytes * block, work, program.platform)
        if self.point is not None:
            steps = self.point.shape[1]
        room = steps // min(run.plan.thin for run in self._runs) + 1
        return sizes.Sizes(block, lanes, steps, room, work), ahead

    def _started(self, start: int) -> list[tuple[Cells, PyTree]]:
        """Per lane of the block that begins at this cell: (its cells, their first states)."""
        size = self.sizes
        firsts = range(start, start + size.block, size.lane)
        lanes = [_block(self._cells, first, size.lane, self._program.mesh) for first in firsts]
        return [(cells, self._functions.start(cells)) for cells in lanes]

    def _arguments(self) -> tuple[PyTree, ...]:
        """Arguments of a lane's first chunk."""
        cells, states = self._first[0]
        noise, kept = lane_schedules(self.traces[: self.sizes.lane], self.sizes, 0)
        supply = supply_of(self._program, self._functions, self._records)
        records = self._records if supply is None else supply.shapes(cells, noise)
        return states, cells, np.int32(0), noise, kept, records

    def compiled_and_tested(self) -> Executable:
        """Executable of a chunk, which has passed its self-test where a run has a guarantee.

        Raises:
            MiscompiledError: it has not.
        """
        size = self.sizes
        options = sizes.compiler_options(
            size.work // size.lanes,
            size.lanes,
            self._program.platform,
            sizes.model_sums_rows(self._program),
        )
        with traced_for(self._program.platform):
            executable, option = _executable(self._functions, self._arguments(), options)
        guaranteed = any(run.secret and run.plan.guarantee is not None for run in self._runs)
        if guaranteed and option not in self._functions.tested:
            for at in self._unlike():
                block = _block(self._cells, at, size.lane, self._program.mesh)
                noise, _ = lane_schedules(self.traces[at : at + size.lane], size, 0)
                check_steps(
                    self._program,
                    self._functions,
                    executable,
                    block,
                    noise,
                    size.room,
                    self._shapes,
                )
            self._functions.tested.add(option)
        return executable

    def _unlike(self) -> list[int]:
        """First cell of each number of draws of integer noise, whose steps draw it apart from others'."""
        levels = [self._runs[i].plan.levels for i in self._owners]
        return [levels.index(each) for each in sorted(set(levels))]

    def lanes_of(self, start: int, first: int) -> list[Lane]:
        """Lanes of the block that begins at cell ``start``, about to take step ``first``."""
        size = self.sizes
        mesh = self._program.mesh
        begun = self._started(start) if start else self._first
        states = [state for _, state in begun]
        if first and self.point is not None and self.point.states is not None:
            states = split(restored(self.point.states, states[0]), size.lanes)
            if mesh is not None:
                states = [spread(states[0], mesh, CHAIN)]
        rows = self.rows(start)
        firsts = range(first, rows[-1].plan.steps, size.steps)
        supply = supply_of(self._program, self._functions, self._records)
        found = []
        for k, (cells, _) in enumerate(begun):
            lane = Lane(rows[k * size.lane :][: size.lane], cells, states[k], size)
            if supply is None:
                lane.supplies = itertools.repeat(self._records)
            else:
                lane.supplies = supply.chunks(cells, firsts, lane.schedules)
            found.append(lane)
        return found

    def restore(self, point: Point) -> None:
        """Give every chain the draws that its run has committed."""
        structure = jax.tree.structure(jax.eval_shape(self._functions.chunk, *self._arguments())[1])
        for trace, pieces, norm in zip(self.traces, point.pieces, point.norms, strict=True):
            trace.pieces = [jax.tree.unflatten(structure, leaves) for leaves in pieces]
            trace.norm = norm

    def rows(self, start: int) -> list[KeptDraws]:
        """Traces of the block that begins at this cell; the last is of a chain with the most steps."""
        return self.traces[start : start + self.sizes.block]

    def chains_done(self, start: int, first: int) -> float:
        """Steps of a block's chunk that begins at step ``first``, each chain's divided by the chains of its plan."""
        return sum(min(self.sizes.steps, max(row.plan.steps - first, 0)) / row.plan.chains for row in self.rows(start))

    def left(self) -> Iterator[tuple[int, int]]:
        """(first cell, next step) of each block that has steps to take, unless every run in it has diverged."""
        block = 0 if self.point is None else self.point.block
        step = 0 if self.point is None else self.point.step
        for start in range(block, len(self.traces), self.sizes.block):
            if not self.all_failed(start):
                yield start, step if start == block else 0

    def failed(self) -> set[int]:
        """Runs of which a chain has diverged."""
        return {i for i, trace in zip(self._owners, self.traces, strict=True) if trace.failure is not None}

    def all_failed(self, start: int) -> bool:
        """Whether every run of the block that begins at this cell has a chain that has diverged."""
        return self.failed().issuperset(self._owners[start : start + self.sizes.block])

    def outcomes(self, seconds: dict[str, float], kept: Kept | None) -> list[Result | DivergedError]:
        """Outcome of each run.

        Args:
            seconds: by what they went to; a run's share is that of its steps.
            kept: checkpoint of the one run, or None.
        """
        total = sum(run.plan.steps * run.plan.chains for run in self._runs)
        constrain: dict[int, Callable[[PyTree], PyTree]] = {}
        found: list[Result | DivergedError] = []
        for i, run in enumerate(self._runs):
            chains = [trace for owner, trace in zip(self._owners, self.traces, strict=True) if owner == i]
            plan = run.plan
            target = run.target
            guarantee = plan.guarantee if run.secret else None
            if guarantee is not None and kept is not None:
                guarantee = with_charged_again(guarantee, kept)
            failures = [trace.failure for trace in chains if trace.failure is not None]
            if failures:
                found.append(DivergedError(*min(failures), guarantee))
                continue
            positions, info = joined(chains)
            means = None
            if recorded_blocks(plan) is not None:
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
                # Draws in the model's own coordinates; repeats of a target share what is compiled for it.
                call = constrain.setdefault(id(target), jax.jit(jax.vmap(jax.vmap(to_own))))
                draws = jax.tree.map(np.asarray, call(positions))
            share = {name: value * plan.steps * plan.chains / total for name, value in seconds.items()}
            found.append(
                Result(
                    plan,
                    draws,
                    positions,
                    info,
                    guarantee,
                    share,
                    metric=run.metric,
                    means=means,
                )
            )
        return found


def _facts(tree: PyTree) -> tuple:
    """Structure, shapes and dtypes of a pytree: a key for what is compiled for them."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _executable(functions: Compiled, arguments: tuple, options: dict[str, str | bool]) -> tuple[Executable, Options]:
    """(executable of a chunk, by what it is kept); the program that draws ahead of it is compiled meanwhile."""
    option = tuple(sorted(options.items()))
    if option not in functions.executables:
        with ThreadPoolExecutor(1, "compile") as compiler:
            drawn = []
            if functions.ahead:
                _, cells, first, noise, *_ = arguments
                drawn.append(
                    compiler.submit(
                        contextvars.copy_context().run,
                        functions.draw,
                        cells,
                        first,
                        noise,
                    )
                )
            functions.executables[option] = functions.chunk.lower(*arguments).compile(options)
            for future in drawn:
                future.result()
    return functions.executables[option], option


def _cells(program: Program, runs: Sequence[BoundPlan], owners: Sequence[int]) -> Cells:
    """One cell per entry of ``owners``, the runs that they are chains of.

    Arranged on the host: what JAX computes outside a function of its own stays compiled as long as the process lives.
    """
    chain = np.zeros(len(owners), np.int32)
    for i, run in enumerate(runs):
        chain[np.array(owners) == i] = np.arange(run.plan.chains)
    at = np.array(owners)
    each_run = [program.numbers(run.plan, run.target) for run in runs]
    numbers = jax.tree.map(lambda *values: np.array(values)[at], *each_run)
    streams = Streams(*(_keys_at(keys, at) for keys in zip(*(run.streams for run in runs), strict=True)))
    steps = jnp.asarray(np.array([runs[i].plan.steps for i in owners], np.int32))
    start = None
    if runs[0].starts is not None:
        numbered = zip(owners, chain, strict=True)
        each = [jax.tree.map(lambda leaf, c=c: np.asarray(leaf)[c], runs[i].starts) for i, c in numbered]
        start = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *each)
    return Cells(numbers, streams, jnp.asarray(chain), steps, start)


def _keys_at(keys: Sequence[jax.Array] | jax.Array, at: np.ndarray) -> jax.Array:
    """Those of several JAX keys of one kind, or of an array of them, that are at these places."""
    each = [keys] if isinstance(keys, jax.Array) else keys
    words = np.stack([np.asarray(jax.random.key_data(key)) for key in each])
    words = words[0] if isinstance(keys, jax.Array) else words
    return jax.random.wrap_key_data(jnp.asarray(words[at]), impl=jax.random.key_impl(each[0]))


def _block(cells: Cells, start: int, size: int, mesh: Mesh | None) -> Cells:
    """Cells [start, start + size), on their devices; beyond the last one, copies of it that take no step."""
    count = len(cells.steps)
    at = np.arange(start, start + size)
    near = np.minimum(at, count - 1)
    streams = Streams(*(_keys_at(keys, near) for keys in cells.streams))
    own = cells.numbers, cells.chain, cells.steps, cells.start
    numbers, chain, steps, begin = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[near]), own)
    steps = jnp.asarray(np.where(at < count, np.asarray(steps), 0).astype(np.int32))
    block = Cells(numbers, streams, chain, steps, begin)
    return block if mesh is None else spread(block, mesh, CHAIN)
