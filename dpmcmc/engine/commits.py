"""Commits of a run's steps to its checkpoint.

A run without a checkpoint begins at its first step and commits nothing.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp

from dpmcmc.engine.agreement import Kept
from dpmcmc.storage.commit import CommittedDraws, Point
from dpmcmc.storage.pytree import PyTree


class Commits:
    """Commits of a run.

    Args:
        kept: checkpoint of the run, or None.
        point: its last commit, or None where it begins.
        shape: (places for chains, steps of a chunk).
        chains: of the run.
        steps: of the run.
        last: whether the chains are the last stage of the run.
    """

    def __init__(
        self, kept: Kept | None, point: Point | None, shape: tuple[int, int], chains: int, steps: int, last: bool
    ) -> None:
        self.kept = kept
        self._last = last
        self._point = point
        self._steps = steps
        self._began = time.perf_counter()
        if point is not None:
            self._began -= point.seconds
        elif kept is not None:
            self._point = kept.start(shape, chains)

    @property
    def seconds(self) -> float:
        """Seconds that the steps have taken, those before the run was stopped included."""
        return time.perf_counter() - self._began

    def commit(self, states: list[PyTree], after: int, draws: CommittedDraws) -> None:
        """Commit the steps that the chains have taken, where that is due or they are done.

        Args:
            states: of the chains of each lane.
            after: their next step.
            draws: what is kept of them.
        """
        if self.kept is None or self._point is None:
            return
        if after >= self._steps or self.kept.due():
            joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *states)
            self.kept.commit(self._point, after, joined, draws, self._steps, self.seconds, self._last)
