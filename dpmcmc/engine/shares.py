"""A worker's share of a table: one partition, as ``partitions.py`` asks for it and ``kept_partitions.py`` keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dpmcmc.data.encoded_partitions import Digest, EncodedPartition
from dpmcmc.errors import DataError
from dpmcmc.privacy.query.record_sums import (
    Preparation,
)
from dpmcmc.storage.pytree import PyTree

#: Preparations in their order, each with a token that no other one has.
Steps = tuple[tuple[str, Preparation], ...]


@dataclass(frozen=True)
class Share:
    """A partition as it is sent to a worker.

    Attributes:
        run: token of the run; what a worker keeps is known by it.
        number: of the partition.
        part: its rows.
        digest: of its records when they were checked; empty before that.
        steps: make records of those that the schema encodes.
    """

    run: str
    number: int
    part: EncodedPartition
    digest: str = ""
    steps: Steps = ()

    def read(self, columns: Sequence[str] = ()) -> Iterator[tuple[Any, PyTree]]:
        """Yield rows with these columns too, and their records, read anew.

        Raises:
            DataError: rows that the schema has no place for, or other records than those that were checked.
        """
        found = Digest()
        for rows, records, _ in self.part.batches(columns):
            found.add(records)
            yield rows, records
        if str(found) != self.digest:
            raise DataError(
                f"data: {self.part.name} has other records than when it was checked: no file may change while a run "
                "reads it, and code that computes rows must compute the same ones each time."
            )
