"""Tables in partitions: a folder or a glob of Parquet files, a large file, a dataset of Arrow, a Dask DataFrame.

    people = partitioned("people/*.parquet", schema)
    [part.name for part in people.parts]                # ['a.parquet', 'b.parquet']
    for _, records, _ in people.parts[0].batches(): ... # records of at most ROWS rows

A partition is one file, some row groups of a large one, a fragment of a dataset, or a partition of Dask. It is read
where it is computed, a batch of rows at a time, and its rows are encoded each by itself (``schema.py``). So the records
do not depend on how a table is cut into partitions. The number of rows is public under replace_one.

**One record, one row.** Two names of one file are refused: symbolic links, hard links, a file that a dataset names
twice. A copy of a file is another file, whose rows are other records, as rows that stand twice in a table in memory
are. A file is known by its stamps (``storage/stamps.py``) until it has been read once, and by a :class:`Digest` of its
records from then on. Rows that somebody's code computes, and files of another file system, have no stamps: an
``assumption`` says what rests on whoever gives them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from dpmcmc.data import columnar
from dpmcmc.data.schema import Schema
from dpmcmc.errors import DataError
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.stamps import Stamps, check_unchanged, stamps_of

if TYPE_CHECKING:
    import pyarrow.dataset

#: Rows that are read and encoded at a time.
ROWS = 1 << 16
#: Rows of a partition, at least, where row groups of one file are taken apart.
LARGE = 1 << 20
#: Assumption of a guarantee where no file of this machine holds the partitions.
UNSEEN = (
    "No record stands in two partitions of the table. Its rows come from code, or from a file system, that dpmcmc does "
    "not look into: it sees that each partition stays the same, and not where its rows come from."
)


class Partition(Protocol):
    """Some rows of a table; it can be sent to another process, which reads them.

    Attributes:
        name: public, for messages.
    """

    @property
    def name(self) -> str:
        """Return the name."""

    def count(self) -> int:
        """Return the number of rows."""

    def tables(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows as tables of at most ``ROWS`` rows that hold these columns, as far as they are there."""


