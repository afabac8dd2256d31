"""Program of a chunk of steps: selection, query and sampler, for a block of cells, one chain of one plan each.

A chunk is one device call of a fixed number of steps: a ``lax.scan`` over groups of steps, ``vmap`` over cells. All
randomness of a group depends on keys and public numbers alone, so it is drawn side by side before its steps are taken
one after another: in the same call, or beforehand where a core is free (``rows_on_disk.py``). Noise, keys and records
are arguments, and so are numbers of the sampler, the target and C (``storage/structure.py``): others compile nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine.hardware import DATA, DRAWN_STEPS, hardware, platform_of, sizes
from dpmcmc.planning.path import recorded_blocks
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.sampling import Cyclic, Poisson, Sampling, shard_rows
from dpmcmc.privacy.query.exact_sums import traced_for
from dpmcmc.privacy.query.integer_noise import levels_of
from dpmcmc.privacy.query.metric import SecondMoment
from dpmcmc.privacy.query.query import (
    GradientQuery,
    PrivateGradient,
    StepRandomness,
    select_by,
)
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.samplers.base import Sampler, SamplerOffers, sampler_offers
from dpmcmc.storage.pytree import STATIC, PyTree, map_in_groups, num_bytes
from dpmcmc.storage.structure import Number, Structure
from dpmcmc.targets.base import Target, target_offers

# ----------------------------------------------------------------------------------------------------
# A sampler that also averages, from one kept draw to the next, the points and gradients that its steps release.
#
# It also sums how far points are from the mean of their block, for kept draws may hide how hot a path is: steps that
# overshoot alternate in sign, and every other one of them looks calm.
#
# Under a model whose gradient is linear, means with weights 1/s_t² lose nothing of what a path says
# (``inference/trace.py``). They are functions of what the sampler is given, so they are as private as its draws.
# Only runs that a posterior may be concluded from are recorded (``planning/path.py``), and no other program changes.

#: Most coordinates whose scatter is recorded; beyond them it would take memory that a run may not have.
LARGEST = 1024


class Means(NamedTuple):
    """Means of a block of steps, weighted by 1/s_t².

    Attributes:
        positions: of the points at which gradients were released.
        gradients: of the gradients.
        scatter: Σ (θ_t − mean of its block)(θ_t − mean of its block)ᵀ/s_t² over all steps of blocks that are done,
            (d, d); None where a block is one step, or d exceeds ``LARGEST``.
    """

    positions: PyTree
    gradients: PyTree
    scatter: PyTree = None

    def of_blocks(self, burn_in: int, precisions: np.ndarray) -> Means:
        """Return the means of blocks, made of those of single steps.

        Args:
            burn_in: steps before the first block.
            precisions: 1/s_t² of the steps of each block, (draws, thin).
        """
        draws, thin = precisions.shape

        def blocks(leaf: np.ndarray) -> np.ndarray:
            kept = np.asarray(leaf)[:, burn_in : burn_in + draws * thin]
            return kept.reshape(len(kept), draws, thin, -1)

        def mean(of: np.ndarray) -> np.ndarray:
            total = np.einsum("cbtd,bt->cbd", of, precisions)
            return total / precisions.sum(axis=1)[:, None]

        steps = blocks(self.positions)
        found = Means(mean(steps), mean(blocks(self.gradients)))
        if thin == 1:
            return found
        away = steps - found.positions[:, :, None]
        scatter = np.einsum("cbti,cbtj,bt->cij", away, away, precisions, optimize=True)
        return found._replace(scatter=scatter)


class RecordedState(NamedTuple):
    """A sampler's state, and what is recorded.

    Attributes:
        state: the sampler's.
        means: of its block so far.
        weight: theirs, ().
        within: scatter of its block so far, (d, d) or None.
        scatter: of the blocks that are done, (d, d) or None.
    """

    state: PyTree
    means: Means
    weight: jax.Array
    within: PyTree
    scatter: PyTree

    @property
    def position(self) -> PyTree:
        """The sampler's."""
        return self.state.position


