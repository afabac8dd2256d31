"""The table of results of a panel. A method adds its rows at once, so that a run that was killed goes on where it was.

A folder belongs to one configuration: its numbers stand in ``about.json``, and another one is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from dpmcmc.engine.results_table import Row, Table
from dpmcmc.errors import InputError
from experiments.panel.config import Panel

__all__ = ["COLUMNS", "Results", "Row"]

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
#: Columns that tell the row of one task.
_KEY = ("version", "method", "encoding", "epsilon", "repeat")
#: Columns that hold a number, or nothing.
_NUMBERS = ("epsilon", "delta", "repeat", "accuracy", "guarantee_epsilon", "crps")


class Results(Table):
    """``results.csv`` in a folder.

    Args:
        folder: made if it is not there.
        panel: whose results these are.

    Raises:
        InputError: on entering: the folder holds results of another configuration, or another run writes to it.
    """

    def __init__(self, folder: Path, panel: Panel) -> None:
        super().__init__(folder, COLUMNS, _KEY, panel.to_json())

    def __enter__(self) -> Self:
        super().__enter__()
        for number, row in enumerate(self.rows, 2):
            for name in _NUMBERS:
                try:
                    float(row[name] or "nan" if name not in _KEY else row[name])
                except ValueError:
                    self.__exit__()
                    raise InputError(
                        f"--out: {self.path} has {row[name]!r:.40} for {name} in line {number}, which is no number; "
                        "make it anew"
                    ) from None
        return self
