"""Parquet and Arrow IPC files, streamed in batches of rows; none is kept open, for there may be thousands.

``pyarrow.dataset`` would read both kinds in fewer lines, but it reads a Parquet row group whole: 372 MiB of memory
for a file of one row group of 288 MB, where ``iter_batches`` takes 12 MiB (pyarrow 26). ``table_files.py`` finds
the files that a path stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.errors import DataError

if TYPE_CHECKING:
    import pyarrow.dataset
    import pyarrow.fs


SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".ipc")


@dataclass(frozen=True)
class ColumnarFile:
    """One file.

    Attributes:
        path: of it.
        num_rows: as it states.
        schema: Arrow's.
        stream: (columns, rows) -> record batches of these columns, of about so many rows where the format allows.
    """

    path: Path
    num_rows: int
    schema: pyarrow.Schema
    stream: Callable[[list[str], int], Iterator[pyarrow.RecordBatch]]

    def shape(self, x: list[str], y: str) -> tuple[int, np.dtype]:
        """Return (number of features, type that labels become).

        Raises:
            DataError: a column is missing, there twice, or holds no numbers.
        """
        types = import_pyarrow().types
        for name in (*x, y):
            count = self.schema.names.count(name)
            if count != 1:
                known = ", ".join(self.schema.names)
                raise DataError(f"{self.path} has {count} columns {name!r}; name one of {known}.")
        kinds = {name: self.schema.field(name).type for name in (*x, y)}
        width = len(x)
        if len(x) == 1 and is_list(kinds[x[0]]):
            width = self._width(x[0])
            if not width:
                raise DataError(f"{self.path}: column {x[0]!r} begins with an empty list: make all lists alike.")
            kinds[x[0]] = kinds[x[0]].value_type
        for name, kind in kinds.items():
            if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
                alone = " (a column of lists stands alone as x)" if is_list(kind) else ""
                raise DataError(f"{self.path}: column {name!r} holds {kind}{alone}: turn it into numbers first.")
        return width, np.dtype(np.float32 if types.is_floating(kinds[y]) else np.int32)

    def batches(self, columns: list[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        """Yield record batches of these columns, of at most so many rows.

        Raises:
            DataError: the file is damaged.
        """
        try:
            for batch in self.stream(columns, rows):
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows)
        except (import_pyarrow().ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the disk's error, not the content's
                raise
            raise damaged(self.path, error) from None

    def _width(self, name: str) -> int:
        """Length of the lists of a column, all alike."""
        kind = self.schema.field(name).type
        if import_pyarrow().types.is_fixed_size_list(kind):
            return int(kind.list_size)
        first = next(self.batches([name], 1), None)
        return 0 if first is None else int(first.column(0).value_lengths()[0].as_py() or 0)


def open_columnar(path: Path, groups: tuple[int, int] | None = None) -> ColumnarFile:
    """Return a file by its first bytes.

    Args:
        path: of the file.
        groups: of a Parquet file, the first row group and the one after the last; None: all of them.

    Raises:
        DataError: it is neither Parquet nor Arrow IPC, is damaged, or pyarrow is not there.
    """
    arrow = import_pyarrow()
    try:
        begins = _first_bytes(path)
        if begins == b"ARROW1":
            return _arrow(path)
        if begins[:4] == b"PAR1":
            return _parquet(path, groups)
    except (arrow.ArrowException, OSError) as error:
        raise damaged(path, error) from None
    raise DataError(f"{path} is neither Parquet nor an Arrow IPC file: write it as one of these.")


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(6)


def is_list(kind: pyarrow.DataType) -> bool:
    """Return whether a type is one of lists."""
    types = import_pyarrow().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def import_pyarrow() -> ModuleType:
    """Return Arrow; it is imported when a file of it is met.

    Raises:
        DataError: it is not installed.
    """
    try:
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError:
        raise DataError("Parquet and Arrow files need pyarrow: pip install pyarrow.") from None
    return pyarrow


def damaged(path: Path | str, error: Exception) -> DataError:
    """Return the error of a file that cannot be read, without the reader's own words, which may quote what it read."""
    why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
    return DataError(f"{path} is damaged, or of a kind that Arrow cannot read ({why}): make it anew.")


def _parquet(path: Path, groups: tuple[int, int] | None = None) -> ColumnarFile:
    parquet = import_pyarrow().parquet
    chosen = None if groups is None else list(range(*groups))

    def stream(columns: list[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        # Without the buffer, a row group's columns would be read whole.
        with parquet.ParquetFile(path, buffer_size=1 << 18, pre_buffer=False) as file:
            yield from file.iter_batches(rows, chosen, columns=columns, use_threads=False)

    with parquet.ParquetFile(path) as file:
        held = file.metadata
        num_rows = held.num_rows if chosen is None else sum(held.row_group(group).num_rows for group in chosen)
        return ColumnarFile(path, num_rows, file.schema_arrow, stream)


def group_ends(path: Path, rows: int) -> list[int]:
    """Return where runs of row groups of at least so many rows end; one run where the file is no Parquet file.

    Raises:
        DataError: as of :func:`open_columnar`.
    """
    if _first_bytes(path)[:4] != b"PAR1":
        return [1]
    try:
        with import_pyarrow().parquet.ParquetFile(path) as file:
            held = file.metadata
            sizes = [held.row_group(k).num_rows for k in range(held.num_row_groups)]
    except (import_pyarrow().ArrowException, OSError) as error:
        raise damaged(path, error) from None
    ends = []
    run = 0
    for number, size in enumerate(sizes, start=1):
        run += size
        if run >= rows or number == len(sizes):
            ends.append(number)
            run = 0
    return ends


def _arrow(path: Path) -> ColumnarFile:
    arrow = import_pyarrow()
    with arrow.ipc.open_file(arrow.memory_map(str(path))) as reader:
        schema = reader.schema

    def stream(columns: list[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        wanted = arrow.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in columns])
        with arrow.ipc.open_file(arrow.memory_map(str(path)), options=wanted) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)

    return ColumnarFile(path, arrow.dataset.dataset(path, format="ipc").count_rows(), schema, stream)
