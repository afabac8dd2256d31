"""Faults of what others see of a run folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from dpmcmc.cli import run, saved
from dpmcmc.inference import predictive
from dpmcmc.report import progress
from dpmcmc.report.public_facts import PublicFacts
from dpmcmc.storage.run_folder import RunFolder
from tests.planted import Fault
from tests.planted import checks_release as checks

Patch = pytest.MonkeyPatch


def _counts_held_out_rows(patch: Patch) -> None:
    real = run.ConfiguredRun.print_plan

    def print_plan(self: Any, console: Console) -> None:
        real(self, console)
        test = self.data.test
        console.print(f"test records {0 if test is None else len(test['y'])}")

    patch.setattr(run.ConfiguredRun, "print_plan", print_plan)


def _releases_run_times(patch: Patch) -> None:
    def seconds(_: Any, result: Any, calibrate: float) -> dict[str, Any]:
        wall = result.wall_seconds | {"calibrate": calibrate}
        return {"wall_seconds": wall, "steps_per_second": result.steps_per_second}

    patch.setattr(run.ConfiguredRun, "_seconds", seconds)


def _files_keep_their_times(patch: Patch) -> None:
    patch.setattr(RunFolder, "date", lambda *_: None)


def _everything_is_publishable(patch: Patch) -> None:
    patch.setattr(PublicFacts, "publishable", lambda *_: True)


def _log_tells_seconds(patch: Patch) -> None:
    real = progress._log

    @contextlib.contextmanager
    def log(run: Any, shown: Any) -> Iterator[Any]:
        began = time.perf_counter_ns()
        with real(run, shown) as report:
            yield report
        shown.print(f"took {time.perf_counter_ns() - began} ns")

    patch.setattr(progress, "_log", log)


def _page_scores_private_rows(patch: Patch) -> None:
    real = run.ConfiguredRun.save

    def save(self: Any, *arguments: Any) -> Any:
        def scores(*_: Any) -> list[tuple[str, str]]:
            return [("accuracy", str(predictive.predict(self.target, None, self.data.test).posterior_predictive))]

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(saved.run_text, "scores", scores)
            return real(self, *arguments)

    patch.setattr(run.ConfiguredRun, "save", save)


FAULTS = (
    Fault(
        "held-out private rows counted on the console",
        "The number of test records is printed, and falls by an owner's rows when the owner goes.",
        _counts_held_out_rows,
        (checks.neighbours_look_the_same_for_the_same_draws,),
    ),
    Fault(
        "seconds of a private run in metrics.json",
        "Batches are as long as secret selections make them, and the seconds that they took are published.",
        _releases_run_times,
        (checks.neighbours_look_the_same_for_the_same_draws,),
    ),
    Fault(
        "seconds of a run in its log",
        "A log of a run on private records says how long it took.",
        _log_tells_seconds,
        (checks.neighbours_look_the_same_for_the_same_draws,),
    ),
    Fault(
        "held-out private records scored on the page of a run",
        "report.html shows how well the draws predict rows that were held out of a private file.",
        _page_scores_private_rows,
        (checks.neighbours_look_the_same_for_the_same_draws,),
    ),
    Fault(
        "released files keep their own times",
        "Each file says to the nanosecond when it was written, and so how long the steps before it took.",
        _files_keep_their_times,
        (checks.released_files_bear_one_day,),
    ),
    Fault(
        "draws without a guarantee released",
        "privacy: null on a private file fills the folder that is published.",
        _everything_is_publishable,
        (checks.without_a_guarantee_nothing_of_private_records_is_released,),
    ),
)
