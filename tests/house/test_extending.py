"""The worked example of docs/extending.md: one file of under 60 lines, checked, and used from YAML and Python."""

import dataclasses
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.testing import check_sampler
from experiments.preconditioned import PreconditionedSGLD
from experiments.psgld import PSGLD

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_shows_the_file_and_the_file_is_short():
    source = (ROOT / "experiments" / "preconditioned.py").read_text(encoding="utf-8")
    assert BLOCKS[0] == source
    assert BLOCKS[2] == (ROOT / "experiments" / "psgld.py").read_text(encoding="utf-8")
    assert max(len(block.splitlines()) for block in (BLOCKS[0], BLOCKS[2])) < 60


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    BLOCKS[1:],
    ids=["sampler", "adapts", "checked", "target", "last layer", "mechanism", "calibrator", "accountant"],
)
def test_python_of_the_page_runs(block, monkeypatch):
    monkeypatch.chdir(ROOT)
    script = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec(compile(block, "docs/extending.md", "exec"), vars(script))


@pytest.mark.slow
def test_the_sampler_runs_from_yaml(tmp_path):
    (command,) = [line.strip() for line in PAGE.splitlines() if "preconditioned:PreconditionedSGLD" in line]
    words = ["-m", *shlex.split(command), "--set", "run.steps=40", "--set", "run.passes=null", "--set", "run.thin=1"]
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, *words, "--out", out], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (out / "draws.nc").exists()


@pytest.mark.slow
def test_a_public_preconditioner_keeps_the_law():
    check_sampler(PreconditionedSGLD(4.0, metric=list(np.linspace(0.5, 1.5, 16))), dimension=16, chains=256)


@pytest.mark.slow
def test_forgetting_the_metric_in_the_noise_is_caught():
    class Forgetful(PreconditionedSGLD):
        """Moves by M⁻¹, with noise that is not scaled by F."""

        def step(self, key, state, gradient, t):
            raw = jax.tree.map(lambda g: g / 1.5, gradient.value)
            return super().step(key, state, gradient._replace(value=raw), t)

    with pytest.raises(AssertionError, match="off by"):
        check_sampler(Forgetful(4.0, metric=1.5), dimension=16, chains=256)


@pytest.mark.slow
def test_forgetting_the_noise_that_a_preconditioner_lacks_is_caught():
    class Forgetful(PSGLD):
        def step(self, key, state, gradient, t):
            return PSGLD.step(dataclasses.replace(self, temperature=0.0), key, state, gradient, t)

    with pytest.raises(AssertionError, match="off by"):
        check_sampler(Forgetful(4.0), dimension=16, chains=256)


def plan_of(sampler):
    target = dpmcmc.targets.LogisticRegression(num_features=3)
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=1e-4)
    return dpmcmc.plan(target, num_records=1000, sampler=sampler, steps=10, privacy=privacy)


def test_what_a_sampler_of_one_s_own_lacks_is_said_in_one_sentence():
    class Lonely(PreconditionedSGLD):
        def step(self, key, state, gradient, t):
            return super().step(key, state, gradient, t)[0]

    class Negative(PreconditionedSGLD):
        def noise_std(self, t):
            return -1.0 + 0.0 * t

    with pytest.raises(ValueError, match="step_size auto needs a sampler with with_noise"):
        plan_of(PreconditionedSGLD("auto"))
    with pytest.raises(ValueError, match=r"Lonely\.step must return \(State, Info\)"):
        plan_of(Lonely(1.0))
    with pytest.raises(ValueError, match=r"Negative\.noise_std is -1 at step 0"):
        plan_of(Negative(1.0))
    with pytest.raises(ValueError, match="parameters, and the target has 3"):
        plan_of(PreconditionedSGLD(1.0, metric=[1.0, 2.0]))
    with pytest.raises(TypeError, match="must be a Sampler such as"):
        plan_of("sgld")
