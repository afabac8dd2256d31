"""Records split over the ``data`` axis of a mesh, of which sums alone are asked.

    records = shards_of(records, mesh)
    records.total(of)          # on every process; the same integers as without a mesh

Each process sums the shards of its own devices, on its host, and the sums are added over processes. They are integers,
so neither the mesh nor the number of processes moves a bit of what is released from them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine.agreement import every_process
from dpmcmc.engine.integer_words import WORDS, flat, number_of, shaped_like, words_of
from dpmcmc.engine.mesh import DATA
from dpmcmc.privacy.query.record_sums import (
    Preparation,
    Records,
    Sum,
    Total,
    Whole,
    added,
)
from dpmcmc.storage.pytree import PyTree, length_of


@dataclass(frozen=True)
class Shards:
    """Shards of this process's devices; see :class:`~dpmcmc.privacy.query.record_sums.Records`.

    Attributes:
        own: the shards; one without records, where no device of the ``data`` axis is this process's.
        num_records: N of all shards of all processes.
    """

    own: tuple[Records, ...]
    num_records: int

    @property
    def shapes(self) -> PyTree:
        """Shapes and types of one record."""
        return self.own[0].shapes

    def prepared(self, by: Preparation) -> Shards:
        """Return the records that ``by`` makes of these."""
        return Shards(tuple(one.prepared(by) for one in self.own), self.num_records)

    def total(self, of: Sum) -> Total:
        """Return what all records add, on every process."""
        with ThreadPoolExecutor(len(self.own)) as threads:
            own = added(threads.map(partial(_total, of=of), self.own))
        words = np.array([words_of(one) for one in flat(own)], np.uint32)
        everyone = every_process(words.reshape(-1, WORDS)).swapaxes(0, 1)
        numbers = [sum(map(number_of, one)) for one in everyone]
        return shaped_like(numbers, own)


def shards_of(records: PyTree, mesh: Mesh) -> Shards:
    """Return records as shards of the mesh's ``data`` axis, in their order, of which the last may be smaller.

    Args:
        records: pytree of NumPy arrays, leaves (N, ...), whole on every process.
        mesh: from :func:`dpmcmc.mesh`.
    """
    count = length_of(records)
    size = -(-count // mesh.shape[DATA])
    me = jax.process_index()
    # A shard that lies on several devices along the chains is summed by the first one's process.
    mine = [at for at, one in enumerate(mesh.devices[0]) if one.process_index == me]
    parts = [slice(at * size, min((at + 1) * size, count)) for at in mine]
    own = [Whole(jax.tree.map(lambda leaf, part=part: leaf[part], records)) for part in parts or [slice(0, 0)]]
    return Shards(tuple(own), count)


def _total(records: Records, of: Sum) -> Total:
    return records.total(of)
