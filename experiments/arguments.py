"""Command lines of the experiments."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from dpmcmc.cli.refusals import CommandError


class Parser(argparse.ArgumentParser):
    """Argument parser that refuses a command line in one sentence, without printing the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the error of argparse."""
        raise CommandError(f"{message}; see {self.prog} --help.")


def of_source(name: str, about: str, argv: list[str] | None) -> argparse.Namespace:
    """``--quick`` and ``--out`` of a script in ``experiments/sources``."""
    parser = Parser(prog=f"python -m experiments.sources.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--out", type=Path, default=Path("runs") / name, metavar="DIR", help="folder to write in")
    return parser.parse_args(argv)


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """The option ``--allow-code``, whose values :func:`dpmcmc.config.file.load` takes."""
    parser.add_argument(
        "--allow-code",
        action="append",
        default=[],
        metavar="MODULE",
        help="let a config that lies in a run folder import MODULE; read it first",
    )
