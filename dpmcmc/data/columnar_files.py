"""Parquet and Arrow IPC files, streamed in batches of rows; none is kept open, for there may be thousands.

``pyarrow.dataset`` would read both kinds in fewer lines, but it reads a Parquet row group whole: 372 MiB of memory for
a file of one row group of 288 MB, where ``iter_batches`` takes 12 MiB (pyarrow 26).
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
    import pyarrow

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
        types = _pyarrow().types
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
        except (_pyarrow().ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the disk's error, not the content's
                raise
            raise _damaged(self.path, error) from None

    def _width(self, name: str) -> int:
        """Length of the lists of a column, all alike."""
        kind = self.schema.field(name).type
        if hasattr(kind, "list_size"):
            return int(kind.list_size)
        first = next(self.batches([name], 1), None)
        return 0 if first is None else int(first.column(0).value_lengths()[0].as_py() or 0)


def opened(path: Path) -> ColumnarFile:
    """Return a file by its first bytes.

    Raises:
        DataError: it is neither Parquet nor Arrow IPC, is damaged, or pyarrow is not there.
    """
    arrow = _pyarrow()
    try:
        with path.open("rb") as stream:
            begins = stream.read(6)
        if begins == b"ARROW1":
            return _arrow(path)
        if begins[:4] == b"PAR1":
            return _parquet(path)
    except (arrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from None
    raise DataError(f"{path} is neither Parquet nor an Arrow IPC file: write it as one of these.")


def is_list(kind: pyarrow.DataType) -> bool:
    """Return whether a type is one of lists."""
    types = _pyarrow().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _pyarrow() -> ModuleType:
    try:
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError:
        raise DataError("Parquet and Arrow files need pyarrow: pip install 'dpmcmc[arrow]'.") from None
    return pyarrow


def _damaged(path: Path, error: Exception) -> DataError:
    # Arrow's own words may quote what it read.
    why = getattr(error, "strerror", None) or type(error).__name__
    return DataError(f"{path} is damaged, or of a kind that Arrow cannot read ({why}): make it anew.")


def _parquet(path: Path) -> ColumnarFile:
    parquet = _pyarrow().parquet

    def stream(columns: list[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        # Without the buffer, a row group's columns would be read whole.
        with parquet.ParquetFile(path, buffer_size=1 << 18, pre_buffer=False) as file:
            yield from file.iter_batches(rows, columns=columns, use_threads=False)

    with parquet.ParquetFile(path) as file:
        return ColumnarFile(path, file.metadata.num_rows, file.schema_arrow, stream)


def _arrow(path: Path) -> ColumnarFile:
    arrow = _pyarrow()
    with arrow.ipc.open_file(arrow.memory_map(str(path))) as reader:
        schema = reader.schema

    def stream(columns: list[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        wanted = arrow.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in columns])
        with arrow.ipc.open_file(arrow.memory_map(str(path)), options=wanted) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)

    return ColumnarFile(path, arrow.dataset.dataset(path, format="ipc").count_rows(), schema, stream)
