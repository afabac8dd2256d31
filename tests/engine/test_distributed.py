"""Several processes run one plan as the devices of one process do, and none waits for one that has failed."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.cli import run
from dpmcmc.cli.commands import main
from dpmcmc.cli.refusals import CommandError, exit_code
from dpmcmc.config import ConfigError, dump
from dpmcmc.config import file as config_file
from dpmcmc.engine import processes
from dpmcmc.engine.reservation import Reservation
from dpmcmc.errors import SaidByFirst
from dpmcmc.privacy import Ledger
from dpmcmc.storage.commit import Point
from dpmcmc.storage.fingerprint import platform
from tests.compiling import flags
from tests.engine.test_engine import DATA, make

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.parametrize("failing", [0, 1])
def test_where_one_process_fails_the_others_end(failing):
    code = f"import os, sys, time; sys.exit(7) if os.environ['DPMCMC_PROCESS'] == '{failing}' else time.sleep(500)"
    begun = time.monotonic()
    assert launched([sys.executable, "-c", code]).returncode == 7
    assert time.monotonic() - begun < 300


# --- what one process says ------------------------------------------------------------------------------------


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
    assert "2; this one keeps the checkpoint" in printed


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


def test_several_processes_without_a_mesh_are_refused(monkeypatch):
    config = config_file.load(ROOT / "configs" / "two_normals.yaml")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(CommandError, match=r"run\.mesh: several processes need to know"):
        run._mesh(config)


def test_a_reservation_that_every_process_would_make_is_refused(monkeypatch, tmp_path):
    plan = make()
    terms = {"num_records": plan.num_records, "adjacency": "replace_one", "epsilon": 3.0, "delta": 1e-3}
    ledger = Ledger.init(tmp_path / "budget.db", name="people", overflow_share=0.5, **terms)
    reservation = Reservation(ledger, plan.guarantee, "by hand")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="ledger: process 0 of several reserves"):
        dpmcmc.sample(plan, DATA, ledger=reservation)


# --- what process 0 keeps -------------------------------------------------------------------------------------


def test_a_process_that_learns_of_a_refusal_says_nothing(capsys):
    def refused():
        raise SaidByFirst("budget.db: run 'a' is refused.", 1)

    assert exit_code(refused) == 1
    assert capsys.readouterr().err == ""


def test_a_commit_goes_to_another_process_whole():
    states = [np.arange(6.0).reshape(2, 3), np.ones((2, 2), np.uint32)]
    pieces = [[np.full(3, 1.0), np.full(3, 2)], [np.full(1, 3.0), np.full(1, 4)], [np.zeros(2), np.zeros(0)]]
    point = Point(4, False, 5, (2, 7), states, [1.0, 2.0], pieces, 1.5, [("draws-00001.bin", "ab")])
    told = Point.of(point.whole())
    jax.tree.map(np.testing.assert_array_equal, [told.states, told.pieces], [states, pieces])
    assert [len(own) for own in told.pieces] == [2, 2, 2]
    for field in dataclasses.fields(Point):
        if field.name not in ("states", "pieces"):
            assert getattr(told, field.name) == getattr(point, field.name)


def test_simulated_devices_and_places_to_meet_are_no_other_platform_and_other_flags_are(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    own = platform()
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2 --xla_cpu_enable_fast_math=false")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "node7:123")
    assert platform() == own
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2 --xla_cpu_enable_fast_math=true")
    assert platform() != own
    monkeypatch.undo()
    own = platform()
    # More threads than cores, of many devices in one process, may split a product otherwise.
    monkeypatch.setattr(jax, "local_device_count", lambda backend: 64)
    assert platform() != own


KEPT = """
import sys, time
from pathlib import Path
import jax
import numpy as np
import dpmcmc
from dpmcmc.engine import chains, lanes, sizes
from dpmcmc.engine.reservation import Reservation
from dpmcmc.storage import checkpoint
from tests.engine.test_engine import DATA, make

dpmcmc.processes.connect()
folder, me = Path(sys.argv[1]), jax.process_index()
start, take = Reservation.start, lanes.take_chunk
times = {}

def late(*given):
    time.sleep(3)
    start(*given)
    times.setdefault("begun", time.time())

def first(*given):
    times.setdefault("step", time.time())
    return take(*given)

Reservation.start, lanes.take_chunk = late, first
sizes._CHUNK_STEPS, checkpoint._OVERHEAD = 7, 1e9
found = {}
plan, mesh = make(), dpmcmc.mesh(1, 2)
result = dpmcmc.sample(plan, DATA, mesh=mesh, checkpoint=folder / "kept", ledger=folder / "budget.db")
again = dpmcmc.sample(plan, DATA, mesh=mesh, checkpoint=folder / "kept", ledger=folder / "budget.db")
np.testing.assert_array_equal(again.draws, result.draws)
refused = ""
try:
    dpmcmc.sample(plan, DATA, mesh=mesh, ledger=folder / "budget.db")
