"""Program of one chain of a plan: how a step selects records, asks the query and moves the sampler.

Noise, keys and records are arguments, and so are numbers of the sampler, the target and C (``storage/structure.py``).
So plans that differ in these alone have equal programs, and share what is compiled (``compilation.py``).
``device_calls.py`` takes steps of many chains in one call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine.mesh import CHAIN, DATA, on_every_device, platform_of, sizes, spread
from dpmcmc.engine.recorded import going_on, recorded
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.sampling import Poisson, Sampling, shard_rows
from dpmcmc.privacy.query.query import GradientQuery, StepRandomness, select_by
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.samplers.base import sampler_offers
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.structure import Number, Structure
from dpmcmc.targets.base import Target, target_offers

#: Randomness of queries, and the keys of the sampler's own.
DrawnRandomness = tuple[StepRandomness, jax.Array]


class Chain(NamedTuple):
    """Arguments of the device for one chain, or for several of a run.

    Attributes:
        numbers: of the plan that are arguments, by whose they are.
        streams: keys of the run.
        steps: of the run.
        chain: number of the chain; with a leading axis of several.
        start: where it starts, or None for the target's own; likewise.
    """

    numbers: dict[str, Any]
    streams: Streams
    steps: Any
    chain: Any
    start: PyTree = None


def placed(chains: Chain, mesh: Mesh | None) -> Chain:
    """Return chains of NumPy arrays and keys as their devices have them."""
    own = (chains.chain, chains.start)
    common = (chains.numbers, chains.streams, chains.steps)
    if mesh is None:
        own, common = jax.tree.map(jnp.asarray, (own, common))
    else:
        own, common = spread(own, mesh, CHAIN), on_every_device(common, mesh)
    return Chain(*common, *own)


def of_each(own: Any, common: Any) -> Any:
    """Return a :class:`Chain` that says ``own`` of what each chain has of its own, and ``common`` of the rest."""
    return Chain(numbers=common, streams=common, steps=common, chain=own, start=own)


@dataclass(frozen=True)
class Program:
    """Program of a chain. Runs with equal programs share what is compiled, whatever their noise, keys and open numbers.

    Attributes:
        target, sampler: without their numbers.
        sampling, num_records, batch_size, slots: which records a step reads, and into how many places: at least those
            that the plan was charged for.
        clip: C where it is compiled in, open where it is an argument, or None without privacy.
        bits: grid exponents of the gradient's sum and the second moment's.
        second: what is released beside the gradient.
        levels: draws per coordinate of integer noise on each; 0 without privacy.
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
    levels: tuple[int, ...]
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
            bits=(plan.noise.bits, plan.noise.second_bits),
            second=plan.sampler_run.second,
            levels=plan.noise.levels,
            label_blind=plan.label_blind,
            coordinates=plan.noise.coordinates,
            mesh=mesh,
            platform=platform_of(mesh),
        )

    def numbers(self, plan: Plan, target: Target) -> dict[str, Any]:
        """Numbers of a plan that the program takes as arguments, by whose they are."""
        query: dict[str, Number] = {}
        if self.clip == "open":
            assert plan.privacy is not None
            query["clip"] = np.float32(plan.privacy.clip)
        return {
            "target": self.target.numbers(target),
            "sampler": self.sampler.numbers(recorded(plan)),
            "query": query,
        }

    def start(self, chain: Chain) -> PyTree:
        """A chain's first state; depends on its keys, and on its start where it has one."""
        key, dynamics = jax.random.split(chain.streams.at(chain.chain, 0).init)
        position = chain.start
        if position is None:
            position = self.target.fill(chain.numbers.get("target", ())).init(key)
        return self.sampler.fill(chain.numbers.get("sampler", ())).init(dynamics, position)

    def query(self, chain: Chain) -> GradientQuery:
        """A chain's access to the records, or on a mesh to a shard of them."""
        shards = sizes(self.mesh)[1]
        return GradientQuery(
            self.target.fill(chain.numbers.get("target", ())),
            self.num_records,
            self.batch_size,
            chain.numbers["query"]["clip"] if self.clip == "open" else self.clip,
            select_by(self.sampling, self.num_records, self.slots, shards, DATA),
            self.bits[0],
            second=self.second,
            second_bits=self.bits[1],
            metric=self.sampler.fill(chain.numbers.get("sampler", ())).metric,
            levels=self.levels,
            coordinates=self.coordinates,
            rows=shard_rows(self.num_records, shards),
            axis=None if shards == 1 else DATA,
            label_blind=self.label_blind,
        )

    def prepared(self, records: PyTree) -> PyTree:
        """Records with what the target computes of each of them alone, whatever the numbers that are open."""
        prepare = self.target.without().prepared
        return records if prepare is None else prepare(records)

    def draw(self, chain: Chain, like: PyTree, t: jax.Array, noise_std: jax.Array) -> DrawnRandomness:
        """(what is random in the query of step t, key of the sampler's own); ``like`` has the position's shapes."""
        keys = chain.streams.at(chain.chain, t)
        return self.query(chain).draw(like, keys.batch, keys.noise, noise_std), keys.dynamics

    def advance(
        self,
        chain: Chain,
        state: PyTree,
        t: jax.Array,
        noise_std: jax.Array,
        records: PyTree,
        drawn: DrawnRandomness,
    ) -> tuple[PyTree, PyTree]:
        """(state after step t, info); what is read at the end stays where the chain has done all its steps."""
        draws, key = drawn
        gradient = self.query(chain).answer(state.position, records, draws, noise_std, t)
        following, info = self.sampler.fill(chain.numbers.get("sampler", ())).step(key, state, gradient, t)
        return going_on(t < chain.steps, following, state), info

    def step(
        self,
        chain: Chain,
        state: PyTree,
        t: jax.Array,
        noise_std: jax.Array,
        records: PyTree,
    ) -> tuple[PyTree, PyTree]:
        """One step alone, drawn and taken."""
        return self.advance(
            chain,
            state,
            t,
            noise_std,
            records,
            self.draw(chain, state.position, t, noise_std),
        )


def rung(size: int) -> int:
    """Return the least size of a ladder that is no smaller; it has eight sizes from one power of two to the next."""
    grain = 1 << max(size.bit_length() - 4, 0)
    return size + -size % grain


def _slots(plan: Plan) -> int:
    """Slots of a batch, in few sizes, so that plans with other ε or steps share a program.

    A batch outgrows more slots more seldom than the plan is charged for.
    """
    if not isinstance(plan.sampling, Poisson):
        return plan.noise.slots
    size = rung(plan.noise.slots)
    return size if size < plan.num_records else plan.noise.slots
