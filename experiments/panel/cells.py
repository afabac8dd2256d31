"""The table of results. Rows are added a method at a time, so that a run that was killed goes on where it was.

A folder belongs to one configuration: its numbers stand in ``panel.json``, and another one is refused.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpmcmc.cli.refusals import CommandError
from dpmcmc.storage.files import opened_text, read_text
from experiments.panel.config import Panel

COLUMNS = (
    "method",
    "epsilon",
    "delta",
    "repeat",
    "accuracy",
    "log_predictive_density",
    "guarantee_epsilon",
    "assumptions",
    "version",
    "encoding",
    "single_draw_accuracy",
    "crps",
    "coverage90",
    "seconds",
)
#: Columns that tell the rows of one cell.
_KEY = ("version", "method", "encoding", "epsilon", "repeat")
#: Columns that hold a number, or nothing.
_NUMBERS = ("epsilon", "delta", "repeat", "accuracy", "guarantee_epsilon", "crps")

Row = dict[str, Any]


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder, to which one process at a time may write.

    Raises:
        CommandError: another process holds it.
    """
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandError(
                f"--out: another run is writing to {folder}; wait for it, or give another folder."
            ) from None
        try:
            yield
        finally:
            if os.listdir(folder) == [".lock"]:  # nothing came of it
                (folder / ".lock").unlink()


class Results:
    """``results.csv`` in a folder.

    Args:
        folder: made if it is not there.
        panel: whose results these are.

    Raises:
        CommandError: the folder holds results of another configuration.
    """

    def __init__(self, folder: Path, panel: Panel) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.csv"
        stamp = folder / "panel.json"
        body = panel.to_json()
        if stamp.exists():
            before = _stamped(stamp)
            changed = _difference(before, body)
            if changed:
                raise CommandError(
                    f"--out: {folder} holds results of another configuration ({changed}); give another folder, or "
                    "remove that one."
                )
        else:
            _replace(stamp, json.dumps(body, indent=1))
        self.rows: list[Row] = read_table(self.path, "--out") if self.path.exists() else []
        self._done = {_key(row) for row in self.rows}

    def has(self, **cell: Any) -> bool:
        """Whether a cell is finished; ``version``, ``method``, ``encoding``, ``epsilon``, ``repeat``."""
        return _key(cell) in self._done

    def add(self, rows: Sequence[Row]) -> None:
        """Append finished cells; a reader, and a killed run, see all of them or none."""
        text = [{name: _text(row.get(name)) for name in COLUMNS} for row in rows]
        self.rows.extend(text)
        self._done.update(_key(row) for row in text)
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)


def read_table(path: Path, option: str) -> list[Row]:
    """``results.csv``, as :class:`Results` writes it.

    Raises:
        CommandError: it cannot be read, or is no such table; named by the option that it was found by.
    """
    try:
        with opened_text(path, newline="") as file:
            table = csv.DictReader(file)
            missing = set(COLUMNS) - set(table.fieldnames or ())
            rows = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{option}: {path} cannot be read ({reason}); make it anew.") from None
    if missing:
        raise CommandError(f"{option}: {path} has no column {', '.join(sorted(missing))}; make it anew.")
    for number, row in enumerate(rows, 2):
        for name in _NUMBERS:
            try:
                float(row[name] or "nan" if name not in _KEY else row[name])
            except (TypeError, ValueError):
                raise CommandError(
                    f"{option}: {path} has {row[name]!r:.40} for {name} in line {number}, which is no number; make it "
                    "anew."
                ) from None
    return rows


def _stamped(stamp: Path) -> dict[str, Any]:
    try:
        before = json.loads(read_text(stamp))
    except (OSError, ValueError, RecursionError):
        before = None
    if not isinstance(before, dict):
        raise CommandError(f"--out: {stamp} is damaged; give another folder, or remove that one.")
    return before


def _key(row: Row) -> tuple[str, ...]:
    return tuple(_text(float(row[name]) if name == "epsilon" else row[name]) for name in _KEY)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _difference(before: Any, now: Any, where: str = "") -> str:
    """The first place where two trees of plain values differ, in words; empty where they do not."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in [*before, *(name for name in now if name not in before)]:
            path = f"{where}.{name}" if where else str(name)
            if name not in before or name not in now:
                return f"{path} was {'there' if name in before else 'not there'} before"
            found = _difference(before[name], now[name], path)
            if found:
                return found
        return ""
    return "" if before == now else f"{where} was {before!r}, and is {now!r}"
