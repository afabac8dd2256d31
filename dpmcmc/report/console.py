"""Console lines of a run. They hold public facts and released values alone, because others often read a console's
log."""

from __future__ import annotations

import contextlib
import datetime
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

import jax
import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from dpmcmc.data import DataSet, DataSpec
from dpmcmc.inference import predictive
from dpmcmc.planning.description import Verdict
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.stages import AnyPlan
from dpmcmc.planning.verdict import ESS, RHAT
from dpmcmc.privacy.accounting.events import round_up
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.report import page
from dpmcmc.report.page import Circumstances, Kind, Settings
from dpmcmc.storage.fingerprint import on_disk
from dpmcmc.targets import bind, record_shapes
from dpmcmc.targets.base import Target

# ----------------------------------------------------------------------------------------------------
# Progress of a run: a bar in a terminal or a notebook, lines in a log.
#
# A log is kept, and the time that a run takes after it has begun is not public. So lines of a log come at fixed numbers
# of steps, at most ten, unless the records are public. A line comes every ten seconds before a run has begun, when
# nothing was computed from a record, and on public records, whose time is public.

#: Called with (steps done, steps in all).
Report = Callable[[int, int], None]
#: Seconds between lines, and most lines at fixed numbers of steps.
_SECONDS, _LINES = 10.0, 10


#: Reports steps of the run that is computed.
_SHOWN: ContextVar[Report | None] = ContextVar("shown", default=None)


class Running(Protocol):
    """The part of a ``Life`` (``engine/life.py``) that this room uses."""

    plan: AnyPlan
    begun: bool


@contextlib.contextmanager
def shown(
    progress: Report | bool | None,
    run: Running,
    console: Console | None = None,
    public: bool = False,
) -> Iterator[Report | None]:
    """Show a run's steps while the context is open; yield the function that reports them.

    Args:
        progress: a function that is called with each report; None: a bar in a terminal or a notebook, and nothing in a
            log; True: lines in a log too; False: nothing.
        run: that is computed.
        console: to show it on; None: standard error.
        public: whether the records are.
    """
    console = Console(stderr=True) if console is None else console
    quiet = console.quiet or not (progress or console.is_terminal or console.is_jupyter)
    show = _notebook if console.is_jupyter else _bar if console.is_terminal else _log
    with contextlib.ExitStack() as stack:
        report = progress if callable(progress) else None
        if report is None and progress is not False and not quiet:
            report = stack.enter_context(show(run, console, public))
        stack.callback(_SHOWN.reset, _SHOWN.set(report))
        yield report


def report_steps(done: int, total: int) -> None:
    """Report steps of a mechanism, which is given no function for it; outside :func:`shown` nothing is shown."""
    report = _SHOWN.get()
    if report is not None:
        report(done, total)


@contextlib.contextmanager
def _bar(run: Running, console: Console, public: bool) -> Iterator[Report]:
    steps = run.plan.steps if isinstance(run.plan, Plan) else None
    text = TextColumn("sampling    " if steps else "drawing     ")
    columns = (
        text,
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=steps)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def _notebook(run: Running, console: Console, public: bool) -> Iterator[Report]:
    from IPython.display import HTML, display

    def bar(done: int, total: int) -> HTML:
        return HTML(
            f"<progress value={done} max={total}></progress> {done:,} of {total:,} steps"
        )

    cell = display(HTML("<progress></progress> compiling"), display_id=True)
    yield lambda done, total: cell.update(bar(done, total))
    cell.update(HTML(""))


@contextlib.contextmanager
def _log(run: Running, console: Console, public: bool) -> Iterator[Report]:
    began = time.monotonic()
    over = threading.Event()
    at = [0]
    said = ["drawing      the release"]
    doing = "sampling    " if run.plan.has_chains else "drawing     "

    def report(done: int, total: int) -> None:
        said[0] = f"{doing} {done:,} of {total:,} steps"
        mark = done * _LINES // total
        if not public and at[0] < mark < _LINES:
            at[0] = mark
            console.print(said[0])

    def beat() -> None:
        while not over.wait(_SECONDS):
            if public or not run.begun:
                now = said[0] if run.begun else "compiling    no record has been used yet"
                console.print(f"{now}, {time.monotonic() - began:.0f} s so far")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        over.set()
        thread.join()


