"""What leaves a run is covered by its guarantee, and nothing else leaves."""

import json
import os
import stat
import zlib
from pathlib import Path

import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.privacy import round_up
from tests.cli.test_command_line import BREAST, call, refused

N, D = 300, 4
RNG = np.random.default_rng(11)
X = (RNG.normal(size=(N, D)) / 8).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
TARGET = dpmcmc.targets.LogisticRegression(prior_scale=1.0)


@pytest.fixture
def mine(tmp_path):
    """A config on a private file of its own."""
    np.savez(tmp_path / "mine.npz", x=X, y=Y)
    body = yaml.safe_load(BREAST.read_text())
    body |= {
        "name": "mine",
        "data": {"path": "mine.npz", "num_records": 240, "test_fraction": 0.2, "row_bound": 1.0},
        "run": {"steps": 40, "burn_in": 0.5, "thin": 2},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def small_plan(**changes):
    settings = {
        "num_records": N,
        "sampler": dpmcmc.SGLD(step_size=1.0),
        "steps": 20,
        "privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-4),
    }
    return dpmcmc.plan(TARGET, **(settings | changes))


def decompressed(content):
    for unpack in (zlib.decompress, _zstd):
        try:
            return unpack(content)
        except Exception:
            continue
    return content


def _zstd(content):
    import zstandard

    return zstandard.ZstdDecompressor().decompress(content, max_output_size=1 << 28)


def holds_a_row(folder):
    rows = [row.tobytes() for row in X[:20]]
    contents = [decompressed(path.read_bytes()) for path in Path(folder).rglob("*") if path.is_file()]
    return contents, any(row in content for content in contents for row in rows)


@pytest.mark.optimised
@pytest.mark.slow
def test_compiled_programs_kept_on_disk_hold_no_record(tmp_path):
    """A closure over records would write them into the persistent compilation cache."""
    import subprocess
    import sys

    np.savez(tmp_path / "mine.npz", x=X, y=Y)
    program = f"""
import sys, jax, numpy as np
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
import dpmcmc
from dpmcmc.diagnostics import reference
from dpmcmc.inference import predictive
file = np.load({str(tmp_path / "mine.npz")!r})
data = {{"x": file["x"], "y": file["y"]}}
target = dpmcmc.targets.LogisticRegression(num_features={D})
if sys.argv[2] == "closure":
    x = jax.numpy.asarray(data["x"])
    jax.jit(lambda theta: (x @ theta).sum())(jax.numpy.ones({D}))
else:
    plan = dpmcmc.plan(target, num_records={N}, sampler=dpmcmc.SGLD(1.0), sampling=dpmcmc.Poisson(50), steps=20,
                       privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-4))
    flat = dpmcmc.sample(plan, data).flat_draws()
    reference.distance(reference.fit(target, data), flat)
    predictive.predict(target, flat, data)
    predictive.log_predictive_density(target, flat, data)
"""
    for mode, leaks in (("run", False), ("closure", True)):
        cache = tmp_path / mode
        subprocess.run([sys.executable, "-c", program, str(cache), mode], check=True, capture_output=True)
        contents, found = holds_a_row(cache)
        assert contents
        if leaks and not found:
            pytest.skip("the cache cannot be unpacked here, so the search proves nothing")
        assert found == leaks


@pytest.mark.slow
def test_console_and_released_files_of_a_private_file_hold_no_uncharged_number(mine, tmp_path, capsys):
    out = tmp_path / "run"
    assert call("run", mine, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "W₁" not in printed
    assert "confidential" in printed
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["accuracy"] is None
    assert metrics["non_private"] is None
    hidden = json.loads((out / "confidential" / "diagnostics.json").read_text())
    assert hidden["non_private"]["distance"]
    assert hidden["accuracy"]
    assert stat.S_IMODE(os.stat(out / "confidential" / "diagnostics.json").st_mode) == 0o600
    assert not (out / "figures" / "calibration.png").exists()


@pytest.mark.slow
def test_an_insecure_seed_states_no_guarantee_anywhere(mine, tmp_path, capsys):
    seed = ("--set", "privacy.insecure_noise_seed=0")
    assert call("run", mine, "--out", tmp_path / "run", *seed) == 0
    assert "NONE" in capsys.readouterr().out
    for name in ("plan.json", "privacy.json"):
        body = json.loads((tmp_path / "run" / name).read_text())
        assert body.get("guarantee") is None
        assert body.get("epsilon") is None
    assert call("plan", mine, *seed) == 0
    assert "NONE" in capsys.readouterr().out
    assert call("run", mine, "--out", tmp_path / "gone", "--set", "sampler.step_size=1e15", *seed) == 1
    assert "spent" not in capsys.readouterr().err


def test_the_confidential_folder_may_not_be_published_nor_be_somebody_elses(mine, tmp_path, capsys):
    out = tmp_path / "run"
    assert "lies in the run folder" in refused(capsys, "run", mine, "--out", out, "--confidential", out / "figures")
    taken = tmp_path / "taken"
    taken.mkdir(mode=0o755)
    (taken / "thesis.tex").write_text("precious")
    assert "already holds" in refused(capsys, "run", mine, "--out", out, "--confidential", taken)
    assert stat.S_IMODE(os.stat(taken).st_mode) == 0o755
    assert "--confidential" in refused(capsys, "run", mine, "--out", out, "--confidential", mine / "deeper")
    assert not out.exists()
    assert call("run", mine, "--out", out, "--confidential", tmp_path / "elsewhere", "--quiet") == 0
    assert not (out / "confidential").exists()
    assert (tmp_path / "elsewhere" / "diagnostics.json").exists()


def test_the_cost_is_on_disk_before_the_first_step(mine, tmp_path, monkeypatch):
    from dpmcmc.engine import lanes

    def killed(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(lanes, "take_chunk", killed)
    assert call("run", mine, "--out", tmp_path / "run") == 130
    privacy = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert privacy["epsilon"] > 0
    assert privacy["data"]["name"]
    assert not (tmp_path / "run" / "draws.nc").exists()


def test_a_full_disk_is_one_sentence_and_leaves_no_half_written_file(mine, tmp_path, capsys, monkeypatch):
    from dpmcmc.engine import result

    real = Path.write_bytes

    def full(self, content):
        if "draws" not in self.name:
            return real(self, content)
        real(self, content[: len(content) // 2])
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(result.Path, "write_bytes", full)
    error = refused(capsys, "run", mine, "--out", tmp_path / "run")
    assert "No space left" in error
    assert not [p for p in (tmp_path / "run").rglob("*") if "draws" in p.name]
    assert (tmp_path / "run" / "privacy.json").exists()


@pytest.mark.slow
def test_saved_config_of_a_users_file_runs_again(mine, tmp_path):
    assert call("run", mine, "--out", tmp_path / "a" / "run", "--quiet") == 0
    saved = tmp_path / "a" / "run" / "config.yaml"
    assert str(tmp_path) not in saved.read_text()
    assert call("run", saved, "--out", tmp_path / "b", "--quiet") == 0


@pytest.mark.parametrize("labels", [Y * 2 - 1, Y + 1, np.linspace(0, 1, N)])
def test_labels_that_are_not_zero_and_one_are_refused_before_anything_is_spent(labels, mine, tmp_path, capsys):
    np.savez(tmp_path / "mine.npz", x=X, y=labels)
    error = refused(capsys, "run", mine, "--out", tmp_path / "run")
    assert "data." in error or "y" in error
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="labels 0 and 1"):
        dpmcmc.sample(small_plan(), {"x": X, "y": labels})


def test_a_target_that_does_not_fit_the_records_is_named_before_anything_is_spent(mine, tmp_path, capsys, monkeypatch):
    (tmp_path / "broken_target.py").write_text(
        "class Broken:\n"
        "    def init(self, key):\n        import jax.numpy as jnp\n        return jnp.zeros(3)\n"
        "    def log_prior(self, p):\n        return -(p @ p)\n"
        "    def log_likelihood(self, p, r):\n        return r['z'] @ p\n"
    )
    monkeypatch.chdir(tmp_path)
    error = refused(capsys, "run", mine, "--out", tmp_path / "run", "--set", "target=broken_target:Broken")
    assert "log_likelihood" in error
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"bind|log_likelihood"):
        dpmcmc.sample(small_plan(), {"X": X, "y": Y})


def test_printed_epsilon_is_never_below_the_computed_one():
    assert round_up(1.00049, 4) == "1.001"
    assert round_up(0.99929, 3) == "1"
    assert float(round_up(0.9993, 3)) >= 0.9993
    for value in np.random.default_rng(0).lognormal(0, 3, 500):
        for digits in (3, 4):
            assert value <= float(round_up(value, digits)) * (1 + 1e-12)
            assert float(round_up(value, digits)) <= value * 1.011


def test_private_time_is_shared_by_the_chains():
    alone, four = (small_plan(sampler=dpmcmc.SGLD("auto"), chains=c) for c in (1, 4))
    assert alone.time <= alone.private_time == pytest.approx(4 * four.private_time)
    assert four.time == pytest.approx(four.private_time, rel=0.01)
