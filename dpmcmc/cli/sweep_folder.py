"""The folder of a sweep: what it may hold before, the grid in it, and what is released at the end.

Every file and folder that others may see bears the day of the sweep's first start: a time would tell when a config
ended, which depends on records.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from dpmcmc.cli.refusals import CommandError
from dpmcmc.cli.swept_config import status_of
from dpmcmc.config import grid as grids
from dpmcmc.config.grid import Grid
from dpmcmc.config.model import in_database
from dpmcmc.config.yaml_writing import to_yaml
from dpmcmc.engine.results_table import Row, csv_of
from dpmcmc.report import sweep_page
from dpmcmc.storage.released_files import ABOUT, CELLS, CONFIDENTIAL, GRID, RESULTS
from dpmcmc.storage.run_folder import RunFolder, day_of, today
from dpmcmc.storage.surroundings import checkpoint_around


def check_place(folder: Path) -> None:
    """Refuse a folder that holds something else than a sweep."""
    if checkpoint_around(folder) is not None:
        raise CommandError(f"--out: {folder} lies in a checkpoint, which holds keys of a run; give another folder.")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CommandError(f"--out: {folder} is no folder; give one that is new or empty.")
    names = {path.name for path in folder.iterdir()}
    if names and not (folder / CONFIDENTIAL / ABOUT).exists() and names != {CONFIDENTIAL}:
        raise CommandError(f"--out: {folder} holds something else than a sweep; give a folder that is new or empty.")


def relative(grid: Grid, folder: Path) -> dict[str, Any]:
    """Return the grid's values with paths as they are written from the sweep's folder."""
    values = json.loads(json.dumps(grid.about["values"]))
    base = Path(grid.about["base"])

    def moved(key: str, value: object) -> object:
        if not isinstance(value, str) or in_database(key.rpartition(".")[2], value):
            return value
        return os.path.relpath(base / os.path.expanduser(value), folder)

    for key in ("data.path", "privacy.ledger"):
        section, _, name = key.partition(".")
        within = values.get(section)
        if isinstance(within, dict) and within.get(name) is not None:
            within[name] = moved(key, within[name])
        swept = values[grids.SECTION]
        for lists in (swept.get("over") or {}, *(swept.get("together") or [])):
            if key in lists:
                lists[key] = [moved(key, value) for value in lists[key]]
    return dict(values)


def released_folder(folder: Path, values: dict[str, Any]) -> RunFolder:
    """Return the folder of what is released, with the grid in it; its files bear the day of its first start."""
    path = folder / GRID
    released = RunFolder(folder, day_of(path) if path.exists() else today())
    if not path.exists():
        released.write(GRID, to_yaml(values))
    return released


def remove_unbegun(folder: Path, whole: bool) -> None:
    """Empty the folder of a sweep of which no config has begun, and remove it where the sweep has made it."""
    if all(status_of(path) == "waiting" for path in (folder / CELLS).glob("*")):
        for name in (CELLS, CONFIDENTIAL):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / GRID).unlink(missing_ok=True)
        if whole:
            with contextlib.suppress(OSError):  # it holds something else
                folder.rmdir()


def publish(
    rows: list[Row],
    page: str | None,
    released: RunFolder,
    columns: tuple[str, ...],
) -> None:
    """Write the table and the page.

    Args:
        rows: of the table; public facts and released values alone.
        page: None: a config has ended in a way that only the data holder may learn, so neither is there.
        released: folder of the sweep.
        columns: of the table.
    """
    names = (RESULTS, sweep_page.FILE)
    if page is None:
        for name in names:
            (released.folder / name).unlink(missing_ok=True)
        return
    released.write(names[0], csv_of(columns, rows))
    released.write(names[1], page)


def date(folder: Path) -> None:
    """Give the folders the day of the first start: the time of a file would tell when the last config ended."""
    if (folder / GRID).exists():
        within = (folder / name for name in (CELLS, CONFIDENTIAL))
        folders = [path for path in within if path.exists()]
        RunFolder(folder, day_of(folder / GRID)).date(*folders, folder)
