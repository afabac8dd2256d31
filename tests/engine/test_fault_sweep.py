"""A fault at a system call that touches a run's folder: a few dozen points; scripts/fault_sweep.py takes every one."""

import errno
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpmcmc.privacy.ledger import file
from dpmcmc.storage.run_folder import RunFolder
from tests.engine.test_life import ROUTES, Kill, _quick, before, named, stop
from tests.engine.test_life import scene as scene  # a fixture

assert _quick  # a fixture that every test here has

SCRIPT = Path(__file__).parents[2] / "scripts" / "fault_sweep.py"
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="the shim is compiled with gcc, which is not here")


def sweep(*options):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--real", "0", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split("all ")[1].split()[0])


@needs_gcc
def test_commands_of_a_ledger_under_faults():
    assert sweep("--jobs", "ledger", "--every", "11") >= 24


@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize("job", ["run", "sample", "fit"])
def test_a_run_under_faults(job):
    assert sweep("--jobs", job, "--every", "40", "--faults", "ENOSPC", "cut") >= 4


@pytest.mark.filterwarnings("ignore:.*stays spent")
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("name", ["run of a mechanism", "sample of a mechanism"])
def test_a_full_disk_at_the_ledger_leaves_what_names_an_open_reservation(name, first, scene):
    """From the ``first`` change after the reservation on none can be written, so the run is neither begun nor void."""
    real, count = file.Inode.replace, itertools.count()

    def replace(self, content):
        if next(count) >= first:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file.Inode, "replace", replace)
        with pytest.raises((OSError, ValueError, RuntimeError), match="disk is full"):
            ROUTES[name].start(scene)
    assert scene.runs == ["open"]
    route = ROUTES[name]
    route.start(scene) if first == 1 else route.go_on(scene)  # its keys are there once it is about to begin
    assert scene.runs == ["released"]


@pytest.mark.parametrize("file", ["config.yaml", "plan.json", "privacy.json"])
@pytest.mark.parametrize("kind", ["error", "kill"])
def test_the_same_command_takes_over_what_was_left_before_anything_was_computed(file, kind, scene):
    route = ROUTES["run of a mechanism"]
    error = OSError(errno.EIO, "Input/output error") if kind == "error" else Kill()
    name = "write" if file == "config.yaml" else "json"
    assert stop(route, scene, before(RunFolder, name, error, when=named(file)), kind)
    route.start(scene)
    assert [outcome for outcome in scene.runs if outcome != "void"] == ["released"]


def test_a_folder_is_new_or_goes_on_or_is_refused(scene):
    """Files of one's own and another config are refused. A run that has begun goes on by its command, charged once."""
    route = ROUTES["run of a mechanism"]
    scene.out.mkdir()
    (scene.out / "notes.txt").write_text("mine")
    with pytest.raises(RuntimeError, match="new or empty"):
        route.start(scene)
    (scene.out / "notes.txt").unlink()
    stop(route, scene, before(RunFolder, "write", Kill(), when=named("draws.nc")), "kill")
    shutil.rmtree(scene.folder / "data")
    with pytest.raises(RuntimeError, match="another config"):
        ROUTES["run of a hybrid"].start(scene)
    shutil.rmtree(scene.folder / "data")
    route.start(scene)
    assert [outcome for outcome in scene.runs if outcome != "void"] == ["released"]
    with pytest.raises(RuntimeError, match="already holds a run that is done"):
        route.start(scene)
