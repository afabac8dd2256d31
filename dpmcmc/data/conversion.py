"""Parquet and Arrow files, converted to a folder of ``.npy`` files from which a run can read single rows.

    to_rows("people.parquet", "people", x=["age", "income"], y="label")      people/x.npy, people/y.npy and names.txt

Conversion happens once, because a step reads a few rows at random. In a Parquet file these rows lie in nearly every row
group, and each page that holds a value of one must be decompressed whole. In a ``.npy`` file row i of x is 4 d bytes at
a known place. A run reads such a folder by ``row_folder.py``.

Files are streamed batch by batch: memory holds one batch (of an Arrow file that is compressed, one as it is stored;
of Parquet, a page of each column). Nothing is scaled, encoded or left out; a value that cannot be
stored as it is is refused. The folder appears under its name when it is complete, and only its owner may read it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from dpmcmc.data.checks import LARGEST_CLASS, RELABEL, Marked, check_name
from dpmcmc.data.columnar import import_pyarrow, is_list, open_columnar
from dpmcmc.data.table_files import list_table_files
from dpmcmc.errors import DataError
from dpmcmc.storage.atomic import flush_folder, write_atomically
from dpmcmc.storage.stamps import check_unchanged, stamps_of

if TYPE_CHECKING:
    import pyarrow.dataset
    import pyarrow.fs

#: File of a folder that holds the names of the features.
NAMES = "names.txt"
#: Bytes of features held at a time.
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class WrittenRows:
    """Rows that were written.

    Attributes:
        folder: of the arrays.
        num_records: training rows N.
        num_features: d.
        labels: ``"int32"`` for class numbers and counts, ``"float32"`` for real numbers.
        num_test: test rows.
    """

    folder: Path
    num_records: int
    num_features: int
    labels: str
    num_test: int = 0


def to_rows(
    source: str | Path,
    folder: str | Path,
    *,
    x: str | list[str],
    y: str,
    test: str | Path | None = None,
) -> WrittenRows:
    """Convert Parquet or Arrow files to a folder of ``.npy`` files.

    Args:
        source: a Parquet file, an Arrow IPC (Feather) file, or a folder of such files, whose rows follow each other in
            the order of their paths.
        folder: to be made; it must not exist.
        x: columns of the features, numbers or booleans, in this order; or one column of lists of equal length.
        y: column of the labels: integers or booleans become int32 class numbers or counts, floats float32.
        test: files of test rows, of the same columns.

    Returns:
        Rows; what ``num_records`` says is to be declared in the config, if it is public.

    Raises:
        DataError: naming the file and the column, or what is missing; its ``rows`` say which rows of the batch that was
            read, counted from 0 in their file, cannot be had.
    """
    folder = Path(folder)
    if os.path.lexists(folder):
        raise DataError(f"{folder} exists: give a new folder, so that nothing is overwritten.")
    if not folder.absolute().parent.is_dir():
        raise DataError(f"{folder} cannot be made, because {folder.absolute().parent} is no folder: make that first.")
    features = [x] if isinstance(x, str) else list(x)
    for name in features:
        check_name(name, "x")
        if name.splitlines() != [name]:
            raise DataError(
                f"x: the name {name!r} is empty or has a line break, and {NAMES} has one name a line; rename it."
            )
    if not features or len({*features, y}) != len(features) + 1:
        raise DataError(f"x, y: {', '.join([*features, y])} must be one or more features and a label, each named once.")
    parts = [_Source(source, features, y)]
    if test is not None:
        parts.append(_Source(test, features, y, parts[0].shape))
    try:
        made = Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}."))  # for its owner alone
    except OSError as error:
        raise DataError(f"{folder} cannot be made ({error.strerror}): give another folder.") from None
    try:
        for part, suffix in zip(parts, ("", "_test"), strict=False):
            part.write(made, suffix)
        width = parts[0].shape[0]
        names = features if width == len(features) else [f"{features[0]}[{k}]" for k in range(width)]
        write_atomically(
            made / NAMES,
            lambda path: path.write_text("\n".join(names), encoding="utf-8"),
            0o600,
        )
        os.rename(made, folder)
        flush_folder(folder.absolute().parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    width, labels = parts[0].shape
    counts = [part.num_rows for part in parts]
    return WrittenRows(folder, counts[0], width, labels.name, sum(counts[1:]))


class _Source:
    """Files that hold one table.

    Args:
        source: file or folder.
        x: columns of the features.
        y: column of the label.
        shape: (features, type of labels) that it must have.
    """

    def __init__(
        self,
        source: str | Path,
        x: list[str],
        y: str,
        shape: tuple[int, np.dtype] | None = None,
    ) -> None:
        self._x = x
        self._y = y
        self._before = stamps_of(list_table_files(Path(source)))
        # An empty file does not tell the length of its lists.
        self._files = [file for file in map(open_columnar, self._before) if file.num_rows]
        self.num_rows = sum(file.num_rows for file in self._files)
        if not self._files:
            raise DataError(f"{source} holds no row: name a file that does.")
        self.shape = self._files[0].shape(x, y) if shape is None else shape
        for file in self._files:
            found = file.shape(x, y)
            if found != self.shape:
                raise DataError(
                    f"{file.path} has {found[0]} features and labels that become {found[1]}, others have "
                    f"{self.shape[0]} and {self.shape[1]}: store all files alike."
                )

    def write(self, folder: Path, suffix: str) -> None:
        """Write x.npy and y.npy, with a suffix to their names.

        Raises:
            DataError: nulls, numbers that float32 or int32 cannot hold, lists of other lengths, files that change
                meanwhile.
        """
        width, kind = self.shape
        with ExitStack() as stack:
            x = stack.enter_context(
                _new(
                    folder / f"x{suffix}.npy",
                    (self.num_rows, width),
                    np.dtype(np.float32),
                )
            )
            y = stack.enter_context(_new(folder / f"y{suffix}.npy", (self.num_rows,), kind))
            written = 0
            for file in self._files:
                start = 0
                for batch in file.batches([*self._x, self._y], max(_BATCH_BYTES // (4 * width), 1)):
                    rows, labels = _arrays(batch, self._x, self._y, width, kind, file.path, start)
                    x.write(rows.data)
                    y.write(labels.data)
                    start += len(labels)
                written += start
            if written != self.num_rows:
                raise DataError(
                    f"{folder.name}: the files state {self.num_rows} rows and hold {written}; make them anew."
                )
            check_unchanged(self._before)
            for stream in (x, y):
                stream.flush()
                os.fsync(stream.fileno())


def _new(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> BinaryIO:
    """A ``.npy`` file whose header is written, for its owner alone.

    Rows are appended: a map would end the process, not raise, where the disk is full.
    """
    stream = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(stream, header)
    return stream


def _arrays(
    batch: pyarrow.RecordBatch,
    x: list[str],
    y: str,
    width: int,
    kind: np.dtype,
    path: Path,
    start: int,
) -> tuple[np.ndarray, np.ndarray]:
    """(features (rows, width) float32, labels (rows,)) of a batch that begins at row ``start`` of a file."""
    rows = np.empty((batch.num_rows, width), np.float32)
    with np.errstate(over="ignore"):  # a value that becomes inf is refused
        for number, name in enumerate(x):
            column = batch.column(name)
            if is_list(column.type):
                rows[:] = _of_lists(column, name, width, path, start)
            else:
                rows[:, number] = _values(column, name, path, start)
        found = _values(batch.column(y), y, path, start)
        labels = found.astype(kind)
    bad = Marked()
    if found.dtype.kind in "iu":
        bad.add(start, (found < 0) | (found > LARGEST_CLASS))
        bad.refuse(f"{path}: column {y!r} has integers that are no class numbers: {RELABEL}.")
    bad.add(start, ~(np.isfinite(rows).all(axis=1) & np.isfinite(labels)))
    bad.refuse(f"{path}: some rows hold NaN or a value too large for float32: repair or remove them.")
    return rows, labels


def _of_lists(column: pyarrow.Array, name: str, width: int, path: Path, start: int) -> np.ndarray:
    """(rows, width) of a column of lists."""
    _refuse_nulls(column, name, path, start)
    if not import_pyarrow().types.is_fixed_size_list(column.type):
        bad = Marked()
        bad.add(start, column.value_lengths().to_numpy(zero_copy_only=False) != width)
        bad.refuse(f"{path}: column {name!r} has lists of unequal length: make them alike.")
    return _values(column.flatten(), name, path, start, width).reshape(len(column), width)


def _values(column: pyarrow.Array, name: str, path: Path, start: int, width: int = 1) -> np.ndarray:
    """Values of a column, ``width`` of them a row, which begins at row ``start``."""
    _refuse_nulls(column, name, path, start, width)
    return column.to_numpy(zero_copy_only=False)


def _refuse_nulls(column: pyarrow.Array, name: str, path: Path, start: int, width: int = 1) -> None:
    bad = Marked()
    bad.add(
        start,
        column.is_null().to_numpy(zero_copy_only=False).reshape(-1, width).any(axis=1),
    )
    bad.refuse(
        f"{path}: column {name!r} holds nulls: fill or remove such rows, by a rule that does not look at other records."
    )
