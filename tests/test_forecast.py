"""Predictions of a plan: relaxation times, widths, and the budget or records that would do."""

import dataclasses

import numpy as np
import pytest

import dpmcmc
from dpmcmc import config
from dpmcmc.config import file as config_file
from dpmcmc.inference import noise_aware
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.planning import forecast
from dpmcmc.planning.verdict import of_result, with_verdict
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.gaussian_release import NoisyGram
from dpmcmc.targets import LinearRegression, LogisticRegression
from tests.long_runs import BURN_IN, STEP, STEPS, long_run, loose


def test_a_chain_on_adult_buys_few_relaxations_of_the_prior():
    """facts of a scratch prototype: at ε = 1, C = 1 the budget buys .028 of a direction of curvature 1."""
    made = config.make_plan(config_file.load("adult_prediction", ["privacy.clip=1.0"]))
    assert made.verdict.relaxations == pytest.approx(0.028, rel=0.02)
    four = config.make_plan(config_file.load("adult_prediction", ["privacy.clip=1.0", "run.chains=4"]))
    assert four.verdict.relaxations == pytest.approx(made.verdict.relaxations / 4)
    assert four.verdict.predicted_inflation == pytest.approx(made.verdict.predicted_inflation)


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


def test_relaxations_are_those_of_the_metric_that_was_released():
    rng, count, size = np.random.default_rng(0), 20_000, 4
    privacy = dpmcmc.Privacy(epsilon=3.0, delta=1e-6, accountant="rdp")
    target = LogisticRegression(num_features=size, row_bound=1.0)
    made = long_run(target, privacy, num_records=count, steps=8, burn_in=4, thin=1, metric=dpmcmc.PrivateMetric())
    found = []
    for spread in (np.ones(size), np.array([1.0, 1.0, 1.0, 0.01])):
        x = rng.normal(size=(count, size)) * spread
        x = (x / np.linalg.norm(x, axis=1, keepdims=True) * (1 - 1e-6)).astype(np.float32)
        result = dpmcmc.sample(made, {"x": x, "y": (rng.random(count) < 0.5).astype(np.int32)}, key=1)
        body = result.verdict.to_json()
        assert body["relaxations"] == pytest.approx(
            made.private_time * forecast.curvatures(made, result.metric).slowest
        )
        found.append(body["relaxations"])
    # The prediction supposes a metric in which all directions are alike. One that the rows do not have is slower.
    assert found[0] == pytest.approx(made.verdict.relaxations, rel=0.1)
    assert found[1] < 0.7 * found[0]


def test_predicted_inflation_is_that_of_the_noise_aware_posterior():
    size, target = 5, LinearRegression(prior_scale=0.5, num_features=5, row_bound=2.0, label_bound=1.0)
    made = long_run(target, dpmcmc.Privacy(epsilon=0.5, delta=1e-6, accountant="rdp"), num_records=400, chains=2)
    # Gradients of burn-in tell nothing.
    noise = 4 / gaussian_mu(0.5, 1e-6) ** 2 * STEPS / (STEPS - BURN_IN)
    gram = np.diag(noise_aware.usual_spectrum(size, 400 * 4.0))
    local = noise_aware.Local(gram, gram, np.zeros_like)
    release = noise_aware.GradientRelease(np.zeros(size), np.zeros(size), noise * np.eye(size))
    start = noise_aware.Gaussian(np.zeros(size), np.eye(size))
    honest = np.diag(noise_aware.posterior(release, local, 4.0 * np.eye(size), start).covariance)
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
    curvature, precision = known.likelihood * rows.T @ rows, known.prior * identity
    local = noise_aware.Local(curvature, curvature / known.widening**2, np.zeros_like)
    alone = np.linalg.inv(precision + curvature / known.weighted)
    noise = forecast.gradient_variance(made, made.private_time) * identity
    real = noise_aware.predicted(local, noise, precision, alone).width()
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
    gram = np.diag(noise_aware.usual_spectrum(size, count)) + std * noise_aware.symmetric_noise(rng, size)
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
    residual = made.private.replaced(promise=loose(clip=0.9, clipping="residual"))
    by_residual = with_verdict(dataclasses.replace(made, private=residual))
    assert "intervals" not in by_residual.usable_for
