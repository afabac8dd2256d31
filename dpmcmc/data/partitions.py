"""Tables in partitions: a folder or a glob of Parquet files, a large file, a dataset of Arrow, a Dask DataFrame.

    people = find_partitions("people/*.parquet", schema)
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

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from dpmcmc.data import columnar, table_files
from dpmcmc.data.encoded_partitions import UNSEEN, EncodedPartition, EncodedPartitions
from dpmcmc.data.one_partition import DaskPart, FilePart, FragmentPart, Partition
from dpmcmc.data.schema import Schema
from dpmcmc.errors import DataError
from dpmcmc.storage.stamps import Stamps, stamps_of

#: Rows of a partition, at least, where row groups of one file are taken apart.
LARGE = 1 << 20


def find_partitions(data: object, schema: Schema) -> EncodedPartitions | None:
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
    elif table_files.is_dataset(data):
        found = _of_dataset(data)
    elif table_files.is_dask(data):
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
    seen = stamps_of(table_files.list_table_files(path))
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
    places = table_files.list_dataset_files(data)
    local = [place for place in places if isinstance(place, Path)]
    seen = stamps_of(local)
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
    return parts, seen, UNSEEN if len(local) < len(places) else ""


def _of_dask(data: Any, columns: Sequence[str]) -> _Found:
    if _is_held(data):
        raise DataError(
            "data: the Dask DataFrame is persisted, so that Dask may write its rows to disk and send them about: give "
            "the DataFrame that reads its files."
        )
    present = [name for name in columns if list(data.columns).count(name) == 1]
    delayed = enumerate(data[present].to_delayed())
    parts = [DaskPart(f"partition {number}", one) for number, one in delayed]
    return parts, {}, UNSEEN


def _is_held(data: Any) -> bool:
    """Return whether a cluster holds partitions of a Dask DataFrame already."""
    try:
        from distributed import futures_of
    except ImportError:
        return False
    return bool(futures_of(data))
