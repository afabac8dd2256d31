"""The subcommands, each a function whose signature declares its options, and ``main``.

A function imports what it needs when it is called, so that a page of help waits for no library. A subcommand that takes
more than a screen is carried out by the module that its declaration names, with the same arguments.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import dpmcmc
from dpmcmc.cli.interrupt import ignore_from_now_on, interrupt_from_now_on
from dpmcmc.cli.options import (
    ADJACENCIES,
    CANARIES,
    CONFIDENCE,
    FAILURE,
    FEATURES,
    FILTERS,
    GOALS,
    METHODS,
    RECORDS,
    RUNS,
    SAMPLERS,
    AllowCode,
    AsJson,
    ConfigName,
    Delta,
    Overrides,
    command_words,
    config_names,
    note,
    one_of,
)
from dpmcmc.cli.refusals import CommandError, exit_code
from dpmcmc.config.shipped import list_shipped, title_of
from dpmcmc.errors import meant


class _Commands(TyperGroup):
    """All subcommands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the subcommand that the first word names; refuse a word that is none, with the nearest one."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(f"no such command {args[0]!r}{meant(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    help="Differentially private stochastic-gradient MCMC: plan it, run it, check what was promised.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich's page of help takes as long to import as all else
    context_settings={"help_option_names": ["-h", "--help"]},
)


#: Options that may be repeated.
_LISTS = ("overrides", "allow_code", "receipt", "programme")


def _begin() -> None:
    """Begin a command's work, once its libraries are imported."""
    interrupt_from_now_on()
    if not gc.isenabled():  # off since this process began
        gc.freeze()  # the libraries stay, so no later collection needs to walk through them
        gc.set_threshold(50_000)  # traces and programs stay too
        gc.enable()


def _command(example: str, group: typer.Typer = app, by: str = "") -> Callable[[Callable[..., Any]], Any]:
    """Declare a subcommand by the function that carries it out, which imports what it needs and then calls ``_begin``.

    Args:
        example: of its words, which its help prints.
        group: that it belongs to.
        by: ``module:function`` of this room that carries it out with the same arguments, in place of its own body.
    """

    def declare(declared: Callable[..., Any]) -> Any:
        @functools.wraps(declared)
        def carry_out(**given: Any) -> Any:
            work = declared
            if by:
                room, name = by.split(":")
                work = vars(importlib.import_module(f"dpmcmc.cli.{room}"))[name]
                _begin()
            empty: dict[str, Any] = {key: [] for key in _LISTS if given.get(key, "") is None}
            return work(**given | empty)

        return group.command(epilog=f"Example: dpmcmc {example}", short_help=declared.__doc__)(carry_out)

    return declare


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpmcmc {dpmcmc.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@_command("run adult --set privacy.epsilon=0.5", by="run:run")
def run(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A YAML file, or the name of a shipped config such as adult; not needed with --resume.",
            autocompletion=config_names,
        ),
    ] = None,
    overrides: Overrides = None,
    allow_code: AllowCode = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Run folder; runs/NAME-DAY-RANDOM by default."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Go on with the run in this folder, which was stopped."),
    ] = None,
    confidential: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where to keep what must not be published."),
    ] = None,
    per_record: Annotated[
        bool,
        typer.Option(
            "--per-record",
            help="Write what the run costs each training record to confidential/ as well.",
        ),
    ] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="Be one of several processes that share the config's mesh.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the folder of the draws.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a configuration, and write a folder that can be published."""


@_command('fit people.csv schema.yaml "late ~ age + job" --epsilon 1', by="fit:fit")
def fit(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A CSV or Parquet file, or Parquet files by a glob.")],
    schema: Annotated[
        str,
        typer.Argument(metavar="SCHEMA", help="YAML of its columns' public ranges and levels; see dpmcmc schema."),
    ],
    epsilon: Annotated[float, typer.Option(help="Epsilon of the promise.")],
    formula: Annotated[
        str | None,
        typer.Argument(metavar="[FORMULA]", help="The label and what predicts it; all columns by default."),
    ] = None,
    delta: Delta = None,
    sampler: Annotated[
        str | None,
        typer.Option(help="Take the path of a sampler's steps.", **one_of(SAMPLERS)),
    ] = None,
    ledger: Annotated[str | None, typer.Option(metavar="FILE", help="Ledger that is charged.")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="New folder; runs/TABLE-DAY-RANDOM by default.")
    ] = None,
) -> None:
    """Fit a regression to a table, and write a folder with its intervals that can be published."""


