"""A Result: its table, its names, its predictions, and its folder.

Draws open in ArviZ, whichever of its two generations is installed, with their sample statistics.

Effects of a release: ratios, marginal effects and contrasts are those of its draws.
"""

import dataclasses
import json
import pickle
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy.special import expit

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference.names import axes, flat, labels
from dpmcmc.planning.saved import SavedTarget, target_of

RNG = np.random.default_rng(3)
COLUMNS = ("age", "job=<b>office</b>", "intercept")
N = 5000


def logistic(**more):
    return dpmcmc.targets.LogisticRegression(1.0, num_features=3, row_bound=1.0, **more)


def released(draws=None, plan=None, **more):
    """A noise-aware release with these draws."""
    plan = plan or dpmcmc.mechanisms.NoiseAware(draws=100).plan(logistic(), num_records=N, epsilon=1.0, delta=1e-6)
    draws = RNG.normal(size=(1, 100, 3)).astype(np.float32) if draws is None else draws
    return dpmcmc.Result(plan, draws, draws, None, plan.guarantee, {"run": 1.0}, **({"columns": COLUMNS} | more))


def chain():
    """Two chains of a run whose verdict refuses intervals."""
    settings = {"sampler": dpmcmc.SGLD(4.0), "steps": 50, "chains": 2, "num_records": N}
    plan = dpmcmc.plan(logistic(), privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-6, accountant="rdp"), **settings)
    draws = RNG.normal(size=(2, 50, 3)).astype(np.float32)
    return dpmcmc.Result(plan, draws, draws, {"norm": np.ones((2, 50))}, plan.guarantee, {"run": 1.0}, columns=COLUMNS)


def test_a_summary_has_quantiles_of_the_draws_by_name_and_the_verdict():
    result = released()
    summary = result.summary(level=0.8)
    flat_draws = result.draws.reshape(-1, 3)
    assert summary.names == COLUMNS
    assert summary.intervals
    np.testing.assert_allclose(summary.low, np.quantile(flat_draws, 0.1, axis=0), rtol=1e-5)
    np.testing.assert_allclose(summary.std, flat_draws.std(axis=0, ddof=1), rtol=1e-5)
    assert summary["age"]["90 %"] == pytest.approx(np.quantile(flat_draws[:, 0], 0.9), rel=1e-5)
    text = str(summary)
    assert text.splitlines()[0].split() == ["name", "mean", "sd", "10", "%", "90", "%", "use"]
    assert "usable for   prediction and intervals" in text
    assert "<b>" not in summary._repr_html_()
    assert "<b>" not in result._repr_html_()
    with pytest.raises(KeyError, match="job="):
        summary["wage"]
    with pytest.raises(ValueError, match="level"):
        result.summary(level=90)


def test_a_summary_of_chains_has_their_mixing_and_does_not_call_their_range_an_interval():
    result = chain()
    summary = result.summary()
    assert not summary.intervals
    assert {"ESS", "R-hat", "5 % of draws"} <= summary.to_dict().keys()
    assert summary.ess.min() == pytest.approx(result.diagnostics["ess"])
    assert summary.rhat.max() == pytest.approx(result.diagnostics["rhat"])
    assert "Do not report intervals" in str(summary)
    (axis,) = result.plot().axes
    assert "refuses intervals" in axis.get_title()
    assert not axis.collections  # no line that could pass for an interval
    assert [label.get_text() for label in released().plot().axes[0].get_yticklabels()] == list(COLUMNS)


def test_names_follow_columns_of_linear_models_and_the_path_of_others():
    assert list(labels("theta", (3,), COLUMNS)) == list(COLUMNS)
    assert list(labels("theta", (3, 2), COLUMNS))[:2] == ["age, class 0", "age, class 1"]
    assert list(labels("theta", (4,), COLUMNS))[:1] == ["theta[0]"]
    names, numbers = flat({"beta": np.zeros((1, 2, 3)), "scale": np.ones((1, 2))}, COLUMNS)
    assert names == ["beta[age]", "beta[job=<b>office</b>]", "beta[intercept]", "scale"]
    assert numbers[0, 0].tolist() == [0, 0, 0, 1]
    # A layer of a network may be as wide as a row by chance.
    assert axes("params.Dense_1.bias", (3,), COLUMNS) == [("params.Dense_1.bias_dim_0", None)]


