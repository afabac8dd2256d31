"""Options that several subcommands share, and the names and defaults that their help prints.

The modules that own these names take too long to import for a page of help, so they are repeated here;
``tests/cli/test_start.py`` compares. The subcommand says what an option does.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from dpmcmc.config.shipped import list_shipped
from dpmcmc.errors import printable

GOALS = ("intervals", "prediction")
ADJACENCIES = ("replace_one", "add_remove", "zero_out")
FILTERS = ("renyi", "zcdp", "gdp", "programme")
SAMPLERS = ("sgld", "sghmc", "sgnht", "sgfs")
METHODS = ("clopper_pearson", "one_run")
#: Audit's number of runs on each data set, number of canaries, and confidence.
RUNS, CANARIES, CONFIDENCE = 1000, 500, 0.999
#: Size of the problem on which the audit runs a one-shot mechanism. It is small, since every run reads all records.
RECORDS, FEATURES = 500, 2

#: Probability that a receipt's bound fails.
FAILURE = 0.05


def config_names(incomplete: str) -> list[str]:
    """Names of shipped configs that begin so, for a shell's completion."""
    return [name for name in list_shipped() if name.startswith(incomplete)]


def command_words(config: str, overrides: Iterable[str]) -> str:
    """Return the words that name a config on a command line, its changes included."""
    return shlex.join([config, *(word for one in overrides for word in ("--set", one))])


def note(said: str) -> None:
    """Print a remark beside what the command prints."""
    typer.echo(f"note: {printable(said)}", err=True)


ConfigName = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file, or the name of a shipped config such as adult; dpmcmc configs lists them.",
        autocompletion=config_names,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="a.b=VALUE",
        help="Override one key; values are YAML. May be repeated.",
    ),
]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="MODULE",
        help="Let what lies in a run folder import MODULE; read it first.",
    ),
]
Delta = Annotated[float | None, typer.Option(help="Delta; by default the least of 1e-5 and N^-1.2.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def one_of(names: Iterable[str]) -> dict[str, Any]:
    """Settings of an option whose value is one of these names."""
    known = list(names)

    def checked(value: str | None) -> str | None:
        if value is not None and value not in known:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(known)}")
        return value

    return {"metavar": "|".join(known), "callback": checked}
