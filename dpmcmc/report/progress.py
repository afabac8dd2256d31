"""How far a run is: a bar in a terminal or a notebook, lines in a log.

The seconds that a run takes after it has begun are no public fact (``public_facts.py``), and a log is kept. Its lines
therefore come at fixed numbers of steps, up to ten, unless the records are public. Until a run has begun, nothing
was computed from a record, and on public records time is public: there a line comes every ten seconds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.plan import sampled_plan

#: Called with (steps done, steps in all).
Report = Callable[[int, int], None]
#: Seconds between lines, and most lines at fixed numbers of steps.
_SECONDS, _LINES = 10.0, 10


#: Reports steps of the run that is computed.
_SHOWN: ContextVar[Report | None] = ContextVar("shown", default=None)


class Running(Protocol):
    """A life (``engine/life.py``), of which this room sees the plan and whether it has begun."""

    plan: AnyPlan
    begun: bool


@contextlib.contextmanager
def shown(
    progress: Report | bool | None, run: Running, console: Console | None = None, public: bool = False
) -> Iterator[Report | None]:
    """Yield what reports a run's steps, and show them while the context is open.

    Args:
        progress: a function of the caller's, which shows itself; None: a bar in a terminal or a notebook, and nothing
            in a log; True: lines in a log too; False: nothing.
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


def told(done: int, total: int) -> None:
    """Report steps of a mechanism, which is handed no function for it; nobody hears it outside :func:`shown`."""
    report = _SHOWN.get()
    if report is not None:
        report(done, total)


@contextlib.contextmanager
def _bar(run: Running, console: Console, public: bool) -> Iterator[Report]:
    sampled = sampled_plan(run.plan)
    steps = None if sampled is None else sampled.steps
    text = TextColumn("sampling    " if steps else "drawing     ")
    columns = text, BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=steps)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def _notebook(run: Running, console: Console, public: bool) -> Iterator[Report]:
    from IPython.display import HTML, display

    def bar(done: int, total: int) -> HTML:
        return HTML(f"<progress value={done} max={total}></progress> {done:,} of {total:,} steps")

    cell = display(HTML("<progress></progress> compiling"), display_id=True)
    yield lambda done, total: cell.update(bar(done, total))
    cell.update(HTML(""))


@contextlib.contextmanager
def _log(run: Running, console: Console, public: bool) -> Iterator[Report]:
    began, over = time.monotonic(), threading.Event()
    at, said, doing = [0], ["drawing      the release"], "sampling    " if run.plan.trace else "drawing     "

    def report(done: int, total: int) -> None:
        said[0], mark = f"{doing} {done:,} of {total:,} steps", done * _LINES // total
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
