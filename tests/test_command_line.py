"""The commands as a user types them: what they print, write and refuse."""

import json
import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
BREAST = ROOT / "configs" / "breast_cancer.yaml"


def call(name, *arguments):
    """Run ``dpmcmc NAME ...`` in this process; returns the exit code."""
    return main([name, *map(str, arguments)])


def refused(capsys, module, *arguments):
    """The single sentence of a refused command."""
    assert call(module, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


@pytest.fixture
def breast(tmp_path):
    """A small config of its own that tests may edit."""
    body = yaml.safe_load(BREAST.read_text())
    body["run"] = {"steps": 40, "chains": 2, "burn_in": 0.5, "thin": 2}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def test_run_writes_a_folder_that_can_be_published(breast, tmp_path, capsys):
    out = tmp_path / "run"
    assert call("run", breast, "--out", out) == 0
    printed = capsys.readouterr().out
    for word in (
        "data",
        "guarantee",
        "thesis",
        "temperature",
        "accuracy",
        "non-private",
        "usable for",
        "spent",
        "saved",
        "never publish",
    ):
        assert word in printed
    assert {p.name for p in out.iterdir()} == {
        "config.yaml",
        "plan.json",
        "privacy.json",
        "metrics.json",
        "draws.nc",
        "report.html",
        "figures",
        "confidential",
    }
    figures = {"traces.png", "calibration.png", "epsilon_delta.png", "temperature.png"}
    assert {p.name for p in (out / "figures").iterdir()} == figures
    assert stat.S_IMODE(os.stat(out / "confidential").st_mode) == 0o700
    privacy = json.loads((out / "privacy.json").read_text())
    for key in (
        "epsilon",
        "delta",
        "adjacency",
        "release",
        "accountant",
        "assumptions",
        "events",
        "versions",
        "noise_multiplier",
        "steps",
        "chains",
        "sampling",
        "free_fraction",
        "cross_check",
        "data",
    ):
        assert key in privacy
    metrics = json.loads((out / "metrics.json").read_text())
    for key in (
        "accuracy",
        "rmse",
        "log_predictive_density",
        "non_private",
        "ess",
        "rhat",
        "temperature",
        "steps_per_second",
        "usable_for_reasons",
        "relaxations",
        "predicted_inflation",
        "predicted_width",
        "predicted_from",
        "clip_bias",
    ):
        assert key in metrics
    assert metrics["usable_for"] == json.loads((out / "plan.json").read_text())["usable_for"] == ["prediction"]
    assert metrics["usable_for_reasons"]["intervals"].startswith("Do not report intervals")
    assert set(metrics["wall_seconds"]) == {"compile", "run", "calibrate"}
    # the saved config runs again and says the same
    assert call("plan", out / "config.yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["guarantee"]["epsilon"] == privacy["epsilon"]
    assert call("verify", out / "privacy.json") == 0


def test_verify_refuses_a_stated_epsilon_that_its_events_exceed(breast, tmp_path, capsys):
    assert call("run", breast, "--out", tmp_path / "run", "--quiet") == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "run")
    path = tmp_path / "run" / "privacy.json"
    body = json.loads(path.read_text())
    body["epsilon"] *= 0.9
    path.write_text(json.dumps(body))
    assert call("verify", path) == 1
    assert "do not rely on it" in capsys.readouterr().err
    body["epsilon"] /= 0.9
    next(event for event in body["events"] if event["noise_multiplier"])["count"] -= 1
    path.write_text(json.dumps(body))
    assert call("verify", path) == 1
    assert "queries" in capsys.readouterr().err
    del body["epsilon"]
    path.write_text(json.dumps(body))
    assert "privacy.json of this library" in refused(capsys, "verify", path)
    path.write_text("{")
    assert "not JSON" in refused(capsys, "verify", path)
    path.write_text(json.dumps({"events": []}))
    assert "no events" in refused(capsys, "verify", path)


def test_secret_keys_and_seeds_are_in_no_released_file(breast, tmp_path, monkeypatch):
    import secrets

    tokens = []
    real = secrets.token_bytes

    def noted(n=None):
        token = real(n)
        if len(token) >= 8:  # less is a folder's name
            tokens.append(token)
        return token

    monkeypatch.setattr(secrets, "token_bytes", noted)
    out = tmp_path / "run"
    assert call("run", breast, "--out", out, "--quiet") == 0
    assert len(tokens) == 5  # a key per purpose, and that of the digest of the records
    words = [str(w) for t in tokens for w in np.frombuffer(t, np.uint32)]
    for path in out.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(t in content for t in tokens)
            assert not any(w.encode() in content for w in words)


@pytest.mark.slow
def test_insecure_seed_reproduces_the_run_and_loses_the_guarantee(breast, tmp_path, capsys):
    for name in ("a", "b"):
        assert call("run", breast, "--out", tmp_path / name, "--set", "privacy.insecure_noise_seed=0") == 0
    assert "no guarantee" in capsys.readouterr().out
    assert json.loads((tmp_path / "a" / "privacy.json").read_text())["epsilon"] is None
    import xarray

    a, b = (
        xarray.open_dataset(tmp_path / n / "draws.nc", group="posterior", engine="h5netcdf")["theta"].values
        for n in "ab"
    )
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: p.stem)
def test_every_shipped_config_plans_without_reading_a_record(config, capsys, monkeypatch):
    def forbidden(*a, **k):
        raise AssertionError("a plan read records")

    monkeypatch.setattr(dpmcmc.data, "load", forbidden)
    assert call("plan", config, "--all") == 0
    printed = capsys.readouterr().out
    assert "none read" in printed
    # Nobody knows the slowest direction of a model that may not be log-concave; a one-shot mechanism has no chain.
    chain = not config_file.load(config).one_shot
    unknown = ("numpyro_poisson", "digits_bnn", "digits_bnn_eps1", "digits_last_layer")
    assert ("relaxation times" in printed) == (chain and config.stem not in unknown)


