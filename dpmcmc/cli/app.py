"""The whole command line on one page. The work of each command is in the file of its name, which loads when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from dpmcmc import __version__

app = typer.Typer(
    name="dpmcmc",
    help="Differentially private stochastic-gradient MCMC: plan, run, and check what was promised.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
ledger_app = typer.Typer(help="The privacy budget of a data set.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")

_CONFIG = typer.Argument(help="A YAML file, or the name of a shipped config such as adult.", show_default=False)
_SET = typer.Option("--set", metavar="a.b=VALUE", help="Override one key; may be repeated.", show_default=False)
_JSON = typer.Option("--json", help="Print JSON.")
_RECEIPT = typer.Option(
    "--receipt", metavar="FILE", help="A privacy.json of a run that the ledger must hold.", show_default=False
)

ConfigName = Annotated[str, _CONFIG]
Overrides = Annotated[list[str] | None, _SET]
AsJson = Annotated[bool, _JSON]
Receipts = Annotated[list[str] | None, _RECEIPT]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpmcmc {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
