"""The screen: at most fifteen lines of eighty columns, nothing twice, and commands that do what they are for.

Progress of a run: a bar where somebody looks, lines in a log, and no word of the time that private records take.
"""

import datetime
import io
import json
import re
import shlex
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import dpmcmc
from dpmcmc import config
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.config.shipped import list_shipped
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.report import console as room
from dpmcmc.report import progress
from dpmcmc.report.progress import show_progress

LINES, COLUMNS = 15, 80


def check(screen: str) -> list[str]:
    """Lines of a screen that is as it should be: no line and no sentence stands twice."""
    lines = screen.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    words = [line for line in lines if line.strip("━ 0123456789/,")]
    assert len(words) == len(set(words))
    text = " ".join(line[10:].strip() for line in lines if not line.startswith("━"))
    sentences = [part.strip() for part in re.split(r"[;.] ", text) if len(part.split()) > 3]
    assert len(sentences) == len(set(sentences))
    return lines


def facts_of(name: str) -> room.PublicFacts:
    """Public facts of a shipped config, without its records."""
    loaded = config_file.load(name)
    plan = config.make_plan(loaded)
    spec = config.describe_data(loaded)
    columns = tuple(f"column {k}" for k in range(spec.num_features or 8))
    test = {"x": np.zeros((1, len(columns))), "y": np.zeros(1)}
    about = (config.is_secret(loaded), spec, "DPMCMC_DATA", {"file": "0" * 64}, columns, plan.target, False, test)
    day = datetime.date(2026, 1, 1)
    return room.PublicFacts(
        loaded.name, plan, *about, day, asked=getattr(loaded.privacy, "epsilon", None), command=name
    )


@pytest.mark.parametrize("name", sorted(list_shipped()))
def test_the_screen_of_every_shipped_config_is_short(name, tmp_path):
    facts = facts_of(name)
    text = io.StringIO()
    console = Console(file=text, highlight=False, soft_wrap=True, markup=False)
    room.print_plan(facts, (2, 2), {"platform": "gpu", "kind": "NVIDIA H100 80GB HBM3"}, console)
    with progress.show_progress(True, type("Run", (), {"plan": facts.plan, "begun": True})(), console) as report:
        for done in range(0, 101, 7):
            report(min(done, 100), 100)
        report(100, 100)
    number = dict.fromkeys(("posterior_predictive", "mean", "std"), 0.84567)
    plain = {"accuracy": number, "rmse": number, "log_predictive_density": -1.2, "distance": {"std_ratio": 1.234}}
    released = facts.metrics() | {
        "accuracy": number,
        "rmse": number,
        "log_predictive_density": -1.3,
        "non_private": plain,
    }
    arguments = (facts.planned, released, facts.plan.verdict, Path("runs/adult-2026-01-31-abcdef"))
    room.print_result(facts, *arguments, Path("runs/adult-2026-01-31-abcdef/confidential"), console)
    lines = check(text.getvalue())
    assert "device    gpu (NVIDIA H100 80GB HBM3)" in lines
    assert any(line.endswith(" 100/100") and line.startswith("━━━━") for line in lines)
    assert "share all but confidential/" in text.getvalue()
    if "intervals" in facts.plan.usable_for:
        assert any(line.startswith("intervals 1.23 × as wide") for line in lines)


@pytest.mark.parametrize("name", sorted(list_shipped()))
def test_a_refusal_names_the_command_that_leads_to_intervals(name, capsys):
    assert main(["plan", name]) == 0
    lines = check(capsys.readouterr().out)
    better = [line.split("dpmcmc run ")[1] for line in lines if line.startswith("better")]
    refused = [line for line in lines if "✗" in line]
    why = [line for line in lines if line.startswith("why")]
    assert len(why) == len(refused) <= 1
    for line in refused:
        reason = line.split("✗ ")[1].split(": ")[1]
        assert 2 <= len(reason.split()) <= 5, reason
    for words in better:
        name, *changes = shlex.split(words)
        made = config.make_plan(config_file.load(name, changes[1::2], note=lambda _: None))
        assert made.usable_for == ["prediction", "intervals"]
    chain = isinstance(config.make_plan(config_file.load(name)), Plan)
    assert not (refused and chain and "adult" in name) or better, "a chain on Adult has a way to intervals"


def test_run_prints_json_alone(tmp_path, capsys):
    out = tmp_path / "run"
    changes = ["--set", "run={steps: 10, burn_in: 0, thin: 1, device: cpu}"]
    assert main(["run", "two_normals", "--json", "--out", str(out), *changes]) == 0
    printed = capsys.readouterr()
    said = json.loads(printed.out)
    assert said["folder"] == said["draws"] == str(out)
    stated = json.loads((out / "privacy.json").read_text())
    assert said["metrics"]["device"] == {"platform": "cpu", "kind": "cpu", "count": 1}
    assert "device: cpu" in (out / "config.yaml").read_text()
    assert said["epsilon"] == stated["epsilon"]
    assert said["metrics"] == json.loads((out / "metrics.json").read_text())
    assert main(["run", "two_normals", "--json", "--quiet"]) == 2
    assert "--json: prints the folder already" in capsys.readouterr().err
    assert main(["verify", str(out)]) == 0
    assert "✓ verified" in check(capsys.readouterr().out)[-1]
    assert main(["verify", str(out), "--json", "--group", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verified"]
    assert (found["stated_epsilon"], found["epsilon"]) == (stated["epsilon"], stated["epsilon"])
    assert found["group"][0]["epsilon"] > found["epsilon"] == found["accountants"]["pld"]
    assert "released files are those" in found["remarks"][-1]
    (out / "metrics.json").write_text("{}")
    assert main(["verify", str(out), "--json"]) == 1
    assert not capsys.readouterr().out


def test_the_ledger_shows_each_run_and_what_the_next_may_cost(tmp_path, capsys):
    file = tmp_path / "budget.ledger"
    ledger = Ledger.init(file, name="people", num_records=32561, adjacency="replace_one", epsilon=3.0, delta=1e-5)
    guarantee = config.make_plan(config_file.load("adult")).guarantee
    ledger.reserve(guarantee, "first")
    assert main(["ledger", "show", str(file)]) == 0
    lines = check(capsys.readouterr().out)
    (spent,) = (line for line in lines if line.startswith("spent"))
    state = ledger.state()
    assert f"of 3; next run up to ε {state.epsilon_left:.2f}"[:20] in spent
    (run,) = (line for line in lines if line.startswith("run"))
    assert "ε 0.999" in run
    assert "running or crashed" in run
    assert run.endswith("first")
    for number in range(8):
        ledger.reserve(config.make_plan(config_file.load("adult", ["privacy.epsilon=0.1"])).guarantee, f"run {number}")
    assert main(["ledger", "show", str(file)]) == 0
    lines = check(capsys.readouterr().out)
    assert any("3 earlier" in line for line in lines)
    assert main(["ledger", "history", str(file)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= COLUMNS


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


@pytest.mark.parametrize("given", [True, None])
def test_a_release_without_steps_shows_that_it_draws(given):
    run = SimpleNamespace(plan=SimpleNamespace(has_chains=False), begun=True)
    out = io.StringIO()
    with show_progress(given, run, Console(file=out, force_terminal=True, width=80)) as report:
        assert callable(report)
        progress.report_steps(24, 48)
    assert "24/48" in out.getvalue()
    progress.report_steps(48, 48)  # nobody hears it
