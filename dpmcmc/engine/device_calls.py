"""Device calls of a program: groups of steps, in fewer slots where all batches fit, and none where all chains are done.

A batch has so many slots that it hardly ever overflows in a whole run, because a plan is charged for overflows. Most
batches need fewer. The steps of a group are compiled twice, for the usual room and for all slots, and the first is
taken where no record was chosen beyond it. A group that no chain has to take is left out. ``program.py`` says what a
step is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpmcmc.engine.hardware import DRAWN_STEPS, hardware
from dpmcmc.engine.program import Cells, DrawnRandomness, Inputs, Program
from dpmcmc.engine.recorded import with_scatter
from dpmcmc.privacy.query.query import (
    StepRandomness,
)
from dpmcmc.storage.pytree import (
    PyTree,
    map_in_groups,
    num_bytes,
)

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
