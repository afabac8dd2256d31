"""Parquet and Arrow files, converted to a folder of ``.npy`` files from which a run can read single rows.

    to_rows("people.parquet", "people", x=["age", "income"], y="label")      people/x.npy, people/y.npy and names.txt

Conversion happens once, because a step reads a few rows at random. In a Parquet file these rows lie in nearly every row
group, and each page that holds a value of one must be decompressed whole. In a ``.npy`` file row i of x is 4 d bytes at
a known place.

Files are streamed batch by batch: memory holds one batch (of an Arrow file that is compressed, one as it is stored;
of Parquet, a page of each column). Nothing is scaled, encoded or left out; a value that cannot be
stored as it is is refused. The folder appears under its name when it is complete, and only its owner may read it.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

import numpy as np

from dpmcmc.data.checks import LARGEST_CLASS, RELABEL, Marked, check_name
from dpmcmc.errors import DataError
from dpmcmc.storage.atomic import flush_folder, write_atomically
from dpmcmc.storage.stamps import check_unchanged, stamps_of

if TYPE_CHECKING:
    import pyarrow.dataset
    import pyarrow.fs


# ----------------------------------------------------------------------------------------------------
# Parquet and Arrow IPC files, streamed in batches of rows; none is kept open, for there may be thousands.
#
# ``pyarrow.dataset`` would read both kinds in fewer lines, but it reads a Parquet row group whole: 372 MiB of memory
# for a file of one row group of 288 MB, where ``iter_batches`` takes 12 MiB (pyarrow 26).

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
            raise damaged(self.path, error) from None

    def _width(self, name: str) -> int:
        """Length of the lists of a column, all alike."""
        kind = self.schema.field(name).type
        if _pyarrow().types.is_fixed_size_list(kind):
            return int(kind.list_size)
        first = next(self.batches([name], 1), None)
        return 0 if first is None else int(first.column(0).value_lengths()[0].as_py() or 0)


def opened(path: Path, groups: tuple[int, int] | None = None) -> ColumnarFile:
    """Return a file by its first bytes.

    Args:
        path: of the file.
        groups: of a Parquet file, the first row group and the one after the last; None: all of them.

    Raises:
        DataError: it is neither Parquet nor Arrow IPC, is damaged, or pyarrow is not there.
    """
    arrow = _pyarrow()
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
    types = _pyarrow().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _pyarrow() -> ModuleType:
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
    parquet = _pyarrow().parquet
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
        DataError: as of :func:`opened`.
    """
    if _first_bytes(path)[:4] != b"PAR1":
        return [1]
    try:
        with _pyarrow().parquet.ParquetFile(path) as file:
            held = file.metadata
            sizes = [held.row_group(k).num_rows for k in range(held.num_row_groups)]
    except (_pyarrow().ArrowException, OSError) as error:
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
    arrow = _pyarrow()
    with arrow.ipc.open_file(arrow.memory_map(str(path))) as reader:
        schema = reader.schema

    def stream(columns: list[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        wanted = arrow.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in columns])
        with arrow.ipc.open_file(arrow.memory_map(str(path)), options=wanted) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)

    return ColumnarFile(path, arrow.dataset.dataset(path, format="ipc").count_rows(), schema, stream)


#: File of a folder that holds the names of the features.
NAMES = "names.txt"
#: Bytes of features held at a time.
_BATCH_BYTES = 4 << 20
#: Rows of a table that are read at a time into memory.
_TABLE_ROWS = 1 << 16


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


def table(source: Path) -> pyarrow.Table:
    """Return a Parquet or Arrow file, or a folder of such files, in memory.

    Raises:
        DataError: there is none, one is damaged or changes meanwhile, or they differ in their columns.
    """
    before = stamps_of(paths_of(source))
    files = [opened(path) for path in before]
    import pyarrow

    batches = [batch for file in files for batch in file.batches(file.schema.names, _TABLE_ROWS)]
    check_unchanged(before)
    try:
        return pyarrow.Table.from_batches(batches, files[0].schema)
    except pyarrow.ArrowException:
        raise DataError(f"{source}: the files differ in their columns; store all alike.") from None


def is_dataset(data: object) -> TypeGuard[Any]:
    """Return whether an object is a dataset of Arrow."""
    names = {(kind.__module__, kind.__name__) for kind in type(data).__mro__}
    return ("pyarrow._dataset", "Dataset") in names


def is_stored(data: object) -> bool:
    """Return whether data are the path of a table, or a dataset of Arrow: what is not in memory yet."""
    return isinstance(data, str | os.PathLike) or is_dataset(data)


def is_dask(data: object) -> TypeGuard[Any]:
    """Return whether an object is a DataFrame of Dask."""
    ours = any(kind.__module__.startswith("dask.") for kind in type(data).__mro__)
    return ours and hasattr(data, "to_delayed") and hasattr(data, "columns")


