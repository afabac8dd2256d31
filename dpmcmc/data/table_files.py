"""Files that a path, a folder, a glob or a dataset of Arrow stands for, each of them once, and their rows in memory.

How one file is read is in ``columnar.py``; tables that are read part by part are in ``partitions.py``.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from dpmcmc.data.columnar import SUFFIXES, damaged, import_pyarrow, open_columnar
from dpmcmc.errors import DataError
from dpmcmc.storage.stamps import check_unchanged, stamps_of

if TYPE_CHECKING:
    import pyarrow.dataset
    import pyarrow.fs

#: Rows of a table that are read at a time into memory.
_TABLE_ROWS = 1 << 16


def read_table_files(source: Path) -> pyarrow.Table:
    """Return a Parquet or Arrow file, or a folder of such files, in memory.

    Raises:
        DataError: there is none, one is damaged or changes meanwhile, or they differ in their columns.
    """
    before = stamps_of(list_table_files(source))
    files = [open_columnar(path) for path in before]
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


def read_dataset(data: pyarrow.dataset.Dataset) -> pyarrow.Table:
    """Return a dataset of Arrow in memory.

    Raises:
        DataError: a file of it is damaged, changes meanwhile, counts twice or holds text.
    """
    places = list_dataset_files(data)
    before = stamps_of(place for place in places if isinstance(place, Path))
    try:
        found = data.to_table()
    except (import_pyarrow().ArrowException, OSError) as error:
        raise damaged("the dataset", error) from None
    check_unchanged(before)
    return found


def list_dataset_files(data: pyarrow.dataset.Dataset) -> list[Path | str]:
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
    fs = import_pyarrow().fs
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


def list_table_files(source: Path) -> list[Path]:
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
