"""Run the benchmark of private regression on public tables, and write what it shows.

    python -m experiments.benchmark [--tables NAME ...] [--methods NAME ...] [--epsilons E ...] [--repeats N]
                                    [--workers N] [--quick] [--page docs/benchmark.md] [--report] --out DIR

``results.csv`` has a row for each table, method, ε and repeat (``run.COLUMNS``). ``summary.csv`` has a row for each
method and ε, ``losses.md`` a paragraph for each loss, and ``ranks.png`` is the picture. Rows that DIR has are kept: a
run that was stopped goes on there. Splits and simulated labels are the same in every run; the noise of privacy is not.

``--report`` runs nothing, and writes all this of the rows that DIR has. Methods that lack a table at an ε are left out,
so that ranks are among the same methods everywhere.

``--quick`` runs the tables that come with scikit-learn. Methods and tables whose package is not installed are listed as
skipped. Designs that other papers have printed are cells of ``python -m experiments.intervals``.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dpmcmc.cli.refusals import CommandError
from dpmcmc.engine import results_table
from dpmcmc.engine.tasks import Lost, outcomes
from experiments.arguments import Parser
from experiments.benchmark import losses, picture, summary
from experiments.benchmark.methods import METHODS
from experiments.benchmark.run import COLUMNS, KEY, Row, Task, rows_of
from experiments.benchmark.tables import TABLES
from experiments.commands import command, folder_for
from experiments.figure_files import report, text_of

EPSILONS, REPEATS = (0.1, 0.3, 1.0, 3.0, 10.0), 10
#: ε and repeats of ``--quick``.
_QUICK_EPSILONS, _QUICK_REPEATS = (1.0,), 2
_MOST_REPEATS, _MOST_WORKERS, _MOST_EPSILON = 1000, 64, 1000.0


def tasks_of(
    tables: Sequence[str], methods: Sequence[str], epsilons: Sequence[float], repeats: int, table: results_table.Table
) -> list[Task]:
    """Return tasks whose rows the table lacks, table by table, so that what is compiled is of use."""
    tasks = []
    for name in tables:
        for repeat in range(repeats):
            for method in methods:
                cell = {"table": name, "method": method, "repeat": repeat}
                missing = tuple(e for e in epsilons if not table.has(cell | {"epsilon": e}))
                if missing:
                    tasks.append(Task(name, method, missing, repeat))
    return tasks


def run(asked: Sequence[Task], table: results_table.Table, workers: int) -> None:
    """Run tasks, and add their rows; a task whose process died is a failure of its method."""
    for task, found in outcomes(rows_of, asked, workers=workers):
        if isinstance(found, Lost):
            cell = {"table": task.table, "method": task.method, "repeat": task.repeat}
            why = f"its process died ({found.why})"
            cell |= {"status": "failed", "reason": why, "family": METHODS[task.method].family}
            table.add([cell | {"epsilon": epsilon} for epsilon in task.epsilons])
        else:
            table.add(found)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m experiments.benchmark", description="Private regression on public tables.")
    parser.add_argument("--tables", nargs="+", metavar="NAME", help="tables of the list; all if it is not given")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="methods; all if it is not given")
    parser.add_argument("--epsilons", nargs="+", type=float, metavar="E", help=f"ε, {EPSILONS} if it is not given")
    parser.add_argument("--repeats", type=int, help=f"splits and simulations, {REPEATS} if it is not given")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each, 2 by default")
    parser.add_argument("--quick", action="store_true", help="the tables of scikit-learn, one ε")
    parser.add_argument("--page", type=Path, metavar="FILE", help="page whose tables are replaced by these")
    parser.add_argument("--report", action="store_true", help="write what the rows of DIR show, and run nothing")
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / "benchmark", metavar="DIR", help="folder to write in"
    )
    given = parser.parse_args(argv)
    for option, known in (("tables", TABLES), ("methods", METHODS)):
        for name in getattr(given, option) or []:
            if name not in known:
                raise CommandError(f"--{option}: there is no {name!r}; give one of {', '.join(known)}.")
    given.epsilons = given.epsilons or list(_QUICK_EPSILONS if given.quick else EPSILONS)
    for epsilon in given.epsilons:
        if not 0 < epsilon <= _MOST_EPSILON:
            raise CommandError(f"--epsilons: must lie in (0, {_MOST_EPSILON:g}], got {epsilon:g}.")
    if given.repeats is None:
        given.repeats = _QUICK_REPEATS if given.quick else REPEATS
    for option, most in (("repeats", _MOST_REPEATS), ("workers", _MOST_WORKERS)):
        if not 1 <= getattr(given, option) <= most:
            raise CommandError(f"--{option}: must lie in 1..{most}, got {getattr(given, option)}.")
    if given.page is not None:
        losses.placed(text_of(given.page), "")  # before hours of work
    given.tables = given.tables or [name for name, one in TABLES.items() if (one.quick if given.quick else one.listed)]
    given.methods = given.methods or list(METHODS)
    return given


def _benchmark(given: argparse.Namespace) -> list[str]:
    with results_table.Table(given.out, COLUMNS, KEY) as table:
        if not given.report:
            run(tasks_of(given.tables, given.methods, given.epsilons, given.repeats, table), table, given.workers)
        rows = [results_table.numbers(row) for row in table.rows]
    left_out = _lacking(rows, given) if given.report else []
    if given.report:
        rows = [row for row in rows if row["method"] not in left_out and _asked(row, given)]
        if not rows:
            raise CommandError(
                "--report: no method of DIR has every table at every ε; give --tables or --epsilons that it has."
            )
    found = summary.summarised(rows)
    (given.out / "summary.csv").write_text(results_table.csv_of(summary.COLUMNS, found), encoding="utf-8")
    text = losses.page(rows, found, not _whole(rows))
    lost = "\n\n".join(losses.paragraphs(rows) or ["No loss beyond two standard errors was seen."])
    (given.out / "losses.md").write_text(f"{text}\n{lost}\n", encoding="utf-8")
    picture.draw(given.out / "ranks.png", rows)
    if given.page is not None:
        given.page.write_text(losses.placed(text_of(given.page), text), encoding="utf-8")
    said = [f"left out, since it lacks a table at an ε: {method}" for method in left_out]
    return [*summary.told(rows, found), *said]


def _repeats(rows: Sequence[Row]) -> Counter[tuple[object, ...]]:
    """Return the number of rows of each method, table and ε."""
    return Counter((row["method"], row["table"], row["epsilon"]) for row in rows)


def _asked(row: Row, given: argparse.Namespace) -> bool:
    return row["table"] in given.tables and row["epsilon"] in given.epsilons


def _lacking(rows: Sequence[Row], given: argparse.Namespace) -> list[str]:
    """Return the methods that lack a row of a table at an ε."""
    seen = _repeats(rows)
    cells_of = list(itertools.product(given.tables, given.epsilons))
    return [method for method in METHODS if any((method, *cell) not in seen for cell in cells_of)]


def _whole(rows: Sequence[Row]) -> bool:
    """Return whether there are all repeats of each method on each table of the list at each ε."""
    seen = _repeats(rows)
    tables = [name for name, one in TABLES.items() if one.listed]
    return all(seen[cell] >= REPEATS for cell in itertools.product(METHODS, tables, EPSILONS))


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    given = _arguments(argv)
    with folder_for(given.out):
        report(_benchmark(given), given.out)


if __name__ == "__main__":
    raise SystemExit(main())
