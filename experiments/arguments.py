"""Command lines of the experiments."""

from __future__ import annotations

import argparse
from typing import NoReturn

from dpmcmc.cli.refusals import CommandError


class Parser(argparse.ArgumentParser):
    """Argument parser that refuses a command line in one sentence, without printing the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the error of argparse."""
        raise CommandError(f"{message}; see {self.prog} --help.")


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """The option ``--allow-code``, whose values :func:`dpmcmc.config.file.load` takes."""
    parser.add_argument(
        "--allow-code",
        action="append",
        default=[],
        metavar="MODULE",
        help="let a config that lies in a run folder import MODULE; read it first",
    )
