"""``dpmcmc sweep``: every config is one run, charged once whatever dies, told in one table and summed on one page."""

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

import dpmcmc
from dpmcmc.cli.saved import ConfiguredRun
from dpmcmc.cli.sweep import status_of
from dpmcmc.engine import results_table, tasks
from dpmcmc.engine.life import Life
from dpmcmc.errors import InputError
from dpmcmc.privacy import Ledger
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon, gaussian_mu
from tests.cli.test_command_line import ROOT, call, refused

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


def statuses(folder):
    return [row["status"] for row in table(folder)]


def entries(tmp_path):
    """How each reservation of the ledger ended."""
    ledger = Ledger(tmp_path / "people.ledger")
    ledger.check()
    return [run.outcome for run in ledger.state().runs]


class Dying(Executor):
    """An executor whose worker dies at these calls, in a method of its run or before it; it keeps all answers."""

    def __init__(self, *calls, dies_in=(Life, "begin")):
        self.answers = []
        self._calls = calls
        self._dies_in = dies_in

    def submit(self, work, /, *arguments):
        """Carry the call out here, in place of a worker."""
        future = Future()
        self.answers.append(None)
        if len(self.answers) not in self._calls:
            self.answers[-1] = work(*arguments)
            future.set_result(self.answers[-1])
            return future
        if self._dies_in is not None:
            with pytest.MonkeyPatch.context() as patch:
                owner, name = self._dies_in
                method = getattr(owner, name)

                def dies(self):
                    if name == "begin":  # the entry in the ledger is open
                        method(self)
                    raise SystemExit

                patch.setattr(owner, name, dies)
                with pytest.raises(SystemExit):
                    work(*arguments)
        future.set_exception(BrokenProcessPool("killed"))
        return future


