"""A release claims no more than it holds: tables on which an interval would not cover are refused, or say of which."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import dpmcmc
from dpmcmc.data import Counts, Levels, Range, Schema
from dpmcmc.data.structure import RowStructure
from dpmcmc.errors import NotForIntervals
from dpmcmc.inference.corrected_matrix import confirmed, corrected
from dpmcmc.inference.count_score import Counts as CountScore
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.normal_law import Gaussian, symmetric_noise
from dpmcmc.inference.rare_levels import rare_levels
from dpmcmc.inference.softmax_score import Softmax
from dpmcmc.mechanisms import NoiseAware

pytestmark = pytest.mark.filterwarnings("ignore::dpmcmc.errors.NotForIntervals")
N = 5000


def fitted(table, columns, label, epsilon):
    schema = Schema({name: columns[name] for name in table}, label=label)
    return dpmcmc.fit(None, pd.DataFrame(table), schema, epsilon, delta=1e-6, progress=False)


def usable(result):
    """Names whose intervals may be reported."""
    table = result.summary().to_dict()
    return [name for name, one in zip(table["name"], table["use"], strict=True) if one == "yes"]


def collinear(rng):
    """Two columns that differ by a thousandth."""
    a = rng.uniform(0, 1, N)
    b = a + rng.normal(0, 0.001, N)
    table = {"a": a, "b": b, "y": 1 + 15 * a - 12 * b + rng.normal(0, 0.5, N)}
    return table, {"a": Range(0, 1), "b": Range(0, 1), "y": Range(-2, 6)}, ["a", "b"]


def mostly_empty(rng):
    """Percentages of which nearly all are zero, in a range of all percentages."""
    names = ["u", "v", "w", "z"]
    table = {name: np.where(rng.random(N) < 0.25, rng.exponential(0.4, N), 0.0) for name in names}
    logit = 8 * table["u"] - 4 * table["v"] + 2 * table["w"] - 1
    table["y"] = rng.random(N) < 1 / (1 + np.exp(-logit))
    return table, {**dict.fromkeys(names, Range(0, 100)), "y": Levels([False, True])}, names


def separated(rng):
    """One level whose records all have one label."""
    level = rng.choice(["u", "v", "w"], N)
    y = (level == "w") | (rng.random(N) < 0.35)
    return {"g": level, "y": y}, {"g": Levels(["u", "v", "w"]), "y": Levels([False, True])}, ["g=w"]


def separated_along(rng):
    """A number that tells the label."""
    x = rng.uniform(-1, 1, N)
    return {"x": x, "y": x > 0.1}, {"x": Range(-1, 1), "y": Levels([False, True])}, ["x"]


@pytest.mark.parametrize("table", [collinear, mostly_empty, separated, separated_along], ids=lambda one: one.__name__)
@pytest.mark.parametrize("epsilon", [3.0, 15.0])
def test_what_the_records_do_not_tell_has_no_interval(table, epsilon):
    given, columns, names = table(np.random.default_rng(1))
    result = fitted(given, columns, "y", epsilon)
    if "intervals" in result.usable_for:
        assert not set(usable(result)) & set(names)
        assert "no interval" in dict(result.summary().said)


@pytest.mark.parametrize(
    ("count", "share", "often", "seldom", "shape", "epsilon", "why"),
    [
        (4000, 0.2, 30.0, 5.0, 2.0, 0.5, "clipped"),
        (20_000, 0.33, 1.4, 0.05, 1.0, 1.0, "dispersion"),
        (20_000, 0.33, 1.4, 0.05, 1.0, 3.0, "dispersion"),
    ],
)
def test_counts_of_which_some_people_have_most_are_refused(count, share, often, seldom, shape, epsilon, why):
    """Clipping, or a law that is none of the score's, moves the estimate there."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, count)
    rate = np.where(rng.random(count) < share, often, seldom)
    y = rng.poisson(rng.gamma(shape, np.exp(0.5 * x) * rate / shape))
    result = fitted({"x": x, "y": y}, {"x": Range(-1, 1), "y": Counts(200)}, "y", epsilon)
    assert "intervals" not in result.usable_for
    assert why in result.verdict.reasons["intervals"]


