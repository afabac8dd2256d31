"""Private sufficient statistics and AdaSSP: charged queries, an attained sensitivity, and a free posterior."""

import math

import numpy as np
import pytest
from scipy import stats

from dpmcmc.mechanisms import AdaSSP, adassp, sufficient
from dpmcmc.mechanisms.statistics import gram_and_moment, sensitivity_of, statistics
from dpmcmc.mechanisms.sufficient import SufficientStatistics, ridge
from dpmcmc.privacy import Guarantee, UnsupportedCombination
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter, queries
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from tests.one_shot_replay import distance

TARGET = LinearRegression(prior_scale=2.0, noise_scale=0.5, label_bound=3.0, num_features=3, row_bound=1.5)
BUDGET = {"num_records": 2000, "epsilon": 1.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3))
    x *= 1.5 / np.maximum(1.5, np.linalg.norm(x, axis=1, keepdims=True))
    y = np.clip(x @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=2000), -3, 3)
    return {"x": x, "y": y}


def contribution(x, y, weight):
    return statistics_of({"x": x[None], "y": np.array([y])}, weight)


def statistics_of(records, weight):
    return statistics(*gram_and_moment(records, TARGET), weight).floats


@pytest.mark.parametrize("weight", [0.05, 0.5, 0.7, 1.5, 10.0])
def test_no_replaced_record_exceeds_the_sensitivity_and_one_attains_it(weight):
    """Searched over angles, norms and labels; sensitivities of one record, L for 2L, would be exceeded."""
    declared = sensitivity_of(1.5, 3.0, weight, Adjacency.REPLACE_ONE)
    rng = np.random.default_rng(1)
    worst = 0.0
    for _ in range(500):
        a, c = rng.normal(size=(2, 3))
        a *= 1.5 * rng.uniform(0.5, 1) / np.linalg.norm(a)
        c *= 1.5 * rng.uniform(0.5, 1) / np.linalg.norm(c)
        y, z = rng.choice([-3.0, 3.0, 1.0], 2)
        worst = max(worst, np.linalg.norm(contribution(a, y, weight) - contribution(c, z, weight)))
    for angle in np.linspace(0, math.pi / 2, 400):
        a, c = 1.5 * np.array([1.0, 0, 0]), 1.5 * np.array([math.cos(angle), math.sin(angle), 0])
        worst = max(worst, np.linalg.norm(contribution(a, 3.0, weight) - contribution(c, -3.0, weight)))
    assert worst <= declared * (1 + 1e-12)
    assert worst >= 0.9999 * declared
    assert worst > 1.4 * sensitivity_of(1.5, 3.0, weight, Adjacency.ZERO_OUT) * (1 - 1e-4)
    # Tighter than both parts charged apart.
    assert declared < math.hypot(math.sqrt(2) * 1.5**2, 2 * weight * 1.5 * 3.0)


def test_one_record_alone_attains_its_sensitivity():
    x = np.array([0.9, -1.2, 0.0])
    for weight in (0.1, 2.0):
        assert np.linalg.norm(contribution(x, -3.0, weight)) == pytest.approx(
            sensitivity_of(1.5, 3.0, weight, Adjacency.ADD_REMOVE), rel=1e-6
        )


def test_statistics_are_isometric_and_complete(records):
    value = statistics_of(records, 0.7)
    gram = records["x"].T @ records["x"]
    assert np.sum(value[:6] ** 2) == pytest.approx(np.sum(gram**2), rel=1e-6)
    np.testing.assert_allclose(value[6:], 0.7 * records["x"].T @ records["y"], rtol=1e-6)


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove", "zero_out"])
def test_plan_meets_the_budget_in_one_event(adjacency):
    plan = SufficientStatistics().plan(TARGET, adjacency=adjacency, **BUDGET)
    (event,) = (e for e in plan.guarantee.events if e.noise_multiplier)
    assert event.mechanism == "gaussian"
    assert event.count == 1
    assert 0.999 < plan.guarantee.epsilon <= 1.0
    assert plan.settings["label_noise_std"] == pytest.approx(plan.settings["noise_std"] * 3.0 / 1.5)
    assert Guarantee.from_json(plan.guarantee.to_json()) == plan.guarantee
    more = SufficientStatistics(label_weight=2.0).plan(TARGET, adjacency=adjacency, **BUDGET)
    assert more.settings["label_noise_std"] < plan.settings["label_noise_std"]
    assert more.settings["noise_std"] > plan.settings["noise_std"]
    assert more.guarantee.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-6)


def test_without_noise_the_estimate_is_the_posterior_s_mean(records):
    mean, _ = TARGET.posterior(records)
    gram, moment = records["x"].T @ records["x"], records["x"].T @ records["y"]
    np.testing.assert_allclose(ridge(gram, moment, TARGET, 1e-12), mean, rtol=1e-9)


