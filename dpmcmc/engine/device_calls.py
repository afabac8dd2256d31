"""A chunk of steps as one device call: a ``lax.scan`` over groups of steps, ``vmap`` over chains.

All randomness depends on keys and public numbers alone. So that of a group of steps is drawn side by side, in the same
call, before the steps are taken one after another: a step's random numbers cost a third of what they cost alone. Where
records are on disk they are drawn by a call of their own, for the host reads the rows of a batch (``rows_on_disk.py``).
``program.py`` says what a step is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmcmc.engine.program import Chain, DrawnRandomness, Program, of_each
from dpmcmc.engine.recorded import with_scatter
from dpmcmc.storage.pytree import PyTree, map_in_groups


class Shape(NamedTuple):
    """How a chunk is laid out.

    Attributes:
        steps: of a chunk.
        drawn: steps of a group, whose randomness is drawn together; divides the steps.
        together: chains that take a chunk side by side; divides the chains of a call (``lanes.py``).
        ahead: whether a chunk is given its randomness (``drawn_ahead.py``).
    """

    steps: int
    drawn: int
    together: int
    ahead: bool = False


class DeviceCalls:
    """Functions of a chunk, to be compiled.

    Args:
        program: of a chain.
        shape: of the chunk.
    """

    def __init__(self, program: Program, shape: Shape) -> None:
        self._program = program
        self._shape = shape
        draw_chains = jax.vmap(self._draw, in_axes=(of_each(0, None), None, None))
        self._draw_steps = jax.vmap(draw_chains, in_axes=(None, 0, 0))
        rows = 0 if program.supplied else None
        self._advance_chains = jax.vmap(self._advance, in_axes=(of_each(0, None), 0, None, None, rows, 0))

    def draw(self, chains: Chain, first: jax.Array, noise_std: jax.Array) -> DrawnRandomness:
        """Everything random of a chunk's queries, leaves (steps, chains, ...).

        Args:
            chains: the chains.
            first: first step of the chunk.
            noise_std: of each step.
        """
        inputs = (self._steps_from(first), noise_std)
        return map_in_groups(lambda its: self._draw_steps(chains, *its), inputs, self._shape.drawn)

    def chunk(
        self,
        states: PyTree,
        chains: Chain,
        first: jax.Array,
        noise_std: jax.Array,
        kept: jax.Array,
        given: PyTree,
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array]:
        """Take the steps of a chunk.

        Args:
            states: of the chains.
            chains: the chains.
            first: first step of the chunk.
            noise_std: of each step.
            kept: offsets of the steps to keep, (room,).
            given: records; or (records, what :meth:`draw` gave), where it is drawn ahead; or (rows (steps, chains,
                slots, ...), what :meth:`draw` gave), where records are on disk.

        Returns:
            (states, kept (positions, infos), leaves (room, chains, ...), whether each chain is finite, norms of the
            positions).
        """

        def take(own: tuple) -> tuple[PyTree, PyTree]:
            states, chain, start = own
            return self._take_steps(states, chains._replace(chain=chain, start=start), first, noise_std, kept, given)

        own = (states, chains.chain, chains.start)
        groups = chains.chain.shape[0] // self._shape.together
        states, output = take(own) if groups == 1 else _in_groups(take, own, groups)
        leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(states.position)]
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf), axis=1) for leaf in leaves]), axis=0)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf), axis=1) for leaf in leaves))
        return states, with_scatter(output, states), finite, norm

    def _draw(self, chain: Chain, t: jax.Array, noise_std: jax.Array) -> DrawnRandomness:
        position = jax.eval_shape(self._program.start, chain).position
        return self._program.draw(chain, position, t, noise_std)

    def _advance(
        self,
        chain: Chain,
        state: PyTree,
        t: jax.Array,
        noise_std: jax.Array,
        records: PyTree,
        drawn: DrawnRandomness,
    ) -> tuple[PyTree, PyTree]:
        records = self._program.prepared(records) if self._program.supplied else records
        return self._program.advance(chain, state, t, noise_std, records, drawn)

    def _steps_from(self, first: jax.Array) -> jax.Array:
        return first + jnp.arange(self._shape.steps, dtype=jnp.int32)

    def _take_steps(
        self,
        states: PyTree,
        chains: Chain,
        first: jax.Array,
        noise_std: jax.Array,
        kept: jax.Array,
        given: PyTree,
    ) -> tuple[PyTree, PyTree]:
        """(states after the steps, kept (positions, infos)) of chains that take them side by side."""
        supplied = self._program.supplied
        records, drawn = given if supplied or self._shape.ahead else (given, None)
        rows = records if supplied else None

        def step(states: PyTree, its: tuple) -> tuple[PyTree, PyTree]:
            (t, noise_std), drawn, rows = its
            read = rows if supplied else records
            states, info = self._advance_chains(chains, states, t, noise_std, read, drawn)
            return states, (states.position, info)

        def group(states: PyTree, its: tuple) -> tuple[PyTree, PyTree]:
            inputs, drawn, rows = its
            if drawn is None:
                drawn = self._draw_steps(chains, *inputs)
            return jax.lax.scan(step, states, (inputs, drawn, rows))

        every = ((self._steps_from(first), noise_std), drawn, rows)
        size = self._shape.drawn
        groups = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), every)
        states, output = jax.lax.scan(group, states, groups)
        steps = self._shape.steps
        return states, jax.tree.map(lambda leaf: leaf.reshape(steps, *leaf.shape[2:])[kept], output)


def _in_groups(take: Callable[[tuple], tuple[PyTree, PyTree]], own: tuple, groups: int) -> tuple[PyTree, PyTree]:
    """Do the same for one group of chains after another.

    Args:
        take: what the chains of a group have of their own, leaves (chains, ...) -> (the same, (steps, chains, ...)).
        own: of all chains.
        groups: number of groups.
    """
    split = jax.tree.map(lambda leaf: leaf.reshape(groups, -1, *leaf.shape[1:]), own)
    states, output = jax.lax.map(take, split)
    states = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), states)
    return states, jax.tree.map(
        lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], -1, *leaf.shape[3:]), output
    )