def test_a_model_s_covariance_is_refused_where_scores_vary_more():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-0.7, 0.7, N), np.full(N, 0.7)]).astype(np.float32)
    target = dpmcmc.targets.PoissonRegression(num_features=2, row_bound=1.0, label_bound=100)
    for dispersion, refused in ((2.0, True), (0.0, False)):
        mean = np.exp(1.0 + x[:, 0])
        y = rng.poisson(rng.gamma(1 / dispersion, mean * dispersion) if dispersion else mean)
        plan = NoiseAware(structure=RowStructure(constant=1)).plan(target, num_records=N, epsilon=3.0, delta=1e-6)
        result = dpmcmc.sample(plan, {"x": x, "y": y.astype(np.int32)}, progress=False)
        assert ("scores vary" in result.verdict.reasons["intervals"]) is refused


def test_a_chain_on_a_table_with_one_rare_label_is_refused():
    rng = np.random.default_rng(0)
    count = 200_000
    x = np.column_stack([rng.integers(2, size=count), np.ones(count)]).astype(np.float32) / np.sqrt(2)
    y = (rng.random(count) < 0.002 + 0.003 * (x[:, 0] > 0)).astype(np.int32)
    target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0, prior_scale=3.0)
    plan = dpmcmc.plan(
        target, num_records=count, sampler=dpmcmc.SGLD(step_size="auto"), sampling=dpmcmc.Full(), steps=80, burn_in=40,
        privacy=dpmcmc.Privacy(epsilon=3.0, delta=1e-6),
        metric=dpmcmc.PrivateMetric("gram", structure=RowStructure(constant=1)),
    )  # fmt: skip
    result = dpmcmc.sample(plan, {"x": x, "y": y}, progress=False)
    assert "intervals" not in result.usable_for


@pytest.mark.parametrize("seed", range(6))
def test_tables_on_which_intervals_hold_keep_them(seed):
    rng = np.random.default_rng(seed)
    count, k = 20_000, int(rng.integers(1, 5))
    rows = rng.uniform(-1, 1, (count, k)) if seed % 2 else np.cos(np.pi * rng.random((count, k)))
    eta = rows @ rng.normal(size=k) + rng.normal() / 2
    kind = ("binary", "real", "count")[seed % 3]
    y = {
        "binary": rng.random(count) < 1 / (1 + np.exp(-eta)),
        "real": eta + rng.normal(size=count),
        "count": rng.poisson(np.exp(np.minimum(eta, 2.0))),
    }[kind]
    label = {"binary": Levels([False, True]), "real": Range(-8, 8), "count": Counts(60)}[kind]
    table = {f"x{j}": rows[:, j] for j in range(k)}
    result = fitted(table | {"y": y}, {**dict.fromkeys(table, Range(-1, 1)), "y": label}, "y", 3.0)
    assert "intervals" in result.usable_for, result.verdict.reasons["intervals"]
    assert usable(result) == list(result.summary().names)


@pytest.mark.parametrize("seed", range(5))
def test_what_a_release_confirms_is_no_more_than_the_matrix_and_nothing_where_there_is_nothing(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 8))
    root = rng.normal(size=(size, size))
    truth = root @ np.diag([0.0, *rng.uniform(5, 50, size - 1)]) @ root.T
    noise = 0.5
    released = truth + noise * symmetric_noise(rng, size)
    # Noise is what makes the estimate of the empty direction positive.
    found = corrected(truth + 3 * noise * np.eye(size), released, noise)
    for least in (found.least, confirmed(found.matrix, released, noise, np.zeros((size, size)))):
        assert np.linalg.eigvalsh(least)[0] >= -1e-9
        assert np.linalg.eigvalsh(found.matrix - least)[0] >= -1e-9
    axis = np.linalg.eigh(found.matrix)[1][:, 0]
    assert axis @ confirmed(found.matrix, released, noise, np.zeros((size, size))) @ axis < 3 * noise


