"""Predictions of a plan: relaxation times, widths, and the budget or records that would do.

Expected widths before a record is read: of what records can tell, for columns as real tables have them.
"""

import dataclasses
import re

import numpy as np
import pytest
from scipy.stats import norm

import dpmcmc
from dpmcmc import config
from dpmcmc.config import file as config_file
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.data.structure import contrasts
from dpmcmc.estimators.fitting import model_of, settings_of
from dpmcmc.estimators.outlook import Outlook, mean_width
from dpmcmc.estimators.suggestion import ask
from dpmcmc.inference import normal_law, predicted_width
from dpmcmc.inference.predicted_width import Predicted
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.planning import forecast
from dpmcmc.planning.verdict import of_result, with_verdict
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.targets import LinearRegression, LogisticRegression
from experiments.intervals.designs import design
from experiments.intervals.measure import Task, seen
from tests.long_runs import BURN_IN, STEP, STEPS, long_run, loose


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_relaxations_in_a_private_metric_follow_the_law(adjacency):
    """n = μ²(1 − g) c N/(2κ² d·chains), four times as much where a record only comes or goes."""
    count, size, chains, metric = 100_000, 10, 3, dpmcmc.PrivateMetric(share=0.2, clip_ratio=0.8)
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=1e-6, clip=7.0, accountant="rdp", adjacency=adjacency)
    target = LinearRegression(prior_scale=1e3, num_features=size, row_bound=1.0, label_bound=1.0)
    made = long_run(target, privacy, num_records=count, chains=chains, metric=metric)
    mu = gaussian_mu(1.0, 1e-6) * (2 if adjacency == "add_remove" else 1)
    law = mu**2 * 0.8 * count / (2 * 0.8**2 * size * chains)
    assert made.verdict.relaxations == pytest.approx(law, rel=1e-4)


def test_predicted_inflation_is_that_of_the_noise_aware_posterior():
    size, target = 5, LinearRegression(prior_scale=0.5, num_features=5, row_bound=2.0, label_bound=1.0)
    made = long_run(target, dpmcmc.Privacy(epsilon=0.5, delta=1e-6, accountant="rdp"), num_records=400, chains=2)
    # Gradients of burn-in tell nothing.
    noise = 4 / gaussian_mu(0.5, 1e-6) ** 2 * STEPS / (STEPS - BURN_IN)
    gram = np.diag(predicted_width.usual_spectrum(size, 400 * 4.0))
    local = normal_law.Local(gram, gram, np.zeros_like)
    release = normal_law.GradientRelease(np.zeros(size), np.zeros(size), noise * np.eye(size))
    start = normal_law.Gaussian(np.zeros(size), np.eye(size))
    honest = np.diag(normal_law.posterior(release, local, 4.0 * np.eye(size), start).covariance)
    width = np.mean(np.sqrt(honest * (4.0 + np.diag(gram))))
    assert made.verdict.predicted_width == pytest.approx(width, rel=1e-6)
    assert made.verdict.predicted_width == pytest.approx(made.verdict.predicted_inflation**0.5)
    assert made.verdict.predicted_inflation > 1.5


@pytest.mark.parametrize(
    "name", ["adult_prediction", "adult_prediction_eps01", "abalone", "breast_cancer", "diabetes_linear"]
)
def test_predicted_width_is_near_that_of_the_real_rows(name):
    """Rows that stand in for those of public benchmarks predict a width within 30 % of theirs."""
    chosen = config_file.load(name, [])
    made, rows = config.make_plan(chosen), np.asarray(config.load_data(chosen).train["x"], float)
    known, identity = forecast.curvatures(made), np.eye(rows.shape[1])
    curvature, precision = known.law.curvature * rows.T @ rows, known.prior * identity
    local = normal_law.Local(curvature, curvature / known.law.widening**2, np.zeros_like)
    alone = np.linalg.inv(precision + curvature / known.law.weighted)
    noise = forecast.gradient_variance(made, made.private_time) * identity
    real = predicted_width.predicted(local, noise, precision, alone).width()
    assert real > 1.05
    assert 1 / 1.3 < made.verdict.predicted_width / real < 1.3


