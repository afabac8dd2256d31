"""Scores of a swept config for the tables of a sweep: released ones, and those of the data holder alone.

They are read from the files of its run folder; nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpmcmc.storage.files import read_table
from dpmcmc.storage.released_files import CONFIDENTIAL

#: Names in the table, and how a run's JSON files say them.
MEASURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "accuracy": lambda said: (said.get("accuracy") or {}).get("posterior_predictive"),
    "rmse": lambda said: (said.get("rmse") or {}).get("posterior_predictive"),
    "log_predictive_density": lambda said: said.get("log_predictive_density"),
    "expected_calibration_error": lambda said: said.get("expected_calibration_error"),
    "ess": lambda said: said.get("ess"),
    "rhat": lambda said: said.get("rhat"),
}


def released_row(folder: Path) -> dict[str, Any]:
    """Return what a finished config has released: its verdict, and scores of its draws on public test rows."""
    said = read_table(folder / "metrics.json")
    row = {name: of(said) for name, of in MEASURES.items()}
    return row | {"usable_for": " ".join(said.get("usable_for") or [])}


def confidential_row(folder: Path) -> dict[str, Any]:
    """Return :func:`released_row` with scores that are for the data holder alone in the place of those that lack."""
    rows = [released_row(folder)]
    rows += [released_row(folder / CONFIDENTIAL)]
    said = read_table(folder / CONFIDENTIAL / "diagnostics.json")
    rows += [{name: of(said) for name, of in MEASURES.items()}]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: next((row[name] for row in rows if row.get(name) not in (None, "")), None) for name in names}
