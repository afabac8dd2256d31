"""One partition of a table: a file, row groups of it, a fragment of a dataset, or a partition of Dask.

A partition gives its rows as they lie; they become records in ``encoded_partitions.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dpmcmc.data import columnar
from dpmcmc.errors import DataError

if TYPE_CHECKING:
    import pyarrow.dataset


#: Rows that are read and encoded at a time.
ROWS = 1 << 16


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
        return columnar.open_columnar(self.path, self.groups).num_rows

    def tables(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows; see :class:`Partition`."""
        file = columnar.open_columnar(self.path, self.groups)
        present = [name for name in columns if name in file.schema.names]
        yield from file.batches(present, ROWS)


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
        present = [name for name in columns if name in self.schema.names]
        batches = self._read(
            self.fragment.to_batches,
            self.schema,
            present,
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
