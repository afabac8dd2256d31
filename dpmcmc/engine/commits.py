"""Commits of a run's steps to its checkpoint, and where a run that was stopped goes on.

A run without a checkpoint begins at its first step and commits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from dpmcmc.engine.agreement import Kept
from dpmcmc.engine.blocks import Blocks
from dpmcmc.engine.lanes import Lane


class Commits:
    """Commits of the one run whose chains are in these blocks, which are brought to its last commit.

    Args:
        blocks: about to take their steps.
        kept: checkpoint of the run, or None.
    """

    def __init__(self, blocks: Blocks, kept: Kept | None) -> None:
        self._blocks = blocks
        self._kept = kept
        self._point = blocks.point
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
