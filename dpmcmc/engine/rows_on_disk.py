"""Records beyond memory: memory-mapped arrays, of which only the rows that a batch selects are read.

    x = np.load("x.npy", mmap_mode="r")          # np.memmap, however large
    dpmcmc.sample(plan, {"x": x, "y": np.load("y.npy", mmap_mode="r")})

The records of a chunk of steps depend on keys and public numbers alone. So the device draws them, the host reads those
rows, and the device takes the steps on them. Memory holds the rows of one chunk for each lane; what is mapped is given
back as it is used. Rows are float32 or int32 when they reach the device.

On a mesh a process reads the rows of its own devices' shards.

Checks of every record (that rows are finite, that labels are classes, a ledger's fingerprint) are
done in blocks before the run.

A file may not change from before these checks until its last row has been read: what was read of it for a chunk is
thrown away where its stamps have changed (``storage/stamps.py``), and the run ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine.mesh import sizes
from dpmcmc.engine.program import Chain, DrawnRandomness
from dpmcmc.engine.workers import LostPartition
from dpmcmc.errors import DataError
from dpmcmc.privacy.accounting.sampling import shard_rows
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.record_blocks import advise, give_back
from dpmcmc.storage.stamps import Stamps, check_unchanged, stamps_of

#: Bytes of a mapped file that rows may keep in memory before its pages are given back.
_MOST_MAPPED = 256 << 20
#: Bytes around a row that a page fault maps too; Linux was seen to map 90 to 270 KB.
_AROUND = 256 << 10


class Mapped(np.memmap):
    """A memory-mapped array.

    Attributes:
        seen: what its file was known by before it was read.
    """

    seen: Stamps


def mapped(records: PyTree) -> PyTree:
    """Return records whose memory-mapped arrays tell whether their files have changed since."""
    return jax.tree.map(_mapped, records)


def _mapped(leaf: Any) -> Any:
    if not isinstance(leaf, np.memmap):
        return leaf
    found = leaf.view(Mapped)
    # Nobody else can open a file without a name.
    found.seen = stamps_of([Path(leaf.filename)] if leaf.filename else [])
    return found


def check_mapped(records: PyTree) -> None:
    """Refuse records whose files have changed.

    Raises:
        DataError: one has.
    """
    for leaf in jax.tree.leaves(records):
        check_unchanged(getattr(leaf, "seen", {}))


class Supply:
    """Rows of the batches of one chunk after another.

    Args:
        records: pytree of NumPy arrays, some of them memory-mapped.
        draw: of ``compilation.Compiled``.
        mesh: devices, each of which gets the rows of its own shard's batches; a process reads those of its own devices.
    """

    def __init__(
        self,
        records: PyTree,
        draw: Callable[..., DrawnRandomness],
        mesh: Mesh | None = None,
    ) -> None:
        # Reading ahead is of no use to rows at random: of a file beyond memory it took four times as long.
        jax.tree.map(lambda leaf: advise(leaf, "MADV_RANDOM"), records)
        self._records = records
        self._draw = draw
        self._mesh = mesh

    def shapes(self, chains: Chain, noise_std: np.ndarray) -> PyTree:
        """Shapes of what :meth:`read` returns."""
        draws, keys = jax.eval_shape(self._draw, chains, np.int32(0), noise_std)
        indices, mask = draws.batch
        assert indices is not None
        assert mask is not None
        rows = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*indices.shape, *leaf.shape[1:]), _dtype(leaf)),
            self._records,
        )
        return rows, (draws._replace(batch=(None, mask)), keys)

    def read(self, chains: Chain, first: int, noise_std: np.ndarray) -> PyTree:
        """Return (rows, draws) of a chunk.

        Args:
            chains: of a lane.
            first: first step of the chunk.
            noise_std: of each step.

        Raises:
            LostPartition: a file has changed since it was checked.
        """
        draws, keys = self._draw(chains, np.int32(first), noise_std)
        indices, mask = draws.batch
        assert indices is not None
        assert mask is not None
        rows = jax.tree.map(functools.partial(self._rows, indices=indices, mask=mask), self._records)
        try:
            check_mapped(self._records)
        except DataError as error:  # the run has begun
            raise LostPartition(str(error).removesuffix(".")) from None
        return rows, (draws._replace(batch=(None, mask)), keys)

    def _rows(self, leaf: np.ndarray, indices: jax.Array, mask: jax.Array) -> np.ndarray | jax.Array:
        """The rows of batches, (*indices.shape, ...); on a mesh each where it is used."""
        if self._mesh is None:
            return _selected(leaf, np.asarray(indices), np.asarray(mask))
        shards = sizes(self._mesh)[1]
        slots = indices.shape[2] // shards
        parts = []
        for here, chosen in zip(indices.addressable_shards, mask.addressable_shards, strict=True):
            # Indices are within the shard, which its own slots say.
            first = (here.index[2].start or 0) // slots * shard_rows(len(leaf), shards)
            part = _selected(leaf, np.asarray(here.data) + first, np.asarray(chosen.data))
            parts.append(jax.device_put(part, here.device))
        return jax.make_array_from_single_device_arrays((*indices.shape, *leaf.shape[1:]), indices.sharding, parts)


def _dtype(leaf: np.ndarray) -> type:
    return np.float32 if jnp.issubdtype(leaf.dtype, jnp.floating) else np.int32


def _selected(leaf: np.ndarray, indices: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Rows at the unmasked indices, zeros elsewhere, (*indices.shape, ...)."""
    rows = np.zeros((*indices.shape, *leaf.shape[1:]), _dtype(leaf))
    wanted = indices[mask]
    order = np.argsort(wanted)  # along the file
    places = np.flatnonzero(mask)[order]
    flat = rows.reshape(-1, *leaf.shape[1:])
    count = max(_MOST_MAPPED // (_AROUND + leaf.nbytes // len(leaf)), 1)
    for part in (slice(first, first + count) for first in range(0, len(order), count)):
        flat[places[part]] = leaf[wanted[order[part]]]
        if leaf.nbytes > _MOST_MAPPED:
            give_back(leaf)
    return rows
