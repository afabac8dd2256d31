"""Arguments and options that several subcommands share."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import dpmcmc
from dpmcmc.cli.interrupt import loading
from dpmcmc.cli.refusals import exit_code
from dpmcmc.config.shipped import shipped
from dpmcmc.errors import meant


def config_names(incomplete: str) -> list[str]:
    """Names of shipped configs that begin so, for a shell's completion."""
    return [name for name in shipped() if name.startswith(incomplete)]


def note(said: str) -> None:
    """Print a remark beside what the command prints."""
    typer.echo(f"note: {said}", err=True)


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
        help="Let a config that lies in a run folder import MODULE; read it first.",
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


# ------------------------------------------------------------------------------------
# The subcommands by name. Each loads when it is called, so that ``dpmcmc verify`` does not wait for JAX.


#: Name of a subcommand -> its line in the list of commands. The module of that name has a typer application ``app``.
COMMANDS = {
    "run": "Run a configuration, and write a folder that can be published.",
    "plan": "Say what a run would do and cost; read no record.",
    "suggest": "Choose the settings of a configuration from public facts; read no record.",
    "verify": "Recompute the epsilon of a privacy.json from its events.",
    "export": "Write the entry of a run in OpenDP's registry of deployments.",
    "ledger": "The privacy budget of a data set: init, show, history.",
    "audit": "Attack what a configuration releases, and hold a lower bound on epsilon beside the claimed one.",
    "data": "Convert Parquet or Arrow files to a folder of .npy files.",
    "configs": "List the configurations that come with the package.",
}


class _Lazy(TyperCommand):
    """A subcommand that is not loaded yet."""

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        """Load the module of the subcommand, and return its context."""
        with loading():
            module = importlib.import_module(f"dpmcmc.cli.{self.name}")
        if not gc.isenabled():  # off since this process began
            gc.freeze()  # the libraries stay, so no later collection needs to walk through them
            gc.set_threshold(50_000)  # traces and programs stay too
            gc.enable()
        return typer.main.get_command(module.app).make_context(*arguments, **extra)


class _Commands(TyperGroup):
    """All subcommands."""

    def list_commands(self, ctx: object) -> list[str]:
        """Names, in the order of use."""
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the subcommand that the first word names; refuse a word that is none, with the nearest one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no such command {args[0]!r}{meant(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: object, cmd_name: str) -> _Lazy | None:
        """A subcommand that loads when it is called."""
        if cmd_name not in COMMANDS:
            return None
        return _Lazy(cmd_name, help=COMMANDS[cmd_name], callback=lambda: None)


app = typer.Typer(
    cls=_Commands,
    help="Differentially private stochastic-gradient MCMC: plan it, run it, check what was promised.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpmcmc {dpmcmc.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: words after ``dpmcmc``; None: those of this process.

    Returns:
        Exit code: 0; 2 for what the user can mend; 1 for a verdict against, or a run that failed; 130 when stopped.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)

    def work() -> object:
        return typer.main.get_command(app).main(
            arguments, prog_name="dpmcmc", standalone_mode=False
        )

    code = exit_code(work)
    processes = sys.modules.get("dpmcmc.engine.processes")
    # A process that failed must not wait for the others.
    return code if processes is None else processes.ended(code)