@pytest.mark.parametrize(
    ("target", "shape"),
    [
        (logistic(), (3,)),
        (dpmcmc.targets.SoftmaxRegression(1.0, 4, num_features=3, row_bound=1.0), (3, 4)),
        (dpmcmc.targets.LinearRegression(1.0, num_features=3, row_bound=1.0, label_bound=1.0), (3,)),
    ],
)
def test_predict_is_the_mean_over_draws(target, shape):
    draws = RNG.normal(size=(2, 20, *shape)).astype(np.float32)
    result = dataclasses.replace(released(draws), plan=dataclasses.replace(released().plan, target=target))
    x = RNG.normal(size=(5, 3)).astype(np.float32) / 3
    each = [np.asarray(target.predict(one, x)) for one in draws.reshape(-1, *shape)]
    np.testing.assert_allclose(result.predict(x), np.mean(each, axis=0), rtol=1e-5)
    with pytest.raises(ValueError, match="3"):
        result.predict(x[:, :2])


def test_tables_are_predicted_by_the_schema_of_the_plan_and_refused_without_one():
    import pandas as pd

    columns = {"age": Range(0, 100), "job": Levels(["office", "field"]), "rich": Levels(["no", "yes"])}
    schema = Schema(columns, label="rich")
    table = pd.DataFrame({"age": [20, 70], "job": ["field", "office"]})
    plan = dpmcmc.mechanisms.NoiseAware(draws=100).plan(
        dpmcmc.targets.LogisticRegression(1.0), num_records=N, epsilon=1.0, delta=1e-6, schema=schema
    )
    result = released(RNG.normal(size=(1, 100, 4)).astype(np.float32), plan, columns=None)
    assert result.summary().names == schema.names
    np.testing.assert_allclose(result.predict(table), result.predict(schema.encode_features(table)))
    with pytest.raises(ValueError, match="schema"):
        released().predict(table)


def test_what_is_saved_is_loaded_without_a_secret(tmp_path):
    for name, result in (("release", released()), ("chain", chain())):
        folder = result.save(tmp_path / name)
        assert {p.name for p in folder.iterdir()} == {
            *("draws.nc", "metrics.json", "plan.json", "privacy.json", "report.html")
        }
        loaded = dpmcmc.load(folder)
        np.testing.assert_array_equal(loaded.draws, result.draws)
        assert loaded.guarantee == result.guarantee
        assert loaded.verdict == result.verdict
        assert loaded.columns == COLUMNS
        assert loaded.plan.label == result.plan.label
        assert str(loaded.summary()) == str(result.summary())
        x = RNG.normal(size=(4, 3)) / 3
        np.testing.assert_array_equal(loaded.predict(x), result.predict(x))
        again = loaded.save(tmp_path / f"{name}-again")
        first, second = (json.loads((f / "privacy.json").read_text()) for f in (folder, again))
        # The page of a plan that was loaded says less.
        assert {name for name in first["files"] if first["files"][name] != second["files"][name]} == {"report.html"}
        assert first | {"files": {}} == second | {"files": {}}
        assert loaded.guarantee.compose(loaded.guarantee).epsilon > loaded.guarantee.epsilon


def test_a_result_that_is_saved_again_states_the_guarantee_that_was_computed_again(tmp_path):
    released().save(tmp_path / "a")
    file = tmp_path / "a" / "privacy.json"
    true = json.loads(file.read_text())
    wrong = true | {"epsilon": 0.01, "cross_check": {"rdp": 0.01}, "unit": "owner"}
    file.write_text(json.dumps(wrong))
    dpmcmc.load(tmp_path / "a").save(tmp_path / "b")
    again = json.loads((tmp_path / "b" / "privacy.json").read_text())
    assert again | {"files": {}} == true | {"unit": "owner", "files": {}}  # the unit follows from no event


def test_a_pickle_holds_no_time_that_depends_on_the_records():
    result = released()
    assert result.wall_seconds == {"run": 1.0}
    assert pickle.loads(pickle.dumps(result)).wall_seconds == {}


def test_a_folder_that_holds_no_result_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="holds no result"):
        dpmcmc.load(tmp_path)
    folder = released().save(tmp_path / "run")
    (folder / "privacy.json").write_bytes(b"[]")
    with pytest.raises(ValueError, match="holds no result"):
        dpmcmc.load(folder)


def test_a_saved_target_runs_no_code():
    said = "LogisticRegression(open('x'))"
    section = {"name": "logistic_regression", "prior_scale": 1.0, "num_features": 3}
    made = target_of({"target": said, "config": {"target": section}})
    assert made == dpmcmc.targets.LogisticRegression(prior_scale=1.0, num_features=3)
    for other in (
        {"name": "os:system"},
        {"name": ["a"]},
        section | {"prior_scale": -1.0},
        section | {"shell": "true"},
        {},
    ):
        found = target_of({"target": said, "config": {"target": other}})
        assert isinstance(found, SavedTarget)
        assert repr(found) == said


