"""Progress of a run: a bar where somebody looks, lines in a log, and no word of the time that private records take."""

import io
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import dpmcmc
from dpmcmc.report import progress
from dpmcmc.report.progress import show_progress


class Clock(threading.Event):
    """An event that is waited for as often as ``times`` says, in no time."""

    times = 3

    def wait(self, timeout=None):
        self.times -= 1
        return self.times < 0


def logged(monkeypatch, begun, steps=100, seconds=3):
    """Lines in a log of a run of 100 steps, reported one by one."""
    monkeypatch.setattr(Clock, "times", seconds)
    monkeypatch.setattr(progress, "threading", SimpleNamespace(Thread=threading.Thread, Event=Clock))
    out = io.StringIO()
    run = SimpleNamespace(plan=SimpleNamespace(has_chains=True, steps=steps), begun=begun)
    with show_progress(True, run, Console(file=out, width=200)) as report:
        for done in range(steps):
            report(done + 1, steps)
    return out.getvalue().splitlines()


def test_a_log_has_a_bar_that_says_nothing_of_the_time(monkeypatch):
    lines = logged(monkeypatch, begun=True)
    assert lines == ["━━━━━━━━━━━━━━━━━━━━ 100/100"]
    assert lines == logged(monkeypatch, begun=True, seconds=50)
    assert logged(monkeypatch, begun=True, steps=3) == ["━━━━━━━━━━━━━━━━━━━━ 3/3"]


def test_the_bar_of_a_log_grows_by_a_tenth_of_the_steps():
    pieces = []

    class Watched(io.StringIO):
        def write(self, text):
            pieces.append(text.strip())
            return super().write(text)

    run = SimpleNamespace(plan=SimpleNamespace(has_chains=True, steps=100), begun=True)
    with show_progress(True, run, Console(file=Watched(), width=200)) as report:
        for done in range(99):
            report(done + 1, 100)
    assert [piece for piece in pieces if piece] == ["━━"] * 9


def test_lines_come_until_a_run_begins(monkeypatch):
    assert not any("so far" in line for line in logged(monkeypatch, begun=True))
    lines = [line for line in logged(monkeypatch, begun=False) if "so far" in line]
    assert len(lines) == 3
    assert all(line.startswith("compiling; no record has been used yet") for line in lines)


def test_a_caller_s_function_is_called_and_nothing_is_shown_unasked(capsys):
    plan = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(), num_records=8, sampler=dpmcmc.SGLD(1.0), steps=6, privacy=None
    )
    data = {"x": np.ones((8, 2), np.float32), "y": np.ones(8, np.int32)}
    seen = []
    dpmcmc.sample(plan, data, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (6, 6)
    for quiet in (None, False):
        dpmcmc.sample(plan, data, progress=quiet)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar_that_stays():
    out = io.StringIO()
    run = SimpleNamespace(plan=SimpleNamespace(has_chains=True, steps=10), begun=True)
    console = Console(file=out, force_terminal=True, width=80)
    with show_progress(None, run, console) as report:
        report(4, 10)
        report(10, 10)
    assert "10/10" in out.getvalue()
    *_, last = out.getvalue().split("10/10")
    assert "\x1b[2K" not in last.partition("\n")[2], "the bar is erased"


def test_a_notebook_has_one_cell_that_moves(monkeypatch):
    cells = []

    class Cell:
        update = staticmethod(cells.append)

    def display(first, display_id):
        cells.append(first)
        return Cell()

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    run = SimpleNamespace(plan=SimpleNamespace(has_chains=True, steps=10), begun=True)
    with show_progress(None, run, Console(file=io.StringIO(), force_jupyter=True)) as report:
        report(4, 10)
    assert cells[1] == "<progress value=4 max=10></progress> 4 of 10 steps"
    assert cells[-1] == ""


@pytest.mark.parametrize("given", [True, None])
def test_a_release_without_steps_shows_that_it_draws(given):
    run = SimpleNamespace(plan=SimpleNamespace(has_chains=False), begun=True)
    out = io.StringIO()
    with show_progress(given, run, Console(file=out, force_terminal=True, width=80)) as report:
        assert callable(report)
        progress.report_steps(24, 48)
    assert "24/48" in out.getvalue()
    progress.report_steps(48, 48)  # nobody hears it
