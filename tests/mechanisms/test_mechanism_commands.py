"""Mechanisms as a user meets them: configs, run folders, refusals; and the hybrid."""

import json
import math

import jax
import numpy as np
import pytest
import xarray
import yaml

import dpmcmc
from dpmcmc.config import file as config_file
from dpmcmc.engine.chains import Chains
from dpmcmc.errors import InputError
from dpmcmc.mechanisms import OPS, CertifiedOPS, Hybrid, ObjectivePerturbation
from dpmcmc.privacy import Event, Guarantee
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter, queries
from dpmcmc.targets import LogisticRegression
from tests.cli.test_command_line import ROOT, call, refused

PROMISE = {"epsilon": 1.0, "delta": 1e-4, "adjacency": "replace_one"}
BASE = {
    "name": "small",
    "data": {"name": "two_normals"},
    "target": {"name": "logistic_regression", "prior_scale": 1.0},
    "privacy": PROMISE,
}
MECHANISMS = {
    "ops": {"form": "gdp", "draws": 2},
    "certified_ops": {"steps": 20},
    "objective_perturbation": {"regularisation": 5.0},
    "output_perturbation": {"regularisation": 50.0},
}


@pytest.fixture
def write(tmp_path):
    """Write a config of its own."""

    def make(mechanism, **changes):
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(BASE | {"mechanism": mechanism} | changes))
        return path

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
def test_run_writes_a_folder_that_can_be_published(name, write, tmp_path, capsys):
    path, out = write({"name": name, **MECHANISMS[name]}), tmp_path / "run"
    assert call("plan", path) == 0
    assert "privacy   ε " in capsys.readouterr().out
    assert call("run", path, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "accuracy" in printed
    assert "share all but confidential/" in printed
    privacy = json.loads((out / "privacy.json").read_text())
    assert privacy["epsilon"] <= 1.0
    assert privacy["release"] in ("one_sample", "last_iterate", "estimate")
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["accuracy"]["posterior_predictive"] > 0.6
    # One draw leaves, and nothing about a chain that made it.
    assert metrics["ess"] is None
    assert metrics["rhat"] is None
    assert metrics["steps_per_second"] is None
    assert set(metrics["wall_seconds"]) == {"calibrate"}
    draws = xarray.open_datatree(out / "draws.nc", engine="h5netcdf")
    count = MECHANISMS[name].get("draws", 1)
    assert draws["draws"]["theta"].shape == (1, count, 3)
    assert set(draws.children) == {"draws"}
    assert not (out / "figures" / "traces.png").exists()
    assert call("verify", out / "privacy.json") == 0
    # The config that was written runs again.
    again = config_file.load(out / "config.yaml")
    assert again.mechanism.name == name


@pytest.mark.slow
def test_a_config_names_the_sampler_of_a_path(write, tmp_path, capsys):
    out = tmp_path / "run"
    path = write({"name": "noise_aware", "draws": 100, "sampler": "sgld"})
    assert call("run", path, "--out", out) == 0
    assert call("verify", out) == 0
    assert config_file.load(out / "config.yaml").mechanism.sampler == "sgld"
    found = dpmcmc.load(out)
    assert found.guarantee.epsilon <= 1.0
    assert np.isfinite(found.draws["theta"] if isinstance(found.draws, dict) else found.draws).all()
    capsys.readouterr()
    wrong = write({"name": "noise_aware", "sampler": "langevin"})
    assert "mechanism.sampler" in refused(capsys, "run", wrong, "--out", tmp_path / "other")


@pytest.mark.slow
def test_a_hybrid_is_one_guarantee(write, tmp_path, capsys):
    path = write(
        {"name": "hybrid", "share": 0.4, "form": "gdp"},
        sampler={"name": "sgld", "step_size": 4.0},
        sampling={"scheme": "full"},
        run={"steps": 600, "chains": 2, "burn_in": 0.5, "thin": 5},
        privacy=PROMISE | {"clip": 0.5},
    )
    out = tmp_path / "run"
    assert call("run", path, "--out", out) == 0
    assert "✗ intervals" in capsys.readouterr().out
    privacy = json.loads((out / "privacy.json").read_text())
    assert privacy["release"] == "one_sample + trace"
    assert privacy["epsilon"] <= 1.0
    # The last is what noise in integers costs beyond a Gaussian's.
    assert {e["mechanism"] for e in privacy["events"]} == {"posterior_draw", "gaussian", "approximate_draw"}
    assert any("exact" in sentence for sentence in privacy["assumptions"])
    draws = xarray.open_datatree(out / "draws.nc", engine="h5netcdf")
    assert draws["path"]["theta"].shape == (2, 60, 3)
    # An estimate of the ESS is below zero where neighbouring draws correlate by less than -1/2: with 120 draws that
    # correlate by no less than zero, more than five standard errors away.
    assert json.loads((out / "metrics.json").read_text())["ess"] > 0
    assert (out / "figures" / "traces.png").exists()
    assert call("verify", out / "privacy.json") == 0
    assert config_file.load(out / "config.yaml").mechanism.share == 0.4


def target(size=3):
    return LogisticRegression(1.0, num_features=size, row_bound=1.0)


def hybrid(**changes):
    settings = {"start": OPS(form="gdp"), "sampler": dpmcmc.SGLD(64.0), "steps": 30, "clip": 0.5}
    return Hybrid(**(settings | changes))


def test_hybrid_composes_gaussians_and_spends_the_whole_budget():
    """μ² of the draw and of the full-batch run add up to that of (ε, δ)."""
    plan = hybrid().plan(target(), num_records=1000, epsilon=1.0, delta=1e-4)
    assert plan.guarantee.epsilon <= 1.0
    assert plan.guarantee.epsilon > 0.99
    parts = {e.mechanism: gaussian_parameter(queries((e,)), Adjacency.REPLACE_ONE) for e in plan.guarantee.events}
    assert math.hypot(*parts.values()) == pytest.approx(gaussian_mu(1.0, 1e-4), rel=5e-3)
    assert parts["posterior_draw"] == pytest.approx(gaussian_mu(0.5, 1e-4), rel=1e-3)
    # Cheaper than adding the two ε, which leaves the run only a half.
    alone = dpmcmc.plan(
        target(),
        num_records=1000,
        sampler=dpmcmc.SGLD(64.0),
        steps=30,
        privacy=dpmcmc.Privacy(epsilon=0.5, delta=1e-4, clip=0.5),
    )
    assert plan.noise_multipliers.min() < alone.noise_multipliers.min()


def test_hybrid_after_a_pure_draw():
    plan = hybrid(start=OPS(form="range", radius=3.0)).plan(target(), num_records=1000, epsilon=1.0, delta=1e-4)
    assert 0.98 < plan.guarantee.epsilon <= 1.0
    assert {e.mechanism for e in plan.guarantee.events} == {"pure", "gaussian", "approximate_draw"}


def data(count=1000, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, 3))
    return {"x": x / np.maximum(1, np.linalg.norm(x, axis=1))[:, None], "y": random.integers(0, 2, count)}