def test_a_plan_json_has_the_sections_of_a_config():
    plan = dpmcmc.plan(
        logistic(),
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=dpmcmc.samplers.Polynomial(4.0)),
        sampling=dpmcmc.Poisson(5),
        steps=9,
        thin=3,
        privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-6, clip=2.0),
    )
    said = json.loads(json.dumps(plan.describe().stated))["config"]
    schedule = {"name": "dpmcmc.samplers.schedules:Polynomial", "a": 4.0, "b": 1.0, "gamma": 0.55}
    assert said["sampler"] == {"name": "sgld", "step_size": schedule, "temperature": 1.0, "num_records": N}
    assert said["sampling"]["scheme"] == "poisson"
    assert said["run"] == {"steps": 9, "chains": 1, "burn_in": 0, "thin": 3}
    assert (said["privacy"]["epsilon"], said["privacy"]["clip"]) == (1.0, 2.0)
    assert target_of(plan.describe().stated) == plan.target


def test_a_loaded_result_of_ones_own_model_predicts_with_the_model_given_again(tmp_path):
    mine = dpmcmc.targets.Custom(
        init=lambda key: np.zeros(3, np.float32),
        log_prior=lambda p: -p @ p,
        log_likelihood=lambda p, r: -((r["y"] - r["x"] @ p) ** 2),
        predict=lambda p, x: x @ p,
    )
    one = chain()
    folder = dataclasses.replace(one, plan=dataclasses.replace(one.plan, target=mine)).save(tmp_path / "run")
    x = np.eye(3, dtype=np.float32)
    with pytest.raises(ValueError, match="target"):
        dpmcmc.load(folder).predict(x)
    again = dpmcmc.load(folder, mine)
    np.testing.assert_allclose(again.predict(x), jax.numpy.mean(again.draws, (0, 1)), rtol=1e-4, atol=1e-6)


def test_original_units_are_those_of_the_columns_before_their_encoding():
    """Draws, and the posterior from a path, which is normal: both go through the schema's own map."""
    import pandas as pd

    schema = Schema({"age": Range(20, 70), "wage": Range(0, 300)}, label="wage")
    plan = dpmcmc.mechanisms.NoiseAware(draws=100).plan(
        dpmcmc.targets.LinearRegression(1.0), num_records=N, epsilon=1.0, delta=1e-6, schema=schema
    )
    draws = RNG.normal(size=(1, 400, 2), scale=0.1)  # so that no prediction reaches the label's bounds
    result = released(draws, plan, columns=None)
    shown = result.summary(original_units=True)
    np.testing.assert_allclose(shown.mean, schema.to_original_units(result.draws).mean((0, 1)), rtol=1e-6)
    assert "before encoding" in str(shown)
    assert str(result.summary()) == str(shown)
    assert "before encoding" in result.page()
    wage = result.predict(pd.DataFrame({"age": [20.0, 70.0]}))
    np.testing.assert_allclose(wage, shown.mean @ np.array([[20, 70], [1, 1]]), rtol=1e-5)
    np.testing.assert_allclose(result.posterior["age"].mean(), shown["age"]["mean"], rtol=1e-6)
    np.testing.assert_allclose(result.posterior.std, shown.std, rtol=1e-6)
    np.testing.assert_allclose(result.posterior.intervals(0.9)[:, 1], shown.high, rtol=1e-6)
    with pytest.raises(ValueError, match="original_units"):
        released().summary(original_units=True)


def classes(draws, **more):
    """A softmax regression on a table."""
    columns = {"inc": Range(0, 100, scale="log1p"), "mood": Levels(["not", "pretty", "very"])}
    schema = Schema(columns, label="mood")
    target = dpmcmc.targets.SoftmaxRegression(1.0, 3)
    plan = dpmcmc.mechanisms.NoiseAware(draws=100).plan(target, num_records=N, epsilon=1.0, delta=1e-6, schema=schema)
    return released(draws, plan, columns=None, **more)


def test_classes_are_compared_with_the_first_by_their_levels_and_draws_stay_as_they_are(tmp_path):
    draws = RNG.normal(size=(1, 100, 2, 3)) + 100 * RNG.normal(size=(1, 100, 2, 1))  # a common level, which is no fact
    result = classes(draws)
    summary = result.summary(original_units=False)
    assert summary.names == tuple(f"{x}, {k} − not" for x in ("inc", "intercept") for k in ("pretty", "very"))
    assert summary.total == 4
    np.testing.assert_allclose(summary.mean, (draws[..., 1:] - draws[..., :1]).mean((0, 1)).ravel(), rtol=1e-5)
    assert summary.std.max() < 2
    assert "multiplied by 0.707" in str(summary)
    own = result.summary()
    assert own.names[0] == "log1p(inc), pretty − not"
    want = result.plan.schema.to_original_units(draws)
    np.testing.assert_allclose(own.mean, (want[..., 1:] - want[..., :1]).mean((0, 1)).ravel(), rtol=1e-5)
    assert "compared with the first, 'not'" in str(own)
    assert "class 0" not in result.page()
    loaded = dpmcmc.load(result.save(tmp_path / "run"))
    np.testing.assert_array_equal(loaded.draws, draws)
    assert str(loaded.summary()) == str(own)