@_command("sweep grid.yaml --workers 2 --out runs/grid")
def sweep(
    grid: Annotated[
        str,
        typer.Argument(metavar="GRID", help="A config with a section sweep of the lists to sweep over."),
    ],
    overrides: Overrides = None,
    allow_code: AllowCode = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the sweep; runs/NAME-DAY-RANDOM by default. One that was stopped goes on.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=256, help="Processes of one thread each; 1: this one, on all its cores."),
    ] = 1,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="dask://HOST:PORT",
            help="Scheduler whose workers run the configs, and see DIR under the same path.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the folder of the sweep.")] = False,
    as_json: AsJson = False,
) -> int:
    """Run every config of a grid of configurations, and write one table and one page."""
    from dpmcmc.cli import sweep as sweeps
    from dpmcmc.config import grid as grids
    from dpmcmc.report.console import Screen

    _begin()
    if quiet and as_json:
        raise CommandError("--json: prints the folder already; leave --quiet out.")
    loaded = grids.load(grid, overrides, allow_code=allow_code or (), note=note)
    tell = Screen(quiet or as_json).print
    with contextlib.nullcontext() if on is None else sweeps.executor_of(on) as executor:
        done = sweeps.carry_out(loaded, out, allow_code or (), tell, workers=workers, executor=executor)
    if as_json:
        print(json.dumps(done.to_json(), indent=2, allow_nan=False))
    elif quiet:
        print(done.folder)
    return 0 if done.complete else 1


@_command("plan adult --set privacy.epsilon=0.5")
def plan(
    config: ConfigName,
    overrides: Overrides = None,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
    details: Annotated[
        bool,
        typer.Option("--all", help="Print every line, those for tuning a chain too."),
    ] = False,
) -> None:
    """Say what a run would do and cost; read no record."""
    from dpmcmc import config as config_room
    from dpmcmc.config import file as config_file
    from dpmcmc.report.lines import rows
    from dpmcmc.report.screen import lines_of_plan, uses, width

    _begin()
    asked = config_file.load(config, overrides, allow_code=allow_code or (), note=note)
    made = config_room.make_plan(asked)
    secret = config_room.is_secret(asked)
    if as_json:
        print(json.dumps(made.describe(secret).stated, indent=2, allow_nan=False))
        return
    spec = config_room.describe_data(asked)
    epsilon = None if asked.privacy is None else asked.privacy.epsilon
    lines = lines_of_plan(
        asked.name, made, spec, secret=secret, asked=epsilon, features=spec.num_features, origin="none read"
    )
    if details:
        lines += made.describe(secret).lines
    else:
        if made.verdict.intervals.usable:
            lines += width(None, made.verdict.predicted_width)
        words = command_words(config, overrides or ())
        lines += uses(made.verdict, made, words)
        if len(made.usable_for) == len(made.verdict.reasons):
            lines.append(("more", f"dpmcmc plan {words} --all"))
    print(rows(lines))