@dataclass(frozen=True)
class FilePart:
    """A Parquet or Arrow file, or some row groups of a Parquet file.

    Attributes:
        name: of the file, with its row groups.
        path: of the file.
        groups: first row group and the one after the last; None: the whole file.
    """

    name: str
    path: Path
    groups: tuple[int, int] | None = None

    def count(self) -> int:
        """Return the number of rows that the file states."""
        return columnar.opened(self.path, self.groups).num_rows

    def tables(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows; see :class:`Partition`."""
        file = columnar.opened(self.path, self.groups)
        there = [name for name in columns if name in file.schema.names]
        yield from file.batches(there, ROWS)


@dataclass(frozen=True)
class FragmentPart:
    """A fragment of a dataset of Arrow.

    Attributes:
        name: of the file, or its number.
        fragment: some rows of the dataset.
        schema: of the dataset.
    """

    name: str
    fragment: pyarrow.dataset.Fragment
    schema: pyarrow.Schema

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._read(self.fragment.count_rows))

    def tables(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows; see :class:`Partition`."""
        there = [name for name in columns if name in self.schema.names]
        batches = self._read(
            self.fragment.to_batches,
            self.schema,
            there,
            batch_size=ROWS,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        while (batch := self._read(next, batches, None)) is not None:
            yield batch

    def _read(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        import pyarrow

        try:
            return function(*given, **named)
        except (pyarrow.ArrowException, OSError, KeyError) as error:
            raise columnar.damaged(self.name, error) from None


@dataclass(frozen=True)
class DaskPart:
    """A partition of a Dask DataFrame, which the process that needs it computes by itself.

    Attributes:
        name: its number.
        delayed: that Dask computes the rows of.
    """

    name: str
    delayed: Any

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._rows())

    def tables(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows; see :class:`Partition`."""
        rows = self._rows()
        for start in range(0, len(rows), ROWS):
            yield rows.iloc[start : start + ROWS]

    def _rows(self) -> Any:
        try:
            return self.delayed.compute(scheduler="synchronous")
        except Exception as error:  # code of the user's own; its words may quote rows
            raise DataError(
                f"data: Dask cannot compute {self.name} ({type(error).__name__}): see that workers can read its files."
            ) from None


def partitioned(data: object, schema: Schema) -> EncodedPartitions | None:
    """Return a table in its partitions, with the schema that encodes it; None of anything that is not read so.

    Args:
        data: a folder or a glob of Parquet and Arrow files, a Parquet file of more than ``LARGE`` rows, a
            ``pyarrow.dataset.Dataset``, or a Dask DataFrame.
        schema: public facts of the columns.

    Raises:
        DataError: there is no such file, one is damaged or counts twice, a dataset is filtered or of text, or a cluster
            holds a Dask DataFrame.
    """
    found: _Found | None = None
    if isinstance(data, str | os.PathLike):
        found = _of_files(Path(data))
    elif columnar.is_dataset(data):
        found = _of_dataset(data)
    elif columnar.is_dask(data):
        found = _of_dask(data, [*schema.columns])
    if found is None:
        return None
    parts, seen, assumption = found
    encoded = (EncodedPartition(part, schema) for part in parts)
    return EncodedPartitions(tuple(encoded), schema, seen, assumption)


#: Partitions, what their files are known by, and what rests on whoever gives them.
_Found: TypeAlias = tuple[Sequence[Partition], Stamps, str]


def _of_files(path: Path) -> _Found | None:
    alone = path.is_file()
    if alone and path.suffix.lower() not in columnar.SUFFIXES:
        return None
    seen = stamps_of(columnar.paths_of(path))
    below = path if path.is_dir() else Path(os.path.commonpath([one.parent for one in seen]))
    parts = [part for one in seen for part in _of_file(one, str(one.relative_to(below)))]
    return None if alone and len(parts) == 1 else (parts, seen, "")


def _of_file(path: Path, name: str) -> list[FilePart]:
    ends = columnar.group_ends(path, LARGE)
    if len(ends) < 2:
        return [FilePart(name, path)]
    starts = (0, *ends)
    return [
        FilePart(f"{name} from row group {first}", path, (first, end)) for first, end in zip(starts, ends, strict=False)
    ]


def _of_dataset(data: Any) -> _Found:
    places = columnar.places_of(data)
    here = [place for place in places if isinstance(place, Path)]
    seen = stamps_of(here)
    try:
        fragments = [*data.get_fragments()]
    except ValueError:
        raise DataError(
            "data: the dataset is filtered or projected, so that it has no partitions: give the dataset itself."
        ) from None
    names = (Path(getattr(one, "path", "")).name for one in fragments)
    parts = [
        FragmentPart(name or f"partition {number}", one, data.schema)
        for number, (one, name) in enumerate(zip(fragments, names, strict=True))
    ]
    return parts, seen, UNSEEN if len(here) < len(places) else ""


def _of_dask(data: Any, columns: Sequence[str]) -> _Found:
    if _is_held(data):
        raise DataError(
            "data: the Dask DataFrame is persisted, so that Dask may write its rows to disk and send them about: give "
            "the DataFrame that reads its files."
        )
    there = [name for name in columns if list(data.columns).count(name) == 1]
    delayed = enumerate(data[there].to_delayed())
    parts = [DaskPart(f"partition {number}", one) for number, one in delayed]
    return parts, {}, UNSEEN


def _is_held(data: Any) -> bool:
    """Return whether a cluster holds partitions of a Dask DataFrame already."""
    try:
        from distributed import futures_of
    except ImportError:
        return False
    return bool(futures_of(data))


# ----------------------------------------------------------------------------------------------------
# Records of a partition, encoded where it is computed.


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
