"""Randomness of a chunk, drawn on a core that is free while the chunk before takes its steps.

All randomness depends on keys and public numbers alone. Where a run's lanes leave a core idle, a thread of each lane
draws what its next chunk needs there, by a program of its own. The numbers are the same, and so are the draws of the
run. Elsewhere a chunk draws for itself, a group of steps at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np

from dpmcmc.engine.program import Cells, DrawnRandomness
from dpmcmc.storage.pytree import PyTree


class DrawnAhead:
    """Records with the randomness of one chunk after another.

    Args:
        records: as the device holds them.
        draw: of ``compilation.Compiled``.
    """

    def __init__(self, records: PyTree, draw: Callable[..., DrawnRandomness]) -> None:
        self._records = records
        self._draw = draw

    def shapes(self, cells: Cells, noise_std: np.ndarray) -> PyTree:
        """Shapes of what :meth:`chunks` yields."""
        return self._records, jax.eval_shape(self._draw, cells, np.int32(0), noise_std)

    def chunks(self, cells: Cells, firsts: Iterable[int], schedules: Callable[[int], tuple]) -> Iterator[PyTree]:
        """(records, randomness) of the chunk that begins at each of these steps.

        Args:
            cells: of a lane.
            firsts: first steps.
            schedules: first step -> (noise of the chunk, (cells, steps); anything else).
        """

        def drawn(first: int) -> PyTree:
            return self._records, jax.block_until_ready(self._draw(cells, np.int32(first), schedules(first)[0]))

        return one_ahead(drawn, firsts, "draws")


def one_ahead(make: Callable[[int], PyTree], firsts: Iterable[int], name: str) -> Iterator[PyTree]:
    """Yield what a function makes for each of these steps; a thread of this name makes the next one meanwhile."""
    with ThreadPoolExecutor(1, name) as maker:
        waiting: Future | None = None
        for first in firsts:
            following = maker.submit(make, first)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()
