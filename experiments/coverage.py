r"""Calibration under privacy: how often the intervals of each method contain the true parameter.

    python -m experiments.coverage [--quick] [--config configs/figures/coverage.yaml] --out DIR

A cell is a task, a way, d, N, ε and the truth's scale (``experiments/calibration``). It simulates tables: a truth from
the prior, or a multiple of it, records from the model at the truth, one run of the way. ``results.csv`` has a row per
cell: what the plan says its draws are for, coverage of central 90 % intervals, width, CRPS and log score against the
non-private posterior, errors of the rank and TARP curves, R-hat of chains, each mean with its Monte Carlo error over
tables. ``predictive.csv`` has the calibration of predicted probabilities on Adult. The picture shows coverage against
width, one panel an ε. Rows that a ``results.csv`` in DIR has already are kept: a run that was stopped goes on there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import Field

from dpmcmc.engine.results_table import Table, numbers
from dpmcmc.engine.tasks import outcomes
from dpmcmc.errors import InputError
from experiments.calibration import cells, predictive
from experiments.calibration.cells import Row, measured
from experiments.calibration.picture import draw
from experiments.calibration.tasks import TASKS, Cell
from experiments.calibration.ways import WAYS
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table

Positive = Annotated[float, Field(gt=0)]
#: Coverage of nominal 90 % intervals that counts as right, beyond two Monte Carlo errors.
BAND = (0.86, 0.94)


class Ways(FigureSection):
    """A list of ways."""

    ways: list[str] = Field(description="Names in experiments/calibration/ways.py.")
    epsilons: list[Positive] = Field(description="ε.")

    @pydantic.field_validator("ways")
    @classmethod
    def _known(cls, values: list[str]) -> list[str]:
        for value in values:
            _among(value, WAYS, "way")
        return values


class Grid(Ways):
    """Cells: every combination of the lists."""

    task: str = Field(description="Name in experiments/calibration/tasks.py.")
    dimensions: list[Annotated[int, Field(ge=2)]] = Field(description="d.")
    records: list[Annotated[int, Field(gt=10)]] = Field(description="N.")
    truth_scales: list[Positive] = Field(description="Standard deviation of the truth over the prior's.")
    tables: int = Field(ge=0, le=100_000, description="Simulated tables a cell; 0: the plan's verdict alone.")

    @pydantic.field_validator("task")
    @classmethod
    def _known_task(cls, value: str) -> str:
        return _among(value, TASKS, "task")

    def cells(self) -> Iterator[Cell]:
        """Return all cells; ε last, so that tables of one kind follow one another."""
        for truth_scale in self.truth_scales:
            for d in self.dimensions:
                for n in self.records:
                    for way in self.ways:
                        for epsilon in self.epsilons:
                            yield Cell(self.task, way, d, n, epsilon, truth_scale)


class Predictive(Ways):
    """Runs on Adult's own labels."""

    runs: int = Field(gt=0, le=1000, description="Runs a row.")


class Quick(FigureSection):
    """Settings that ``--quick`` replaces."""

    grids: list[Grid] = Field(description="Cells.")
    predictive: Predictive | None = Field(description="Calibration on Adult; null: left out.")


class Settings(Quick):
    """The YAML."""

    name: str = Field(description="Name of the picture.")
    quick: Quick


def _among(value: str, known: dict[str, Any], what: str) -> str:
    if value not in known:
        raise InputError(f"there is no {what} {value}; give one of {', '.join(known)}")
    return value


#: Columns that tell a cell.
_KEY = ("task", "way", "d", "N", "epsilon", "truth_scale", "tables")


def _measured(asked: tuple[Cell, int]) -> Row:
    return measured(*asked)


def rows_of(grids: list[Grid], out: Path) -> list[Row]:
    """Return the rows of all cells, those in ``out`` as they are; written after each."""
    asked = [(cell, grid.tables) for grid in grids for cell in grid.cells()]
    keys = [dict(zip(_KEY, (*cell, tables), strict=True)) for cell, tables in asked]
    with Table(out, cells.COLUMNS, _KEY) as table:
        missing = [one for one, key in zip(asked, keys, strict=True) if not table.has(key)]
        for _, row in outcomes(_measured, missing):
            table.add([row])
        return [numbers(row) for row in map(table.row, keys) if row is not None]


def summary(rows: list[Row]) -> list[str]:
    """Return the findings of the table, one per line."""
    lines = []
    for task, way, scale in dict.fromkeys((r["task"], r["way"], r["truth_scale"]) for r in rows):
        those = [r for r in rows if (r["task"], r["way"], r["truth_scale"]) == (task, way, scale)]
        said = "/".join(dict.fromkeys(str(r["verdict"]) for r in those))
        seen = [r for r in those if "coverage" in r]
        text = f"{task}, {way}, truth {scale:g} times the prior: for {said}"
        if seen:
            held = sum(covers(r) for r in seen)
            means = [float(np.mean([float(r[name]) for r in seen])) for name in ("coverage", "width", "crps")]
            text += f"; {held} of {len(seen)} cells cover within .86 to .94 (two standard errors); means: coverage "
            text += f"{means[0]:.3f}, width {means[1]:.2f} and CRPS {means[2]:.2f} times the non-private posterior's; "
            text += f"largest TARP error {max(float(r['tarp_error']) for r in seen):.3f}"
        lines.append(text)
    return lines


def covers(row: Row) -> bool:
    """Return whether a row's coverage is within the band up to two standard errors."""
    coverage = float(row["coverage"])
    error = float(row["coverage_error"])
    return BAND[0] - 2 * error <= coverage <= BAND[1] + 2 * error


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("coverage", "Calibration of intervals under privacy.", argv)
    settings = load(arguments.config, Settings)
    chosen: Quick = settings.quick if arguments.quick else settings
    out = arguments.out
    with folder_for(out):
        rows = rows_of(chosen.grids, out)
        asked = chosen.predictive
        lines = summary(rows)
        if asked is not None:
            found = [
                predictive.calibrated(way, epsilon, asked.runs) for way in asked.ways for epsilon in asked.epsilons
            ]
            write_table(out / "predictive.csv", predictive.COLUMNS, found)
            lines += [
                "adult, {way}, epsilon {epsilon:g}: accuracy {accuracy:.4f}, calibration error "
                "{calibration_error:.4f}".format(**row)
                for row in found
            ]
        draw(out / f"{settings.name}.png", rows, BAND)
        report(lines, out)


if __name__ == "__main__":
    raise SystemExit(main())