# ----------------------------------------------------------------------------------------------------
# Public facts: a run may state them before it has computed anything from a record.
#
# Everything that a run prints, names, dates or writes outside ``confidential/`` is computed from a :class:`PublicFacts`
# and from draws that the guarantee covers. So the functions that print and write (here and in ``files.py``) take
# these, and never a DataSet.
#
# Public facts are:
#
# * the config and the plan made from it, with N, and what the config declares of the data;
# * the name, origin and checksums of a known data set, and the columns, which neighbouring data sets share;
# * the day on which the run began, and the seconds that had passed before the first record was read;
# * all records, where ``spec.public`` says so.
#
# Private data make these facts private:
#
# * how many rows were held out, or belong to an owner, and which rows they are;
# * any time after the first record was read, because how long a step takes depends on the records;
# * whether a diagnostic could be computed.


class Declared(TypedDict, total=False):
    """Facts that a config declares; see :class:`PublicFacts`."""

    generated: bool
    settings: Settings | None


@dataclass(frozen=True, eq=False)
class PublicFacts:
    """Public facts of one run.

    Attributes:
        name: of the config.
        plan: of the run.
        secret: whether its noise is.
        spec: what is declared of the data.
        origin: where they are from; ``user file`` for all files of a user's.
        sha256: of the files of a known set; empty for a user's.
        columns: names of the columns of a row, which neighbouring data sets share.
        target: the plan's, bound to the shapes of a record.
        on_disk: whether the records are a folder, of which only batches are read.
        test: test rows where these are public, else None.
        day: on which the run began.
        generated: whether the config declares that a program generated the records.
        settings: how these were chosen, as the config declares; None where nobody vouches.
    """

    name: str
    plan: AnyPlan
    secret: bool
    spec: DataSpec
    origin: str
    sha256: Mapping[str, str]
    columns: tuple[str, ...]
    target: Target
    on_disk: bool
    test: Mapping[str, np.ndarray] | None
    day: datetime.date
    generated: bool = False
    settings: Settings | None = None

    @classmethod
    def of(
        cls,
        name: str,
        plan: AnyPlan,
        secret: bool,
        data: DataSet,
        day: datetime.date,
        **declared: Unpack[Declared],
    ) -> PublicFacts:
        """The public facts of a run on these records; nothing else is taken from them.

        Args:
            name, plan, secret, day: as the attributes.
            data: the records.
            declared: of them by the config.
        """
        return cls(
            name,
            plan,
            secret,
            data.spec,
            data.origin,
            dict(data.sha256),
            data.columns,
            bind(plan.target, record_shapes(data.train)),
            on_disk(data.train),
            data.test if data.test_is_public else None,
            day,
            **declared,
        )

    @property
    def num_features(self) -> int:
        """Columns of a row."""
        return len(self.columns)

    @property
    def trace(self) -> Plan | None:
        """Plan of the sampler whose iterates may be published; None for a one-shot mechanism."""
        return self.plan if isinstance(self.plan, Plan) else None

    def publishable(self, guarantee: Guarantee | None) -> bool:
        """Whether draws with this guarantee may be published: it is finite, or the records are public."""
        return self.spec.public or (
            guarantee is not None and math.isfinite(guarantee.epsilon)
        )

    def circumstances(self, fit: bool) -> Circumstances:
        """Return what the page says of records and settings.

        Args:
            fit: whether a fit without privacy is published.
        """
        origins: dict[str, Kind] = {"stand-in": "stand_in", "generated": "generated"}
        declared: Kind = (
            "generated" if self.generated else "public" if self.spec.public else "private"
        )
        times = self.spec.public and self.trace is not None
        return Circumstances(
            origins.get(self.origin, declared), self.settings, fit, times
        )

    @property
    def planned(self) -> Guarantee | None:
        """Guarantee of the plan; None where the noise is not secret."""
        return self.plan.guarantee if self.secret else None

    def note(self, guarantee: Guarantee | None) -> str | None:
        """Text that must stand on every figure of draws with this guarantee, or None."""
        if self.origin == "stand-in":
            return f"generated stand-in for {self.spec.name}: not the real data"
        if not self.publishable(guarantee):
            return "no privacy guarantee, and the records are not public: confidential"
        return None if self.secret else "insecure noise seed: no privacy guarantee"

    def title(self, guarantee: Guarantee | None) -> str:
        """Title of every figure."""
        if guarantee is None:
            return f"{self.name}: no guarantee"
        return f"{self.name}: ε = {round_up(guarantee.epsilon, 3)}, δ = {guarantee.delta:.3g}"

    def described(self) -> str:
        """Return name and origin of the data in words."""
        where = (
            "files whose checksums privacy.json states" if self.sha256 else self.origin
        )
        return f"{self.spec.name}, {self.num_features} columns, from {where}"

    def data_json(self) -> dict[str, object]:
        """Return what ``privacy.json`` says of the data."""
        return {
            "name": self.spec.name,
            "origin": self.origin,
            "public": self.spec.public,
            "encoding": self.spec.encoding,
            "sha256": dict(self.sha256) or None,
        }

    def metrics(self) -> dict[str, object]:
        """Return ``metrics.json`` before anything is measured, with every key that it always has."""
        heat = None if self.trace is None else self.trace.temperatures
        plan = self.plan
        return {
            **dict.fromkeys(
                ("accuracy", "rmse", "log_predictive_density", "non_private")
            ),
            **dict.fromkeys(("ess", "rhat", "steps_per_second")),
            "temperature": None
            if heat is None
            else {"min": float(heat.min()), "max": float(heat.max())},
            "draws": plan.draws,
            "data": {"name": self.spec.name, "origin": self.origin},
            **plan.verdict.to_json(),
        }


