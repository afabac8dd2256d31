"""The commands as a user types them: what they print, write and refuse."""

import contextlib
import copy
import io
import json
import os
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import xarray
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.data.store import FileUnavailable

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
#: Chains whose path gives a posterior.
POSTERIORS = ("adult", "adult_sghmc", "adult_sgnht", "adult_sgfs")
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


def small(folder):
    """A config of its own that tests may edit."""
    body = yaml.safe_load(BREAST.read_text())
    body["run"] = {"steps": 40, "chains": 2, "burn_in": 0.5, "thin": 2}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


@pytest.fixture
def breast(tmp_path):
    return small(tmp_path)


class Finished(NamedTuple):
    """A run's folder, what it printed, and its random bytes."""

    out: Path
    printed: str
    tokens: list


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, printed, tokens = tmp_path_factory.mktemp("finished"), io.StringIO(), []
    token_bytes = secrets.token_bytes

    def noted(n=None):
        tokens.append(token_bytes(n))
        return tokens[-1]

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(secrets, "token_bytes", noted)
        assert call("run", small(folder), "--out", folder / "run") == 0
    # Less than 8 bytes are a folder's name.
    return Finished(folder / "run", printed.getvalue(), [token for token in tokens if len(token) >= 8])


def test_run_writes_a_folder_that_can_be_published(finished, capsys):
    out = finished.out
    for word in ("privacy", "sampler", "accuracy", "✗ intervals", "saved", "share all but confidential/"):
        assert word in finished.printed
    files = {"config.yaml", "plan.json", "privacy.json", "metrics.json", "draws.nc", "report.html"}
    assert {p.name for p in out.iterdir()} == files | {"figures", "confidential"}
    figures = {"traces.png", "calibration.png", "epsilon_delta.png"}
    assert {p.name for p in (out / "figures").iterdir()} == figures
    assert stat.S_IMODE(os.stat(out / "confidential").st_mode) == 0o700
    privacy = json.loads((out / "privacy.json").read_text())
    said = {"epsilon", "delta", "adjacency", "accountant", "assumptions", "events", "versions", "cross_check", "data"}
    assert said <= privacy.keys()
    metrics = json.loads((out / "metrics.json").read_text())
    assert {"accuracy", "log_predictive_density", "non_private", "ess", "rhat", "temperature"} <= metrics.keys()
    assert metrics["usable_for"] == json.loads((out / "plan.json").read_text())["usable_for"] == ["prediction"]
    assert metrics["usable_for_reasons"]["intervals"].startswith("Do not report intervals")
    assert set(metrics["wall_seconds"]) == {"compile", "run", "calibrate"}
    # the saved config runs again and says the same
    assert call("plan", out / "config.yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["guarantee"]["epsilon"] == privacy["epsilon"]
    assert call("verify", out / "privacy.json") == 0


def test_verify_refuses_a_stated_epsilon_that_its_events_exceed(finished, tmp_path, capsys):
    body = json.loads((finished.out / "privacy.json").read_text())
    path = tmp_path / "privacy.json"

    def verified(changed):
        path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
        code = call("verify", path)
        return code, capsys.readouterr().err

    code, error = verified(body | {"epsilon": 0.9 * body["epsilon"]})
    assert code == 1
    assert "do not rely on it" in error
    fewer = copy.deepcopy(body)
    next(event for event in fewer["events"] if event["noise_multiplier"])["count"] -= 1
    code, error = verified(fewer)
    assert code == 1
    assert "queries" in error
    del body["epsilon"]
    for changed, said in ((body, "privacy.json of this library"), ("{", "not JSON"), ({"events": []}, "no events")):
        code, error = verified(changed)
        assert code == 2
        assert said in error


def test_secret_keys_and_seeds_are_in_no_released_file(finished):
    assert len(finished.tokens) == 6  # a key per purpose, that of the digest of the records, and the name
    words = [str(word).encode() for token in finished.tokens for word in np.frombuffer(token, np.uint32)]
    for path in finished.out.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret in content for secret in (*finished.tokens, *words))


