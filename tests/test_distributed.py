"""Several processes run one plan as the devices of one process do, and none waits for one that has failed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray

import dpmcmc
from dpmcmc.cli import run
from dpmcmc.cli.commands import main
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import ConfigError
from dpmcmc.config import file as config_file
from dpmcmc.engine import processes
from dpmcmc.privacy.query.randomness import streams_of
from tests.compiling import flags
from tests.test_engine import DATA, make

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = str(ROOT / "scripts" / "launch_local.py")
RUN = [sys.executable, "-m", "dpmcmc.run", str(ROOT / "configs" / "two_normals.yaml"), "--set", "run.mesh.data=2"]
#: A few steps of Poisson batches, so that who selects which records matters.
TINY = ["sampling={scheme: poisson, batch_size: 100}", "run.steps=12", "run.burn_in=0", "sampler.step_size=1.0"]


def settings(*overrides):
    return [word for override in overrides for word in ("--set", override)]


def started(command, devices=1, **environment):
    """A finished process, that saw so many simulated devices."""
    options = f"{flags()} --xla_force_host_platform_device_count={devices}"
    fresh = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": options, **environment}
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **fresh}, capture_output=True, text=True, timeout=900, check=False
    )


def launched(command, *options):
    return started([sys.executable, LAUNCHER, "--processes", "2", "--timeout", "600", *options, "--", *command])


# --- the launcher ---------------------------------------------------------------------------------------------


def test_every_process_is_told_who_it_is(tmp_path):
    code = "\n".join(
        [
            "import os, pathlib, sys",
            "who = os.environ['DPMCMC_PROCESS']",
            "print('from', who)",
            "print('bad', file=sys.stderr)",
            f"pathlib.Path({str(tmp_path)!r}, who).write_text(os.environ['DPMCMC_COORDINATOR'])",
        ]
    )
    done = launched([sys.executable, "-c", code])
    assert done.returncode == 0
    assert done.stdout == "from 0\n"
    assert sorted(done.stderr.splitlines()) == ["[0] bad", "[1] bad"]
    (one,) = {path.read_text() for path in tmp_path.iterdir()}
    assert one.startswith("127.0.0.1:")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("failing", [0, 1])
def test_where_one_process_fails_the_others_end(failing):
    code = f"import os, sys, time; sys.exit(7) if os.environ['DPMCMC_PROCESS'] == '{failing}' else time.sleep(500)"
    begun = time.monotonic()
    assert launched([sys.executable, "-c", code]).returncode == 7
    assert time.monotonic() - begun < 300


def test_processes_that_hang_are_ended():
    done = launched([sys.executable, "-c", "import time; time.sleep(500)"], "--timeout", "1")
    assert done.returncode == 124


def alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


#: A process, and one that it starts and that heeds no SIGTERM.
FAMILY = """
import os, pathlib, signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(500)"
child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
child.stdout.readline()
for number in os.getpid(), child.pid:
    pathlib.Path(sys.argv[1], str(number)).touch()
time.sleep(500)
"""


#: Runs a script where a signal is heeded; under nohup SIGHUP is not, and the launcher keeps to that.
HEEDING = """
import runpy, signal, sys
signal.signal(int(sys.argv[1]), signal.default_int_handler if sys.argv[1] == "2" else signal.SIG_DFL)
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
@pytest.mark.parametrize("ask", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_launcher_that_is_ended_leaves_no_process_behind(ask, tmp_path):
    family = [sys.executable, "-c", FAMILY, str(tmp_path)]
    command = [sys.executable, "-c", HEEDING, str(int(ask)), str(LAUNCHER), "--", *family]
    with subprocess.Popen(command) as launcher:
        while len(started := list(tmp_path.iterdir())) < 4:
            assert launcher.poll() is None
            time.sleep(0.05)
        launcher.send_signal(ask)
        assert launcher.wait(timeout=120) == 128 + ask
    deadline = time.monotonic() + 60
    while any(alive(path.name) for path in started):  # a killed process takes a moment to go
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_command_that_cannot_be_started_is_a_sentence():
    done = launched(["/no/such/program"])
    assert done.returncode == 127
    assert done.stderr.startswith("/no/such/program: cannot be started")
    assert done.stderr.count("\n") == 1


# --- what one process says ------------------------------------------------------------------------------------


def test_one_process_keeps_its_own_keys():
    streams = streams_of(0)[0]
    assert processes.agreed(streams, False, None, None, None) is streams


@pytest.mark.parametrize("named", [{"DPMCMC_COORDINATOR": "127.0.0.1:1"}, {"DPMCMC_PROCESS": "x"}])
def test_a_process_that_does_not_know_the_others_is_refused(named, monkeypatch):
    for name in (processes.COORDINATOR, processes.PROCESSES, processes.PROCESS):
        monkeypatch.delenv(name, raising=False)
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="go together"):
        processes.connect()