def test_predicted_width_in_a_released_metric_is_that_of_its_posterior():
    """(P + H(B + V + E)⁻¹H)⁻¹ beside (P + H₀)⁻¹; the plan predicts it for rows of the usual spectrum."""
    rng, count, size = np.random.default_rng(0), 20_000, 4
    target = LogisticRegression(num_features=size, row_bound=1.0)
    settings = {"num_records": count, "steps": 8, "burn_in": 4, "thin": 1, "metric": dpmcmc.PrivateMetric()}
    made = long_run(target, dpmcmc.Privacy(epsilon=0.3, delta=1e-6, accountant="rdp"), **settings)
    std, clip = made.metric.release.noise_std, made.privacy.clip
    known = forecast.curvatures(made)
    gram = np.diag(predicted_width.usual_spectrum(size, count)) + std * normal_law.symmetric_noise(rng, size)
    noisy = NoisyGram(gram, std, float(np.trace(gram)), 0.0)
    metric = ReleasedMetric("gram", noisy, count, 1.0, clip, made.metric.asked.ratio)
    found = forecast.predicted_width(made, known, metric)
    assert found == pytest.approx(made.verdict.predicted_width, rel=0.05)
    assert found > 1.1
    # A direction that the records say nothing of keeps its prior, private or not.
    rare = noisy._replace(gram=np.diag([1.0, 1.0, 1.0, 1e-9]) * count / 3)
    with_rare = ReleasedMetric("gram", rare, count, 1.0, clip, made.metric.asked.ratio)
    assert forecast.predicted_width(made, known, with_rare) < found
    assert "about" in dict(made.verdict.lines())["width"]
    assert "ideal" in dict(made.verdict.lines())["width"]
    before, after = made.verdict, of_result(made, {"ess": None, "rhat": None}, metric)
    assert (before.predicted_from, after.predicted_from) == ("public_facts", "metric")
    for verdict, source in ((before, "public facts"), (after, "the released metric")):
        assert dict(verdict.lines())["width"].startswith(f"predicted from {source}, not observed: ")
        assert type(verdict).of_json(verdict.to_json()) == verdict


def test_more_budget_or_records_never_cost_more():
    def cost(epsilon, count):
        privacy = dpmcmc.Privacy(epsilon=epsilon, delta=1e-7, accountant="rdp")
        return long_run(privacy=privacy, num_records=count).verdict.predicted_inflation

    costs = np.array([[cost(epsilon, count) for epsilon in (0.1, 1.0, 10.0)] for count in (100, 10_000, 1_000_000)])
    assert np.all(np.diff(costs, axis=1) < 0)
    assert np.all(np.diff(costs[1:], axis=0) < 0)
    # At few records the prior is all that anybody has.
    assert np.all(costs >= 1)


def test_label_blind_weights_take_no_intervals_away():
    made = long_run(privacy=loose(clip=0.9), sampler=dpmcmc.SGLD(STEP / 2), steps=2 * STEPS, burn_in=2 * BURN_IN)
    assert made.label_blind
    assert "intervals" in made.usable_for
    residual = dataclasses.replace(made.run.noise, promise=loose(clip=0.9, clipping="residual"))
    by_residual = with_verdict(made.with_last(noise=residual))
    assert "intervals" not in by_residual.usable_for


SCHEMA = Schema({"a": Range(0, 10), "b": Range(0, 10), "c": Levels(["u", "v"]), "y": Range(0, 4)}, label="y")


def outlook(ratio, rows=None, size=2):
    """An outlook whose intervals are ``ratio`` times as wide."""
    alone = np.eye(size) * 0.01
    rows = np.random.default_rng(0).normal(size=(500, size)) if rows is None else rows
    return Outlook(Predicted(ratio**2 * alone, alone), np.ones(size), rows, np.eye(size))


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
