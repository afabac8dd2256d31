"""``results.csv`` in a folder that one process at a time writes; a row is there once it is known, whatever is killed.

``tasks.py`` computes the rows in workers.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from dpmcmc.errors import InputError, printable
from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.files import open_text, read_table
from dpmcmc.storage.lock import lock
from dpmcmc.storage.released_files import ABOUT, RESULTS

Row = dict[str, Any]
#: File that holds the lock.
LOCK = ".lock"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder, to which one process at a time may write.

    Raises:
        InputError: another process holds it, or it cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
    except OSError as error:
        raise InputError(f"--out: {folder} cannot be made ({error.strerror}); give another folder") from None
    with file:
        try:
            lock(file.fileno())
        except OSError:
            raise InputError(
                f"--out: another run is writing to {folder}; wait for it, or give another folder"
            ) from None
        try:
            yield
        finally:
            if os.listdir(folder) == [LOCK]:  # nothing came of it
                (folder / LOCK).unlink()


class Table:
    """``results.csv`` in a folder; a reader, and a run that was killed, see all rows of an :meth:`add` or none.

    Args:
        folder: made if it is not there.
        columns: of the table.
        key: columns that tell a row from all others.
        about: JSON values that all rows depend on; a folder that was made about others is refused.
        file: name of the table.

    Raises:
        InputError: the folder holds rows about something else, or no such table; :meth:`__enter__`: another process
            writes to it.
    """

    def __init__(
        self,
        folder: str | Path,
        columns: Sequence[str],
        key: Sequence[str],
        about: Mapping[str, Any] | None = None,
        file: str = RESULTS,
    ) -> None:
        self.folder = Path(folder)
        self.path = self.folder / file
        self.columns = tuple(columns)
        self._key = tuple(key)
        self._about = about
        self._rows: dict[tuple[str, ...], Row] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(alone(self.folder))
            if self._about is not None:
                self._check_about(self._about)
            if self.path.exists():
                for row in _read_rows(self.path, self.columns):
                    self._rows[self._key_of(row)] = row
            self._open = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()

    @property
    def rows(self) -> list[Row]:
        """Rows in the order in which they were first added; every value is a text, empty where there is none."""
        return list(self._rows.values())

    def has(self, task: Mapping[str, Any]) -> bool:
        """Whether the table has the row of a task, given by the columns of the key."""
        return self._key_of(task) in self._rows

    def row(self, task: Mapping[str, Any]) -> Row | None:
        """Return the row of a task, or None."""
        return self._rows.get(self._key_of(task))

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows, each in the place of one with its key; they are on the disk when this returns."""
        for row in rows:
            self._rows[self._key_of(row)] = {name: text_of(row.get(name)) for name in self.columns}
        content = csv_of(self.columns, self._rows.values()).encode()
        write_atomically(self.path, lambda path: path.write_bytes(content))

    def _key_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the key of a row; 1, 1.0 and a text of either are one value of it."""
        return tuple(str(number_of(text_of(row[name]))) for name in self._key)

    def _check_about(self, about: Mapping[str, Any]) -> None:
        path = self.folder / ABOUT
        now = json.loads(json.dumps(about))
        if not path.exists():
            write_atomically(path, lambda temporary: temporary.write_text(json.dumps(now, indent=1)))
            return
        before = read_table(path)
        if not before:
            raise InputError(f"--out: {path} is damaged; give another folder, or remove that one")
        changed = _difference(before, now)
        if changed:
            raise InputError(
                f"--out: {self.folder} holds results of another configuration ({changed}); give another folder, or "
                "remove that one"
            )


def text_of(value: object) -> str:
    """Return a value as a table writes it: seven digits of a number, nothing for None, a text that is no formula."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.7g}"
    text = printable(str(value), "\n")
    return f"'{text}" if text.startswith(_FORMULA) and isinstance(number_of(text), str) else text


#: Signs by which a spreadsheet takes a text for a formula; an apostrophe before them says that it is none.
_FORMULA = ("=", "+", "-", "@")


def number_of(text: str) -> float | str:
    """Return the number that a text is, or the text."""
    try:
        return float(text)
    except ValueError:
        return text


def numbers(row: Mapping[str, Any]) -> Row:
    """Return a row with its numbers as numbers, and without its empty values."""
    return {name: number_of(value) for name, value in row.items() if value != ""}


def csv_of(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table as CSV."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: text_of(row.get(name)) for name in columns} for row in rows)
    return out.getvalue()


def _read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """Return the rows of a table as texts.

    Raises:
        InputError: it cannot be read, or lacks a column.
    """
    try:
        with open_text(path, newline="") as file:
            table = csv.DictReader(file)
            missing = set(columns) - set(table.fieldnames or ())
            rows = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"--out: {path} cannot be read ({reason}); make it anew") from None
    if missing:
        raise InputError(f"--out: {path} has no column {', '.join(sorted(missing))}; make it anew")
    return rows


def _difference(before: Any, now: Any, where: str = "") -> str:
    """Return the first place where two trees of plain values differ, in words; empty where they do not."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in before | now:
            found = _difference(before.get(name), now.get(name), f"{where}.{name}" if where else str(name))
            if found:
                return found
        return ""
    return "" if before == now else f"{where} was {before!r}, and is {now!r}"
