"""Functions of one cell of a program, each traced once for all its uses; tracing is most of what a start costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from dpmcmc.privacy.query.by_platform import traced_for

if TYPE_CHECKING:
    from dpmcmc.engine.program import Cells, Drawn, Program


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

    def _draw(self, cell: Cells, t: jax.Array, noise_std: jax.Array) -> Drawn:
        with traced_for(self._program.platform):
            return self._program.draw(cell, jax.eval_shape(self.start, cell).position, t, noise_std)

    def drawn(self, cells: Cells) -> Drawn:
        """Shapes of the randomness of one step of one of these cells."""
        cell = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), cells)
        return jax.eval_shape(self.draw, cell, np.int32(0), np.float32(0))
