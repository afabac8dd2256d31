"""Progress of a run: a bar in a terminal or a notebook, lines in a log.

A log is kept, and the time that a run takes after it has begun is not public. So a bar in a log grows at fixed steps,
ten in all. Before a run has begun, when nothing was computed from a record, a line comes after ten seconds,
and after twice as long each time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeRemainingColumn,
)

from dpmcmc.planning.plan import Plan

#: Called with (steps done, steps in all).
Report = Callable[[int, int], None]
#: Seconds before the first line, and pieces of the bar.
_SECONDS, _LINES = 10.0, 10


#: Reports steps of the run that is computed.
_SHOWN: ContextVar[Report | None] = ContextVar("shown", default=None)


class Running(Protocol):
    """The part of a ``Life`` (``engine/life.py``) that this room uses."""

    plan: Plan
    begun: bool


@contextlib.contextmanager
def show_progress(
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
    """Report steps of a mechanism, which is given no function; outside :func:`show_progress` nothing is shown."""
    report = _SHOWN.get()
    if report is not None:
        report(done, total)


@contextlib.contextmanager
def _bar(run: Running, console: Console) -> Iterator[Report]:
    steps = run.plan.steps if run.plan.has_chains else None
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