def test_plan_leaves_lines_for_tuning_a_chain_to_an_option(capsys):
    assert call("plan", BREAST) == 0
    names = [line[:12].strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {"data", "guarantee", "noise", "temperature", "usable for", "intervals", "more"} <= {*names}
    assert not {"thesis", "time", "clip bias"} & {*names}


def test_plan_is_clean_under_strict_warnings(capfd):
    """``python -W error -m dpmcmc.plan`` must not trip over the package's own names."""
    import subprocess

    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-m", "dpmcmc", "plan", str(BREAST)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("privacy.epsilom=1", ["privacy.epsilom", "unknown key", "epsilon"]),
        ("colour=red", ["colour", "unknown key"]),
        ("sampler.friction=0.1", ["sampler.friction", "unknown key"]),
        ("privacy.epsilon=0", ["privacy.epsilon", "> 0"]),
        ("privacy.epsilon=-1", ["privacy.epsilon"]),
        ("privacy.epsilon=.nan", ["privacy.epsilon"]),
        ("privacy.epsilon=.inf", ["privacy"]),
        ("privacy.epsilon=lots", ["privacy.epsilon", "lots"]),
        ("privacy.epsilon=true", ["privacy.epsilon"]),
        ("privacy.delta=0.1", ["privacy.delta", "1/num_records"]),
        ("privacy.delta=2", ["privacy.delta"]),
        ("privacy.clip=0", ["privacy.clip"]),
        ("privacy.adjacency=swap", ["privacy.adjacency", "replace_one"]),
        ("privacy.release=last_iterate", ["privacy.release"]),
        ("sampling={scheme: poisson, batch_size: 100000}", ["sampling.batch_size", "100000"]),
        ("sampling={scheme: sometimes}", ["sampling"]),
        ("sampling={scheme: fixed_size, batch_size: 10}", ["pld", "rdp or advanced"]),
        ("sampling={scheme: poisson}", ["sampling", "batch_size", "required"]),
        ("run={steps: 10, passes: 1}", ["run", "exactly one"]),
        ("run.thin=1000000", ["run.thin"]),
        ("run.chains=0", ["run.chains"]),
        ("run.steps=1.5", ["run"]),
        ("sampler.step_size=-1", ["sampler.step_size"]),
        ("sampler.step_size=fast", ["sampler.step_size"]),
        ("sampler.step_size={schedule: polynomial, a: -1}", ["sampler.step_size.a"]),
        ("sampler.temperature=-1", ["sampler.temperature"]),
        ("sampler=nowhere:Sampler", ["sampler.name", "nowhere"]),
        ("target={name: quantum}", ["target.name"]),
        ("target.prior_scale=0", ["target.prior_scale"]),
        ("data.name=mnist", ["data.name", "mnist", "adult"]),
        ("data={path: nowhere.npz, num_records: 100}", ["nowhere.npz"]),
        ("data={path: nowhere.npz}", ["data.num_records"]),
        ("privacy.calibrator=closed_form;sampling={scheme: poisson, batch_size: 40}", ["calibrator", "fixed_size"]),
        ("privacy", ["--set", "section.key=value"]),
        ("privacy.epsilon=[1", ["--set"]),
        ("name=a/b", ["name"]),
        ("run={passes: .inf}", ["run.passes"]),
        ("run={passes: 1.0e+12}", ["run.passes"]),
        ("run={steps: 1000000000000}", ["run.steps"]),
        ("sampler.step_size=.inf", ["sampler.step_size"]),
        ("sampler=os:getcwd", ["sampler.name", "protocol"]),
        ("sampler={name: sgld, step_size: auto};privacy=null", ["sampler.step_size", "auto"]),
        ("privacy.clip=1e-30", ["privacy.clip"]),
        ("privacy=", ["--set", "null"]),
    ],
)
def test_bad_values_are_one_sentence_with_the_yaml_path(override, words, breast, tmp_path, capsys):
    out = tmp_path / "run"
    sets = [part for piece in override.split(";") for part in ("--set", piece)]
    error = refused(capsys, "run", breast, "--out", out, *sets)
    for word in words:
        assert word in error, error
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["mapping"]),
        ("- a\n- b\n", ["mapping"]),
        ("name: [", ["line"]),
        ("name: a\nname: b\n", ["twice", "line 2"]),
        ("name: a\n", ["required"]),
        ("[1, 2]: a\n", ["not text"]),
    ],
)
def test_files_that_are_no_config(text, words, tmp_path, capsys):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    error = refused(capsys, "plan", path)
    assert str(path) in error
    for word in words:
        assert word in error