@_command("suggest adult --goal intervals", by="suggest:suggest")
def suggest(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A YAML file or a shipped config with data, target and privacy.epsilon, which are kept, as are delta, "
            "adjacency, ledger and a mechanism; settings of a sampler are chosen anew. Without it use the options.",
            autocompletion=config_names,
        ),
    ] = None,
    overrides: Overrides = None,
    allow_code: AllowCode = None,
    goal: Annotated[str, typer.Option(help="Use of the draws.", **one_of(GOALS))] = "intervals",
    target: Annotated[str, typer.Option(help="Without CONFIG: the model.")] = "logistic_regression",
    num_records: Annotated[int | None, typer.Option(help="N, public.")] = None,
    num_features: Annotated[int | None, typer.Option(help="Columns of a row, public.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Epsilon of the promise.")] = None,
    delta: Delta = None,
    picture: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Save predicted widths against N and epsilon in a new file.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a config whose settings are chosen from public facts; read no record."""


@_command("verify runs/adult-2026-01-31-abc", by="verify:verify")
def verify(
    privacy: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or its privacy.json.")],
    group: Annotated[
        int | None,
        typer.Option(metavar="K", help="Also print the guarantee for any K records together."),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            metavar="D",
            help="Also print epsilon at this total delta, and the run as GDP and zCDP.",
        ),
    ] = None,
    patient: Annotated[
        bool,
        typer.Option("--patient", help="However long it takes; for a file of your own."),
    ] = False,
    allow_code: AllowCode = None,
    as_json: AsJson = False,
) -> None:
    """Recompute the epsilon of a privacy.json from its events; exit code 1 where they cost more than it states."""


@_command("receipt runs/adult --record me.csv")
def receipt(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    record: Annotated[
        str,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Your own record: a CSV with a header and one row, in the columns of the run's data; or an .npz.",
        ),
    ],
    failure: Annotated[
        float,
        typer.Option(
            metavar="P",
            help="Probability that the bound of objective perturbation fails.",
        ),
    ] = FAILURE,
    allow_code: AllowCode = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write it to this new file, outside RUN, instead."),
    ] = None,
) -> None:
    """Say what a run has cost one person, from the released folder and that person's record alone."""
    from dpmcmc.cli.receipt import write_receipt

    _begin()
    write_receipt(Path(run), Path(record), allow_code or (), failure, None if out is None else Path(out))


_ledger = typer.Typer()
app.add_typer(
    _ledger,
    name="ledger",
    help="The privacy budget of a data set: init, show, history, copy.",
)

LedgerFile = Annotated[
    str,
    typer.Argument(metavar="FILE", help="A ledger: a file, or postgresql://USER@HOST/DATABASE."),
]
Receipts = Annotated[
    list[str] | None,
    typer.Option(
        "--receipt",
        metavar="FILE",
        help="privacy.json of a run that the ledger must hold.",
    ),
]


@_command("ledger init adult.ledger --epsilon 3 --delta 1e-5", _ledger, "ledger:init")
def init(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="New file, for example adult.ledger; or postgresql://USER@HOST/DATABASE.",
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="Promised for all runs together.")],
    delta: Annotated[float, typer.Option(help="Promised for all runs together.")],
    name: Annotated[str | None, typer.Option(help="Name of the data set; by default the file's.")] = None,
    adjacency: Annotated[
        str,
        typer.Option(help="Definition of a neighbouring data set.", **one_of(ADJACENCIES)),
    ] = "replace_one",
    num_records: Annotated[int | None, typer.Option(metavar="N", help="If it is public.")] = None,
    filter: Annotated[
        str | None,
        typer.Option(
            help="How runs add up; by default renyi, or programme with --programme.",
            **one_of(FILTERS),
        ),
    ] = None,
    order: Annotated[
        int | None,
        typer.Option(help="Order of filter renyi; by default the best for full-batch runs."),
    ] = None,
    typical: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help="Choose the order for runs like this one instead."),
    ] = None,
    programme: Annotated[
        list[str] | None,
        typer.Option(metavar="CONFIG", help="One of the only runs there will be; may be repeated."),
    ] = None,
    overrides: Overrides = None,
    allow_code: AllowCode = None,
) -> None:
    """Make a ledger; its budget is fixed for good."""


@_command("ledger show adult.ledger", _ledger, "ledger:show")
def show(file: LedgerFile, receipt: Receipts = None, as_json: AsJson = False) -> None:
    """Print what is left."""


@_command("ledger history adult.ledger", _ledger, "ledger:history")
def history(file: LedgerFile, receipt: Receipts = None, as_json: AsJson = False) -> None:
    """Print every entry."""


@_command("ledger copy adult.ledger postgresql://ana@db.example/budgets#adult", _ledger, "ledger:copy")
def copy(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The ledger; it is closed by this.")],
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="postgresql://USER@HOST/DATABASE, without a ledger."),
    ],
) -> None:
    """Copy a file with all its entries into a database; the file admits no run from then on."""


