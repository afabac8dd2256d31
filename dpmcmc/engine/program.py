"""Program of a chunk of steps: selection, query and sampler, for a block of cells, one chain of one plan each.

A chunk is one device call of a fixed number of steps: a ``lax.scan`` over groups of steps, ``vmap`` over cells. All
randomness of a group depends on keys and public numbers alone, so it is drawn side by side before its steps are taken
one after another: in the same call, or beforehand where a core is free (``rows_on_disk.py``). Noise, keys and records
are arguments, and so are numbers of the sampler, the target and C (``storage/structure.py``): others compile nothing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine.hardware import platform_of
from dpmcmc.engine.mesh import DATA, sizes
from dpmcmc.engine.recorded import going_on, recorded
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.sampling import Poisson, Sampling, shard_rows
from dpmcmc.privacy.query.integer_noise import levels_of
from dpmcmc.privacy.query.platforms import traced_for
from dpmcmc.privacy.query.query import GradientQuery, StepRandomness, select_by
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.samplers.base import sampler_offers
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.structure import Number, Structure
from dpmcmc.targets.base import Target, target_offers


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
        )

    def prepared(self, records: PyTree) -> PyTree:
        """Records with what the target computes of each of them alone, whatever the numbers that are open."""
        prepare = self.target.without().prepared
        return records if prepare is None else prepare(records)

    def draw(self, cell: Cells, like: PyTree, t: jax.Array, noise_std: jax.Array) -> DrawnRandomness:
        """(what is random in the query of step t, key of the sampler's own); ``like`` has the position's shapes."""
        keys = cell.streams.at(cell.chain, t)
        return self.query(cell).draw(like, keys.batch, keys.noise, noise_std), keys.dynamics

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