# --- runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """(folder, what was printed) of a secret run of two processes."""
    folder = tmp_path_factory.mktemp("together") / "run"
    done = launched([*RUN, "--distributed", "--out", str(folder), *settings(*TINY)])
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.slow
def test_two_processes_release_one_folder_whose_guarantee_verifies(together, capsys):
    folder, printed = together
    released = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {"config.yaml", "plan.json", "privacy.json", "metrics.json", "draws.nc"} < released
    assert "confidential/diagnostics.json" in released
    assert not (folder / "confidential" / "checkpoint").exists()
    assert main(["verify", str(folder / "privacy.json")]) == 0
    assert "verified" in capsys.readouterr().out
    # One of them prints.
    assert printed.count("logistic regression, 1,000 records") == 1
    assert "1 along the chains, 2 along the records" in printed
    assert "without a checkpoint" in printed


def _theta(folder):
    with xarray.open_dataset(folder / "draws.nc", group="path", engine="h5netcdf") as draws:
        return draws["theta"].values


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_processes_draw_what_two_devices_of_one_process_draw(tmp_path):
    """By the command; the library's own draws of records in memory and on disk are compared below."""
    seed = settings(*TINY, "privacy.insecure_noise_seed=3")
    done = launched([*RUN, "--distributed", "--out", str(tmp_path / "two"), *seed])
    assert done.returncode == 0, done.stderr
    done = started([*RUN, "--out", str(tmp_path / "one"), *seed], devices=2)
    assert done.returncode == 0, done.stderr
    two, one = (_theta(tmp_path / name) for name in ("two", "one"))
    np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
    assert np.ptp(one) > 0.1


ON_DISK = """
import sys
import numpy as np
import dpmcmc
from dpmcmc import processes
from dpmcmc.engine import rows_on_disk as records_on_disk
folder, distributed = sys.argv[1], len(sys.argv) > 2
if distributed:
    processes.connect()
import jax
selected, read = records_on_disk._selected, []
def recorded(leaf, indices, mask):
    read.append((indices[mask].min(), indices[mask].max()))
    return selected(leaf, indices, mask)
records_on_disk._selected = recorded
plan = dpmcmc.plan(
    dpmcmc.targets.LogisticRegression(1.0), num_records=400, sampler=dpmcmc.SGLD(step_size=0.5), steps=300,
    sampling=dpmcmc.Poisson(40), privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-4, accountant="rdp"),
)
found = {}
for place in ("memory", "disk") if distributed else ("memory",):
    records = {name: np.load(f"{folder}/{name}.npy", mmap_mode="r" if place == "disk" else None) for name in "xy"}
    found[place] = dpmcmc.sample(plan, records, key=3, mesh=dpmcmc.mesh(1, 2)).draws
np.savez(f"{folder}/{jax.process_index()}-{distributed}.npz", **found, read=np.array(read))
"""


