"""Expected widths before a record is read: of what records can tell, for columns as real tables have them."""

import re

import numpy as np
import pytest
from scipy.stats import norm

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.data.structure import contrasts
from dpmcmc.estimators.fitting import model_of, settings_of
from dpmcmc.estimators.outlook import Outlook, accuracy_line, mean_width, width_line
from dpmcmc.estimators.suggestion import ask
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.predicted_width import Predicted
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.targets import LinearRegression
from experiments.intervals.designs import design
from experiments.intervals.measure import Task, seen

SCHEMA = Schema({"a": Range(0, 10), "b": Range(0, 10), "c": Levels(["u", "v"]), "y": Range(0, 4)}, label="y")


def outlook(ratio, rows=None, size=2):
    """An outlook whose intervals are ``ratio`` times as wide."""
    alone = np.eye(size) * 0.01
    rows = np.random.default_rng(0).normal(size=(500, size)) if rows is None else rows
    return Outlook(Predicted(ratio**2 * alone, alone), np.ones(size), rows, np.eye(size))


def test_contrasts_are_what_records_can_tell():
    found = contrasts(SCHEMA.structure, SCHEMA.num_features)
    frame = {"a": [5.0], "b": [5.0], "c": ["u"]}, {"a": [5.0], "b": [5.0], "c": ["v"]}
    first, second = (SCHEMA.encode_features({k: np.array(v) for k, v in one.items()})[0] for one in frame)
    assert len(found) == SCHEMA.num_features - 1
    null = np.zeros(SCHEMA.num_features)  # a shift that no record sees
    null[list(SCHEMA.structure.blocks[0])], null[SCHEMA.structure.constant] = 1.0, -1.0
    assert first @ null == second @ null == pytest.approx(0)
    np.testing.assert_allclose(found @ null, 0)
    assert np.linalg.matrix_rank(found) == len(found)
    assert any(
        np.allclose(row, (second - first) / second.max(initial=1e-9, where=second != second[0])) for row in found
    )
    np.testing.assert_array_equal(contrasts(None, 3), np.eye(3))


def test_columns_of_a_real_table_are_as_wide_as_the_range_says():
    """Numbers of a standard deviation of .2 about middles off the centre, and labels nearer to the line than .5."""
    rng, n = np.random.default_rng(5), 6000
    factor = rng.normal(size=n)
    frame = {
        "a": np.clip(3.5 + 1.0 * (0.5 * factor + 0.85 * rng.normal(size=n)), 0, 10),
        "b": np.clip(6.5 + 1.2 * (0.5 * factor + 0.85 * rng.normal(size=n)), 0, 10),
        "c": np.where(rng.random(n) < 0.2, "v", "u"),
    }
    mean = 1.5 + 0.2 * frame["a"] - 0.05 * frame["b"] + 0.1 * (frame["c"] == "v")
    records = SCHEMA.encode(frame | {"y": np.clip(mean + 0.5 * rng.normal(size=n), 0, 4)})
    x, y = np.asarray(records["x"], float), np.asarray(records["y"], float)
    mechanism = NoiseAware(covariance="sandwich")
    plan = dpmcmc.suggest(
        LinearRegression(prior_scale=2.0, noise_scale=0.5),
        num_records=n, epsilon=3.0, schema=SCHEMA, mechanism=mechanism,
    )  # fmt: skip
    told = contrasts(SCHEMA.structure, x.shape[1])
    alone = np.linalg.inv(np.eye(x.shape[1]) / 4 + x.T @ x / np.var(y - x @ np.linalg.lstsq(x, y)[0]))
    spread = (dpmcmc.sample(plan, records).draws[0] @ told.T).std(axis=0)
    realised = float(np.mean(spread / np.sqrt(np.diag(told @ alone @ told.T))))
    asked = ask(plan.target, n, 3.0, None, SCHEMA, None, {"mechanism": plan.mechanism})
    widths = [one.width for one in asked.facts.outlooks(n, asked.noise(plan))]
    assert min(widths) < realised < max(widths)
    assert 0.5 < plan.settings["predicted_width"] / realised < 2
    assert plan.settings["predicted_width"] == pytest.approx(mean_width([*map(outlook, widths)]))
    assert any("same table, same prior, no noise" in line for line in plan.reasons)
    assert any("best-fitting coefficients" in line for line in plan.reasons)


def test_lines_say_a_range_where_designs_differ_and_no_loss_that_noise_makes():
    near, far = [outlook(r) for r in (1.1, 1.25, 1.3)], [outlook(r) for r in (1.1, 3.0, 9.0)]
    assert width_line(near, 1.3).startswith("intervals: predicted about 1.25 times")
    assert width_line(near, 1.3).endswith("no noise")
    assert width_line(near, 2.5).endswith("about 2.5 times where effects are 4 times as strong as usual")
    assert width_line(far, 3.0).startswith("intervals: predicted between 1.1 and 9 times")
    assert width_line(far, 3.0).endswith("they may be several times as wide as that")
    assert "less than 0.1 points" in accuracy_line([outlook(1.001)], Logistic())
    assert "±" in accuracy_line([outlook(8.0)] * 3, Logistic())
    lost = outlook(8.0).accuracy_lost(Logistic(), np.random.default_rng(0))
    assert lost.shape == (40,)
    assert lost.mean() > 0


def test_a_plan_says_how_wide_intervals_are_where_effects_are_strong():
    """A fit of a truth that is six times as strong as usual is about as wide, and wider than predicted usually."""
    of = design("eight_6x")
    target = model_of(of.schema)
    settings = settings_of(target, "intervals", of.schema.num_features)
    plan = ask(target, 20_000, 1.0, None, of.schema, None, settings).suggested("intervals")
    usual = plan.settings["predicted_width"]
    [line] = [reason for reason in plan.reasons if reason.startswith("intervals: predicted")]
    strong = float(re.search(r"about ([\d.]+) times where effects are 4 times", line)[1])
    one = seen(Task("eight_6x", 20_000, 1.0, None, 0.9, 0, of.truth))
    realised = float(np.mean((one.high - one.low) / (2 * norm.ppf(0.95) * one.error)))
    assert 1.5 * usual < realised
    assert realised / 1.8 < strong < realised * 1.8