def of_dataset(data: pyarrow.dataset.Dataset) -> pyarrow.Table:
    """Return a dataset of Arrow in memory.

    Raises:
        DataError: a file of it is damaged, changes meanwhile, counts twice or holds text.
    """
    places = places_of(data)
    before = stamps_of(place for place in places if isinstance(place, Path))
    try:
        found = data.to_table()
    except (_pyarrow().ArrowException, OSError) as error:
        raise damaged("the dataset", error) from None
    check_unchanged(before)
    return found


def places_of(data: pyarrow.dataset.Dataset) -> list[Path | str]:
    """Return where the files of a dataset of Arrow lie; a text where the file system is not this machine's.

    Raises:
        DataError: a file counts twice, or holds text.
    """
    parts = [*_parts_of(data)]
    _check_once(parts)
    return [place for place, _ in parts]


def _parts_of(data: pyarrow.dataset.Dataset) -> Iterator[tuple[Path | str, Any]]:
    """Yield (file, fragment) of a dataset; no fragment of one that is filtered, and nothing of rows in memory."""
    for child in getattr(data, "children", ()):
        yield from _parts_of(child)
    if hasattr(data, "files"):
        try:
            fragments = [*data.get_fragments()]
        except ValueError:  # it is filtered
            _check_typed(data.format)
            yield from ((_place(data.filesystem, path), None) for path in data.files)
            return
        for one in fragments:
            _check_typed(one.format)
            if one.filesystem is not None:
                yield _place(one.filesystem, one.path), one


def _check_typed(kind: pyarrow.dataset.FileFormat) -> None:
    """Refuse files of text, whose types Arrow guesses, so that one row decides how others are read."""
    if kind.default_extname in ("csv", "json"):
        raise DataError(
            f"data: the dataset reads {kind.default_extname} files, whose reader guesses types and may drop lines: "
            "give the path of one CSV file, or write the table as Parquet."
        )


def _place(system: pyarrow.fs.FileSystem, path: str) -> Path | str:
    fs = _pyarrow().fs
    while isinstance(system, fs.SubTreeFileSystem):
        path = system.base_path + path
        system = system.base_fs
    return Path(path) if isinstance(system, fs.LocalFileSystem) else path


def _check_once(parts: Iterable[tuple[Path | str, Any]]) -> None:
    """Refuse two names of one file: symbolic and hard links, and a name that is given twice.

    Args:
        parts: (file, fragment of a dataset, of which some may have other row groups of one file; or None).
    """
    found: dict[Hashable, list[tuple[Path | str, Any]]] = {}
    for place, fragment in parts:
        number = stamps_of([place])[place][:2] if isinstance(place, Path) else ()
        found.setdefault(number or place, []).append((place, fragment))
    for same in found.values():
        if len(same) == 1:
            continue
        groups = [
            getattr(group, "id", None) for _, fragment in same for group in getattr(fragment, "row_groups", (None,))
        ]
        if len({*groups}) < len(groups):
            raise DataError(
                f"data: {same[0][0]} and {same[1][0]} are one file, whose records would count twice: leave one of them "
                "out."
            )


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
        self._before = stamps_of(paths_of(Path(source)))
        # An empty file does not tell the length of its lists.
        self._files = [file for file in map(opened, self._before) if file.num_rows]
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


def paths_of(source: Path) -> list[Path]:
    """Return the files of a file, a folder or a glob such as ``people/*.parquet``, in the order of their paths.

    Raises:
        DataError: there is none, one that is no Parquet or Arrow file by its name, or two names of one file.
    """
    if source.is_file():
        return [source]
    found = _paths_of(source)
    _check_once((path, None) for path in found)
    return found


def _paths_of(source: Path) -> list[Path]:
    if not source.is_dir():
        named = {*glob.glob(str(source), recursive=True)}
        found = [Path(one) for one in sorted(named) if os.path.isfile(one)]
        wrong = [one for one in found if one.suffix not in SUFFIXES]
        if wrong:
            raise DataError(
                f"{source} means {wrong[0]} too, which is neither Parquet nor Arrow by its name "
                f"({', '.join(SUFFIXES)}): name such files alone."
            )
        if not found:
            raise DataError(f"{source}: there is no such file or folder; correct the path.")
        return found
    inside = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    # Names that begin so are no data by the convention of those who write such folders (_SUCCESS, _metadata, .crc).
    found = sorted(path for path in inside if not any(part.startswith(("_", ".")) for part in path.parts))
    other = [path for path in found if path.suffix not in SUFFIXES]
    if other or not found:
        what = f"holds {other[0]}, which is neither" if other else "holds none"
        raise DataError(f"{source} {what}: name a folder of Parquet or Arrow files ({', '.join(SUFFIXES)}) alone.")
    return [source / path for path in found]


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
    if not _pyarrow().types.is_fixed_size_list(column.type):
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
