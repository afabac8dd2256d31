"""run.device chooses the kind of device of a run, whatever JAX was used for before, and the run's files say which."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc import config
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.engine import life
from dpmcmc.engine import mesh as mesh_room
from dpmcmc.engine.devices import device_used, on_device
from dpmcmc.errors import InputError
from dpmcmc.storage.fingerprint import platform
from tests.compiling import flags

CPU = {"platform": "cpu", "kind": "cpu", "count": 1}
PLAN = dpmcmc.plan(dpmcmc.targets.LogisticRegression(), num_records=20, sampler=dpmcmc.SGLD(1.0), steps=4, privacy=None)
RECORDS = {"x": np.ones((20, 2), np.float32), "y": np.arange(20) % 2}
#: Quick to run; ``two_normals`` is generated.
SHORT = ["two_normals", "--set", "run.steps=10", "--set", "run.passes=null", "--set", "run.burn_in=0"]


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without a GPU, whatever this one has."""
    before = jax.local_devices

    def local(*arguments, backend=None, **more):
        if backend == "gpu":
            raise RuntimeError("Unknown backend gpu")
        return before(*arguments, backend=backend, **more)

    monkeypatch.setattr(jax, "local_devices", local)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(tmp_path, capsys, no_gpu, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *SHORT, "--set", "run.device=gpu", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said == (
        "error: run.device: JAX finds no gpu here; use auto, or install jax[cuda13] where there is a GPU.\n"
    )
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="device: JAX finds no gpu here") as refusal:
        dpmcmc.sample(PLAN, RECORDS, device="gpu", out=tmp_path / "out")
    assert refusal.value.about == "device"
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(InputError, match="where JAX_PLATFORMS is 'cpu'"), on_device("gpu"):
        pass


def test_another_name_is_refused(capsys):
    assert main(["run", *SHORT, "--set", "run.device=cuda"]) == 2
    assert "run.device: input should be 'auto', 'cpu' or 'gpu', got 'cuda'" in capsys.readouterr().err
    with pytest.raises(InputError, match="device must be one of auto, cpu, gpu, got 'tpu'"):
        dpmcmc.sample(PLAN, RECORDS, device="tpu")


def test_a_result_says_where_it_was_computed(tmp_path):
    """``test_screen.py`` has the same of a run of the command."""
    result = dpmcmc.sample(PLAN, RECORDS, key=0, device="cpu", out=tmp_path / "mine")
    assert result.device == CPU
    assert json.loads((tmp_path / "mine" / "metrics.json").read_text())["device"] == CPU
    assert jax.config.jax_default_device is None
    assert device_used(None) == {**CPU, "platform": jax.devices()[0].platform, "kind": jax.devices()[0].device_kind}


PROGRAM = """
import sys
import jax, numpy as np
import dpmcmc
from dpmcmc.engine.mesh import mesh
from dpmcmc.engine.devices import on_device
from tests.engine.test_device import PLAN, RECORDS

first, second = jax.devices("cpu")
jax.config.update("jax_default_device", second)
assert jax.numpy.ones(3).devices() == {second}  # JAX has begun
seen = []

def progress(done, total):
    seen.append({device for array in jax.live_arrays() for device in array.devices()})

dpmcmc.sample(PLAN, RECORDS, key=0, progress=progress)
assert seen and all(second in devices for devices in seen), seen
seen.clear()
dpmcmc.sample(PLAN, RECORDS, key=0, device="cpu", progress=progress)
assert any(first in devices for devices in seen), seen
assert jax.config.jax_default_device == second
try:
    with on_device("cpu"):
        assert mesh(data=2).devices.size == 2
        raise KeyError
except KeyError:
    assert jax.config.jax_default_device == second
"""


@pytest.mark.slow
def test_a_run_computes_there_although_jax_has_begun_elsewhere():
    """Two simulated devices: the second is JAX's default, and the first is the first of its kind."""
    options = f"--xla_force_host_platform_device_count=2 {flags()}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": options}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=600)


def test_the_platform_of_a_checkpoint_is_that_of_the_device_asked_for(monkeypatch):
    """A run on the CPU of a machine with a GPU is resumed to the same bits, as one on a machine without."""
    here = platform()
    with on_device("cpu"):
        assert platform() == here
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    accelerator = platform()
    with on_device("cpu"):
        assert platform() == here != accelerator


@pytest.mark.parametrize("overrides", [["run.device=cpu"], ["run.device=cpu", "mechanism.name=noise_aware"]])
def test_a_one_shot_mechanism_takes_a_device_and_nothing_else_of_a_run(overrides, tmp_path):
    name = "diabetes_noise_aware" if len(overrides) == 1 else "breast_cancer"
    loaded = config_file.load(name, overrides)
    assert loaded.one_shot
    path = tmp_path / "config.yaml"
    path.write_text(config.dump(loaded, tmp_path))
    where = {"device": "cpu", "engine": None, "mesh": None, "trusted_network": False}
    assert yaml.safe_load(path.read_text())["run"] == where
    assert config_file.load(path).run.device == "cpu"
    with pytest.raises(InputError, match="noise_aware takes none but device, engine, mesh, trusted_network; leave"):
        config_file.load(name, [*overrides, "run.steps=5"])


def test_a_sampler_needs_more_than_a_device():
    with pytest.raises(InputError, match="give exactly one of passes and steps") as refusal:
        config.make_plan(config_file.load("breast_cancer", ["run={device: cpu}"]))
    assert refusal.value.about == "run.steps"


def test_a_mesh_of_another_kind_keeps_no_checkpoint_by_a_cpus_word(tmp_path, monkeypatch):
    """A CPU makes the same bits again; a mesh of accelerators beside it need not."""
    there = dpmcmc.mesh(1, 1)
    monkeypatch.setattr(mesh_room, "platform_of", lambda mesh: "cpu" if mesh is None else "gpu")
    with pytest.raises(InputError, match="leave device out"):
        life.reserved(PLAN, mesh=there, checkpoint=tmp_path / "kept").__enter__()
    life.reserved(PLAN, mesh=there).__enter__()
    monkeypatch.setattr(mesh_room, "platform_of", lambda mesh: "gpu" if mesh is None else "cpu")
    life.reserved(PLAN, mesh=there, checkpoint=tmp_path / "kept").__enter__()