def test_missing_config_file(tmp_path, capsys):
    assert "no such config file" in refused(capsys, "run", tmp_path / "none.yaml")


@pytest.mark.slow
def test_user_file_runs_and_keeps_private_test_metrics_confidential(tmp_path, breast, capsys):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 4)) / 8
    np.savez(tmp_path / "mine.npz", x=x, y=(x[:, 0] > 0).astype(int))
    data = "{path: mine.npz, row_bound: 1.0, test_fraction: 0.2, num_records: 240}"
    assert call("run", breast, "--out", tmp_path / "run", "--set", f"data={data}", "--set", "privacy.delta=1e-4") == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["accuracy"] is None
    assert metrics["non_private"] is None
    hidden = json.loads((tmp_path / "run" / "confidential" / "diagnostics.json").read_text())
    assert hidden["accuracy"]["posterior_predictive"] > 0.4
    assert "sha256" not in json.dumps(json.loads((tmp_path / "run" / "privacy.json").read_text())["data"]).replace(
        '"sha256": null', ""
    )
    assert not (tmp_path / "run" / "figures" / "calibration.png").exists()
    # declared public: the same metrics are released
    public = data.replace("}", ", public: true}")
    assert (
        call("run", breast, "--out", tmp_path / "open", "--set", f"data={public}", "--set", "privacy.delta=1e-4") == 0
    )
    assert json.loads((tmp_path / "open" / "metrics.json").read_text())["accuracy"] is not None


