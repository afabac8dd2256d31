"""``dpmcmc sweep``: every config charged once whatever dies, told in one table, and summed on one page."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
import yaml

from dpmcmc.cli import sweep as sweep_room
from dpmcmc.cli import sweep_cost, swept_config
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import grid as grids
from dpmcmc.engine import results_table, tasks
from dpmcmc.engine.life import Life
from dpmcmc.errors import InputError
from dpmcmc.privacy import Ledger
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon, gaussian_mu
from tests.test_command_line import ROOT, call, refused

N = 200
RNG = np.random.default_rng(0)
X = RNG.uniform(-0.5, 0.5, size=(250, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
BASE = {
    "name": "small",
    "data": {"path": "rows.npz", "num_records": N, "num_features": 3, "row_bound": 1.0, "test_fraction": 0.2},
    "target": {"name": "logistic_regression", "prior_scale": 1.0},
    "mechanism": {"name": "output_perturbation", "regularisation": 10.0},
    "privacy": {"epsilon": 1.0, "delta": 1e-5},
    "sweep": {"over": {"privacy.epsilon": [0.5, 1.0]}},
}


@pytest.fixture
def write(tmp_path):
    """Write a grid of two configs on rows of which a part is held out, and a ledger of so much."""
    np.savez(tmp_path / "rows.npz", x=X, y=Y)

    def make(budget=None, **changes):
        body = BASE | changes
        if budget is not None:
            terms = {"num_records": N, "adjacency": "replace_one", "epsilon": budget, "delta": 1e-4}
            Ledger.init(tmp_path / "people.ledger", name="people", **terms)
            body = body | {"privacy": body["privacy"] | {"ledger": "people.ledger"}}
        path = tmp_path / "grid.yaml"
        path.write_text(yaml.safe_dump(body, sort_keys=False))
        return path

    return make


def table(folder):
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def entries(tmp_path):
    """How each reservation of the ledger ended."""
    ledger = Ledger(tmp_path / "people.ledger")
    ledger.check()
    return [run.outcome for run in ledger.state().runs]


def swept(path, out, **options):
    return sweep_room.carry_out(grids.load(path), out, **options)


class Dying(Executor):
    """An executor whose worker dies at these calls, after its run has begun or before."""

    def __init__(self, *calls, begun=True):
        self._calls = calls
        self._begun = begun
        self._count = 0

    def submit(self, work, /, *arguments):
        """Carry the call out here, in place of a worker."""
        future = Future()
        self._count += 1
        if self._count not in self._calls:
            future.set_result(work(*arguments))
            return future
        if self._begun:
            with pytest.MonkeyPatch.context() as patch:
                begin = Life.begin

                def dies(life):
                    begin(life)
                    raise SystemExit

                patch.setattr(Life, "begin", dies)
                with pytest.raises(SystemExit):
                    work(*arguments)
        future.set_exception(BrokenProcessPool("killed"))
        return future


def test_each_config_is_a_run_folder_and_all_are_one_table_and_one_page(write, tmp_path, capsys):
    out = tmp_path / "out"
    assert call("sweep", write(budget=20.0, sweep=BASE["sweep"] | {"repeats": 2}), "--out", out) == 0
    printed = capsys.readouterr().out
    assert "4 released" in printed
    for number in (1, 4):
        assert call("verify", out / "cells" / f"{number:04d}" / "privacy.json") == 0
    assert entries(tmp_path) == ["released"] * 4
    rows = table(out)
    assert [(r["cell"], r["privacy.epsilon"], r["repeat"], r["status"]) for r in rows] == [
        ("1", "0.5", "1", "released"),
        ("2", "0.5", "2", "released"),
        ("3", "1.0", "1", "released"),
        ("4", "1.0", "2", "released"),
    ]
    # Each is one Gaussian release, so together they are one whose mu is the root of the sum of squares.
    mus = [gaussian_mu(float(row["epsilon"]), 1e-5) for row in rows]
    epsilon = gaussian_epsilon(math.sqrt(math.fsum(mu * mu for mu in mus)), 1e-5)
    stated = float((out / "report.html").read_text().split("together, ε</span><b>")[1].split("<")[0])
    # Integer noise is a little dearer than real noise, and stated numbers are rounded up to four digits.
    assert epsilon * (1 - 1e-3) <= stated <= epsilon * 1.01
    capsys.readouterr()
    before = sorted(path.stat().st_mtime_ns for path in out.rglob("draws.nc"))
    assert call("sweep", "--resume", out) == 0  # nothing is run again
    assert sorted(path.stat().st_mtime_ns for path in out.rglob("draws.nc")) == before
    assert len(entries(tmp_path)) == 4


def test_scores_of_rows_that_are_not_public_stay_with_the_data_holder(write, tmp_path):
    out = tmp_path / "out"
    swept(write(), out)
    assert {row["accuracy"] for row in table(out)} == {""}
    assert all(0 <= float(row["accuracy"]) <= 1 for row in table(out / "confidential"))
    assert (out / "confidential").stat().st_mode & 0o77 == 0
    # The time of a file tells nobody when a run ended.
    assert {path.stat().st_mtime % 86400 for path in out.iterdir()} == {0}


def test_a_lost_config_is_charged_once_says_so_and_goes_on(write, tmp_path):
    path, out = write(budget=20.0), tmp_path / "out"
    done = swept(path, out, executor=Dying(2))
    assert [row["status"] for row in table(out)] == ["released", "lost"]
    assert not done.complete
    assert entries(tmp_path) == ["released", "open"]
    assert "Lost with their worker, and charged" in (out / "report.html").read_text()
    # It is charged, so all configs together cost what they would cost had it ended.
    again = swept(path, out)
    assert again.together == done.together
    assert [row["status"] for row in table(out)] == ["released"] * 2
    assert entries(tmp_path) == ["released"] * 2


def test_a_lost_config_without_a_checkpoint_runs_again_on_request_alone_and_is_charged_again(write, tmp_path):
    path, out = write(budget=20.0), tmp_path / "out"
    first = swept(path, out, executor=Dying(2))
    (out / "cells" / "0002" / "confidential" / "checkpoint").rename(tmp_path / "gone")
    swept(path, out)
    assert [row["status"] for row in table(out)] == ["released", "lost"]
    assert len(entries(tmp_path)) == 2
    done = swept(path, out, again_lost=True)
    assert done.complete
    assert entries(tmp_path) == ["released", "open", "released"]
    assert done.together.epsilon > first.together.epsilon
    assert sweep_cost.RUN_AGAIN in (out / "report.html").read_text()


def test_a_lost_config_that_the_budget_does_not_allow_again_stays_lost(write, tmp_path):
    path, out = write(budget=1.1), tmp_path / "out"
    swept(path, out, executor=Dying(2))
    (out / "cells" / "0002" / "confidential" / "checkpoint").rename(tmp_path / "gone")
    with pytest.raises(CommandError, match="so none was run"):
        swept(path, out, again_lost=True)
    swept(path, out)
    assert [row["status"] for row in table(out)] == ["released", "lost"]
    assert entries(tmp_path) == ["released", "open"]


def test_what_has_not_begun_is_given_back(write, tmp_path):
    path, out = write(budget=20.0), tmp_path / "out"
    swept(path, out, executor=Dying(1, 2, begun=False))
    assert entries(tmp_path) == ["void"] * 2
    assert {row["status"] for row in table(out)} == {"waiting"}
    assert swept(path, out).complete
    assert entries(tmp_path) == ["void"] * 2 + ["released"] * 2


def test_all_configs_are_reserved_or_none(write, tmp_path, capsys):
    out = tmp_path / "out"
    assert call("sweep", write(budget=0.8), "--out", out) == 2
    said = capsys.readouterr().err
    assert "so none was run" in said
    assert "config " in said
    assert set(entries(tmp_path)) == {"void"}
    assert not out.exists()


def test_an_executor_that_tries_twice_runs_a_config_once(write, tmp_path):
    path, out = write(budget=20.0), tmp_path / "out"

    class Twice(Dying):
        def submit(self, work, /, *arguments):
            super().submit(work, *arguments)
            second = super().submit(work, *arguments)
            outcome, raised = second.result()
            assert raised is None
            assert "second time" in outcome.said
            return second

    swept(path, out, executor=Twice())
    assert entries(tmp_path) == ["released"] * 2


def test_an_end_that_depends_on_the_records_is_told_to_their_holder_alone(write, tmp_path, capsys):
    path, out = write(budget=20.0), tmp_path / "out"
    np.savez(tmp_path / "rows.npz", x=np.where(np.arange(250)[:, None] < 50, 9.0, X), y=Y)
    assert call("sweep", path, "--out", out) == 1
    said = capsys.readouterr().out
    assert f"keep {out} to yourself" in said
    assert not (out / "results.csv").exists()
    assert not (out / "report.html").exists()
    assert {row["status"] for row in table(out / "confidential")} == {"refused"}
    assert all("row_bound" in row["reason"] for row in table(out / "confidential"))
    assert entries(tmp_path) == ["void"] * 2
    # An executor's links may be open to others.
    answers = []

    class Watched(Dying):
        def submit(self, work, /, *arguments):
            future = super().submit(work, *arguments)
            answers.append(future.result())
            return future

    swept(path, tmp_path / "other", executor=Watched())
    assert all("row_bound" in row["reason"] for row in table(tmp_path / "other" / "confidential"))
    assert len(answers) == 2
    assert "row" not in repr(answers)
    assert not (tmp_path / "other" / "confidential" / "sent").exists()


def test_configs_without_a_guarantee_have_none_together(write, tmp_path):
    changes = {"privacy.insecure_noise_seed": [None, 3]}
    path = write(sweep={"over": changes})
    done = swept(path, tmp_path / "out")
    assert done.together is None
    assert [row["status"] for row in done.rows] == ["released", "withheld"]
    assert "No epsilon is proved" in (tmp_path / "out" / "report.html").read_text()


def test_two_sweeps_in_one_folder_are_refused_and_so_is_another_grid(write, tmp_path):
    out = tmp_path / "out"
    path = write()
    with results_table.alone(out / "confidential"), pytest.raises(InputError, match="another run is writing"):
        swept(path, out)
    swept(path, out)
    with pytest.raises(InputError, match=r"grid\.sweep\.repeats was not there before"):
        swept(write(sweep=BASE["sweep"] | {"repeats": 3}), out)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"privacy": {"epsilon": [1, 2], "delta": 1e-5}, "sweep": {"repeats": 2}}, "sweep: {over: {privacy.epsilon:"),
        ({"sweep": None}, "sweep: must be a mapping"),
        ({"sweep": {"over": {"privacy.epsilonn": [1, 2]}}}, "did you mean epsilon"),
        ({"sweep": {"over": {"privacy.epsilon": 3}}}, "must be a list"),
        ({"sweep": {"over": {"privacy.epsilon": []}}}, "must be a list"),
        ({"sweep": {"over": {"privacy.epsilon": [1, 1.0]}}}, "holds 1.0 twice"),
        ({"sweep": {"over": {"privacy.epsilon": [1, -2]}}}, r"got -2 \(privacy.epsilon=-2\)"),
        ({"sweep": {"over": {"name": ["a", "b"]}}}, "cannot be swept"),
        ({"sweep": {"over": {"privacy.epsilon.x": [1]}}}, "epsilon is a value, not a section"),
        ({"sweep": {"over": {"privacy": [None], "privacy.epsilon": [1]}}}, "swept twice"),
        ({"sweep": {"together": [{"privacy.epsilon": [1, 2], "privacy.delta": [1e-5]}]}}, "one length"),
        ({"sweep": {"together": {"privacy.epsilon": [1, 2]}}}, "list of mappings"),
        ({"sweep": {"repeats": 10_001}}, "10,001 configs"),
        ({"sweep": {"repeats": True}}, "whole number"),
        ({"sweep": {"repeats": 1}}, "sweeps over nothing"),
        ({"sweep": {"each": 3}}, "unknown key"),
        ({"sweep": {"over": {"privacy.epsilon": [1, 1e-9]}}}, r"epsilon=1e-09"),
    ],
)
def test_a_grid_that_makes_no_sense_is_one_sentence_and_no_folder(write, tmp_path, capsys, change, said):
    refused(capsys, said, "sweep", write(**change), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_grid_is_no_config_and_a_config_no_grid(write, tmp_path, capsys):
    refused(capsys, "run it with dpmcmc sweep", "run", write(), "--out", tmp_path / "out")
    refused(capsys, "section is required", "sweep", "adult", "--out", tmp_path / "out")
    refused(capsys, "no sweep was begun", "sweep", "--resume", tmp_path)
    refused(capsys, r"dask://HOST:PORT", "sweep", write(), "--on", "ray://here", "--out", tmp_path / "out")


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_and_charges_each_config_once(write, tmp_path):
    """Workers die with the sweep; whatever they were at goes on from its checkpoint."""
    path, out = write(budget=20.0, sweep=BASE["sweep"] | {"repeats": 2}), tmp_path / "out"
    words = [sys.executable, "-m", "dpmcmc", "sweep", str(path), "--out", str(out), "--workers", "2"]
    for _ in range(2):
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if "config " in line:  # the others are under way
                    process.send_signal(signal.SIGKILL)
                    break
    assert subprocess.run(words, cwd=ROOT, capture_output=True, check=False).returncode == 0
    assert entries(tmp_path) == ["released"] * 4
    assert [row["status"] for row in table(out)] == ["released"] * 4
    assert json.loads((out / "cells" / "0001" / "privacy.json").read_text())["files"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_sweep_on_dask_charges_a_config_of_a_killed_worker_once(write, tmp_path):
    distributed = pytest.importorskip("distributed")
    path, out = write(budget=20.0), tmp_path / "out"
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50
    ) as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        with distributed.Client(cluster) as client:
            client.run(_die_once_a_config_has_begun)
        assert call("sweep", path, "--on", f"dask://{address}", "--out", out) == 1
        assert sorted(row["status"] for row in table(out)) == ["lost", "released"]
        assert sorted(entries(tmp_path)) == ["open", "released"]
        assert call("sweep", path, "--on", f"dask://{address}", "--out", out) == 0
    assert entries(tmp_path) == ["released"] * 2


def _die_once_a_config_has_begun():
    """Run in a worker: its first config kills it, and the worker that takes its place knows nothing of this."""
    begin = Life.begin

    def dies(life):
        begin(life)
        os.kill(os.getpid(), signal.SIGKILL)

    Life.begin = dies


def test_a_worker_that_dies_takes_its_own_cell_alone():
    ends = sorted(map(str, tasks.outcomes(signal.raise_signal, [0, signal.SIGKILL, 0, 0], workers=2)))
    assert ends == [*["(0, None)"] * 3, f"({signal.SIGKILL!r}, Lost(why='BrokenProcessPool'))"]
    with pytest.raises(OSError, match="Invalid argument"):
        list(tasks.outcomes(signal.raise_signal, [0, 10_000], workers=1))


def test_the_status_of_a_config_is_read_from_its_folder(tmp_path):
    assert swept_config.status_of(tmp_path / "none") == "waiting"
    (tmp_path / "config.yaml").write_text("")
    assert swept_config.status_of(tmp_path) == "lost"
