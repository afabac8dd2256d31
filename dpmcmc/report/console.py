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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack

import jax
import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeRemainingColumn,
)

from dpmcmc.data import DataSet, DataSpec
from dpmcmc.errors import printable
from dpmcmc.inference import predictive
from dpmcmc.planning.description import INTERVALS, Verdict
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.stages import AnyPlan
from dpmcmc.privacy.accounting.events import round_up
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.report import page
from dpmcmc.report.lines import rows
from dpmcmc.report.page import Circumstances, Kind, Settings
from dpmcmc.report.screen import planned, promise, saved, uses, width
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets import bind, record_shapes
from dpmcmc.targets.base import Target

# ----------------------------------------------------------------------------------------------------
# Progress of a run: a bar in a terminal or a notebook, lines in a log.
#
# A log is kept, and the time that a run takes after it has begun is not public. So a bar in a log grows at fixed steps,
# ten in all. Before a run has begun, when nothing was computed from a record, a line comes after ten seconds,
# and after twice as long each time.

#: Called with (steps done, steps in all).
Report = Callable[[int, int], None]
#: Seconds before the first line, and pieces of the bar.
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
) -> Iterator[Report | None]:
    """Show a run's steps while the context is open; yield the function that reports them.

    Args:
        progress: a function that is called with each report; None: a bar in a terminal or a notebook, and nothing in a
            log; True: lines in a log too; False: nothing.
        run: that is computed.
        console: to show it on; None: standard error.
    """
    console = Console(stderr=True) if console is None else console
    quiet = console.quiet or not (progress or console.is_terminal or console.is_jupyter)
    show = _notebook if console.is_jupyter else _bar if console.is_terminal else _log
    with contextlib.ExitStack() as stack:
        report = progress if callable(progress) else None
        if report is None and progress is not False and not quiet:
            report = stack.enter_context(show(run, console))
        stack.callback(_SHOWN.reset, _SHOWN.set(report))
        yield report


def report_steps(done: int, total: int) -> None:
    """Report steps of a mechanism, which is given no function for it; outside :func:`shown` nothing is shown."""
    report = _SHOWN.get()
    if report is not None:
        report(done, total)


@contextlib.contextmanager
def _bar(run: Running, console: Console) -> Iterator[Report]:
    steps = run.plan.steps if isinstance(run.plan, Plan) else None
    columns = (BarColumn(2 * _LINES), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=steps)
        yield lambda done, total: bar.update(task, completed=done, total=total)
        # A release without steps leaves no bar.
        bar.update(task, visible=bar.tasks[0].total is not None)


@contextlib.contextmanager
def _notebook(run: Running, console: Console) -> Iterator[Report]:
    from IPython.display import HTML, display

    def bar(done: int, total: int) -> HTML:
        return HTML(f"<progress value={done} max={total}></progress> {done:,} of {total:,} steps")

    line = display(HTML("<progress></progress> compiling"), display_id=True)
    yield lambda done, total: line.update(bar(done, total))
    line.update(HTML(""))


@contextlib.contextmanager
def _log(run: Running, console: Console) -> Iterator[Report]:
    """Draw the bar piece by piece, a tenth of the steps each; say before the run has begun that it has not."""
    began = time.monotonic()
    over = threading.Event()
    at = [0]

    def report(done: int, total: int) -> None:
        mark = done * _LINES // total
        if mark > at[0]:
            console.print("━━" * (mark - at[0]), end="")
            at[0] = mark
            if mark == _LINES:
                console.print(f" {done:,}/{total:,}")

    def beat() -> None:
        seconds = _SECONDS
        while not over.wait(seconds):
            if not run.begun:
                console.print(f"compiling; no record has been used yet, {time.monotonic() - began:.0f} s so far")
            seconds *= 2

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        over.set()
        thread.join()
        if 0 < at[0] < _LINES:
            console.print()