class RecordedInfo(NamedTuple):
    """A sampler's Info, and the means of its block up to this step."""

    info: PyTree
    means: Means


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recorded(SamplerOffers):
    """A sampler whose blocks of ``thin`` steps, from ``burn_in`` on, are averaged."""

    sampler: Sampler
    burn_in: int = dataclasses.field(metadata=STATIC)
    thin: int = dataclasses.field(metadata=STATIC)

    @property
    def metric(self) -> object:
        """The sampler's."""
        return sampler_offers(self.sampler).metric

    def init(self, key: jax.Array, position: PyTree) -> RecordedState:
        """State at a starting point."""
        zeros = jax.tree.map(jnp.zeros_like, position)
        size = jnp.size(position)
        none = None if self.thin == 1 or size > LARGEST else jnp.zeros((size, size), jnp.float32)
        weight = jnp.zeros((), jnp.float32)
        return RecordedState(self.sampler.init(key, position), Means(zeros, zeros), weight, none, none)

    def step(
        self,
        key: jax.Array,
        state: RecordedState,
        gradient: PrivateGradient,
        t: jax.Array,
    ) -> tuple[RecordedState, RecordedInfo]:
        """The sampler's step; a block starts from nothing."""
        following, info = self.sampler.step(key, state.state, gradient, t)
        more = gradient.noise_std.astype(jnp.float32) ** -2
        begins = (t - self.burn_in) % self.thin == 0
        before = jnp.where(begins, 0.0, state.weight)
        weight = more + before
        share = more / weight
        now = Means(state.position, gradient.value)
        means = jax.tree.map(lambda mean, new: mean + share * (new - mean), state.means, now)
        within = state.within
        scatter = state.scatter
        if within is not None:
            away = state.position - state.means.positions
            within = jnp.where(begins, 0.0, within) + before * share * jnp.outer(away, away)
            done = (t >= self.burn_in) & ((t + 1 - self.burn_in) % self.thin == 0)
            scatter = scatter + jnp.where(done, within, 0.0)
        return RecordedState(following, means, weight, within, scatter), RecordedInfo(info, means)


def recorded(plan: Plan) -> Sampler | Recorded:
    """Return a plan's sampler, recorded where a posterior may be concluded from the path."""
    blocks = recorded_blocks(plan)
    return plan.sampler if blocks is None else Recorded(plan.sampler, *blocks)


def going_on(goes: jax.Array, following: PyTree, state: PyTree) -> PyTree:
    """Return the state after a step; position and scatter, which are read at the end, stay where the cell is done.

    Other leaves, such as a sampler's matrices, would be copied in every step for nothing. A state that computes its
    position stays as a whole: steps that are not charged must not decide whether a chain has diverged.
    """
    read = (following.position, following.scatter) if isinstance(following, RecordedState) else following.position
    ends = {id(leaf) for leaf in jax.tree.leaves(read)}
    apart = ends <= {id(leaf) for leaf in jax.tree.leaves(following)}

    def of(new: jax.Array, old: jax.Array) -> jax.Array:
        return new if apart and id(new) not in ends else jnp.where(goes, new, old)

    return jax.tree.map(of, following, state)


def with_scatter(output: PyTree, states: PyTree) -> PyTree:
    """Return what is kept of a chunk, (positions, info), with the scatter in the states after it, (1, cells, d, d).

    The last chunk with a draw has the scatter of all blocks, for a block is done where a draw is kept.
    """
    if not isinstance(states, RecordedState) or states.scatter is None:
        return output
    positions, info = output
    return positions, info._replace(means=info.means._replace(scatter=states.scatter[None]))


