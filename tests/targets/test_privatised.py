"""Data that were private before they came: no further charge, the exact likelihood, and the promise carried through."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.config.plans import make_plan
from dpmcmc.data.registry import describe
from dpmcmc.data.request import DataRequest, Privatised
from dpmcmc.targets import LinearRegression

CAME_WITH = {"epsilon": 4.0, "delta": 0.1, "relation": "one source one place further", "noise_std": 0.5}


@pytest.fixture
def sensors(tmp_path, monkeypatch):
    """A config of 40 sensors that see mixtures of eight sources, with noise of std .5."""
    rng = np.random.default_rng(0)
    kernel = (rng.normal(size=(40, 8)) / 8**0.5).astype(np.float32)
    truth = rng.normal(size=8)
    y = (kernel @ truth + 0.5 * rng.standard_normal(40)).astype(np.float32)
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "sensors.npz", x=kernel, y=y)
    body = {
        "name": "sensors",
        "data": {"path": "sensors.npz", "num_records": 40, "num_features": 8, "privatised": dict(CAME_WITH)},
        "target": {"name": "linear_regression", "prior_scale": 1.0},
        "sampler": {"name": "sgld", "step_size": 0.1},
        "sampling": {"scheme": "full"},
        "privacy": None,
        "run": {"steps": 4000, "burn_in": 0.25, "thin": 4, "chains": 2},
    }
    path = tmp_path / "sensors.yaml"

    def written(change=lambda body: None):
        changed = json.loads(json.dumps(body))
        change(changed)
        path.write_text(yaml.safe_dump(changed))
        return path

    return written, kernel, y


def test_the_noise_that_they_came_with_is_that_of_the_likelihood(sensors):
    written, *_ = sensors
    config = config_file.load(written())
    plan = make_plan(config)
    assert plan.guarantee is None
    assert plan.target.noise_scale == 0.5
    assert describe(DataRequest(path="x.npz", privatised=Privatised(**CAME_WITH))).public


@pytest.mark.slow
def test_a_run_draws_the_posterior_and_carries_the_promise(sensors, capsys):
    written, kernel, y = sensors
    assert main(["run", str(written()), "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert "nothing more is charged: the data came with ε 4, δ 0.1" in printed
    assert json.loads(Path("out/privacy.json").read_text())["data"]["privatised"] == CAME_WITH
    page = Path("out/report.html").read_text()
    assert "one source one place further" in page
    mean, covariance = LinearRegression(1.0, 0.5, num_features=8).posterior({"x": kernel, "y": y})
    draws = dpmcmc.load("out").draws
    found = np.asarray(draws).reshape(-1, 8)
    np.testing.assert_allclose(found.mean(axis=0), mean, atol=0.25 * np.sqrt(np.diag(covariance)).max())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda body: body.update(privacy={"epsilon": 1.0, "delta": 1e-3}),
            "privacy: promises something about records",
        ),
        (lambda body: body["target"].update(noise_scale=0.3), "target.noise_scale: is 0.3"),
        (lambda body: body["data"]["privatised"].update(delta=1.0), "data.privatised.delta"),
        (lambda body: body["data"]["privatised"].pop("relation"), "data.privatised.relation"),
        (
            lambda body: body.update(data={"name": "diabetes", "privatised": dict(CAME_WITH)}),
            "data.privatised: is for your own file",
        ),
    ],
)
def test_what_does_not_go_with_them_is_refused(sensors, change, said, capsys):
    written, *_ = sensors
    assert main(["plan", str(written(change))]) == 2
    assert said in capsys.readouterr().err
