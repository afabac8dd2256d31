"""Shared by small figures: settings from a YAML, rows into results.csv, the command line, a number on an axis."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import parse_yaml
from dpmcmc.config.refusals import invalid
from dpmcmc.config.sections import Section
from dpmcmc.engine.results_table import Row, csv_of, numbers
from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting import ADJACENCIES
from dpmcmc.report.console import Screen
from dpmcmc.storage.files import read_text
from experiments.arguments import Parser

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "figures"

#: Beyond this no number of an experiment makes sense, and a whole one is no seed that JAX takes.
_LARGEST = 2**31 - 1

_Settings = TypeVar("_Settings", bound=Section)


class FigureSection(Section):
    """A mapping of an experiment's YAML.

    A list in it holds something, a number is within int32, and a name may be part of a file's name.
    """

    @pydantic.field_validator("*")
    @classmethod
    def _usable(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        if value == []:
            raise InputError("the list is empty, and needs a value")
        if isinstance(value, int | float) and abs(value) > _LARGEST:
            raise InputError(f"input should be at most {_LARGEST}")
        if info.field_name == "name" and not set(str(value)).isdisjoint("/\\\0"):
            raise InputError("the name holds a slash, and is part of a file's name")
        if info.field_name == "adjacency" and value not in ADJACENCIES:
            raise InputError(f"input should be {', '.join(ADJACENCIES)}")
        return value


def load(path: Path, kind: type[_Settings]) -> _Settings:
    """Read a YAML.

    Raises:
        CommandError: it cannot be read, or a value does not fit.
        ConfigError: not YAML.
    """
    return checked(path, kind, parse_yaml(text_of(path), str(path)))


def text_of(path: Path) -> str:
    """A settings file.

    Raises:
        CommandError: it cannot be read.
    """
    try:
        return read_text(path)
    except FileNotFoundError:
        raise CommandError(f"{path} does not exist; give the path of a YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{path}: cannot be read ({reason}); give the path of a YAML file.") from None


def checked(path: Path, kind: type[_Settings], body: Any) -> _Settings:
    """Settings of parsed values.

    Raises:
        CommandError: naming the file, the key, and what is wrong with it.
    """
    try:
        return kind.model_validate(body)
    except pydantic.ValidationError as error:
        raise CommandError(f"{path}: {invalid(error, body)}") from None


def write_table(path: Path, columns: Sequence[str], rows: list[dict[str, Any]]) -> None:
    """results.csv."""
    path.write_bytes(csv_of(columns, rows).encode())


def read_table(path: Path) -> list[Row]:
    """Return the rows of a results.csv, numbers as numbers; empty cells are left out."""
    with path.open(encoding="utf-8", newline="") as file:
        return [numbers(row) for row in csv.DictReader(file)]


def report(lines: Iterable[str], out: Path) -> None:
    """Print what was found, and where it was saved."""
    console = Screen()
    for line in lines:
        console.print(line)
    console.print(f"saved {out}")


def arguments_of(name: str, about: str, argv: list[str] | None) -> argparse.Namespace:
    """``--quick``, ``--config`` and ``--out``."""
    parser = Parser(prog=f"python -m experiments.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--config", type=Path, default=CONFIGS / f"{name}.yaml", help="YAML file")
    parser.add_argument("--out", type=Path, default=Path("runs") / name, metavar="DIR", help="folder to write in")
    return parser.parse_args(argv)