@_command("audit adult_prediction --runs 500", by="audit:attack")
def audit(
    config: ConfigName,
    overrides: Overrides = None,
    allow_code: AllowCode = None,
    method: Annotated[
        str,
        typer.Option(help="clopper_pearson: many runs; one_run: many records in one run.", **one_of(METHODS)),
    ] = "clopper_pearson",
    runs: Annotated[
        int | None,
        typer.Option(help=f"Runs on each of two data sets; {RUNS} by default."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the bound and the verdict.")] = CONFIDENCE,
    steps: Annotated[
        int | None,
        typer.Option(help="Audit only the first steps of a sampler, against what those cost."),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(help=f"Records of a mechanism's problem; {RECORDS} by default, at most the config's."),
    ] = None,
    features: Annotated[
        int | None,
        typer.Option(min=1, max=100_000, help=f"Features of a mechanism's problem; {FEATURES} by default."),
    ] = None,
    canaries: Annotated[
        int | None,
        typer.Option(help=f"Canaries of method one_run; {CANARIES} by default."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the audit reproducible; it holds no secret.")] = None,
    as_json: AsJson = False,
) -> None:
    """Attack what a configuration releases, and hold a lower bound on epsilon beside the claimed one."""


@_command("data rows.parquet rows --x age,hours --y income")
def data(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A Parquet or Arrow (Feather) file, or a folder of them.",
        ),
    ],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="To be made, for its owner alone.")],
    x: Annotated[
        str,
        typer.Option(metavar="a,b,c", help="Columns of the features, or one column of lists."),
    ],
    y: Annotated[str, typer.Option(metavar="label", help="Column of the labels.")],
    test: Annotated[str | None, typer.Option(metavar="SOURCE", help="Files of test rows.")] = None,
) -> None:
    """Convert Parquet or Arrow files to a folder of .npy files."""
    from dpmcmc.config.yaml_writing import to_yaml
    from dpmcmc.data.conversion import to_rows

    _begin()
    rows = to_rows(source, folder, x=x.split(","), y=y, test=test)
    features = "1 feature" if rows.num_features == 1 else f"{rows.num_features} features"
    labels = "class numbers or counts" if rows.labels == "int32" else "real numbers"
    print(f"# {rows.num_records:,} training rows and {rows.num_test or 'no'} test rows: {features}, {labels}")
    print("# num_records is stated in public; row_bound must be known without looking at the rows")
    section = {"data": {"path": str(rows.folder.absolute()), "num_records": rows.num_records}}
    print(to_yaml(section), end="")


@_command("configs")
def configs(
    as_json: AsJson = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON schema of a configuration, by which an editor checks one."),
    ] = False,
) -> None:
    """List the configurations that come with the package."""
    _begin()
    if schema:
        from dpmcmc.config.for_editors import text  # the list need not wait for it

        print(text(), end="")
        return
    found = {name: title_of(path) for name, path in list_shipped().items()}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    room = max(map(len, found)) + 2
    for name, said in found.items():
        print(textwrap.fill(said, 80, initial_indent=f"{name:<{room}}", subsequent_indent=" " * room))


@_command("schema people.csv --out schema.yaml", by="schema:schema")
def schema(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A CSV or Parquet file; its column names are read.")],
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write it to this new file instead."),
    ] = None,
) -> None:
    """Print a schema of a table to fill in from public knowledge."""


_program: Any = typer.main.get_command(app)
#: Names of the subcommands.
COMMANDS = tuple(_program.commands)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: words after ``dpmcmc``; None: those of this process.

    Returns:
        Exit code: 0; 2 for what the user can mend; 1 for a verdict against, or a run that failed; 130 when stopped.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)

    def work() -> object:
        return _program.main(arguments, prog_name="dpmcmc", standalone_mode=False)

    code = exit_code(work)
    ignore_from_now_on()  # the exit code is decided
    processes = sys.modules.get("dpmcmc.engine.processes")
    # A process that failed must not wait for the others.
    return code if processes is None else processes.ended(code)