class Screen(Console):
    """A terminal of whole sentences, whose names it cannot be led by; ``quiet`` prints nothing."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet=quiet, highlight=False, soft_wrap=True, markup=False)

    def print(self, *said: Any, **how: Any) -> None:
        """Print sentences, in the style that is given."""
        shown = (printable(one, "\n") if isinstance(one, str) else one for one in said)
        super().print(*shown, **how)


# ----------------------------------------------------------------------------------------------------
# Public facts: a run may state them before it has computed anything from a record.
#
# Everything that a run prints, names, dates or writes outside ``confidential/`` is computed from a :class:`PublicFacts`
# and from draws that the guarantee covers. So the functions that print and write take these,
# and never a DataSet.
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
    asked: float | None
    command: str


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
        on_disk: whether the records are a folder, of which only batches are read, or in partitions.
        test: test rows where these are public, else None.
        day: on which the run began.
        generated: whether the config declares that a program generated the records.
        settings: how these were chosen, as the config declares; None where nobody vouches.
        asked: ε that the config asks for, or None.
        command: what names the config on a command line; empty: the config's name.
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
    asked: float | None = None
    command: str = ""

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
            data.partitions is not None or on_disk(data.train),
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
        return self.spec.public or (guarantee is not None and math.isfinite(guarantee.epsilon))

    def circumstances(self, fit: bool) -> Circumstances:
        """Return what the page says of records and settings.

        Args:
            fit: whether a fit without privacy is published.
        """
        origins: dict[str, Kind] = {"stand-in": "stand_in", "generated": "generated"}
        declared: Kind = "generated" if self.generated else "public" if self.spec.public else "private"
        times = self.spec.public and self.trace is not None
        return Circumstances(
            origins.get(self.origin, declared),
            self.settings,
            fit,
            times,
            self.spec.privatised,
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

    @property
    def whence(self) -> str:
        """The origin of the records in words."""
        if self.origin == "stand-in":
            return "a generated stand-in"
        return f"real, {self.origin}" if self.sha256 else self.origin

    def described(self) -> str:
        """Return name and origin of the data in words."""
        where = "files whose checksums privacy.json states" if self.sha256 else self.origin
        return f"{self.spec.name}, {self.num_features} columns, from {where}"

    def data_json(self) -> dict[str, object]:
        """Return what ``privacy.json`` says of the data."""
        return {
            "name": self.spec.name,
            "origin": self.origin,
            "public": self.spec.public,
            "encoding": self.spec.encoding,
            "sha256": dict(self.sha256) or None,
            "privatised": self.spec.privatised and asdict(self.spec.privatised),
        }

    def metrics(self) -> dict[str, object]:
        """Return ``metrics.json`` before anything is measured, with every key that it always has."""
        plan = self.plan
        return {
            **dict.fromkeys(("accuracy", "rmse", "log_predictive_density", "non_private")),
            **dict.fromkeys(("ess", "rhat", "steps_per_second")),
            "temperature": None if self.trace is None else self.trace.temperature_range,
            "draws": plan.draws,
            "data": {"name": self.spec.name, "origin": self.origin},
            **plan.verdict.to_json(),
        }


def print_plan(
    facts: PublicFacts,
    devices: tuple[int, int] | None,
    device: Mapping[str, str | int] | None,
    console: Console,
) -> None:
    """Print the plan.

    Args:
        facts: of the run.
        devices: along the chains and along the records, of a run that shares them; None: one.
        device: ``platform`` and ``kind`` of the device, where it is worth a line, or None.
        console: to print on.
    """
    lines = planned(
        facts.name,
        facts.plan,
        facts.spec,
        secret=facts.secret,
        asked=facts.asked,
        features=facts.num_features,
        origin=facts.whence,
    )
    if facts.on_disk:
        lines.append(("on disk", "no fit without privacy, which reads all records"))
    if device is not None:
        platform = str(device["platform"])
        kind = str(device["kind"])
        lines.append(("device", platform if kind == platform else f"{platform} ({kind})"))
    if devices is not None:
        lines.append(("devices", f"{devices[0]} along the chains, {devices[1]} along the records"))
    if jax.process_count() > 1:
        lines.append(
            (
                "processes",
                f"{jax.process_count()}; this one keeps the checkpoint",
            )
        )
    console.print(rows(lines))
    note = facts.note(facts.planned)
    if note:
        console.print(rows([("note", note)]), style="bold red")


def print_result(
    facts: PublicFacts,
    guarantee: Guarantee | None,
    released: dict[str, Any],
    verdict: Verdict,
    folder: Path,
    confidential: Path,
    console: Console,
) -> None:
    """Print what may be published, and where it is.

    Args:
        facts: of the run.
        guarantee: of its draws, which may be published with it (``facts.publishable``).
        released: ``metrics.json``.
        verdict: on what is released.
        folder: that it is in.
        confidential: folder of what may not be published.
        console: to print on.
    """
    plain = released["non_private"] or {}
    distance = plain.get("distance") or {}
    held_out = [
        (
            predictive.measure(facts.target) or "density",
            f"confidential: in {confidential / 'diagnostics.json'}",
        )
    ]
    lines = scores(facts, released) or held_out
    if INTERVALS in verdict.usable_for:
        lines += width(distance.get("std_ratio"), verdict.predicted_width)
    lines += uses(verdict, facts.plan, facts.command or facts.name)
    if guarantee is not None and guarantee != facts.planned:
        lines.append(("spent", promise(guarantee, facts.plan.unit)))
    console.print(rows(lines))
    inside = confidential.parent == folder
    shared = f"share all but {confidential.name}/" if inside else f"share it, and keep {confidential} to yourself"
    console.print(rows(saved(folder, f"open {page.FILE}; {shared}")))


def print_withheld(facts: PublicFacts, confidential: Path, console: Console) -> None:
    """Print where the draws are of a run without a guarantee on private records."""
    lines = [
        ("saved", str(confidential)),
        (
            "note",
            f"no guarantee, and {facts.spec.name} is not public: this folder, readable by you alone, holds all "
            "that was computed from it; never publish or archive it",
        ),
    ]
    console.print(rows(lines), style="bold red")


def scores(facts: PublicFacts, released: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (label, sentence) pairs of how well the draws predict public test rows; none where rows are not public.

    Accuracy or rmse where the target predicts, log predictive density where it does not.
    """
    measure = predictive.measure(facts.target)
    plain = released["non_private"] or {}
    if facts.test is None:
        return []
    if measure is None:
        density = _number(released["log_predictive_density"])
        against = _against(_number(plain["log_predictive_density"])) if plain else ""
        return [("density", f"{density} log density of a test row{against}")]
    score = _number(released[measure]["posterior_predictive"])
    against = _against(_number(plain[measure]["posterior_predictive"])) if plain else ""
    return [(measure, f"{score}{against}")]


def _against(number: str) -> str:
    return f"   {number} without privacy"


def _number(value: float | None) -> str:
    return "not finite" if value is None or not np.isfinite(value) else f"{value:.4f}"
