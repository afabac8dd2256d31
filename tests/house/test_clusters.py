"""Each recipe of docs/how-to/clusters.md runs with what its scheduler would set, as two processes of this machine."""

import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.compiling import flags

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "clusters.md").read_text(encoding="utf-8")
CONFIG = """
name: people
data: {name: two_normals}
target: {name: logistic_regression, prior_scale: 3.0}
sampler: {name: sgld, step_size: 1.0}
sampling: {scheme: full}
privacy: {epsilon: 1.0, delta: 1.0e-4}
run: {steps: 12, burn_in: 0.0}
"""


def block(language, marker):
    """The block of a language whose text holds a word."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (found,) = [one for one in blocks if marker in one]
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def place(tmp_path):
    """A folder with the config, and with commands that stand for the cluster's."""
    (tmp_path / "people.yaml").write_text(CONFIG)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, body in {"dpmcmc": f'exec {sys.executable} -m dpmcmc "$@"', "srun": SRUN}.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    return tmp_path


#: As ``srun`` starts a command: once for each task, which is told its number.
SRUN = """
while [[ "$1" == --* ]]; do shift; done
for (( at = 0; at < SLURM_NTASKS; at++ )); do
    SLURM_PROCID=$at SLURM_LOCALID=$at SLURM_STEP_NODELIST=localhost SLURM_STEP_NUM_NODES=1 "$@" & started+=($!)
done
code=0
for one in "${started[@]}"; do wait "$one" || code=$?; done
exit $code
"""


def environment(place, **more):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "DPMCMC_PROCESS"))}
    path = f"{place / 'bin'}{os.pathsep}{own['PATH']}"
    package = os.pathsep.join([str(ROOT), own.get("PYTHONPATH", "")])
    return own | {"PATH": path, "PYTHONPATH": package, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags()} | more


def ran(command, place, **more):
    """A command that ends in a run of two processes."""
    done = subprocess.run(
        command, cwd=place, env=environment(place, **more), capture_output=True, text=True, timeout=600, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert (place / "runs" / "people" / "draws.nc").exists(), said
    return said


@pytest.mark.slow
def test_the_script_of_slurm_runs(place):
    """JAX takes the port from the number of the job."""
    (place / "people.sh").write_text(block("sh", "srun"))
    job = str(random.SystemRandom().randrange(1 << 20))
    said = ran(["bash", "people.sh"], place, SLURM_JOB_ID=job, SLURM_NTASKS="2")
    assert "2; this one keeps the checkpoint" in said
    # Submitted once more, it finds the run done.
    again = subprocess.run(
        ["bash", "people.sh"],
        cwd=place,
        env=environment(place, SLURM_JOB_ID=job, SLURM_NTASKS="2"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert again.returncode == 2
    assert again.stderr.count("is done; there is nothing to go on with") == 1


@pytest.mark.slow
def test_the_script_of_dask_jobqueue_runs(place):
    pytest.importorskip("dask_jobqueue")
    pytest.importorskip("cryptography")
    code = block("python", "SLURMCluster").replace("29511", str(free_port()))
    # Its cluster of this machine writes a script for each worker too, and runs it.
    code = code.replace("from dask_jobqueue import SLURMCluster", "from dask_jobqueue.local import LocalCluster")
    (place / "people.py").write_text(code.replace("SLURMCluster(", "LocalCluster("))
    said = ran([sys.executable, "people.py"], place, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0")
    assert re.findall(r"^(\d) (\d)", said, re.MULTILINE) == [("0", "0"), ("1", "0")]


def manifests():
    return {one["kind"]: one for one in yaml.safe_load_all(block("yaml", "kind: Job"))}


@pytest.mark.slow
def test_the_container_s_command_runs(place):
    (container,) = manifests()["Job"]["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    ((counted, source),) = [(one["name"], one["valueFrom"]) for one in container["env"] if "valueFrom" in one]
    assert source["fieldRef"]["fieldPath"] == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    given["DPMCMC_COORDINATOR"] = f"127.0.0.1:{free_port()}"
    command = [*container["command"], *container["args"]]
    pods = [
        subprocess.Popen(
            command,
            cwd=place,
            env=environment(place, **given, **{counted: str(index)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(int(given["DPMCMC_PROCESSES"]))
    ]
    said = [pod.communicate(timeout=600)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], said
    assert (place / "runs" / "people" / "draws.nc").exists()
