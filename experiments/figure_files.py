"""What small figures share: settings from a YAML, rows into results.csv, the command line, a number on an axis."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import file as config_file
from dpmcmc.config.sections import Section

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "figures"

_Settings = TypeVar("_Settings", bound=Section)


def load(path: Path, kind: type[_Settings]) -> _Settings:
    """Read a YAML.

    Raises:
        CommandError: no such file.
        ConfigError: not YAML.
        ValueError: a value that does not fit.
    """
    try:
        return kind.model_validate(config_file.parse_yaml(path.read_text(encoding="utf-8"), str(path)))
    except FileNotFoundError:
        raise CommandError(f"--config: {path} does not exist; give the path of a YAML file.") from None


def write_table(path: Path, columns: Sequence[str], rows: list[dict[str, Any]]) -> None:
    """results.csv."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        for row in rows:
            table.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def report(lines: Iterable[str], out: Path) -> None:
    """Print what was found, and where it was saved."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for line in lines:
        console.print(line)
    console.print(f"saved {out}")


def arguments_of(name: str, about: str, argv: list[str] | None) -> argparse.Namespace:
    """``--quick``, ``--config`` and ``--out``; the folder is made."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{name}", description=about)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--config", type=Path, default=CONFIGS / f"{name}.yaml", help="YAML file")
    parser.add_argument("--out", type=Path, default=Path("runs") / name, metavar="DIR", help="folder to write in")
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments
