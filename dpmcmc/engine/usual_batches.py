"""Groups of steps on a condition: in fewer slots where all their batches fit into them, and none where all are done.

A batch has so many slots that it hardly ever overflows in a whole run, because a plan is charged for overflows. Most
batches need fewer. ``program.py`` compiles the steps of a group twice, for the usual room and for all slots, and takes
the first where no record was chosen beyond it. It leaves out a group that no chain has to take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from dpmcmc.engine.hardware import hardware
from dpmcmc.privacy.query.query import StepRandomness
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    from dpmcmc.engine.program import Cells, Program

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
    target, metric = program.target.without(), getattr(program.sampler.without(), "metric", None)
    if metric is not None or not (hasattr(target, "prepared") and hasattr(target, "clipped_gradient_sum")):
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
    program: Program, cells: Cells, t: jax.Array, take: Callable[[PyTree], tuple[PyTree, PyTree]], states: PyTree
) -> tuple[PyTree, PyTree]:
    """Return what ``take`` makes of the states, computed only where a cell has a step t or a later one to take."""
    if not hardware(program.platform).branches:
        return take(states)
    take = jax.jit(take, inline=True)  # its shapes and its branch are of one trace

    def skip(states: PyTree) -> tuple[PyTree, PyTree]:
        return states, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(take, states)[1])

    return jax.lax.cond(jnp.any(t < cells.steps), take, skip, states)
