"""Arguments and options that several subcommands share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

ConfigName = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a shipped config such as adult.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=VALUE", help="Override one key; values are YAML. May be repeated."),
]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code", metavar="MODULE", help="Let a config that lies in a run folder import MODULE; read it first."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def one_of(names: Iterable[str]) -> dict[str, Any]:
    """Settings of an option whose value is one of these names."""
    known = list(names)

    def checked(value: str | None) -> str | None:
        if value is not None and value not in known:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(known)}")
        return value

    return {"metavar": "|".join(known), "callback": checked}