def test_each_config_is_a_run_folder_and_all_are_one_table_and_one_page(write, tmp_path, capsys):
    out = tmp_path / "out"
    words = ("sweep", write(budget=20.0, sweep=BASE["sweep"] | {"repeats": 2}), "--out", out)
    assert call(*words) == 0
    assert "4 released" in capsys.readouterr().out
    for number in (1, 4):
        assert call("verify", out / "configs" / f"{number:04d}" / "privacy.json") == 0
    assert entries(tmp_path) == ["released"] * 4
    rows = table(out)
    assert [(r["config"], r["privacy.epsilon"], r["repeat"], r["status"]) for r in rows] == [
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
    # Rows that are not public are scored for the data holder alone, and no time tells when a run ended.
    assert {row["accuracy"] for row in rows} == {""}
    assert (out / "confidential").stat().st_mode & 0o77 == 0
    assert {path.stat().st_mtime % 86400 for path in out.iterdir()} == {0}
    # The same command runs nothing again.
    capsys.readouterr()
    before = sorted(path.stat().st_mtime_ns for path in out.rglob("draws.nc"))
    assert call(*words, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in said["configs"]] == ["released"] * 4
    assert epsilon * (1 - 1e-3) <= said["together"]["epsilon"] <= epsilon * 1.01
    assert sorted(path.stat().st_mtime_ns for path in out.rglob("draws.nc")) == before
    assert len(entries(tmp_path)) == 4


@pytest.mark.parametrize(
    ("dies_in", "charged"),
    [
        (None, ["released"]),
        ((Life, "begin"), ["released", "open"]),
        ((ConfiguredRun, "finish"), ["released", "open"]),  # all is saved, and the ledger does not know
    ],
)
def test_a_config_whose_worker_died_goes_on_and_is_charged_once(write, tmp_path, dies_in, charged):
    path, out = write(budget=20.0), tmp_path / "out"
    done = dpmcmc.sweep(path, out=out, executor=Dying(2, dies_in=dies_in))
    assert statuses(out) == ["released", "unfinished"]
    assert not done.complete
    assert entries(tmp_path) == charged
    again = dpmcmc.sweep(path, out=out)
    assert again.together == done.together
    assert statuses(out) == ["released"] * 2
    assert entries(tmp_path) == ["released"] * 2


def test_a_stopped_config_goes_on_to_the_same_bits(write, tmp_path):
    path = write(sweep={"over": {"privacy.insecure_noise_seed": [1, 2]}})
    dpmcmc.sweep(path, out=tmp_path / "whole")
    dpmcmc.sweep(path, out=tmp_path / "stopped", executor=Dying(1))
    dpmcmc.sweep(path, out=tmp_path / "stopped")
    for number in ("0001", "0002"):
        one, other = (tmp_path / out / "configs" / number / "confidential" / "draws.nc" for out in ("whole", "stopped"))
        assert one.read_bytes() == other.read_bytes()


def test_configs_for_which_a_ledger_has_no_room_are_refused_together(write, tmp_path, capsys):
    out = tmp_path / "out"
    refused(capsys, "no room for the 2 configs", "sweep", write(budget=0.8), "--out", out)
    assert entries(tmp_path) == []
    assert not out.exists()


def test_a_config_that_its_ledger_refuses_is_told_so_and_others_go_on(write, tmp_path, monkeypatch):
    """Somebody else took the room meanwhile; this is no secret of the records."""
    monkeypatch.setattr(Ledger, "fits", lambda self, guarantee: True)
    out = tmp_path / "out"
    dpmcmc.sweep(write(budget=0.8), out=out)
    assert statuses(out) == ["released", "refused"]
    assert entries(tmp_path) == ["released"]
    assert "is refused" in (out / "confidential" / "0002.txt").read_text()


def test_an_end_that_depends_on_the_records_is_told_to_their_holder_alone(write, tmp_path, capsys):
    path, out = write(budget=20.0), tmp_path / "out"
    np.savez(tmp_path / "rows.npz", x=np.where(np.arange(250)[:, None] < 50, 9.0, X), y=Y)
    assert call("sweep", path, "--out", out, "--json") == 1
    assert json.loads(capsys.readouterr().out)["configs"] == []
    executor = Dying()  # whose links may be open to others
    assert not dpmcmc.sweep(path, out=out, executor=executor).rows
    assert len(executor.answers) == 2
    assert "row" not in repr(executor.answers)
    assert {path.name for path in out.iterdir()} <= {"configs", "confidential"}
    for number in ("0001", "0002"):
        assert "row_bound" in (out / "confidential" / f"{number}.txt").read_text()
    assert set(entries(tmp_path)) == {"void"}
    assert call("sweep", path, "--out", out) == 1
    assert f"keep {out} to yourself" in capsys.readouterr().out
    # A table of an earlier start would tell which configs failed since.
    (out / "results.csv").touch()
    dpmcmc.sweep(path, out=out)
    assert not (out / "results.csv").exists()


def test_configs_without_a_guarantee_have_none_together(write, tmp_path):
    done = dpmcmc.sweep(write(sweep={"over": {"privacy.insecure_noise_seed": [None, 3]}}), out=tmp_path / "out")
    assert done.together is None
    assert done.complete
    assert [row["status"] for row in done.rows] == ["released", "withheld"]
    assert "No epsilon is proved" in (tmp_path / "out" / "report.html").read_text()


def test_a_folder_is_one_sweep_of_one_process(write, tmp_path):
    out = tmp_path / "out"
    path = write()
    with results_table.alone(out / "confidential"), pytest.raises(InputError, match="another run is writing"):
        dpmcmc.sweep(path, out=out)
    with pytest.raises(InputError, match="something else than a sweep"):
        dpmcmc.sweep(path, out=tmp_path)
    dpmcmc.sweep(path, out=out)
    with pytest.raises(InputError, match=r"another sweep.*0002\.yaml"):
        dpmcmc.sweep(write(sweep={"over": {"privacy.epsilon": [0.5]}}), out=out)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"privacy": {"epsilon": [1, 2], "delta": 1e-5}, "sweep": {"repeats": 2}}, r"privacy\.epsilon: .*got \[1, 2\]"),
        ({"sweep": None}, "sweep: must be a mapping"),
        ({"sweep": {"over": {"privacy.epsilonn": [1, 2]}}}, "did you mean epsilon"),
        ({"sweep": {"over": {"privacy.epsilon": 3}}}, r"sweep\.over\.privacy\.epsilon: .*list"),
        ({"sweep": {"over": {"privacy.epsilon": []}}}, "at least 1 item"),
        ({"sweep": {"over": {"privacy.epsilon": [1, -2]}}}, r"got -2 \(privacy.epsilon=-2\)"),
        ({"sweep": {"over": {"privacy.epsilon.x": [1]}}}, "epsilon is a value, not a section"),
        ({"sweep": {"over": {"privacy.delta": [1e-5]}, "together": [{"privacy.delta": [1e-6]}]}}, "swept twice"),
        ({"sweep": {"together": [{"privacy.epsilon": [1, 2], "privacy.delta": [1e-5]}]}}, "one length"),
        ({"sweep": {"together": {"privacy.epsilon": [1, 2]}}}, r"sweep\.together: .*list"),
        ({"sweep": {"repeats": 10_001}}, "<= 10000"),
        ({"sweep": {"repeats": True}}, "integer"),
        ({"sweep": {"repeats": 1}}, "sweeps over nothing"),
        ({"sweep": {"each": 3}}, r"sweep\.each"),
        ({"sweep": {"over": {"privacy.epsilon": [1, 1e-9]}}}, r"epsilon=1e-09"),
        ({"sweep": {"repeats": 2}, "privacy": BASE["privacy"] | {"insecure_noise_seed": 1}}, "are one run"),
        (
            {"privacy": BASE["privacy"] | {"ledger": "no", "insecure_noise_seed": 1}, "sweep": BASE["sweep"]},
            r"privacy\.ledger: config 1 .*cannot be charged",
        ),
    ],
)
def test_a_grid_that_makes_no_sense_is_one_sentence_and_no_folder(write, tmp_path, capsys, change, said):
    refused(capsys, said, "sweep", write(**change), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_grid_is_no_config_and_a_config_no_grid(write, tmp_path, capsys):
    refused(capsys, "run it with dpmcmc sweep", "run", write(), "--out", tmp_path / "out")
    refused(capsys, "sweep: this key is required", "sweep", "adult", "--out", tmp_path / "out")
    refused(capsys, r"dask://HOST:PORT", "sweep", write(), "--on", "ray://here", "--out", tmp_path / "out")
    refused(capsys, "'--workers'", "sweep", write(), "--workers", "0", "--out", tmp_path / "out")


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_and_charges_each_config_once(write, tmp_path):
    """Workers die with the sweep; whatever they were at goes on from its checkpoint."""
    path, out = write(budget=20.0, sweep=BASE["sweep"] | {"repeats": 2}), tmp_path / "out"
    words = [sys.executable, "-m", "dpmcmc", "sweep", str(path), "--out", str(out), "--workers", "2"]
    for _ in range(2):
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line.startswith("config "):  # the others are under way
                    process.send_signal(signal.SIGKILL)
                    break
    assert subprocess.run(words, cwd=ROOT, capture_output=True, check=False).returncode == 0
    assert entries(tmp_path) == ["released"] * 4
    assert statuses(out) == ["released"] * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_sweep_on_dask_charges_a_config_of_a_killed_worker_once(write, tmp_path):
    """The scheduler gives the config to another worker, which goes on from its checkpoint."""
    distributed = pytest.importorskip("distributed")
    path, out = write(budget=20.0), tmp_path / "out"
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50
    ) as cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        with distributed.Client(cluster) as client:
            client.run(_die_once_a_config_has_begun)
        assert call("sweep", path, "--on", f"dask://{address}", "--out", out) == 0
    assert statuses(out) == ["released"] * 2
    assert entries(tmp_path) == ["released"] * 2


