"""Predictions and non-private fits of any target: closed forms, hand-made draws, bounded memory, the MAP alone."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from scipy import stats

import dpmcmc
from dpmcmc.data import Counts as CountsUpTo
from dpmcmc.data import Range, Schema
from dpmcmc.diagnostics import reference
from dpmcmc.inference import predictive
from dpmcmc.targets import LinearRegression, LogisticRegression, PerOwner, PoissonRegression, TargetError
from dpmcmc.targets.predicting import with_label_scale
from tests.cli.test_command_line import call, refused

RNG = np.random.default_rng(7)
ROWS, D = 60, 3
X = RNG.normal(size=(ROWS, D)).astype(np.float32)


class Line:
    """y = x·w + b + N(0, 0.5²), parameters in a nested dict."""

    size = D
    gradient_bound = None

    def init(self, key):
        return {"layer": {"w": jnp.zeros(self.size), "b": jnp.zeros(())}}

    def log_prior(self, params):
        return -0.5 * sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))

    def log_likelihood(self, params, record):
        return jax.scipy.stats.norm.logpdf(record["y"], self.mean(params, record["x"]), 0.5)

    def mean(self, params, x):
        return x @ params["layer"]["w"] + params["layer"]["b"]

    def predict(self, params, x):
        return self.mean(params, x)


class Counts:
    """Poisson counts with a likelihood and no predict."""

    predict = None

    def log_likelihood(self, params, record):
        return jax.scipy.stats.poisson.logpmf(record["y"], jnp.exp(record["x"] @ params))


class Classes:
    """Class probabilities are the parameters themselves, rows times classes."""

    def __init__(self, num_classes):
        self.num_classes = num_classes

    def predict(self, params, x):
        return params[: len(x)]


class Network:
    """One hidden tanh layer, two classes, flax-like parameters."""

    num_classes = 2
    hidden = 8

    def init(self, key):
        inner, outer = jax.random.split(key)
        return {
            "hidden": {"kernel": jax.random.normal(inner, (D, self.hidden)), "bias": jnp.zeros(self.hidden)},
            "out": {"kernel": jax.random.normal(outer, (self.hidden, 1))},
        }

    def log_prior(self, params):
        return -0.5 * sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))

    def logit(self, params, x):
        hidden = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        return (hidden @ params["out"]["kernel"])[..., 0]

    def log_likelihood(self, params, record):
        logit = self.logit(params, record["x"])
        return record["y"] * logit - jax.nn.softplus(logit)

    def predict(self, params, x):
        return jax.nn.sigmoid(self.logit(params, x))


def line_draws(count):
    return {
        "layer": {
            "w": RNG.normal(size=(count, D)).astype(np.float32),
            "b": RNG.normal(size=count).astype(np.float32),
        }
    }


def line_means(draws):
    return draws["layer"]["w"].astype(float) @ X.T + draws["layer"]["b"].astype(float)[:, None]


def test_regression_scores_and_density_match_their_closed_forms():
    draws, y = line_draws(37), RNG.normal(size=ROWS).astype(np.float32)
    found = predictive.predict(Line(), draws, {"x": X, "y": y})
    means = line_means(draws)
    density = stats.norm.pdf(y[None, :], means, 0.5).mean(axis=0)
    assert found.measure == "rmse"
    np.testing.assert_allclose(found.mean, means.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found.single_draw, np.sqrt(np.mean((means - y) ** 2, axis=1)), rtol=1e-4)
    assert found.posterior_predictive == pytest.approx(np.sqrt(np.mean((means.mean(axis=0) - y) ** 2)), rel=1e-4)
    assert found.log_predictive_density == pytest.approx(np.log(density).mean(), rel=1e-4)
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert body["accuracy"] is None
    assert set(body["rmse"]) == {"posterior_predictive", "mean", "std"}


def test_labels_vary_as_a_release_tells():
    draws, rows = np.zeros((2, 1)), {"x": np.ones((1, 1)), "y": np.ones(1)}

    def density(target, scale):
        return predictive.predict(with_label_scale(target, scale), draws, rows).log_predictive_density

    line, counts = LinearRegression(noise_scale=1.0, num_features=1), PoissonRegression(num_features=1)
    assert density(line, None) == pytest.approx(stats.norm.logpdf(1.0), rel=1e-5)
    assert density(line, 0.5) == pytest.approx(stats.norm.logpdf(1.0, scale=0.5), rel=1e-5)
    assert density(counts, 0.0) == pytest.approx(stats.poisson.logpmf(1, 1.0), rel=1e-5)
    assert density(counts, 2.0) == pytest.approx(stats.nbinom.logpmf(1, 0.5, 1 / 3), rel=1e-5)
    owners = with_label_scale(PerOwner(line, records_per_owner=2), 0.5)
    assert owners.target.noise_scale == 0.5
    binary = LogisticRegression(num_features=1)
    assert with_label_scale(binary, 0.5) is binary


def test_counts_without_predict_have_a_log_predictive_density_and_no_more():
    draws = RNG.normal(size=(21, D)).astype(np.float32) / 2
    y = RNG.integers(0, 6, ROWS).astype(np.int32)
    found = predictive.predict(Counts(), draws, {"x": X, "y": y})
    mass = stats.poisson.pmf(y[None, :], np.exp(draws.astype(float) @ X.T)).mean(axis=0)
    assert found.log_predictive_density == pytest.approx(np.log(mass).mean(), rel=1e-4)
    assert found.to_json() == {
        "accuracy": None,
        "rmse": None,
        "log_predictive_density": found.log_predictive_density,
    }
    predictive.check(Counts(), {"x": X, "y": y})


def test_an_impossible_row_gives_minus_infinity_without_a_warning():
    class Never(Counts):
        def log_likelihood(self, params, record):
            return jnp.where(record["y"] > 0, -jnp.inf, 0.0)

    records = {"x": X[:2], "y": np.array([0, 1])}
    assert predictive.predict(Never(), np.zeros((3, D), np.float32), records).log_predictive_density == -np.inf


def test_three_classes_by_hand():
    """Two draws that disagree: averages (.4, .45, .15), (.4, .5, .1), (.15, .15, .7)."""
    first = [[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.2, 0.2, 0.6]]
    second = [[0.2, 0.6, 0.2], [0.3, 0.6, 0.1], [0.1, 0.1, 0.8]]
    draws = np.array([first, second], np.float32)
    y = np.array([0, 0, 2], np.int32)
    found = predictive.predict(Classes(3), draws, {"x": X[:3], "y": y})
    np.testing.assert_allclose(found.single_draw, [1, 1 / 3], rtol=1e-6)
    assert found.posterior_predictive == pytest.approx(1 / 3)
    assert found.log_predictive_density == pytest.approx(np.log([0.4, 0.4, 0.7]).mean(), rel=1e-5)
    assert found.to_json()["accuracy"]["mean"] == pytest.approx(2 / 3)
    assert found.to_json()["rmse"] is None
    probability, right = predictive.reliability(found.probability, y)
    np.testing.assert_allclose(probability, [0.45, 0.5, 0.7], rtol=1e-6)
    assert right.tolist() == [False, False, True]


def test_a_label_outside_the_classes_counts_as_wrong_and_impossible():
    draws = np.full((2, 3, 3), 1 / 3, np.float32)
    found = predictive.predict(Classes(3), draws, {"x": X[:3], "y": np.array([0, 1, 5])})
    assert found.posterior_predictive == pytest.approx(1 / 3)
    assert found.log_predictive_density == pytest.approx((2 * np.log(1 / 3) + np.log(1e-12)) / 3)


@pytest.mark.parametrize(("classes", "shape"), [(3, (ROWS,)), (3, (ROWS, 2)), (None, (ROWS, 1)), (2, (ROWS, 3))])
def test_a_prediction_of_the_wrong_shape_is_refused_in_words(classes, shape):
    class Wrong(Line):
        num_classes = classes

        def predict(self, params, x):
            return jnp.zeros(shape)

    with pytest.raises(TargetError, match=r"Wrong.predict gives shape .* it must give"):
        predictive.check(Wrong(), {"x": X, "y": X[:, 0]})
    with pytest.raises(TargetError, match=r"Wrong.predict gives shape"):
        predictive.predict(Wrong(), line_draws(2), {"x": X, "y": X[:, 0]})


def test_a_predict_that_fails_is_named_before_anything_is_spent():
    class Broken(Line):
        def predict(self, params, x):
            return x @ jnp.zeros(D + 1)

    with pytest.raises(TargetError, match=r"Broken.predict fails on rows of shape \(60, 3\)"):
        predictive.check(Broken(), {"x": X, "y": X[:, 0]})
    predictive.check(Line(), {"x": X, "y": X[:, 0]})


@pytest.mark.slow
def test_laplace_of_a_linear_model_is_its_posterior():
    """Gaussian likelihood and prior: MAP and inverse Hessian are exact."""
    y = (X @ np.array([1.0, -1.0, 0.5], np.float32) + 0.3).astype(np.float32)
    fit = reference.fit(Line(), {"x": X, "y": y})
    assert isinstance(fit, reference.Laplace)
    design = np.concatenate([np.ones((ROWS, 1)), X.astype(float)], axis=1)  # ravelled in order of names: b, w
    covariance = np.linalg.inv(np.eye(4) + design.T @ design / 0.25)
    np.testing.assert_allclose(fit.covariance, covariance, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(fit.mean, covariance @ (design.T @ y) / 0.25, atol=1e-4)
    draws = fit.draws(50)
    assert draws["layer"]["w"].shape == (50, D)
    assert predictive.predict(Line(), draws, {"x": X, "y": y}).posterior_predictive < 0.1
    assert reference.distance(fit, draws)["wasserstein_mean"] < 0.5


class Unregularised(Network):
    """Without a prior, data that are fitted perfectly leave directions without curvature."""

    def log_prior(self, params):
        return jnp.zeros(())


@pytest.mark.parametrize(
    ("target", "most", "words"),
    [(Network(), 10, "40 parameters are more than 10"), (Unregularised(), 2000, "not positive definite")],
    ids=["many parameters", "no curvature"],
)
@pytest.mark.slow
def test_where_there_is_no_covariance_the_map_alone_is_used_and_says_why(target, most, words, monkeypatch):
    monkeypatch.setattr(reference, "_MOST_PARAMETERS", most)
    records = {"x": X, "y": (X[:, 0] * X[:, 1] > 0).astype(np.int32)}
    fit = reference.fit(target, records)
    assert isinstance(fit, reference.MaximumAPosteriori)
    assert fit.method == "MAP"
    assert words in fit.reason
    point = fit.draws(200)
    assert point["hidden"]["kernel"].shape == (1, D, 8)
    assert predictive.predict(target, point, records).posterior_predictive > 0.85
    with pytest.raises(ValueError, match=words):
        reference.laplace(target, records)


class Diabetes(Line):
    size = 11


class WrongDiabetes(Diabetes):
    def predict(self, params, x):
        return params["layer"]["w"]


def config(folder, target, data):
    body = {
        "name": "small",
        "data": data,
        "target": target,
        "sampler": {"name": "sgld", "step_size": 1.0},
        "sampling": {"scheme": "full"},
        "privacy": {"epsilon": 5.0, "delta": 1e-4, "clip": 1.0},
        "run": {"steps": 20, "burn_in": 0.5, "thin": 1},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(body))
    return folder / "config.yaml"


@pytest.mark.slow
def test_predictions_of_a_private_file_stay_confidential(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = (X / 10).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x=x, y=x[:, 0])
    data = {"path": "mine.npz", "num_records": 48, "test_fraction": 0.2, "row_bound": 1.0}
    path = config(tmp_path, "tests.inference.test_predictive:Line", data)
    assert call("run", path, "--out", tmp_path / "out") == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert {metrics[key] for key in ("accuracy", "rmse", "log_predictive_density", "non_private")} == {None}
    assert not (tmp_path / "out" / "figures" / "predictions.png").exists()
    assert "rmse      confidential" in capsys.readouterr().out
    hidden = json.loads((tmp_path / "out" / "confidential" / "diagnostics.json").read_text())
    assert hidden["rmse"]["posterior_predictive"] > 0
    assert hidden["non_private"]["rmse"]


def test_a_predict_that_does_not_fit_is_refused_before_anything_is_spent(tmp_path, capsys):
    path = config(tmp_path, "tests.inference.test_predictive:WrongDiabetes", {"name": "diabetes"})
    error = refused(capsys, "run", path, "--out", tmp_path / "out")
    assert "WrongDiabetes.predict gives shape (11,)" in error
    assert not (tmp_path / "out").exists()


def test_no_predicted_count_is_beyond_the_public_largest_one():
    """Few draws of a wide posterior make a mean of counts that no count reaches."""
    draws, x = np.array([[-1.0], [30.0]]), np.ones((1, 1))
    counts = PoissonRegression(num_features=1, label_bound=4.0)
    assert predictive.mean(counts, draws, x) == pytest.approx((np.exp(-1) + 4) / 2, rel=1e-6)
    learnt = with_label_scale(counts, 0.5)
    assert predictive.mean(learnt, draws, x) == pytest.approx((np.exp(-1) + 4) / 2, rel=1e-6)
    schema = Schema({"a": Range(0, 1), "y": CountsUpTo(4)}, label="y")
    plan = dpmcmc.suggest(PoissonRegression(), num_records=1000, epsilon=1.0, schema=schema)
    assert plan.target.label_bound == 4.0


@pytest.mark.filterwarnings("ignore::dpmcmc.NoGuarantee", "ignore::dpmcmc.NotForIntervals")
@pytest.mark.parametrize(("epsilon", "usable"), [(0.1, False), (3.0, True)])
def test_a_release_that_tells_no_rows_apart_is_for_no_prediction(epsilon, usable):
    """N is far beyond what the plan asks for, so that public facts alone allow predictions."""
    rng = np.random.default_rng(0)
    columns = {f"x{j}": rng.uniform(0.4, 0.6, size=2000) for j in range(10)}
    y = rng.poisson(np.exp(10 * (columns["x0"] - 0.5)))
    schema = Schema({name: Range(0, 1) for name in columns} | {"y": CountsUpTo(10)}, label="y")
    plan = dpmcmc.suggest(PoissonRegression(), num_records=2000, epsilon=epsilon, schema=schema)
    assert "prediction" in plan.usable_for
    result = dpmcmc.sample(plan, columns | {"y": y}, key=1)
    assert ("prediction" in result.usable_for) == usable
    assert usable or "one number for all rows" in result.verdict.reasons["prediction"]


def test_a_search_that_leaves_the_finite_numbers_is_an_error():
    class Infinite(Line):
        def log_likelihood(self, params, record):
            return jnp.float32(jnp.nan) * params["layer"]["b"]

    with pytest.raises(ValueError, match="finite numbers"):
        reference.fit(Infinite(), {"x": X, "y": X[:, 0]})