except ValueError as error:
    refused = str(error)
receipt = result.receipt
np.savez(folder / f"{me}.npz", draws=result.draws, id=receipt.id, refused=refused, **times)
dpmcmc.sample(plan, DATA, mesh=mesh, ledger=folder / "no.db")
"""


@pytest.mark.slow
def test_two_processes_are_charged_once_before_either_takes_a_step_and_share_each_refusal(tmp_path):
    plan = make()
    terms = {"num_records": plan.num_records, "adjacency": "replace_one", "epsilon": 1.5, "delta": 1e-3}
    ledger = Ledger.init(tmp_path / "budget.db", name="people", overflow_share=0.5, **terms)
    ledger.reserve(plan.guarantee, "another")  # which leaves enough for one
    done = launched([sys.executable, "-c", KEPT, str(tmp_path)])
    # The last run asks for a ledger that is not there: all end, and one says why.
    assert done.returncode == 1
    assert done.stderr.count("no.db: no such ledger") == 1
    assert "[1] Traceback" not in done.stderr
    both = [np.load(tmp_path / f"{process}.npz") for process in (0, 1)]
    np.testing.assert_array_equal(both[0]["draws"], both[1]["draws"])
    assert both[0]["id"] == both[1]["id"]
    assert "is refused" in str(both[0]["refused"])
    assert both[0]["refused"] == both[1]["refused"]
    assert both[0]["begun"] <= both[1]["step"]
    assert "begun" not in both[1]
    _, run_of_both = ledger.state().runs
    assert run_of_both.outcome == "released"
    assert len(run_of_both.charges) == 1


@pytest.mark.slow
def test_a_run_whose_process_was_killed_goes_on_to_the_same_draws_and_is_charged_once():
    """At a few points; scripts/crash_processes.py takes every one."""
    done = started([sys.executable, str(ROOT / "scripts" / "crash_processes.py"), "--first", "22", "--every", "29"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills, 0 wrong" in done.stdout


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_devices(tmp_path):
    book, out = tmp_path / "budget.db", tmp_path / "run"
    terms = {"num_records": 1000, "adjacency": "replace_one", "epsilon": 6.0, "delta": 1e-4}
    Ledger.init(book, name="people", overflow_share=0.5, **terms)
    words = settings(*TINY, f"privacy.ledger={book}")
    done = launched([sys.executable, "-c", STOPPED, *RUN[3:], "--distributed", "--out", str(out), *words])
    assert done.returncode != 0
    assert f"go on with: dpmcmc run --resume {out} --distributed" in done.stderr
    done = started([*RUN[:3], "--resume", str(out), "--set", "run.mesh.data=1"])
    assert (done.returncode, "another platform" in done.stderr) == (2, True)
    (charged,) = Ledger(book).state().runs
    assert charged.outcome == "open"


#: The command, whose process 1 is lost when it has taken its first steps.
STOPPED = """
import os, signal, sys
from dpmcmc.cli.commands import main
from dpmcmc.engine import sizes
from dpmcmc.engine.kept_draws import KeptDraws
add = KeptDraws.add
sizes._CHUNK_STEPS = 3
def lost(*given):
    add(*given)
    if os.environ["DPMCMC_PROCESS"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
KeptDraws.add = lost
sys.exit(main(["run", *sys.argv[1:]]))
"""


def test_a_config_with_more_devices_than_there_are_is_refused_before_anything_is_written(tmp_path, capsys):
    more = f"run.mesh.data={jax.device_count() + 1}"
    config = str(ROOT / "configs" / "two_normals.yaml")
    assert main(["run", config, "--out", str(tmp_path / "run"), "--set", more]) == 2
    assert "error: run.mesh: chain=1 times data=" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_one_shot_mechanism_takes_of_the_run_its_devices_alone():
    chosen = ["mechanism.name=noise_aware", "run.mesh.data=2", "run.device=cpu"]
    loaded = config_file.load("adult", chosen)
    run = yaml.safe_load(dump(loaded, ROOT))["run"]
    assert set(run) == {"device", "engine", "mesh", "trusted_network"}
    assert run["mesh"] == {"chain": 1, "data": 2}
    # A config that has them keeps them, whichever mechanism is chosen then.
    again = config_file.of_values(yaml.safe_load(dump(loaded, ROOT)), ["mechanism.name=sufficient_statistics"])
    assert again.run.mesh.data == 2
    with pytest.raises(ConfigError, match="run: mechanism noise_aware takes none but device, engine, mesh, trusted"):
        config_file.load("adult", [*chosen, "run.steps=3"])