def _die_once_a_config_has_begun():
    """Run in a worker: its first config kills it, and the worker that takes its place knows nothing of this."""
    begin = Life.begin

    def dies(life):
        begin(life)
        os.kill(os.getpid(), signal.SIGKILL)

    Life.begin = dies


def test_a_worker_that_dies_takes_its_own_task_alone():
    ends = sorted(map(str, tasks.outcomes(signal.raise_signal, [0, signal.SIGKILL, 0, 0], workers=2)))
    assert ends == [*["(0, None)"] * 3, f"({signal.SIGKILL!r}, Lost(why='BrokenProcessPool'))"]
    with pytest.raises(OSError, match="Invalid argument"):
        list(tasks.outcomes(signal.raise_signal, [0, 10_000], workers=2))


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (None, None),
        ({"files": None, "epsilon": 1.0}, None),
        ({"files": {"draws.nc": "", "metrics.json": ""}, "epsilon": 1.0}, "released"),
        ({"files": {"metrics.json": ""}, "epsilon": None}, "withheld"),
        ({"files": {"metrics.json": ""}, "epsilon": 1.0}, "diverged"),
        ({"files": {"plan.json": ""}, "epsilon": 1.0}, "failed"),
    ],
)
def test_the_status_of_a_config_is_what_its_privacy_json_lists(tmp_path, said, status):
    if said is not None:
        (tmp_path / "privacy.json").write_text(json.dumps(said))
    assert status_of(tmp_path) == status
