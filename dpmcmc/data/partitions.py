"""Tables in partitions: a folder or a glob of Parquet files, a large file, a dataset of Arrow, a Dask DataFrame.

    people = partitioned("people/*.parquet", schema)
    [part.name for part in people.parts]                # ['a.parquet', 'b.parquet']
    for records, _ in people.parts[0].batches(): ...    # records of at most ROWS rows

A partition is one file, some row groups of a large one, a fragment of a dataset, or a partition of Dask. It is read
where it is computed, a batch of rows at a time, and its rows are encoded each by itself (``schema.py``). So the records
do not depend on how a table is cut into partitions. The number of rows is public under replace_one. Files must not
change while a run reads them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpmcmc.data import columnar
from dpmcmc.data.schema import Schema
from dpmcmc.errors import DataError
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    import pyarrow.dataset

#: Rows that are read and encoded at a time.
ROWS = 1 << 16
#: Rows of a partition, at least, where row groups of one file are taken apart.
LARGE = 1 << 20


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
        DataError: there is no such file, one is damaged, a dataset is filtered, or a cluster holds a Dask DataFrame.
    """
    parts: Sequence[Partition] | None = None
    if isinstance(data, str | os.PathLike):
        parts = _of_files(Path(data))
    elif columnar.is_dataset(data):
        parts = _of_dataset(data)
    elif columnar.is_dask(data):
        parts = _of_dask(data, [*schema.columns])
    if parts is None:
        return None
    encoded = (EncodedPartition(part, schema) for part in parts)
    return EncodedPartitions(tuple(encoded), schema)


def _of_files(path: Path) -> list[FilePart] | None:
    alone = path.is_file()
    if alone and path.suffix.lower() not in columnar.SUFFIXES:
        return None
    paths = columnar.paths_of(path)
    below = (
        path if path.is_dir() else Path(os.path.commonpath([one.parent for one in paths]))
    )
    parts = [part for one in paths for part in _of_file(one, str(one.relative_to(below)))]
    return None if alone and len(parts) == 1 else parts


def _of_file(path: Path, name: str) -> list[FilePart]:
    ends = columnar.group_ends(path, LARGE)
    if len(ends) < 2:
        return [FilePart(name, path)]
    starts = (0, *ends)
    return [
        FilePart(f"{name} from row group {first}", path, (first, end))
        for first, end in zip(starts, ends, strict=False)
    ]


def _of_dataset(data: Any) -> list[FragmentPart]:
    try:
        fragments = [*data.get_fragments()]
    except ValueError:
        raise DataError(
            "data: the dataset is filtered or projected, so that it has no partitions: give the dataset itself."
        ) from None
    names = (Path(getattr(one, "path", "")).name for one in fragments)
    return [
        FragmentPart(name or f"partition {number}", one, data.schema)
        for number, (one, name) in enumerate(zip(fragments, names, strict=True))
    ]


def _of_dask(data: Any, columns: Sequence[str]) -> list[DaskPart]:
    if _is_held(data):
        raise DataError(
            "data: the Dask DataFrame is persisted, so that Dask may write its rows to disk and send them about: give "
            "the DataFrame that reads its files."
        )
    there = [name for name in columns if list(data.columns).count(name) == 1]
    parts = enumerate(data[there].to_delayed())
    return [DaskPart(f"partition {number}", one) for number, one in parts]


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

    def batches(self) -> Iterator[tuple[dict[str, np.ndarray], dict[str, int]]]:
        """Yield records of at most ``ROWS`` rows, and how many values lay outside the schema by column.

        Raises:
            DataError: rows that the schema has no place for; it names the partition and quotes no value. Its ``rows``
                are counted from 0 in the partition.
        """
        start = 0
        for rows in self.part.tables(columns_of(self.schema)):
            if not len(rows):
                continue
            try:
                found = self.schema.encode_counted(rows)
            except DataError as error:
                raise in_partition(error, self.name, start) from None
            yield found
            start += len(rows)


def columns_of(schema: Schema) -> list[str]:
    """Return the columns of a table that records are made of."""
    more = (schema.label, schema.exposure, schema.weights)
    return list(dict.fromkeys([*schema.sources, *(name for name in more if name)]))


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
    """

    parts: tuple[EncodedPartition, ...]
    schema: Schema

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
        return {
            name: np.broadcast_to(kind(0), (num_records, *shape))
            for name, (kind, shape) in kinds.items()
        }