def test_a_hybrid_starts_at_its_draw(monkeypatch):
    """One step so short that it stays there."""
    drawn = np.array([[3.0, -2.0, 1.0]])
    monkeypatch.setattr(OPS, "draw", lambda self, plan, records, streams: drawn)
    plan = hybrid(sampler=dpmcmc.SGLD(1e-9), steps=1, chains=2).plan(
        target(), num_records=1000, epsilon=1.0, delta=1e-4
    )
    found = dpmcmc.sample(plan, data()).positions
    assert found.shape == (2, 1, 3)
    assert np.allclose(found, drawn, atol=1e-2)
    assert not np.array_equal(found[0], found[1])


def after(draws=1, **changes):
    """A plan of two stages, as dpmcmc.plan makes it."""
    first = OPS(form="gdp", draws=draws).plan(target(), num_records=1000, epsilon=0.5, delta=1e-4)
    settings = {"sampler": dpmcmc.SGLD(64.0), "steps": 30, "after": first} | changes
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=1e-4, clip=0.5)
    return dpmcmc.plan(target(), num_records=1000, privacy=privacy, **settings)


def test_a_plan_after_a_mechanism_s_is_the_hybrid(monkeypatch):
    """Two stages of one plan, whichever way it is made."""
    monkeypatch.setattr(OPS, "draw", lambda self, plan, records, streams: jax.random.normal(streams.noise, (1, 3)))
    made, same = after(), hybrid().plan(target(), num_records=1000, epsilon=1.0, delta=1e-4)
    assert made.guarantee == same.guarantee
    assert np.array_equal(made.noise_std, same.noise_std)
    assert made.label == "OPS then SGLD"
    start = dict(made.describe().lines)["start"]
    assert start.startswith("every chain starts at one draw of OPS, which alone has epsilon 0.5")
    assert made.describe().facts["charged_draws"] == 1
    one, two = (dpmcmc.sample(made, data(), key=key).draws for key in (1, 2))
    assert not np.allclose(one, two)
    assert np.array_equal(dpmcmc.sample(same, data(), key=1).draws, one)