# ----------------------------------------------------------------------------------------------------
# Groups of steps on a condition: in fewer slots where all their batches fit into them, and none where all are done.
#
# A batch has so many slots that it hardly ever overflows in a whole run, because a plan is charged for overflows. Most
# batches need fewer. ``program.py`` compiles the steps of a group twice, for the usual room and for all slots, and
# takes the first where no record was chosen beyond it. It leaves out a group that no chain has to take.

#: Share of groups of steps that have a batch larger than the usual room.
RARE = 0.02


def slots(program: Program, draws: StepRandomness) -> int | None:
    """Slots that the batches of a group fit into 49 times in 50; None where they are no fewer, or not worth it.

    The slots drawn are hardly ever needed: what truncates a batch is charged, so it has to be rare over the whole run.
    """
    mask = draws.batch[1] if hardware(program.platform).branches else None
    # Steps are compiled twice for it, which only those of a linear model are worth; shards, each with a batch of its
    # own, would have to go the same way; and rows from the disk come with all their slots.
    if mask is None or draws.second_batch is not None or program.mesh is not None or program.supplied:
        return None
    target = program.target.without()
    if program.sampler.without().metric is not None or target.prepared is None or target.clipped_gradient_sum is None:
        return None
    short, _ = program.sampling.capacity(program.num_records, RARE / (mask.size // mask.shape[-1]))
    return short if short < mask.shape[-1] else None


def split(draws: StepRandomness, room: int) -> tuple[StepRandomness, jax.Array]:
    """(draws with so many slots of every batch, whether a record is chosen beyond them)."""
    indices, mask = draws.batch
    assert indices is not None
    assert mask is not None
    within = (indices[..., :room], mask[..., :room])
    return draws._replace(batch=within), jnp.any(mask[..., room:])


def unless_done(
    program: Program,
    cells: Cells,
    t: jax.Array,
    take: Callable[[PyTree], tuple[PyTree, PyTree]],
    states: PyTree,
) -> tuple[PyTree, PyTree]:
    """Return what ``take`` makes of the states, computed only where a cell has a step t or a later one to take."""
    if not hardware(program.platform).branches:
        return take(states)
    take = jax.jit(take, inline=True)  # its shapes and its branch are of one trace

    def skip(states: PyTree) -> tuple[PyTree, PyTree]:
        return states, jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
            jax.eval_shape(take, states)[1],
        )

    return jax.lax.cond(jnp.any(t < cells.steps), take, skip, states)


# ----------------------------------------------------------------------------------------------------
# Functions of one cell of a program, each traced once for all its uses; tracing is most of what a start costs.


class Traced:
    """Functions of a program.

    Attributes:
        start: of a cell.
        draw: of (cell, step, std of its noise).
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.start = jax.jit(program.start, inline=True)
        self.draw = jax.jit(self._draw)

    def _draw(self, cell: Cells, t: jax.Array, noise_std: jax.Array) -> DrawnRandomness:
        with traced_for(self._program.platform):
            return self._program.draw(cell, jax.eval_shape(self.start, cell).position, t, noise_std)

    def drawn(self, cells: Cells) -> DrawnRandomness:
        """Shapes of the randomness of one step of one of these cells."""
        cell = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), cells)
        return jax.eval_shape(self.draw, cell, np.int32(0), np.float32(0))


#: Randomness of queries, and the keys of the sampler's own.
DrawnRandomness = tuple[StepRandomness, jax.Array]
#: Numbers of steps, and the noise of each cell in them.
Inputs = tuple[jax.Array, jax.Array]


class Cells(NamedTuple):
    """Numbers that the device is given about one chain of one plan, or, with a leading axis, about several."""

    numbers: dict[str, Any]
    streams: Streams
    chain: jax.Array
    steps: jax.Array
    start: PyTree = None


@dataclass(frozen=True)
class Program:
    """Compiled program of a cell. Runs with equal programs share one, whatever their noise, keys and open numbers.

    Attributes:
        target, sampler: without their numbers.
        sampling, num_records, batch_size, slots: which records a step reads, and into how many places: at least those
            that the plan was charged for.
        clip: C where it is compiled in, open where it is an argument, or None without privacy.
        bits: grid exponents of the gradient's sum and the second moment's.
        second: what is released beside the gradient.
        levels: draws per coordinate of integer noise on each, all that its runs have; 0 without privacy.
        label_blind: whether gradients are weighted before they are clipped.
        coordinates: numbers with integer noise that a step is charged for, or None.
        mesh: devices that share the work, or None for one.
        supplied: whether a chunk is given the rows of each batch, which the host has read (``rows_on_disk.py``).
        platform: of the device that it is compiled for.
    """

    target: Structure
    sampler: Structure
    sampling: Sampling
    num_records: int
    batch_size: float
    slots: int
    clip: float | Literal["open"] | None
    bits: tuple[int, int]
    second: SecondMoment | None
    levels: tuple[tuple[int, ...], ...]
    label_blind: bool
    coordinates: int | None = None
    mesh: Mesh | None = None
    supplied: bool = False
    platform: str = "cpu"

    @classmethod
    def of(
        cls,
        plan: Plan,
        target: Target | None = None,
        mesh: Mesh | None = None,
        open_numbers: bool = True,
    ) -> Program:
        """The program of a plan.

        Args:
            plan: what to run.
            target: what the chains move in; None: the plan's own.
            mesh: devices that share the work, or None for one.
            open_numbers: whether numbers are arguments; False compiles them in.
        """
        structure = Structure.of(target_offers(plan.target if target is None else target), open_numbers)
        # A sum of a class that JAX does not know may want C as a Python number.
        own_sum = structure.whole and structure.without().clipped_gradient_sum is not None
        clip: float | Literal["open"] | None = None
        if plan.privacy is not None:
            clip = "open" if open_numbers and not own_sum else plan.privacy.clip
        return cls(
            target=structure,
            sampler=Structure.of(sampler_offers(recorded(plan)), open_numbers),
            sampling=plan.sampling,
            num_records=plan.num_records,
            batch_size=plan.batch_size,
            slots=_slots(plan),
            clip=clip,
            bits=(plan.bits, plan.second_bits),
            second=plan.second,
            levels=tuple((n,) for n in plan.levels),
            label_blind=plan.label_blind,
            coordinates=plan.coordinates,
            mesh=mesh,
            platform=platform_of(mesh),
        )

    def numbers(self, plan: Plan, target: Target) -> dict[str, Any]:
        """Numbers of a plan that the program takes as arguments, by whose they are."""
        query: dict[str, Number] = {}
        if self.clip == "open":
            assert plan.privacy is not None
            query["clip"] = np.float32(plan.privacy.clip)
        if any(len(among) > 1 for among in self.levels):
            query["levels"] = np.array(plan.levels, np.int32)
        return {
            "target": self.target.numbers(target),
            "sampler": self.sampler.numbers(recorded(plan)),
            "query": query,
        }

    def start(self, cell: Cells) -> PyTree:
        """A cell's first state; depends on its keys, and on its start where it has one."""
        key, dynamics = jax.random.split(cell.streams.at(cell.chain, 0).init)
        position = cell.start
        if position is None:
            position = self.target.fill(cell.numbers.get("target", ())).init(key)
        return self.sampler.fill(cell.numbers.get("sampler", ())).init(dynamics, position)

    @functools.cached_property
    def traced(self) -> Traced:
        """Functions of a cell, traced once."""
        return Traced(self)

    def query(self, cell: Cells) -> GradientQuery:
        """A cell's access to the records, or on a mesh to a shard of them."""
        shards = sizes(self.mesh)[1]
        return GradientQuery(
            self.target.fill(cell.numbers.get("target", ())),
            self.num_records,
            self.batch_size,
            cell.numbers["query"]["clip"] if self.clip == "open" else self.clip,
            select_by(self.sampling, self.num_records, self.slots, shards, DATA),
            self.bits[0],
            second=self.second,
            second_bits=self.bits[1],
            metric=self.sampler.fill(cell.numbers.get("sampler", ())).metric,
            levels=levels_of(self.levels, cell.numbers.get("query", {}).get("levels")),
            coordinates=self.coordinates,
            rows=shard_rows(self.num_records, shards),
            axis=None if shards == 1 else DATA,
            label_blind=self.label_blind,
            phi=self.sampling.phi,
        )

    def prepared(self, records: PyTree) -> PyTree:
        """Records with what the target computes of each of them alone, whatever the numbers that are open."""
        prepare = self.target.without().prepared
        return records if prepare is None else prepare(records)

    def draw(self, cell: Cells, like: PyTree, t: jax.Array, noise_std: jax.Array) -> DrawnRandomness:
        """(what is random in the query of step t, key of the sampler's own); ``like`` has the position's shapes."""
        keys = cell.streams.at(cell.chain, t)
        # Before the first step is one more, whose noise a part of is taken back too.
        before = cell.streams.at(cell.chain, t - 1).noise if self.sampling.phi else None
        batch = t if isinstance(self.sampling, Cyclic) else keys.batch
        return self.query(cell).draw(like, batch, keys.noise, noise_std, before), keys.dynamics

    def advance(
        self,
        cell: Cells,
        state: PyTree,
        t: jax.Array,
        noise_std: jax.Array,
        records: PyTree,
        drawn: DrawnRandomness,
    ) -> tuple[PyTree, PyTree]:
        """(state after step t, info); what is read at the end stays as it was where the cell has done all its steps."""
        draws, key = drawn
        gradient = self.query(cell).answer(state.position, records, draws, noise_std, t)
        following, info = self.sampler.fill(cell.numbers.get("sampler", ())).step(key, state, gradient, t)
        return going_on(t < cell.steps, following, state), info

    def step(
        self,
        cell: Cells,
        state: PyTree,
        t: jax.Array,
        noise_std: jax.Array,
        records: PyTree,
    ) -> tuple[PyTree, PyTree]:
        """One step alone, drawn and taken."""
        return self.advance(
            cell,
            state,
            t,
            noise_std,
            records,
            self.draw(cell, state.position, t, noise_std),
        )


def rung(size: int, octave: int) -> int:
    """Return the least size of a ladder that is no smaller, of so many sizes (a power of two) from one to its double.

    Sizes below ``octave`` are all on the ladder.
    """
    grain = 1 << max(size.bit_length() - octave.bit_length(), 0)
    return size + -size % grain


def _slots(plan: Plan) -> int:
    """Slots of a batch, in few sizes, so that plans with other ε or steps share a program.

    A batch outgrows more slots more seldom than the plan is charged for.
    """
    if not isinstance(plan.sampling, Poisson):
        return plan.slots
    size = rung(plan.slots, 8)
    return size if size < plan.num_records else plan.slots


class DeviceCalls:
    """Functions traced for chunks of ``width`` steps, given their randomness if that is drawn ahead."""

    def __init__(self, program: Program, width: int, ahead: bool) -> None:
        self._program = program
        self._width = width
        self._ahead = ahead
        draw_cells = jax.vmap(program.traced.draw, in_axes=(0, None, 0))
        self._draw_steps = jax.vmap(draw_cells, in_axes=(None, 0, 0))
        rows = 0 if program.supplied else None
        self._advance_cells = jax.vmap(self._advance_cell, in_axes=(0, 0, None, 0, rows, 0))

    def draw(self, cells: Cells, first: jax.Array, noise_std: jax.Array) -> DrawnRandomness:
        """Everything random of a chunk's queries, drawn for a group of steps at a time."""
        inputs = (self._steps_from(first), noise_std.T)
        return map_in_groups(lambda its: self._draw_steps(cells, *its), inputs, self._group_steps(cells))

    def chunk(
        self,
        states: PyTree,
        cells: Cells,
        first: jax.Array,
        noise_std: jax.Array,
        kept: jax.Array,
        records: PyTree,
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array]:
        """The steps of a chunk, and what is kept of them; shapes are those of ``compilation.Compiled.chunk``."""
        states, output = self._take_steps(states, cells, (self._steps_from(first), noise_std.T), records)
        leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(states.position)]
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf), axis=1) for leaf in leaves]), axis=0)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf), axis=1) for leaf in leaves))
        at = jnp.arange(kept.shape[0])
        output = jax.tree.map(lambda leaf: leaf[kept.T, at], output)
        return states, with_scatter(output, states), finite, norm

    def _advance_cell(
        self,
        cell: Cells,
        state: PyTree,
        t: jax.Array,
        noise_std: jax.Array,
        rows: PyTree,
        drawn: DrawnRandomness,
    ) -> tuple[PyTree, PyTree]:
        records = self._program.prepared(rows) if self._program.supplied else rows
        return self._program.advance(cell, state, t, noise_std, records, drawn)

    def _steps_from(self, first: jax.Array) -> jax.Array:
        return first + jnp.arange(self._width, dtype=jnp.int32)

    def _take_steps(self, states: PyTree, cells: Cells, inputs: Inputs, records: PyTree) -> tuple[PyTree, PyTree]:
        """(states after the steps, (position, info) after each), a group of steps at a time."""
        given, drawn = records if self._ahead else (records, None)
        rows, records = (given, None) if self._program.supplied else (None, given)

        def group(states: PyTree, its: tuple) -> tuple[PyTree, PyTree]:
            inputs, drawn, rows = its
            take = functools.partial(self._take_group, cells=cells, inputs=inputs, drawn=drawn, rows=rows)
            take = functools.partial(take, records=records)
            return unless_done(self._program, cells, inputs[0][0], take, states)

        size = self._group_steps(cells)
        groups = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), (inputs, drawn, rows))
        states, output = jax.lax.scan(group, states, groups)
        return states, jax.tree.map(lambda leaf: leaf.reshape(self._width, *leaf.shape[2:]), output)

    def _take_group(
        self,
        states: PyTree,
        cells: Cells,
        inputs: Inputs,
        drawn: DrawnRandomness | None,
        rows: PyTree,
        records: PyTree,
    ) -> tuple[PyTree, PyTree]:
        """A group of steps, drawn unless it has been, in fewer slots where all its batches fit into them."""
        draws, keys = self._draw_steps(cells, *inputs) if drawn is None else drawn

        def taken(draws: StepRandomness) -> Callable[[PyTree], tuple[PyTree, PyTree]]:
            return lambda states: self._scan(states, cells, (*inputs, (draws, keys), rows), records)

        short = slots(self._program, draws)
        if short is None:
            return taken(draws)(states)
        within, beyond = split(draws, short)
        return jax.lax.cond(beyond, taken(draws), taken(within), states)

    def _scan(self, states: PyTree, cells: Cells, steps: tuple, records: PyTree) -> tuple[PyTree, PyTree]:
        """Steps one after another, whose randomness has been drawn."""

        def body(states: PyTree, step: tuple) -> tuple[PyTree, PyTree]:
            t, noise_std, drawn, rows = step
            given = rows if self._program.supplied else records
            states, info = self._advance_cells(cells, states, t, noise_std, given, drawn)
            return states, (states.position, info)

        return jax.lax.scan(body, states, steps)

    def _group_steps(self, cells: Cells) -> int:
        """Steps of a group: whole groups of a chunk, whose randomness suits the device.

        Side by side, one step's random numbers cost a third of what they cost alone.
        """
        step_bytes = cells.chain.shape[0] * num_bytes(self._program.traced.drawn(cells))
        most = max(
            1,
            min(DRAWN_STEPS, hardware(self._program.platform).drawn // max(step_bytes, 1)),
        )
        return max(size for size in range(1, most + 1) if self._width % size == 0)
