"""Steps in fewer slots, where all batches of a group of steps fit into them.

A batch has so many slots that it hardly ever overflows in a whole run, because a plan is charged for overflows. Most
batches need fewer. ``program.py`` compiles the steps of a group twice, for the usual room and for all slots, and takes
the first where no record was chosen beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from dpmcmc.privacy.query.query import StepRandomness

if TYPE_CHECKING:
    from dpmcmc.engine.program import Program

#: Share of groups of steps that have a batch larger than the usual room.
RARE = 0.02


def slots(program: Program, draws: StepRandomness) -> int | None:
    """Slots that the batches of a group fit into 49 times in 50; None where they are no fewer, or not worth it.

    The slots drawn are hardly ever needed: what truncates a batch is charged, so it has to be rare over the whole run.
    """
    mask = draws.batch[1]
    # Steps are compiled twice for it, which only those of a linear model are worth; shards, each with a batch of its
    # own, would have to go the same way; and rows from the disk come with all their slots.
    if mask is None or program.second is not None or program.mesh is not None or program.supplied:
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
