r"""Measure the intervals of ``dpmcmc.fit``, and write one table with the failures first.

    python -m experiments.intervals [--quick] [--config configs/figures/intervals.yaml] [--only NAME ...] [--tables N]
                                    [--workers N] [--page docs/uncertainty.md] --out DIR

``results.csv`` has a row for each design, N and ε. ``coverage`` is that of the slopes: the mean over coefficients and
tables; ``intercept_coverage`` is that of the intercept. ``width`` is the mean over slopes of the median over tables of
the interval's width over that of the non-private fit. ``mean_width`` is in the units of the columns. ``usable`` is the
share of tables whose result says that its intervals may be reported. A table misses if a coefficient lies outside its
interval by more than half the interval's width; ``misses_flagged`` is the share of such tables that the result does not
call usable for intervals, and ``false_alarms`` that share among the other tables. ``seconds`` is the median over fits.

A fit that raises is counted under ``failed``, with the class of its error; ``refused`` counts those that the library
refuses. Tables are the same in every run; the noise of privacy is not. Rows that DIR has already are kept: a run that
was stopped goes on there, and goals are read anew.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from dpmcmc.cli.refusals import CommandError
from dpmcmc.engine.results_table import Table, numbers
from dpmcmc.engine.tasks import Lost, outcomes
from experiments.arguments import Parser
from experiments.commands import command, folder_for
from experiments.figure_files import CONFIGS, load, report, write_table
from experiments.intervals import table
from experiments.intervals.designs import design
from experiments.intervals.measure import Failure, Row, Seen, Task, seen_of_row, summarised

_MOST_WORKERS = 64


@functools.cache
def _estimand(name: str) -> tuple[float, ...]:
    return design(name).best_fitting()


def asked_rows(chosen: table.Quick, only: list[str] | None, tables: int | None) -> list[table.Asked]:
    """Return the rows to measure.

    Raises:
        CommandError: ``only`` names nothing that the YAML has.
    """
    rows = [row for cell in chosen.cells for row in cell.rows(tables or chosen.tables)]
    names = dict.fromkeys(name for row in rows for name in (row.cell, row.design))
    for name in only or []:
        if name not in names:
            raise CommandError(f"--only: there is no {name!r}; give one of {', '.join(names)}.")
    return [row for row in rows if not only or row.cell in only or row.design in only]


def measured(asked: list[table.Asked], out: Path, workers: int) -> list[Row]:
    """Return the rows, those in ``out`` as they are; the table is written after each."""
    rows: dict[int, Row] = {}

    def add(at: int, row: Row) -> None:
        row = row | asked[at].facts
        rows[at] = row | {"finding": "; ".join(table.findings(row, asked[at].goal))}
        kept.add([rows[at]])

    with Table(out, table.COLUMNS, table.KEY) as kept:
        for at, one in enumerate(asked):
            before = kept.row(one.facts)
            if before is not None:
                add(at, numbers(before))
        missing = [at for at in range(len(asked)) if at not in rows]
        # New processes a design: programs that a process compiles stay in its memory.
        for _, those in groupby(missing, key=lambda at: asked[at].design):
            chosen = {at: asked[at] for at in those}
            for at, tables in _tables(chosen, workers):
                add(at, summarised(tables, _task(asked[at], 0)))
        write_table(kept.path, table.COLUMNS, table.ordered(list(map(numbers, kept.rows))))
    return [rows[at] for at in range(len(asked))]


def _task(one: table.Asked, number: int) -> Task:
    facts = (one.design, one.records, one.epsilon, one.delta, one.level)
    return Task(*facts, number, _estimand(one.design), one.chain)


def _tables(rows: dict[int, table.Asked], workers: int) -> Iterator[tuple[int, list[Seen | Failure]]]:
    """Yield rows of one design with the outcomes of all their tables; a table whose worker died has failed."""
    tasks = [(at, _task(one, number)) for at, one in rows.items() for number in range(one.tables)]
    found: dict[int, dict[int, Seen | Failure]] = {at: {} for at in rows}
    for (at, task), end in outcomes(seen_of_row, tasks, workers=workers):
        found[at][task.table] = Failure(end.why, False) if isinstance(end, Lost) else end
        if len(found[at]) == rows[at].tables:
            yield at, [found[at][number] for number in range(rows[at].tables)]


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m experiments.intervals", description="Intervals of dpmcmc.fit on simulated tables.")
    parser.add_argument("--quick", action="store_true", help="three rows of two tables")
    parser.add_argument("--config", type=Path, default=CONFIGS / "intervals.yaml", help="YAML file")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cells or designs; all if it is not given")
    parser.add_argument("--tables", type=int, help="simulated tables a row, in place of the YAML's")
    parser.add_argument(
        "--workers", type=int, help="processes of one thread each, 2 by default; 1: this process, as --quick has it"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / "intervals", metavar="DIR", help="folder to write in"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="page whose table is replaced by this one")
    arguments = parser.parse_args(argv)
    if arguments.tables is not None and not 1 < arguments.tables <= 100_000:
        raise CommandError(f"--tables: must lie in 2..100000, got {arguments.tables}.")
    if arguments.workers is None:
        arguments.workers = 1 if arguments.quick else 2
    if not 1 <= arguments.workers <= _MOST_WORKERS:
        raise CommandError(f"--workers: must lie in 1..{_MOST_WORKERS}, got {arguments.workers}.")
    return arguments


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = _arguments(argv)
    settings = load(arguments.config, table.Settings)
    asked = asked_rows(settings.quick if arguments.quick else settings, arguments.only, arguments.tables)
    with folder_for(arguments.out):
        rows = measured(asked, arguments.out, arguments.workers)
        if arguments.page is not None:
            text = arguments.page.read_text(encoding="utf-8")
            arguments.page.write_text(table.placed(text, rows), encoding="utf-8")
        report(table.told(rows), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