@pytest.mark.slow
def test_insecure_seed_reproduces_the_run_and_loses_the_guarantee(breast, tmp_path, capsys):
    for name in ("a", "b"):
        assert call("run", breast, "--out", tmp_path / name, "--set", "privacy.insecure_noise_seed=0") == 0
    assert "privacy   NONE: the noise is known" in capsys.readouterr().out
    assert json.loads((tmp_path / "a" / "privacy.json").read_text())["epsilon"] is None
    a, b = (
        xarray.open_dataset(tmp_path / n / "draws.nc", group="path", engine="h5netcdf")["theta"].values for n in "ab"
    )
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rn adult", "no such command 'rn' (did you mean run?); see dpmcmc --help"),
        ("plan adlt", "there is no such config file (did you mean adult?)"),
        ("run adult --epsilon 2", "; a key of the config is given as --set privacy.epsilon=VALUE"),
        ("plan adult --batch-size 2", "a key of the config is given as --set sampling.batch_size=VALUE"),
    ],
)
def test_a_word_that_is_no_name_is_refused_with_the_one_that_was_meant(line, said, capsys):
    assert main(line.split()) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_another_choice_takes_the_keys_of_the_old_one_away_and_says_so(capsys):
    """A key that the new choice has too is kept; one that it lacks was an error."""
    assert main(["plan", "adult_prediction", "--set", "sampling.scheme=full", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "note: --set sampling.scheme=full takes sampling.batch_size away\n"
    assert json.loads(printed.out)["config"]["sampling"] == {"scheme": "full"}
    assert main(["plan", "adult_prediction_sghmc", "--set", "sampler.name=sgld", "--json"]) == 0
    printed = capsys.readouterr()
    assert "takes sampler.friction away" in printed.err
    assert json.loads(printed.out)["config"]["sampler"]["step_size"] == 4.0
    assert main(["plan", "adult", "--set", "mechanism.name=noise_aware", "--json"]) == 0
    printed = capsys.readouterr()
    assert "takes sampler, sampling, metric, run, privacy.release" in printed.err
    assert json.loads(printed.out)["mechanism"].startswith("NoiseAware")
    assert main(["plan", "adult_prediction", "--set", "sampling.scheme=poisson", "--json"]) == 0
    assert not capsys.readouterr().err, "the same choice again takes nothing away"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: p.stem)
def test_every_shipped_config_plans_without_reading_a_record(config, capsys, monkeypatch):
    def forbidden(*a, **k):
        raise AssertionError("a plan read records")

    monkeypatch.setattr(dpmcmc.data, "load", forbidden)
    assert call("plan", config, "--all") == 0
    printed = capsys.readouterr().out
    assert "none read" in " ".join(printed.split())
    # Nobody knows the slowest direction of a model that may not be log-concave; a one-shot mechanism has no chain, and
    # an optimiser's draws no posterior.
    # Those of a path do not limit the posterior that follows from it.
    chain = not config_file.load(config).one_shot and config.stem not in POSTERIORS
    unknown = ("numpyro_poisson", "digits_bnn", "digits_bnn_eps1", "adult_adam")
    assert ("relaxation times" in printed) == (chain and config.stem not in unknown)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("privacy.epsilom=1", ["privacy.epsilom", "unknown key (did you mean epsilon?)"]),
        ("epsilon=1", ["epsilon: unknown key (did you mean privacy.epsilon?)"]),
        ("pivacy.epsilon=1", ["pivacy: unknown key (did you mean privacy?)"]),
        ("sampler.name=sghm", ["sampler.name", "(did you mean sghmc?)", "'sghm'"]),
        ("colour=red", ["colour", "unknown key"]),
        ("privacy.epsilon=.inf", ["privacy"]),
        ("sampling={scheme: sometimes}", ["sampling"]),
        ("sampling={scheme: fixed_size, batch_size: 10}", ["pld", "rdp or advanced"]),
        ("sampling={scheme: poisson}", ["sampling", "batch_size", "required"]),
        ("run.steps=1.5", ["run"]),
        ("run.steps=1000000000000", ["run"]),
        ("run={passes: .inf}", ["run.passes"]),
        ("sampler.step_size=.inf", ["sampler.step_size"]),
        ("target={name: quantum}", ["target.name"]),
        ("data.name=mnist", ["data.name", "mnist", "adult"]),
        ("data={path: nowhere.npz, num_records: 100}", ["nowhere.npz"]),
        ("privacy.calibrator=closed_form;sampling={scheme: poisson, batch_size: 40}", ["calibrator", "fixed_size"]),
        ("privacy", ["--set", "section.key=value"]),
        ("privacy.epsilon=[1", ["--set"]),
        ("privacy=", ["--set", "null"]),
        ("name=a/b", ["name"]),
    ],
)
def test_bad_values_are_one_sentence_with_the_yaml_path(override, words, breast, tmp_path, capsys):
    """Beside those of a single key, which tests/config/test_config.py has."""
    out = tmp_path / "run"
    sets = [part for piece in override.split(";") for part in ("--set", piece)]
    error = refused(capsys, "run", breast, "--out", out, *sets)
    for word in words:
        assert word in error, error
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
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
    for word in (str(path), *words):
        assert word in error


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
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["data"].get("sha256") is None
    assert not (tmp_path / "run" / "figures" / "calibration.png").exists()
    # declared public: the same metrics are released
    public = data.replace("}", ", public: true}")
    assert (
        call("run", breast, "--out", tmp_path / "open", "--set", f"data={public}", "--set", "privacy.delta=1e-4") == 0
    )
    assert json.loads((tmp_path / "open" / "metrics.json").read_text())["accuracy"] is not None


def test_a_folder_that_holds_a_run_is_left_alone(breast, tmp_path, capsys):
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
def test_stand_in_is_named_everywhere(tmp_path, capsys, monkeypatch):
    def unavailable(*_, **__):
        raise FileUnavailable("no file")

    monkeypatch.setattr("dpmcmc.data.store.find", unavailable)
    out = tmp_path / "run"
    config = ROOT / "configs" / "abalone.yaml"
    assert call("run", config, "--out", out, "--set", "run={steps: 20, burn_in: 0.5}") == 0
    assert "stand-in" in capsys.readouterr().out
    for name in ("privacy.json", "metrics.json"):
        assert json.loads((out / name).read_text())["data"]["origin"] == "stand-in"
