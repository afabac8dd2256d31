"""Ordinal regression: its law, its questions, what a replaced record costs, and intervals that cover."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.rows import Rows
from dpmcmc.targets import OrdinalRegression, TargetError
from dpmcmc.targets.checks import check_target
from tests.one_shot_replay import charged, measured

LEVELS = ("low", "mid", "high", "top")
SCHEMA = Schema({"age": Range(17, 90), "job": Levels(["a", "b"]), "y": Levels(LEVELS, ordered=True)}, label="y")
#: Slope of age and of job b, intercept, and the two other thresholds, in the units of the columns.
TRUTH = {"age": 0.04, "job=b": 0.7, "intercept": -1.0, "y>mid": -2.5, "y>high": -4.0}
TARGET = OrdinalRegression(num_classes=4, num_features=2, row_bound=1.0)


def table(count, seed):
    rng = np.random.default_rng(seed)
    columns = {"age": rng.uniform(17, 90, count), "job": rng.choice(["a", "b"], count)}
    eta = TRUTH["age"] * columns["age"] + TRUTH["job=b"] * (columns["job"] == "b") + rng.logistic(size=count)
    cuts = [-TRUTH[name] for name in ("intercept", "y>mid", "y>high")]
    return columns | {"y": np.array(LEVELS)[np.digitize(eta, cuts)]}


def records_of(count=60, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (count, 2)) / np.sqrt(2)
    return {"x": x.astype(dtype), "y": rng.integers(0, 4, count).astype(np.int32)}


def test_probabilities_are_differences_of_logistic_ones():
    x = records_of()["x"]
    theta = jnp.array([0.7, -0.4, -2.0, -5.0])
    above = expit((x @ theta[:2])[:, None] + np.array([0.0, -1.0, -2.5]))  # thresholds are half of what stands in theta
    want = np.c_[np.ones(60), above] - np.c_[above, np.zeros(60)]
    np.testing.assert_allclose(TARGET.predict(theta, x), want, atol=1e-6)
    for k in range(4):
        one = {"x": jnp.asarray(x[0]), "y": jnp.asarray(k)}
        assert TARGET.log_likelihood(theta, one) == pytest.approx(np.log(want[0, k]), rel=1e-4)


@pytest.mark.slow
def test_every_law_of_a_target_holds():
    check_target(TARGET, records_of())


def test_an_offset_is_added_to_the_predictor_of_a_prediction():
    target = OrdinalRegression(num_classes=4, num_features=2, row_bound=1.0, offset_bound=2.0)
    theta = jnp.array([0.7, -0.4, -2.0, -5.0])
    x, offset = records_of(5)["x"], np.linspace(-2, 2, 5)
    above = expit((x @ theta[:2] + offset)[:, None] + np.array([0.0, -1.0, -2.5]))
    np.testing.assert_allclose(target.predict(theta, x, offset)[:, 0], 1 - above[:, 0], atol=1e-6)
    np.testing.assert_allclose(target.predict(theta, x, offset)[:, 3], above[:, 2], atol=1e-6)
    with pytest.raises(TargetError, match="offset"):
        target.predict(theta, x)


def test_scores_of_questions_have_mean_zero_at_the_truth():
    """The probability of a yes to question k is that of y > k, for every row."""
    records = records_of(5)
    theta = np.array([0.7, -0.4, -2.0, -5.0])
    chances = np.asarray(TARGET.predict(jnp.asarray(theta), records["x"]))
    asked = TARGET.questions(records)
    assert asked["x"].shape == (5, 3, 4)
    assert np.linalg.norm(asked["x"], axis=2).max() <= TARGET.question.row_bound
    yes = sum(chances[:, [k]] * TARGET.questions(records | {"y": np.full(5, k)})["y"] for k in range(4))
    np.testing.assert_allclose(expit(asked["x"] @ theta), yes, atol=1e-6)


def test_units_are_the_columns_own():
    theta = np.random.default_rng(1).normal(size=SCHEMA.num_features + 2)
    own = dict(zip(SCHEMA.own_names, SCHEMA.to_original_units(theta), strict=True))
    frame = {"age": np.array([30.0]), "job": np.array(["b"])}
    row = SCHEMA.encode_features(frame)
    asked = SCHEMA.with_public_facts(OrdinalRegression()).questions({"x": row, "y": np.zeros(1)})["x"][0] @ theta
    shared = 30 * own["age"] + own["job=b"]
    want = [shared + own[name] for name in ("intercept", "y>mid", "y>high")]
    np.testing.assert_allclose(asked, want, rtol=1e-5)


def neighbours(records):
    found = []
    for row, label in itertools.product(([0.999, 0.0], [-0.7, 0.7], [0.0, 0.0]), (0, 3)):
        found.append({key: leaf.copy() for key, leaf in records.items()})
        found[-1]["x"][0], found[-1]["y"][0] = row, label
    return found


def with_a_long_row(dtype=np.float32):
    """Its label is at one end, so that a neighbour at the other changes the answers to all questions."""
    records = records_of(40, dtype=dtype)
    records["x"][0], records["y"][0] = [-0.7, -0.7], 0
    return records


def planned():
    way = NoiseAware(draws=4, steps=8, covariance="sandwich")
    return way.plan(TARGET, num_records=40, epsilon=0.5, delta=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_replaced_record_costs_no_more_than_is_charged(dtype):
    records = with_a_long_row(dtype)
    plan = planned()
    assert 0.1 * charged(plan) < measured(plan, records, *neighbours(records)) <= charged(plan)


def test_planted_questions_that_do_not_share_a_clip_norm_are_caught(monkeypatch):
    whole = Rows.__call__
    alone = lambda self, records: {**(made := whole(self, records)), "sharers": np.ones_like(made["y"])}  # noqa: E731
    monkeypatch.setattr(Rows, "__call__", alone)
    records = with_a_long_row()
    plan = planned()
    assert measured(plan, records, *neighbours(records)) > charged(plan)


def test_what_it_cannot_take_is_refused():
    with pytest.raises(UnsupportedCombination, match=r"ordinal regression sums .* take covariance sandwich"):
        NoiseAware().plan(TARGET, num_records=40, epsilon=0.5, delta=1e-5)
    with pytest.raises(InputError, match="columns: job is ordered, which only a label may be"):
        Schema({"job": Levels(LEVELS, ordered=True), "y": Levels([0, 1])}, label="y")
    with pytest.raises(TargetError, match=r"number of classes, for example OrdinalRegression"):
        OrdinalRegression().classes  # noqa: B018
    with pytest.raises(InputError, match="num_features: OrdinalRegression needs it"):
        OrdinalRegression(num_classes=3, row_bound=1.0).question  # noqa: B018


def test_a_schema_keeps_the_order():
    assert Schema.from_yaml(SCHEMA.to_yaml()) == SCHEMA
    assert SCHEMA.outcome.kind == "ordered"
    assert SCHEMA.own_names[-2:] == ("y>mid", "y>high")
    assert Schema({"a": Range(0, 1), "y": Levels([0, 1], ordered=True)}, label="y").outcome.kind == "binary"


def test_a_suggestion_takes_the_variance_that_is_right():
    plan = dpmcmc.suggest(TARGET, num_records=5000, epsilon=1.0)
    assert plan.mechanism.covariance == "sandwich"
    assert plan.usable_for == ["prediction", "intervals"]


def inside(result, level=0.9):
    shown = result.summary(level=level).to_dict()
    low, high = (np.array(ends) for name, ends in shown.items() if " %" in name)
    places = [shown["name"].index(name) for name in TRUTH]
    truth = np.array(list(TRUTH.values()))
    return (low[places] < truth) & (truth < high[places])


def test_a_fit_finds_slopes_and_thresholds_and_predicts_levels(tmp_path):
    rows = table(5000, 0)
    result = dpmcmc.fit("y ~ age + job", rows, SCHEMA, epsilon=3.0, progress=False)
    assert result.usable_for == ["prediction", "intervals"]
    assert inside(result, 0.9999).all()
    assert any("the odds of a higher level" in reason for reason in result.plan.reasons)
    found = result.effects().to_dict()
    assert found["kind"] == ["odds ratio, per unit", "odds ratio, from 17 to 90", "odds ratio, per unit"]
    few = {name: column[:200] for name, column in rows.items() if name != "y"}
    chances = np.asarray(result.predict(few))
    assert chances.shape == (200, 4)
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)
    assert "being above a level" in (result.save(tmp_path / "run") / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_intervals_of_an_ordinal_regression_cover():
    """100 intervals whose questions depend on each other; a variance that takes them for independent covers .8."""
    found = [
        inside(dpmcmc.fit("y ~ age + job", table(5000, seed), SCHEMA, epsilon=3.0, progress=False))
        for seed in range(20)
    ]
    assert np.mean(found) > 0.8
