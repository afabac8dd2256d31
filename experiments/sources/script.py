"""The command line of the scripts in this folder: results.csv, the picture, and a printed line for each row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.arguments import Parser
from experiments.commands import command, folder_for
from experiments.figure_files import report, write_table

Rows = list[dict[str, Any]]


def script(
    name: str,
    about: str,
    rows_of: Callable[[bool], Rows],
    said: str,
    picture: Callable[[Path, Rows, str | None], None] | None = None,
) -> Callable[..., int]:
    """Return the entry point of ``python -m experiments.sources.NAME [--quick] [--out DIR]``.

    Args:
        name: of the script, and of its picture.
        about: what ``--help`` says.
        rows_of: whether the run is quick -> rows of results.csv, with columns in the order of their first appearance.
        said: what is printed of a row, with its columns in braces.
        picture: draws rows into a file, with the note of a quick run.
    """

    @command
    def main(argv: list[str] | None = None) -> None:
        parser = Parser(prog=f"python -m experiments.sources.{name}", description=about)
        parser.add_argument("--quick", action="store_true", help="fewer repeats")
        parser.add_argument("--out", type=Path, default=Path("runs") / name, metavar="DIR", help="folder to write in")
        given = parser.parse_args(argv)
        with folder_for(given.out):
            rows = rows_of(given.quick)
            columns = list(dict.fromkeys(column for row in rows for column in row))
            write_table(given.out / "results.csv", columns, rows)
            if picture is not None:
                picture(given.out / f"{name}.png", rows, "quick: few repeats" if given.quick else None)
        report((said.format(**row) for row in rows), given.out)

    return main