def test_released_statistics_have_the_declared_noise(records, monkeypatch):
    """Half the noise, or noise not symmetric, would be refused."""
    seen = []

    def spy(gram, moment, target, noise_std):
        seen.append((gram, moment))
        return ridge(gram, moment, target, noise_std)

    monkeypatch.setattr(sufficient, "ridge", spy)
    plan = SufficientStatistics().plan(TARGET, **BUDGET)
    for k in range(150):
        plan.mechanism.draw(plan, records, streams_of(k)[0])
    grams, moments = (np.array(part) for part in zip(*seen, strict=True))
    noise = (grams - records["x"].T @ records["x"]) / plan.settings["noise_std"]
    np.testing.assert_array_equal(noise, noise.transpose(0, 2, 1))
    labels = (moments - records["x"].T @ records["y"]) / plan.settings["label_noise_std"]
    for sample in (noise[:, [0, 1, 2], [0, 1, 2]], math.sqrt(2) * noise[:, [0, 0, 1], [1, 2, 2]], labels):
        assert stats.kstest(sample.ravel(), "norm").pvalue > 1e-3
        assert stats.kstest(2 * sample.ravel(), "norm").pvalue < 1e-6


def test_noise_alone_yields_a_bounded_estimate():
    """One record and a tiny budget: XᵀX is not even positive, and the estimate stays finite and shrunk."""
    plan = SufficientStatistics().plan(TARGET, num_records=1, epsilon=0.01, delta=1e-6)
    draws = plan.mechanism.draw(plan, {"x": np.array([[1.0, 0.0, 0.0]]), "y": np.array([1.0])}, streams_of(0)[0])
    assert np.all(np.isfinite(draws))
    assert np.max(np.abs(draws)) < 10 * TARGET.label_bound


def test_impossible_requests_are_refused_with_a_remedy():
    with pytest.raises(UnsupportedCombination, match=r"LogisticRegression; use .*output_perturbation"):
        SufficientStatistics().plan(LogisticRegression(num_features=2, row_bound=1.0), **BUDGET)
    with pytest.raises(ValueError, match="row_bound: LinearRegression needs"):
        SufficientStatistics().plan(LinearRegression(label_bound=1.0, num_features=2), **BUDGET)
    with pytest.raises(ValueError, match="label_bound: LinearRegression needs"):
        SufficientStatistics().plan(LinearRegression(row_bound=1.0, num_features=2), **BUDGET)
    with pytest.raises(ValueError, match=r"^num_features: "):
        SufficientStatistics().plan(LinearRegression(row_bound=1.0, label_bound=1.0), **BUDGET)
    with pytest.raises(ValueError, match=r"^label_weight "):
        SufficientStatistics(label_weight=0.0)
    with pytest.raises(ValueError, match=r"^delta: 0 is for a release that is pure ε-DP"):
        SufficientStatistics().plan(TARGET, **{**BUDGET, "delta": 0.0})


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
def test_adassp_composes_two_gaussians_to_the_budget(adjacency):
    plan = AdaSSP(eigenvalue_share=0.2).plan(TARGET, adjacency=adjacency, **BUDGET)
    *events, draws = plan.guarantee.events
    assert [e.mechanism for e in events] == ["gaussian", "gaussian"]
    assert draws.mechanism == "approximate_draw"
    assert 0.999 < plan.guarantee.epsilon <= 1.0
    assert plan.guarantee.assumptions == ()
    first, second = (gaussian_parameter(queries((e,)), adjacency) for e in events)
    assert first == pytest.approx(math.sqrt(0.2) * gaussian_mu(1.0, 1e-6), rel=1e-6)
    assert math.hypot(first, second) <= gaussian_mu(1.0, 1e-6)
    assert Guarantee.from_json(plan.guarantee.to_json()) == plan.guarantee
    # One release less would be stated as less: the eigenvalue is not free.
    assert second < 0.9 * math.hypot(first, second)


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
def test_replay_of_adassp_on_neighbours_moves_releases_within_their_charge(adjacency, records, monkeypatch):
    seen, real = [], adassp.gaussian_release
    monkeypatch.setattr(adassp, "gaussian_release", lambda v, s, k: seen.append((v, s, k)) or real(v, s, k))
    plan, rng, worst = AdaSSP().plan(TARGET, adjacency=adjacency, **BUDGET), np.random.default_rng(1), np.zeros(2)
    records = {name: value.copy() for name, value in records.items()}
    for seed in range(40):
        other = {name: value.copy() for name, value in records.items()}
        row = rng.normal(size=3)
        records["x"][0], records["y"][0] = 1.5 * row / np.linalg.norm(row), 3.0
        other["x"][0], other["y"][0] = (records["x"][0], -3.0) if adjacency == "replace_one" else (0.0, 0.0)
        seen.clear()
        for one in (records, other):
            plan.mechanism.draw(plan, one, streams_of(seed)[0])
        for j, event in enumerate(plan.guarantee.events[:2]):
            (value, std, key), (moved, same, again) = seen[j], seen[j + 2]
            assert std == same
            assert np.array_equal(np.asarray(key), np.asarray(again)) if not hasattr(key, "dtype") else key == again
            worst[j] = max(worst[j], distance(value, moved) / std * event.noise_multiplier)
    factor = 2.0 if adjacency == "replace_one" else 1.0
    assert np.all(worst <= factor)
    assert worst[1] > 0.7 * factor


def test_impossible_requests_of_adassp_are_refused_with_a_remedy():
    with pytest.raises(UnsupportedCombination, match="adassp needs"):
        AdaSSP().plan(LogisticRegression(num_features=2, row_bound=1.0), **BUDGET)
    with pytest.raises(ValueError, match="row_bound: LinearRegression needs"):
        AdaSSP().plan(LinearRegression(label_bound=1.0, num_features=2), **BUDGET)
    for changes in ({"eigenvalue_share": 1.0}, {"failure": 0.0}, {"label_weight": -1.0}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            AdaSSP(**changes)