@pytest.mark.parametrize("score", [Logistic(), Softmax(3), CountScore()], ids=lambda one: type(one).__name__)
def test_levels_are_rare_where_one_label_hardly_occurs(score):
    """Rows (level of two, intercept): half of 10,000 each, at predictors that are asked for."""
    x = np.vstack([np.tile([1.0, 0.0, 1.0], (5000, 1)), np.tile([0.0, 1.0, 1.0], (5000, 1))]) / np.sqrt(2)
    structure = RowStructure(constant=2, blocks=((0, 1),))
    sure = 1e-4 * np.eye(3 * score.size)
    for logit, rare in ((-7.0, True), (-1.0, False)):
        theta = np.zeros((3, score.size))
        theta[0, 0] = logit * np.sqrt(2)
        found = rare_levels(score, structure, x.T @ x, len(x), Gaussian(theta.ravel(), sure)).reshape(3, score.size)
        assert found[0, 0] == rare
        assert not found[1:].any()


def test_a_saved_result_keeps_what_it_says_of_each_coefficient(tmp_path):
    given, columns, _ = separated(np.random.default_rng(1))
    given["x"] = np.random.default_rng(2).uniform(-1, 1, N)
    result = fitted(given, columns | {"x": Range(-1, 1)}, "y", 15.0)
    result.save(tmp_path / "run")
    again = dpmcmc.load(tmp_path / "run")
    assert again.summary().to_dict() == result.summary().to_dict()
    assert again.usable_for == result.usable_for


@pytest.mark.parametrize("power", [9.0, 12.0])
def test_means_at_the_largest_count_are_of_no_use(power):
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, N)
    y = rng.poisson(np.exp(power + 0.5 * x))
    result = fitted({"x": x, "y": y}, {"x": Range(-1, 1), "y": Counts(400_000)}, "y", 15.0)
    assert result.usable_for == []
    assert "end of its range" in result.verdict.reasons["prediction"]


def chain_on(target, records, step_size=0.5):
    plan = dpmcmc.plan(
        target, num_records=1000, sampler=dpmcmc.SGLD(step_size=step_size), sampling=dpmcmc.Full(), steps=50,
        privacy=dpmcmc.Privacy(epsilon=5.0, delta=1e-5),
    )  # fmt: skip
    return dpmcmc.sample(plan, records, progress=False)


@pytest.mark.parametrize("is_number", [True, False])
def test_a_likelihood_that_is_no_number_where_the_chain_is_makes_a_result_of_no_use(is_number):
    """It is a number at the start, where it is tried before anything is spent."""

    def log_likelihood(params, record):
        away = jnp.abs(params["w"]) > 1e-6
        right = -((record["x"][0] - params["w"]) ** 2)
        return right if is_number else jnp.where(away, jnp.nan, right)

    target = dpmcmc.targets.Custom(
        lambda key: {"w": jnp.zeros(())}, lambda params: -(params["w"] ** 2) / 2, log_likelihood
    )
    x = np.random.default_rng(0).normal(size=(1000, 1)).astype(np.float32)
    result = chain_on(target, {"x": x})
    assert (result.usable_for == []) is not is_number
    assert ("not a number" in result.verdict.reasons["prediction"]) is not is_number


def test_a_chain_that_ran_away_is_of_no_use():
    x = np.random.default_rng(0).uniform(-0.7, 0.7, size=(1000, 2)).astype(np.float32)
    target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0)
    result = chain_on(target, {"x": x, "y": (x[:, 0] > 0).astype(np.int32)})
    assert "ran away" not in result.verdict.reasons["prediction"]
    far = dataclasses.replace(result, released=result.released + 1e3, positions=result.positions + 1e3)
    assert far.usable_for == []
    assert "ran away" in far.verdict.reasons["prediction"]
    nothing = dataclasses.replace(result, released=result.released * np.nan, positions=result.positions * np.nan)
    assert nothing.usable_for == []


def test_a_warning_says_what_a_release_says_against_itself():
    given, columns, _ = separated_along(np.random.default_rng(1))
    with pytest.warns(NotForIntervals):
        fitted(given, columns, "y", 15.0)
