"""Records of partitions, encoded where they are computed; what a run takes for its data.

How a table is cut into partitions is decided in ``partitions.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpmcmc.data.one_partition import Partition
from dpmcmc.data.schema import Schema
from dpmcmc.errors import DataError
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.stamps import Stamps, check_unchanged

#: Assumption of a guarantee where no file of this machine holds the partitions.
UNSEEN = (
    "No record stands in two partitions of the table. Its rows come from code, or from a file system, that dpmcmc does "
    "not look into: it sees that each partition stays the same, and not where its rows come from."
)


@dataclass(frozen=True)
class EncodedPartition:
    """A partition whose rows a schema encodes.

    Attributes:
        part: the rows.
        schema: public facts of their columns.
    """

    part: Partition
    schema: Schema

    @property
    def name(self) -> str:
        """Name of the partition."""
        return self.part.name

    def batches(self, more: Sequence[str] = ()) -> Iterator[tuple[Any, dict[str, np.ndarray], dict[str, int]]]:
        """Yield at most ``ROWS`` rows, their records, and how many values lay outside the schema by column.

        Args:
            more: columns that the rows have beside those that records are made of.

        Raises:
            DataError: rows that the schema has no place for; it names the partition and quotes no value. Its ``rows``
                are counted from 0 in the partition.
        """
        start = 0
        columns = dict.fromkeys((*columns_of(self.schema), *more))
        for rows in self.part.tables([*columns]):
            if not len(rows):
                continue
            try:
                found = self.schema.encode_counted(rows)
            except DataError as error:
                raise in_partition(error, self.name, start) from None
            yield rows, *found
            start += len(rows)


def columns_of(schema: Schema) -> list[str]:
    """Return the columns of a table that records are made of."""
    more = (schema.label, schema.exposure, schema.weights)
    return list(dict.fromkeys([*schema.sources, *(name for name in more if name)]))


class Digest:
    """Digest of the records of a partition in their order, however they are cut into batches."""

    def __init__(self) -> None:
        self._of: dict[str, Any] = {}

    def add(self, records: dict[str, np.ndarray]) -> None:
        """Add the next records."""
        for name, array in records.items():
            digest = self._of.setdefault(name, hashlib.sha256())
            digest.update(array.tobytes())

    def __str__(self) -> str:
        return " ".join(f"{name} {one.hexdigest()}" for name, one in self._of.items())


def in_partition(error: DataError, name: str, start: int) -> DataError:
    """Return an error about rows of a partition, which begin at its row ``start``."""
    said = str(error).removeprefix("data: ")
    rows = [start + row for row in error.rows]
    return DataError(f"data: {name}: {said}", error.about, rows)


@dataclass(frozen=True)
class EncodedPartitions:
    """A table in partitions, and the schema that encodes it: what a run takes for its data.

    Attributes:
        parts: partitions in their order, each with the schema.
        schema: that encodes them.
        seen: what files of this machine were known by before they were read.
        assumption: what a guarantee rests on; empty where files of this machine or its memory hold the rows.
    """

    parts: tuple[EncodedPartition, ...]
    schema: Schema
    seen: Stamps = field(default_factory=dict)
    assumption: str = UNSEEN

    def check_unchanged(self) -> None:
        """Refuse files that have changed since they were listed.

        Raises:
            DataError: one has.
        """
        check_unchanged(self.seen)

    def shaped(self, num_records: int) -> PyTree:
        """Return arrays of N records that hold zeros and take no memory, for their shapes and types alone."""
        schema = self.schema
        real = schema.outcome.kind == "real"
        kinds: dict[str, tuple[type, tuple[int, ...]]] = {
            "x": (np.float32, (schema.num_features,)),
            "y": (np.float32 if real else np.int32, ()),
        }
        if schema.exposure:
            kinds["offset"] = (np.float32, ())
        if schema.weights:
            kinds["weight"] = (np.float32, ())
        return {name: np.broadcast_to(kind(0), (num_records, *shape)) for name, (kind, shape) in kinds.items()}