def test_a_run_starts_at_one_draw_and_takes_no_other_start():
    with pytest.raises(InputError, match="after: a run starts at one draw of a mechanism, not at 2 of OPS"):
        after(draws=2)
    with pytest.raises(InputError, match="after: a run starts at one draw"):
        after(after=after())
    with pytest.raises(InputError, match="starts: the run draws its own start"):
        dpmcmc.sample(after(), data(), starts=np.zeros((1, 3)))


def test_a_hybrid_that_forgets_its_start_s_price_would_be_caught():
    """The planted bug: a guarantee of the run alone."""
    plan = hybrid().plan(target(), num_records=1000, epsilon=1.0, delta=1e-4)
    run_alone = Guarantee.from_events(
        tuple(e for e in plan.guarantee.events if e.mechanism == "gaussian"),
        delta=1e-4,
        adjacency="replace_one",
        accountant="pld",
    )
    assert run_alone.epsilon < 0.95 * plan.guarantee.epsilon
    assert Event("gaussian", 1.0, 1.0, 1) not in plan.guarantee.events


def test_stages_of_a_hybrid_share_no_key(monkeypatch):
    drawn, stepped = [], []
    monkeypatch.setattr(OPS, "draw", lambda self, plan, records, streams: drawn.append(streams) or np.zeros((1, 3)))
    bound = Chains.bound

    def spy(self, streams, secret):
        run = bound(self, streams, secret)
        stepped.append(run.streams)
        return run

    monkeypatch.setattr(Chains, "bound", spy)
    dpmcmc.sample(hybrid(steps=2).plan(target(), num_records=1000, epsilon=1.0, delta=1e-4), data())

    def keys(seen):
        return {tuple(np.asarray(jax.random.key_data(key)).tolist()) for streams in seen for key in streams}

    assert len(keys(drawn)) == len(keys(stepped)) == 4
    assert not keys(drawn) & keys(stepped)


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (["mechanism.name=other"], ["mechanism.name", "certified_ops", "hybrid"]),
        (["mechanism.stops=3"], ["mechanism.stops", "unknown key", "steps"]),
        (["mechanism.steps=0"], ["mechanism.steps", ">= 1"]),
        (["mechanism.temper=2"], ["mechanism.temper"]),
        (["mechanism.temper=1"], ["mechanism.temper", "leave it out"]),
        (["privacy.clip=0.5"], ["privacy.clip", "certified_ops", "leave it out"]),
        (["privacy.release=trace"], ["privacy.release", "leave it out"]),
        (["privacy=null"], ["privacy", "epsilon"]),
        (["privacy.delta=0.01"], ["privacy.delta", "1/num_records"]),
        (["sampler={name: sgld, step_size: 1.0}"], ["sampler", "certified_ops", "leave it out"]),
        (["mechanism={name: hybrid, stops: 2}"], ["mechanism.stops", "unknown key", "share"]),
        (["mechanism={name: ops, share: 0.5}"], ["mechanism.share", "unknown key"]),
        (["mechanism={name: hybrid}"], ["sampler", "required"]),
        (["mechanism=null"], ["sampler", "required"]),
        (["mechanism={name: ops, form: range}"], ["mechanism.radius"]),
        (["mechanism={name: sufficient_statistics}"], ["LinearRegression"]),
        (["target={name: linear_regression}", "data.name=diabetes", "privacy.delta=1e-4"], ["gradient_bound"]),
    ],
)
def test_mistakes_are_one_sentence(overrides, names, write, tmp_path, capsys):
    path = write({"name": "certified_ops", "steps": 20})
    options = [word for o in overrides for word in ("--set", o)]
    said = refused(capsys, "run", path, *options, "--out", tmp_path / "run")
    for name in names:
        assert name in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["mechanism.name=objective_perturbation", "target.name=softmax_regression"], "target"),
        (["mechanism.name=output_perturbation", "target={name: linear_regression}"], "target"),
        (["mechanism={name: objective_perturbation, regularisation: 0.1}"], "mechanism.regularisation"),
    ],
)
def test_a_mechanism_without_a_derivation_names_the_section_it_is_about(overrides, path, write, capsys):
    options = [word for o in overrides for word in ("--set", o)]
    assert refused(capsys, "plan", write({"name": "ops"}), *options).startswith(f"error: {path}: ")


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["sampling={scheme: fixed_size, batch_size: 40}"], "privacy.accountant"),
        (["sampling={scheme: poisson, batch_size: 40}", "privacy.calibrator=closed_form"], "privacy.calibrator"),
    ],
)
def test_a_sampler_without_a_derivation_names_the_key_it_is_about(overrides, path, capsys):
    options = [word for o in overrides for word in ("--set", o)]
    said = refused(capsys, "plan", ROOT / "configs" / "two_normals.yaml", *options)
    assert said.startswith(f"error: {path}: ")