def test_refusal_of_nan_rows_names_no_row_where_it_is_logged(tmp_path, breast, capsys):
    x = np.ones((50, 2)) / 4
    x[7, 1] = np.nan
    np.savez(tmp_path / "mine.npz", x=x, y=np.ones(50, int))
    out = tmp_path / "run"
    changes = ["data={path: mine.npz, num_records: 50}", "privacy.delta=1e-4", "sampling={scheme: full}"]
    error = refused(capsys, "run", breast, "--out", out, *(a for c in changes for a in ("--set", c)))
    assert error.endswith("mine.npz: some rows hold NaN or a value too large for float32: repair or remove them.\n")
    assert not out.exists()


def test_wrong_checksum_names_file_and_mend(tmp_path, capsys, monkeypatch):
    (tmp_path / "adult.data").write_text("not adult")
    (tmp_path / "adult.test").write_text("not adult")
    monkeypatch.setenv("DPMCMC_DATA", str(tmp_path))
    error = refused(capsys, "run", ROOT / "configs" / "adult.yaml", "--out", tmp_path / "run")
    assert "adult.data" in error
    assert "5b00264637" in error
    assert not (tmp_path / "run").exists()


def test_unusable_run_folders(breast, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert "--out" in refused(capsys, "run", breast, "--out", tmp_path / "file" / "deeper")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "draws.nc").write_text("precious")
    assert "already holds" in refused(capsys, "run", breast, "--out", tmp_path / "full")
    assert (tmp_path / "full" / "draws.nc").read_text() == "precious"


def test_diverged_run_says_so_and_still_records_the_cost(breast, tmp_path, capsys):
    out = tmp_path / "run"
    assert call("run", breast, "--out", out, "--set", "sampler.step_size=1e15") == 1
    error = capsys.readouterr().err
    assert "diverged" in error
    assert error.count("\n") == 1
    assert json.loads((out / "privacy.json").read_text())["epsilon"] is not None
    assert json.loads((out / "metrics.json").read_text())["usable_for"] == []


@pytest.mark.slow
def test_custom_target_and_sampler_from_a_users_module(breast, tmp_path, capsys, monkeypatch):
    (tmp_path / "my_module.py").write_text(
        "import dpmcmc\n"
        "from dpmcmc.targets import LogisticRegression\n"
        "def make_target(scale) -> LogisticRegression:\n    return LogisticRegression(prior_scale=scale)\n"
        "MySampler = dpmcmc.SGLD\n"
    )
    monkeypatch.chdir(tmp_path)  # a user's module is found from the current folder
    overrides = ["--set", "target={name: 'my_module:make_target', scale: 2.0}"]
    overrides += ["--set", "sampler={name: 'my_module:MySampler', step_size: 1.0}"]
    assert call("run", breast, "--out", tmp_path / "run", *overrides) == 0
    capsys.readouterr()
    assert "called with the keys" in refused(
        capsys, "plan", breast, "--set", "target={name: 'my_module:make_target', size: 1}"
    )


@pytest.mark.slow
def test_stand_in_is_named_everywhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DPMCMC_DATA", "")
    monkeypatch.setattr("dpmcmc.data.store.find", lambda *a, **k: (_ for _ in ()).throw(unavailable()))
    out = tmp_path / "run"
    config = ROOT / "configs" / "abalone.yaml"
    assert call("run", config, "--out", out, "--set", "run={steps: 20, burn_in: 0.5}") == 0
    assert "stand-in" in capsys.readouterr().out
    assert json.loads((out / "privacy.json").read_text())["data"]["origin"] == "stand-in"
    assert json.loads((out / "metrics.json").read_text())["data"]["origin"] == "stand-in"


def unavailable():
    from dpmcmc.data.store import FileUnavailable

    return FileUnavailable("no file")
