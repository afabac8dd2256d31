"""Draws and infos that are kept of the chains of a run, chunk by chunk."""

from __future__ import annotations

import jax
import numpy as np

from dpmcmc.engine.mesh import on_host
from dpmcmc.planning.plan import Plan
from dpmcmc.storage.pytree import PyTree


class KeptDraws:
    """Draws that are kept of the chains of a plan.

    Attributes:
        pieces: kept (positions, infos) of each chunk that keeps a step, leaves (chains, draws, ...).
        norms: of the last positions, (chains,).
        failure: (step that a chain was found to have diverged by, its last finite norm), or None.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.pieces: list[PyTree] = []
        self.norms = np.zeros(plan.chains)
        self.failure: tuple[int, float] | None = None

    def offsets(self, first: int, width: int) -> np.ndarray:
        """Offsets of the steps in [first, first + width) whose result is a kept draw."""
        plan = self._plan
        steps = np.arange(first, min(first + width, plan.steps))
        since = steps + 1 - plan.burn_in
        return np.flatnonzero((since > 0) & (since % plan.thin == 0)).astype(np.int32)

    def add(self, first: int, width: int, lanes: list[tuple]) -> None:
        """Keep what a chunk left.

        Args:
            first: first step of the chunk.
            width: its steps.
            lanes: of each lane (kept (positions, infos), leaves (room, chains, ...); whether finite; norms).
        """
        count = len(self.offsets(first, width))
        chains = self._plan.chains

        def joined(*leaves: np.ndarray) -> np.ndarray:
            whole = np.concatenate([leaf[:count] for leaf in leaves], axis=1)
            return np.ascontiguousarray(np.moveaxis(whole, 1, 0)[:chains])

        outputs, *ends = zip(*lanes, strict=True)
        if count:
            self.pieces.append(jax.tree.map(joined, *on_host(outputs)))
        finite, norms = (np.concatenate(on_host(end))[:chains] for end in ends)
        if not np.all(finite) and self.failure is None:
            self.failure = min(first + width, self._plan.steps), float(np.min(self.norms[~finite]))
        self.norms = norms.astype(float)

    def joined(self) -> PyTree:
        """Return all that is kept, leaves (chains, draws, ...), and let its pieces go."""
        pieces, self.pieces = self.pieces, []
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *pieces)