@pytest.mark.slow
def test_each_process_draws_what_two_devices_of_one_do_and_reads_its_own_shards_batches_from_disk(tmp_path):
    for name, leaf in DATA.items():
        np.save(tmp_path / f"{name}.npy", leaf)
    done = launched([sys.executable, "-c", ON_DISK, str(tmp_path), "distributed"])
    assert done.returncode == 0, done.stderr
    done = started([sys.executable, "-c", ON_DISK, str(tmp_path)], devices=2)
    assert done.returncode == 0, done.stderr
    alone, *both = (np.load(tmp_path / name) for name in ("0-False.npz", "0-True.npz", "1-True.npz"))
    for process, rows in zip(both, ((0, 199), (200, 399)), strict=True):
        for place in ("memory", "disk"):
            np.testing.assert_allclose(process[place], alone["memory"], rtol=1e-5, atol=1e-6)
        assert rows[0] <= process["read"].min() < process["read"].max() <= rows[1]
    assert np.ptp(alone["memory"]) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["sampler.step_size=2.0", "privacy.insecure_noise_seed=3"], "differ in their plan, and in their kind of key;"),
        pytest.param(["sampler.step_size=2.0"], "differ in their plan;", marks=pytest.mark.exhaustive),
        pytest.param(["privacy.insecure_noise_seed=3"], "differ in their kind of key;", marks=pytest.mark.exhaustive),
    ],
)
def test_processes_that_are_not_alike_are_refused(tmp_path, changes, words):
    own = " ".join(f"'{word}'" for word in settings(*changes))
    words_of_all = " ".join(
        f"'{word}'" for word in [*RUN, "--distributed", "--out", str(tmp_path / "run"), *settings(*TINY)]
    )
    done = launched(
        ["sh", "-c", f'if [ "$DPMCMC_PROCESS" = 1 ]; then exec {words_of_all} {own}; else exec {words_of_all}; fi']
    )
    assert done.returncode == 2
    assert done.stderr.count(words) == 2
    assert not (tmp_path / "run" / "draws.nc").exists()


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_run(tmp_path):
    long = settings("run.steps=2000000", "run.thin=1000")
    words = " ".join(f"'{word}'" for word in [*RUN, "--distributed", "--out", str(tmp_path / "run"), *long])
    ready = tmp_path / "run" / "privacy.json"
    # A run that is lost before its first step has cost nothing and leaves nothing: a busy machine takes longer to it.
    for seconds in (2, 15, 60):
        kill = f"{words} & p=$!; while ! [ -e {ready} ]; do sleep 0.1; done; sleep {seconds}; kill -9 $p; exit 9"
        begun = time.monotonic()
        done = launched(["sh", "-c", f'if [ "$DPMCMC_PROCESS" = 1 ]; then {kill}; else exec {words}; fi'])
        assert done.returncode in (1, 9), done.stderr
        assert time.monotonic() - begun < 400
        assert not (tmp_path / "run" / "draws.nc").exists()
        if ready.exists():
            break
    # What it cost was said before the first step.
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["epsilon"] <= 1.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["run.mesh.data=2", "privacy.ledger=budget.json"], "privacy.ledger: a run of several processes charges no"),
        ([], "run.mesh: several processes need to know"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(monkeypatch, changes, words):
    config = config_file.load(ROOT / "configs" / "two_normals.yaml", changes)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(CommandError, match=words):
        run._mesh(config)


@pytest.mark.parametrize(("name", "value"), [("checkpoint", "folder"), ("ledger", "budget.json")])
def test_what_is_kept_on_one_machine_is_refused_with_several_processes(monkeypatch, name, value):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for call in (dpmcmc.sample, lambda plan, data, **more: dpmcmc.sample_all([plan], data, **more)):
        if name == "ledger" or call is dpmcmc.sample:
            with pytest.raises(ValueError, match=f"{name}: not with several processes"):
                call(make(), DATA, **{name: value})


def test_a_distributed_run_has_nothing_to_resume(tmp_path, capsys):
    assert main(["run", "--distributed", "--resume", str(tmp_path)]) == 2
    assert "keeps no checkpoint" in capsys.readouterr().err


def test_a_config_with_more_devices_than_there_are_is_refused_before_anything_is_written(tmp_path, capsys):
    more = f"run.mesh.data={jax.device_count() + 1}"
    config = str(ROOT / "configs" / "two_normals.yaml")
    assert main(["run", config, "--out", str(tmp_path / "run"), "--set", more]) == 2
    assert "error: run.mesh: chain=1 times data=" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_mechanism_takes_no_mesh():
    with pytest.raises(ConfigError, match=r"run\.mesh: mechanism hybrid runs on one device"):
        config_file.load(ROOT / "configs" / "adult_hybrid.yaml", ["run.mesh.data=2"])