def print_plan(
    facts: PublicFacts, devices: tuple[int, int] | None, console: Console
) -> None:
    """Print the plan.

    Args:
        facts: of the run.
        devices: along the chains and along the records, of a run that shares them; None: one.
        console: to print on.
    """
    spec = facts.spec
    what = "records" if spec.records_per_owner is None else "owners"
    held_out = f" and {_test_rows(facts)} test records" if spec.public else ""
    console.print(facts.name, style="bold")
    console.print(
        f"data         {spec.name}: {facts.plan.num_records:,} training {what}{held_out}, {facts.num_features} "
        f"features, from {facts.origin}"
    )
    if facts.on_disk:
        console.print(
            "             on disk: no training-set scores and no non-private fit, which read all records"
        )
    note = facts.note(facts.planned)
    if note:
        console.print(f"             {note}", style="bold red")
    for name, text in facts.plan.lines(facts.secret):
        console.print(f"{name:<12} {text}")
    if devices is not None:
        console.print(
            f"devices      {devices[0]} along the chains, {devices[1]} along the records"
        )
    if jax.process_count() > 1:
        console.print(
            f"processes    {jax.process_count()}, without a checkpoint: a run that is stopped is lost"
        )


def _test_rows(facts: PublicFacts) -> str:
    return "no" if facts.test is None else f"{len(facts.test['y']):,}"


