"""Output perturbation and the minimiser under it: what is certified, what a record can move, what is refused."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from dpmcmc.mechanisms import minimise as minimise_module
from dpmcmc.mechanisms.minimise import NotConverged, minimise
from dpmcmc.mechanisms.output_perturbation import OutputPerturbation
from dpmcmc.privacy import CalibrationError, Guarantee, UnsupportedCombination
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.softmax import SoftmaxRegression
from dpmcmc.targets.tempered import Tempered

TARGET = LogisticRegression(num_features=2, row_bound=1.0)
BUDGET = {"epsilon": 1.0, "delta": 1e-6}


def gradient(theta, records, regularisation):
    return records["x"].T @ (expit(records["x"] @ theta) - records["y"]) + regularisation * theta


def crowd(last, pulled=100_000):
    """Many records that pull θ far along the second axis, then the record ``last`` as a signed row u."""
    x = np.concatenate([np.tile([[0.0, 1.0]], (pulled, 1)), -np.atleast_2d(last)])
    return {"x": x, "y": np.ones(len(x), np.int32)}


def moved(first, second, regularisation=2.0):
    return np.linalg.norm(
        minimise(TARGET, first, regularisation, tolerance=1e-4)[0]
        - minimise(TARGET, second, regularisation, tolerance=1e-4)[0]
    )


def side(angle):
    return np.array([math.cos(angle), math.sin(angle)])


@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
def test_no_record_moves_the_minimiser_beyond_the_declared_sensitivity_and_one_nearly_does(adjacency):
    """The planted faults, L for 2L and Λ doubled, would both be exceeded: 0.8 of the declared is more than half."""
    plan = OutputPerturbation(regularisation=2.0).plan(TARGET, num_records=100_001, adjacency=adjacency, **BUDGET)
    declared = plan.settings["sensitivity"]
    assert declared == pytest.approx((2 if adjacency == "replace_one" else 1) / 2.0, rel=1e-3)
    others = [side(math.pi - a) for a in (0.5, 1.0)] if adjacency == "replace_one" else [np.zeros(2)]
    distances = [moved(crowd(side(a)), crowd(other)) for a in (0.5, -0.5) for other in others]
    assert max(distances) <= declared
    assert max(distances) > 0.8 * declared


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove", "zero_out"])
@pytest.mark.parametrize("target", [TARGET, SoftmaxRegression(num_classes=3, num_features=2, row_bound=1.0)])
def test_plan_meets_the_budget(adjacency, target):
    plan = OutputPerturbation().plan(target, num_records=1000, adjacency=adjacency, **BUDGET)
    assert 0.999 < plan.guarantee.epsilon <= 1.0
    assert [event.mechanism for event in plan.guarantee.events] == ["gaussian", "approximate_draw"]
    k = 2 if adjacency == "replace_one" else 1
    assert plan.settings["noise_std"] == pytest.approx(k * target.gradient_bound / gaussian_mu(1.0, 1e-6), rel=2e-3)
    assert plan.settings["sensitivity"] > k * target.gradient_bound
    assert Guarantee.from_json(plan.guarantee.to_json()) == plan.guarantee


def test_classic_noise_is_the_published_formula_with_a_computed_guarantee():
    plan = OutputPerturbation(calibration="classic").plan(TARGET, num_records=1000, epsilon=0.5, delta=1e-6)
    sensitivity = plan.settings["sensitivity"]
    assert plan.settings["noise_std"] == pytest.approx(sensitivity * math.sqrt(2 * math.log(1.25e6)) / 0.5)
    assert plan.guarantee.epsilon < 0.5
    tight = OutputPerturbation().plan(TARGET, num_records=1000, epsilon=0.5, delta=1e-6)
    assert tight.settings["noise_std"] < plan.settings["noise_std"]
    with pytest.raises(CalibrationError, match=r"^calibration: .* epsilon is 1"):
        OutputPerturbation(calibration="classic").plan(TARGET, num_records=1000, **BUDGET)


def test_releases_are_the_minimiser_with_the_declared_noise():
    """Half the noise would be refused."""
    rng = np.random.default_rng(1)
    records = {"x": rng.normal(size=(40, 2)) / 4, "y": rng.integers(0, 2, 40)}
    records["x"] /= np.maximum(1.0, np.linalg.norm(records["x"], axis=1, keepdims=True))
    plan = OutputPerturbation().plan(TARGET, num_records=40, **BUDGET)
    center, _ = minimise(TARGET, records, 1.0, tolerance=1e-10)
    draws = np.array([plan.mechanism.draw(plan, records, streams_of(k)[0])[0] for k in range(150)])
    noise = (draws - center).ravel() / plan.settings["noise_std"]
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    assert stats.chi2.ppf(1e-4, noise.size) < np.sum(noise**2) < stats.chi2.ppf(1 - 1e-4, noise.size)


@pytest.mark.parametrize("regularisation", [1e-4, 0.01, 1.0, 100.0])
def test_the_certificate_holds_from_any_start_of_any_scale(regularisation):
    rng = np.random.default_rng(3)
    for scale in (0.0, 1.0, 100.0):
        x = rng.normal(size=(700, 2))
        records = {"x": x / np.linalg.norm(x, axis=1, keepdims=True), "y": rng.integers(0, 2, 700)}
        b = scale * rng.normal(size=2)
        theta, certified = minimise(TARGET, records, regularisation, tolerance=1e-7, linear=b)
        # Extended precision as the judge.
        exact = gradient(np.asarray(theta, np.longdouble), records, np.longdouble(regularisation)) + b
        assert float(np.linalg.norm(exact.astype(np.float64))) <= certified <= 1e-7


def test_closed_form_and_generic_minimisers_agree():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(600, 2))
    records = {"x": x / np.linalg.norm(x, axis=1, keepdims=True), "y": rng.integers(0, 2, 600)}
    b = np.array([3.0, -2.0])
    closed, _ = minimise(TARGET, records, 0.5, tolerance=1e-9, linear=b)
    generic, _ = minimise(Tempered(TARGET, 1.0), records, 0.5, tolerance=1e-9, linear=b)
    np.testing.assert_allclose(closed, generic, atol=1e-8)
    assert closed.dtype == generic.dtype == np.float64
    assert jnp.zeros(1).dtype == jnp.float32


def test_an_optimum_that_is_not_reached_releases_nothing(monkeypatch):
    monkeypatch.setattr(minimise_module, "_ITERATIONS", 1)
    plan = OutputPerturbation(regularisation=1e-3).plan(TARGET, num_records=1001, **BUDGET)
    with pytest.raises(NotConverged, match="Nothing was released"):
        plan.mechanism.draw(plan, crowd(side(0.5), 1000), streams_of(0)[0])
    monkeypatch.undo()
    with pytest.raises(NotConverged, match="at most 1e-30"):
        minimise(TARGET, crowd(side(0.5), 10), 1.0, tolerance=1e-30)


def test_impossible_requests_are_refused_with_a_remedy():
    with pytest.raises(UnsupportedCombination, match="gradient_bound"):
        OutputPerturbation().plan(
            LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0), num_records=10, **BUDGET
        )
    with pytest.raises(UnsupportedCombination, match="row_bound"):
        OutputPerturbation().plan(dataclasses.replace(TARGET, row_bound=None), num_records=10, **BUDGET)
    with pytest.raises(ValueError, match=r"^regularisation "):
        OutputPerturbation(regularisation=-1.0)
    with pytest.raises(ValueError, match=r"^calibration "):
        OutputPerturbation(calibration="loose")  # type: ignore[arg-type]
