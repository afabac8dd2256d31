"""AdaSSP: two charged releases, and a ridge only where the noise needs one."""

import math

import numpy as np
import pytest

from dpmcmc.mechanisms import AdaSSP, SufficientStatistics, sufficient
from dpmcmc.privacy import Guarantee, UnsupportedCombination
from dpmcmc.privacy.accounting.events import Adjacency, gaussian_parameter, queries
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LinearRegression, LogisticRegression

TARGET = LinearRegression(prior_scale=2.0, noise_scale=0.5, label_bound=3.0, num_features=3, row_bound=1.5)
BUDGET = {"num_records": 3000, "epsilon": 1.0, "delta": 1e-6}


def data(seed=0, count=3000):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3))
    x *= 1.5 / np.maximum(1.5, np.linalg.norm(x, axis=1, keepdims=True))
    return {"x": x, "y": np.clip(x @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=count), -3, 3)}


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
def test_plan_composes_two_gaussians_to_the_budget(adjacency):
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
def test_replay_on_neighbours_moves_releases_within_their_charge(adjacency, monkeypatch):
    seen, real = [], sufficient.gaussian_release
    monkeypatch.setattr(sufficient, "gaussian_release", lambda v, s, k: seen.append((v, s, k)) or real(v, s, k))
    plan, rng, worst = AdaSSP().plan(TARGET, adjacency=adjacency, **BUDGET), np.random.default_rng(1), np.zeros(2)
    records = data()
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
            worst[j] = max(worst[j], np.linalg.norm(value - moved) / std * event.noise_multiplier)
    factor = 2.0 if adjacency == "replace_one" else 1.0
    assert np.all(worst <= factor)
    assert worst[1] > 0.7 * factor


def test_the_ridge_vanishes_with_conditioning_and_stays_without(monkeypatch):
    """With a large budget the estimate is the posterior mean; with little it is shrunk, and bounded."""
    exact = TARGET.posterior(data())[0]
    plan = AdaSSP().plan(TARGET, num_records=3000, epsilon=30.0, delta=1e-4)
    np.testing.assert_allclose(plan.mechanism.draw(plan, data(), streams_of(0)[0])[0], exact, atol=5e-3)
    small = AdaSSP().plan(TARGET, num_records=3000, epsilon=0.01, delta=1e-6)
    found = [small.mechanism.draw(small, data(), streams_of(k)[0])[0] for k in range(20)]
    assert np.all(np.linalg.norm(found, axis=1) < 3 * np.linalg.norm(exact))


def test_better_than_worst_case_ridge_and_near_the_plain_statistics():
    records, exact = data(), TARGET.posterior(data())[0]
    errors = {}
    for mechanism in (AdaSSP(), SufficientStatistics()):
        plan = mechanism.plan(TARGET, **BUDGET)
        drawn = [mechanism.draw(plan, records, streams_of(k)[0])[0] for k in range(30)]
        errors[type(mechanism).__name__] = np.mean([np.linalg.norm(one - exact) for one in drawn])
    assert errors["AdaSSP"] < 1.5 * errors["SufficientStatistics"]
    assert errors["AdaSSP"] < 0.3 * np.linalg.norm(exact)


def test_impossible_requests_are_refused_with_a_remedy():
    with pytest.raises(UnsupportedCombination, match="adassp needs"):
        AdaSSP().plan(LogisticRegression(num_features=2, row_bound=1.0), **BUDGET)
    with pytest.raises(ValueError, match="row_bound: LinearRegression needs"):
        AdaSSP().plan(LinearRegression(label_bound=1.0, num_features=2), **BUDGET)
    for changes in ({"eigenvalue_share": 1.0}, {"failure": 0.0}, {"label_weight": -1.0}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            AdaSSP(**changes)
