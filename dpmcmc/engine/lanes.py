"""Lanes of a block: chains that one core computes, and the draws that are kept of them.

``blocks.py`` lays chains out in blocks, and takes this for one lane of a block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from concurrent.futures import Executor

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.engine.mesh import on_host
from dpmcmc.engine.program import Cells
from dpmcmc.engine.sizes import Sizes
from dpmcmc.planning.plan import Plan
from dpmcmc.storage.pytree import PyTree, length_of


class Lane:
    """Cells of a block that one core computes, in parallel with those of other lanes.

    Attributes:
        rows: traces of its cells; fewer than there are cells where these are padded.
        cells: its cells.
        states: where they are.
        supplies: what its chunks find in the place of records, one after another.
    """

    def __init__(self, rows: list[KeptDraws], block: Cells, states: PyTree, sizes: Sizes) -> None:
        self.rows = rows
        self.cells = block
        self.states = states
        self.supplies: Iterator[PyTree] = iter(())
        self._sizes = sizes

    def schedules(self, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Noise and places to keep of the chunk that begins at this step."""
        return lane_schedules(self.rows, self._sizes, first)

    def close(self) -> None:
        """End the threads that supply it.

        A run that fails would leave them to the garbage collector, which may wait for them within a lock of theirs.
        """
        if isinstance(self.supplies, Generator):
            # One that a thread is within at this moment ends with that thread.
            with contextlib.suppress(ValueError):
                self.supplies.close()


def take_chunk(workers: Executor, executable: jax.stages.Compiled, lanes: list[Lane], first: int) -> list[list[PyTree]]:
    """Take the steps of a chunk from ``first`` on, all lanes in parallel; returns what each keeps on the way."""

    def take(lane: Lane) -> list[PyTree]:
        noise, kept = lane.schedules(first)
        results = executable(lane.states, lane.cells, np.int32(first), noise, kept, next(lane.supplies))
        lane.states, *output = jax.block_until_ready(results)
        return output

    return list(workers.map(take, lanes))


class KeptDraws:
    """Draws and infos that are kept of one chain.

    Attributes:
        plan: what it runs.
        pieces: kept (positions, info) of each chunk, leaves (draws, ...).
        norm: of the last position seen.
        failure: (step it was found to have diverged by, last finite norm), or None.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.pieces: list[PyTree] = []
        self.norm = 0.0
        self.failure: tuple[int, float] | None = None


def joined(traces: list[KeptDraws]) -> PyTree:
    """(positions, info) of chains, leaves (chains, draws, ...); each piece is let go when it has been copied."""
    shape = len(traces), sum(length_of(piece) for piece in traces[0].pieces)
    out = jax.tree.map(lambda leaf: np.empty((*shape, *leaf.shape[1:]), leaf.dtype), traces[0].pieces[0])
    for chain, trace in enumerate(traces):
        begin = 0
        while trace.pieces:
            piece = trace.pieces.pop(0)
            end = begin + length_of(piece)
            for whole, part in zip(jax.tree.leaves(out), jax.tree.leaves(piece), strict=True):
                whole[chain, begin:end] = part
            begin = end
    return out


def split(states: PyTree, parts: int) -> list[PyTree]:
    """States of a block as those of its parts, one after another."""
    leaves, structure = jax.tree.flatten(states)
    every = [jnp.split(leaf, parts) for leaf in leaves]
    return [jax.tree.unflatten(structure, [leaf[k] for leaf in every]) for k in range(parts)]


def kept_steps(plan: Plan, first: int, width: int) -> np.ndarray:
    """Indices of the steps in [first, first + width) whose result is a kept draw."""
    steps = np.arange(first, min(first + width, plan.steps))
    since = steps + 1 - plan.burn_in
    return steps[(since > 0) & (since % plan.thin == 0)]


def lane_schedules(rows: list[KeptDraws], sizes: Sizes, first: int) -> tuple[np.ndarray, np.ndarray]:
    """(noise of every cell and step of a chunk, (cells, steps); offsets of the steps to keep, (cells, room))."""
    width = sizes.steps
    noise = np.zeros((sizes.lane, width), np.float32)
    kept = np.zeros((sizes.lane, sizes.room), np.int32)
    for at, row in enumerate(rows):
        own = row.plan.noise_std
        # A chain that has done its steps does not move, whatever the noise.
        noise[at] = own[np.minimum(np.arange(first, first + width), len(own) - 1)]
        keep = kept_steps(row.plan, first, width)
        kept[at, : len(keep)] = keep - first
    return noise, kept


def hand_out(
    rows: list[KeptDraws],
    first: int,
    width: int,
    output: PyTree,
    finite: jax.Array,
    norms: jax.Array,
) -> None:
    """Give every chain what it keeps of a chunk."""
    counts = [len(kept_steps(row.plan, first, width)) for row in rows]
    kept = on_host(output) if any(counts) else None
    finite, norms = on_host((finite, norms))
    for at, row in enumerate(rows):
        if counts[at]:
            # A copy, so that the rest of the chunk can go.
            row.pieces.append(jax.tree.map(lambda leaf, at=at: leaf[: counts[at], at].copy(), kept))
        if not finite[at] and row.failure is None:
            row.failure = min(first + width, row.plan.steps), row.norm
        row.norm = float(norms[at])