def print_result(
    facts: PublicFacts,
    guarantee: Guarantee | None,
    released: dict[str, Any],
    folder: Path,
    confidential: Path,
    console: Console,
) -> None:
    """Print what may be published, and where it is.

    Args:
        facts: of the run.
        guarantee: of its draws, which may be published with it (``facts.publishable``).
        released: ``metrics.json``.
        folder: that it is in.
        confidential: folder of what may not be published.
        console: to print on.
    """
    plain = released["non_private"] or {}
    held_out = [
        (
            predictive.measure(facts.target) or "density",
            f"confidential: in {confidential / 'diagnostics.json'}",
        )
    ]
    for name, text in scores(facts, released) or held_out:
        console.print(f"{name:<12} {text}")
    if plain.get("distance"):
        d = plain["distance"]
        width = (
            ""
            if d["std_ratio"] is None
            else f"; draws observed {d['std_ratio']:.2f} times as wide"
        )
        console.print(
            f"posterior    marginal W₁ to the non-private posterior {d['wasserstein_mean']:.2f} of its std "
            f"(mean over coordinates){width}"
        )
    if released["ess"] is not None:
        needed = f"intervals need at least {ESS:g} and at most {RHAT:g}"
        console.print(
            f"mixing       ESS {released['ess']:.0f}, split R-hat {released['rhat']:.3f} ({needed})"
        )
    for name, text in Verdict.of_json(released).lines():
        console.print(f"{name:<12} {text}")
    if "noise_aware" in released:
        refused = released["noise_aware"].get("refused")
        console.print(
            "noise-aware  the path gives a posterior whose intervals account for the noise: noise_aware in metrics.json"
            f", or dpmcmc.Result.load({str(folder)!r}).summary()"
            if refused is None
            else refused.replace("noise_aware:", "noise-aware ")
        )
    _print_times(facts, released, confidential, console)
    console.print(
        f"spent        {guarantee or 'no guarantee (see privacy.json)'}", style="bold"
    )
    console.print(f"saved        {folder}; open {folder / page.FILE}")
    console.print(f"never publish or archive {confidential}", style="red")


def print_withheld(facts: PublicFacts, confidential: Path, console: Console) -> None:
    """Print where the draws are of a run without a guarantee on private records."""
    console.print("spent        no guarantee (see privacy.json)", style="bold")
    console.print(f"saved        {confidential}")
    console.print(
        f"no guarantee, and {facts.spec.name} is not public: all that was computed from it is in this folder, readable "
        f"by you alone; never publish or archive {confidential}",
        style="bold red",
    )


def _print_times(
    facts: PublicFacts, released: dict[str, Any], confidential: Path, console: Console
) -> None:
    """Print the seconds of a sampler's run; for private records only those before the first record was read."""
    if facts.trace is None:
        return
    wall = released["wall_seconds"]
    if wall["run"] is None:
        console.print(
            f"wall clock   calibrate {wall['calibrate']:.1f} s; the rest is confidential: in "
            f"{confidential / 'diagnostics.json'}"
        )
        return
    console.print(
        f"wall clock   calibrate {wall['calibrate']:.1f} s, compile {wall['compile']:.1f} s, "
        f"run {wall['run']:.1f} s ({released['steps_per_second']:,.0f} steps/s)"
    )


def scores(facts: PublicFacts, released: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (label, sentence) pairs of how well the draws predict public test rows; none where rows are not public.

    Accuracy or rmse where the target predicts, log predictive density where it does not.
    """
    measure = predictive.measure(facts.target)
    plain = released["non_private"] or {}
    if facts.test is None:
        return []
    if measure is None:
        against = (
            f"; non-private fit {_number(plain['log_predictive_density'])}"
            if plain
            else ""
        )
        density = _number(released["log_predictive_density"])
        return [("density", f"{density} log predictive density of a test row{against}")]
    score = released[measure]
    against = (
        f"; non-private fit {_number(plain[measure]['posterior_predictive'])}"
        if plain
        else ""
    )
    said = f"{_number(score['posterior_predictive'])} posterior predictive, {_number(score['mean'])} ± "
    return [(measure, f"{said}{_number(score['std'])} single draw{against}")]


def _number(value: float | None) -> str:
    return "not finite" if value is None or not np.isfinite(value) else f"{value:.4f}"