POSTERIOR = """
import sys, warnings
warnings.simplefilter("ignore")
import arviz, numpy
import dpmcmc
result = dpmcmc.load(sys.argv[1])
for opened in (arviz.from_netcdf(sys.argv[1] + "/draws.nc"), result.to_arviz()):
    table = arviz.summary(opened)
    assert len(table) == len(result.columns), table
    numpy.testing.assert_allclose(table["mean"].astype(float), result.noise_aware().mean, atol=0.01)
    assert (table["r_hat"].astype(float) < 1.02).all(), table
"""


@pytest.mark.slow
def test_the_summary_of_arviz_is_that_of_the_posterior_of_a_path(tmp_path):
    data = dpmcmc.data.load("two_normals")
    plan = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(3.0, num_features=3, row_bound=1.0),
        num_records=1000,
        sampler=dpmcmc.SGLD(4.0),
        steps=80,
        burn_in=0.5,
        privacy=dpmcmc.Privacy(epsilon=20.0, delta=1e-5),
        metric=dpmcmc.PrivateMetric(),
    )
    result = dpmcmc.sample(plan, data, out=tmp_path / "out")
    assert result.posterior is not None
    done = subprocess.run(
        [sys.executable, "-c", POSTERIOR, tmp_path / "out"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Shape validation failed" not in done.stderr


SCHEMA = Schema(
    {"age": Range(17, 90), "job": Levels(("none", "some")), "y": Levels(("0", "1"))}, label="y", formula="y ~ age + job"
)
TRUTH = {"age": 0.03, "job": -0.8}


@pytest.fixture(scope="module")
def fitted():
    """A release of 40,000 rows at an ε that leaves little noise, and its table."""
    rng = np.random.default_rng(0)
    age, job = rng.uniform(17, 90, 40_000), rng.integers(0, 2, 40_000)
    eta = TRUTH["age"] * (age - 50) + TRUTH["job"] * job
    y = (rng.random(len(eta)) < expit(eta)).astype(int)
    table = {"age": age, "job": np.array(["none", "some"])[job], "y": y.astype(str)}
    return dpmcmc.fit(None, table, SCHEMA, 8.0, progress=False), eta


def test_ratios_and_marginal_effects_contain_the_truth(fitted):
    result, eta = fitted
    found = result.effects(level=0.999)
    slope = float(np.mean(expit(eta) * expit(-eta)))
    truths = {
        ("age", "odds ratio, per unit"): np.exp(TRUTH["age"]),
        ("age", "odds ratio, from 17 to 90"): np.exp(TRUTH["age"] * 73),
        ("job=some", "odds ratio, per unit"): np.exp(TRUTH["job"]),
        ("age", "average marginal effect"): TRUTH["age"] * slope,
        ("job=some", "average marginal effect"): TRUTH["job"] * slope,
    }
    named = dict(zip(zip(found.names, found.kinds, strict=True), found.intervals, strict=True))
    assert set(named) == set(truths)
    for key, truth in truths.items():
        low, high = named[key]
        assert low < truth < high, key
        assert high - low < 0.6 * abs(truth), key
    assert list(found.to_dict()) == ["name", "kind", "mean", "sd", "0.05 %", "99.95 %", "use"]
    assert "odds ratio, from 17 to 90" in str(found)


def test_a_contrast_has_the_spread_of_its_draws(fitted):
    result, _ = fitted
    draws = SCHEMA.to_original_units(result.flat_draws())
    names = list(SCHEMA.own_names)
    expected = 10 * draws[:, names.index("age")] - draws[:, names.index("job=some")]
    found = result.effects({"age": 10.0, "job=some": -1.0})
    np.testing.assert_allclose(found.draws[:, 0], expected)
    assert found.intervals.shape == (1, 2)


def test_what_has_no_effects_is_refused(fitted):
    result, _ = fitted
    with pytest.raises(InputError, match="'agee' is no coefficient; the names are age"):
        result.effects({"agee": 1.0})
    with pytest.raises(InputError, match="level must be in"):
        result.effects(level=1.0)
    target = dpmcmc.targets.LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
    x = np.random.default_rng(0).uniform(-0.7, 0.7, size=(1000, 2))
    bare = dpmcmc.sample(dpmcmc.suggest(target, num_records=1000, epsilon=1.0), {"x": x, "y": x[:, 0]}, progress=False)
    with pytest.raises(UnsupportedCombination, match="the plan has no schema"):
        bare.effects()