def test_a_sampler_s_run_promises_a_trace_alone(capsys):
    said = refused(capsys, "plan", ROOT / "configs" / "two_normals.yaml", "--set", "privacy.release=last_iterate")
    assert "privacy.release" in said
    assert "should be 'trace'" in said
    for other in ("last_iterate", "one_sample", "estimate"):
        with pytest.raises(InputError, match="release must be trace"):
            dpmcmc.Privacy(epsilon=1.0, delta=1e-4, release=other)
    assert dpmcmc.Privacy(epsilon=1.0, delta=1e-4, release="trace") == dpmcmc.Privacy(epsilon=1.0, delta=1e-4)
    with pytest.raises(InputError, match="unknown accountant 'one_sample'; known: advanced, rdp, pld"):
        dpmcmc.Privacy(epsilon=1.0, delta=1e-4, accountant="one_sample")


def test_a_hybrid_s_run_may_say_that_it_releases_its_trace(capsys):
    assert call("plan", ROOT / "configs" / "adult_hybrid.yaml", "--all", "--set", "privacy.release=trace") == 0
    assert "one_sample + trace" in capsys.readouterr().out


@pytest.mark.slow
def test_insecure_seeds_take_the_guarantee_away(write, tmp_path, capsys):
    path = write({"name": "certified_ops", "steps": 5}, privacy=PROMISE | {"insecure_noise_seed": 0})
    for name in ("a", "b"):
        assert call("run", path, "--out", tmp_path / name) == 0
    assert "NONE" in capsys.readouterr().out
    first, second = (
        xarray.open_datatree(tmp_path / n / "draws.nc", engine="h5netcdf")["draws"]["theta"].values for n in "ab"
    )
    assert np.array_equal(first, second)
    assert json.loads((tmp_path / "a" / "privacy.json").read_text())["epsilon"] is None


@pytest.mark.parametrize("mechanism", [CertifiedOPS(steps=5), ObjectivePerturbation()])
def test_wrong_number_of_records_is_refused(mechanism):
    plan = mechanism.plan(target(), num_records=1000, epsilon=1.0, delta=1e-4)
    with pytest.raises(ValueError, match="num_records 1000"):
        dpmcmc.sample(plan, data(999))
