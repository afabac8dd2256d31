"""Noise-aware intervals cover, and constants that are wrong show."""

import dataclasses
import functools
import math
import warnings

import numpy as np
import pytest
from scipy.special import expit

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.data.structure import RowStructure
from dpmcmc.estimators import fitting
from dpmcmc.inference.curvature import ScoredRows
from dpmcmc.inference.evidence import Evidence
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.noise_aware.regression_conclusion import shift_in_stds
from dpmcmc.targets import LinearRegression, LogisticRegression
from tests.noise_aware_tables import assert_covers, covered, linear, linear_table, logistic, rows, table
from tests.unproved import plan_any_epsilon


@pytest.mark.parametrize("epsilon", [0.3, pytest.param(3.0, marks=pytest.mark.slow)])
def test_intervals_of_logistic_regression_cover(epsilon):
    assert_covers(covered(NoiseAware(draws=400), logistic(5), table, epsilon, 40, 2000))


@pytest.mark.parametrize("n", [2000, 20_000])
def test_intervals_of_linear_regression_cover(n):
    assert_covers(covered(NoiseAware(draws=400), linear(4), linear_table, 1.0, 40, n))


@pytest.mark.slow
def test_under_a_wrong_model_the_sandwich_covers_and_the_model_does_not():
    """Residuals that grow with a column: the truth is the pseudo-true parameter."""

    def wrong(n, d, seed):
        rng = np.random.default_rng(seed)
        x, truth = rows(n, d, rng), rng.normal(size=d)
        y = x @ truth + rng.normal(size=n) * (2 * np.abs(x[:, -1]) + 0.1)
        return {"x": x.astype(np.float32), "y": np.clip(y, -4, 4).astype(np.float32)}, truth

    target = dataclasses.replace(linear(3, label_bound=4.0), noise_scale=0.25)
    share, error = covered(NoiseAware(draws=400), target, wrong, 10.0, 60, 20_000)
    assert share + 3 * error < 0.86, (share, error)
    assert_covers(covered(NoiseAware(draws=400, covariance="sandwich"), target, wrong, 10.0, 60, 20_000))


@pytest.mark.slow
def test_an_intercept_has_a_prior_of_its_own():
    """Labels as rare, or common, as an intercept of prior sd 4 makes them; under the others' prior it is missed."""

    def rare(n, d, seed):
        rng = np.random.default_rng(seed)
        x, truth = rows(n, d, rng), 0.5 * rng.normal(size=d)
        truth[0] *= 8
        return {"x": x.astype(np.float32), "y": (rng.random(n) < expit(x @ truth)).astype(np.int32)}, truth

    structure, target = RowStructure(constant=0), dataclasses.replace(logistic(5), prior_scale=0.5)
    own = NoiseAware(draws=400, intercept_scale=4.0, structure=structure)
    assert_covers(covered(own, target, rare, 1.0, 60, 5000))
    share, _ = covered(NoiseAware(draws=400, structure=structure), target, rare, 1.0, 24, 5000)
    assert share < 0.8
    assert own.plan(target, num_records=5000, epsilon=1.0, delta=1e-5).usable_for == ["prediction", "intervals"]
    with pytest.raises(ValueError, match="intercept_scale: nothing declares"):
        NoiseAware(intercept_scale=4.0).plan(target, num_records=5000, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("scale", [None, 3.0], ids=["one prior", "a prior of the intercept's own"])
def test_without_noise_the_posterior_of_linear_regression_is_the_conjugate_one(scale, monkeypatch):
    plan_any_epsilon(monkeypatch)
    records, _ = linear_table(300, 4, 0)
    mechanism = NoiseAware(draws=20_000, intercept_scale=scale, structure=RowStructure(constant=0))
    draws = dpmcmc.sample(mechanism.plan(linear(4), num_records=300, epsilon=1e7, delta=1e-6), records, key=0).draws[0]
    x, y = (np.asarray(records[name], np.float64) for name in ("x", "y"))
    prior = np.diag([1 if scale is None else scale**-2, 1, 1, 1])
    covariance = np.linalg.inv(x.T @ x / 0.25 + prior)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws.mean(0), covariance @ x.T @ y / 0.25, atol=0.05 * sd.max())
    np.testing.assert_allclose(draws.std(0), sd, rtol=0.05)


@pytest.mark.slow
def test_evidence_finds_a_prior_scale_that_the_records_contradict():
    """Truths three times as long as the prior says: evidence covers more."""

    def far(n, d, seed):
        rng = np.random.default_rng(seed)
        x, truth = rows(n, d, rng), 3 * rng.normal(size=d)
        return {"x": x.astype(np.float32), "y": (rng.random(n) < expit(x @ truth)).astype(np.int32)}, truth

    given, _ = covered(NoiseAware(draws=400), logistic(5), far, 1.0, 20, 2000)
    chosen, _ = covered(NoiseAware(draws=400, prior_scale="evidence"), logistic(5), far, 1.0, 20, 2000)
    assert chosen > given + 0.05


def test_a_plan_says_intervals_with_its_predicted_width_and_few_draws_say_none():
    plan = NoiseAware().plan(logistic(10), num_records=10_000, epsilon=1.0, delta=1e-5)
    assert plan.usable_for == ["prediction", "intervals"]
    assert 1.0 < plan.settings["predicted_width"] < 1.6
    for mechanism in (NoiseAware(draws=20), NoiseAware(steps=8)):
        few = mechanism.plan(logistic(10), num_records=10_000, epsilon=1.0, delta=1e-5)
        assert few.usable_for == ["prediction"]


@pytest.mark.slow
def test_one_coefficient_is_covered_though_only_the_trace_is_released_of_its_rows():
    """d = 1: the Gram matrix is its trace, whose noise is all there is."""

    def single(n, d, seed):
        rng = np.random.default_rng(seed)
        x, truth = 0.3 * rng.uniform(0.5, 1, size=(n, 1)), 4 * rng.normal(size=1)
        return {"x": x.astype(np.float32), "y": (rng.random(n) < expit(x @ truth)).astype(np.int32)}, truth

    target = LogisticRegression(prior_scale=4.0, num_features=1, row_bound=1.0)
    share, error = covered(NoiseAware(draws=400), target, single, 0.1, 120, 2000)
    assert share + 2 * error > 0.86, (share, error)


def test_intervals_of_a_linear_regression_are_no_wider_than_the_noise_asks_for(monkeypatch):
    """Rows with no preferred direction; planted: G as it was released."""

    def seen(tables=50, d=8, n=2000):
        target = LinearRegression(prior_scale=0.3, noise_scale=0.1, label_bound=0.75, num_features=d, row_bound=1.0)
        plan = NoiseAware(draws=400).plan(target, num_records=n, epsilon=0.4, delta=1e-5)
        found = []
        for seed in range(tables):
            rng = np.random.default_rng(seed)
            x = rng.normal(size=(n, d))
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            truth = 0.3 * rng.normal(size=d)
            y = np.clip(x @ truth + 0.1 * rng.normal(size=n), -0.75, 0.75)
            draws = dpmcmc.sample(plan, {"x": x.astype(np.float32), "y": y.astype(np.float32)}).draws[0]
            std = draws.std(0)
            found.append((np.mean(((draws.mean(0) - truth) / std) ** 2), np.mean(std)))
        return np.mean(found, axis=0)

    square, width = seen()
    assert square == pytest.approx(1, abs=0.2)
    monkeypatch.setattr("dpmcmc.mechanisms.noise_aware.statistics.shrunk", lambda noisy: noisy)
    planted, wider = seen()
    assert planted < square - 0.1
    assert wider > 1.2 * width


def fitted(schema, coefficients, make, n, tables, monkeypatch, epsilon=3.0, refused=0):
    """Draws of ``dpmcmc.fit`` in the units of columns, (table, draws, d), with the noise of a known seed.

    At most ``refused`` tables have intervals refused, and are left out.
    """
    found = []
    for seed in range(tables):
        rng = np.random.default_rng(seed)
        x = rng.uniform(size=(n, 3))
        table = dict(zip("abc", x.T, strict=True)) | {"y": make(rng, (x - 0.5) @ coefficients)}
        monkeypatch.setattr(fitting, "sample", functools.partial(dpmcmc.sample, key=seed))
        result = dpmcmc.fit(None, table, schema, epsilon=epsilon)
        if "intervals" not in result.usable_for and refused > 0:
            refused -= 1
            continue
        assert "intervals" in result.usable_for
        found.append(schema.to_original_units(result.flat_draws())[:, :3])
    return np.array(found)


COLUMNS = {name: Range(0, 1) for name in "abc"}


@pytest.mark.filterwarnings("ignore::dpmcmc.NoGuarantee")
def test_strong_effects_are_covered_by_a_fit_with_no_setting(monkeypatch):
    """The truth is fixed, and far beyond the default prior; noise hides the smallest curvatures.

    Coefficients of one table miss together, so 12 tables of intervals that cover nine tenths have less than .6 inside
    once in hundreds of tries. Curvatures of normal rows covered none.
    """
    schema, truth = Schema(COLUMNS | {"y": Levels(["0", "1"])}, label="y"), np.array([12.0, -9.0, 6.0])
    make = lambda rng, mean: (rng.random(len(mean)) < expit(mean)).astype(int).astype(str)  # noqa: E731
    draws = fitted(schema, truth, make, 30_000, 12, monkeypatch)
    low, high = np.quantile(draws, [0.05, 0.95], axis=1)
    assert np.mean((low < truth) & (truth < high)) >= 0.6
    assert np.abs(draws.mean(axis=1) / truth - 1).max() < 0.15


@pytest.mark.filterwarnings("ignore::dpmcmc.NoGuarantee")
def test_a_fit_learns_residuals_that_are_far_shorter_than_the_range(monkeypatch):
    """Their standard deviation is 1/20 of the label's range; widths are over those of least squares without noise."""
    schema, truth, n = Schema(COLUMNS | {"y": Range(0, 10)}, label="y"), np.array([2.0, -1.0, 0.5]), 20_000
    make = lambda rng, mean: np.clip(5 + mean + 0.5 * rng.normal(size=n), 0, 10)  # noqa: E731
    draws = fitted(schema, truth, make, n, 4, monkeypatch)
    alone = 0.5 / math.sqrt(n / 12)
    widths = draws.std(axis=1) / alone
    assert 0.9 < widths.min() <= widths.max() < 1.5
    assert np.abs((draws.mean(axis=1) - truth) / draws.std(axis=1)).max() < 4.5


@pytest.mark.filterwarnings("ignore::dpmcmc.NoGuarantee")
def test_least_squares_are_covered_where_skewed_errors_differ_from_row_to_row(monkeypatch):
    """Intervals of Huber's fit alone covered a fifth."""
    schema, slopes = Schema(COLUMNS | {"y": Range(-1, 1)}, label="y"), np.array([0.4, -0.2, 0.2])

    def make(rng, mean):
        scale = 0.12 * np.exp(3 * mean)  # larger errors where the mean is larger
        return np.clip(mean - 0.3 + scale * (rng.exponential(size=len(mean)) - 1), -1, 1)

    rng = np.random.default_rng(99)
    x = rng.uniform(size=(1_000_000, 3)) - 0.5
    truth = np.linalg.lstsq(np.insert(x, 3, 1, axis=1), make(rng, x @ slopes), rcond=None)[0][:3]
    draws = fitted(schema, slopes, make, 20_000, 12, monkeypatch, epsilon=1.0, refused=3)
    low, high = np.quantile(draws, [0.05, 0.95], axis=1)
    share = np.mean((low < truth) & (truth < high))
    assert share >= 0.75, share


def test_slopes_that_change_along_the_path_take_intervals_away(monkeypatch):
    """The posterior moves by a number of its standard deviations, and by a small one no doubt follows."""
    h, covariance = np.diag([40.0, 10.0]), np.diag([16.0, 4.0])
    found = Evidence(h, np.zeros(2), covariance, np.full(2, 1e6), 100)
    # With so wide a prior the posterior is N(H⁻¹u, H⁻¹ 𝒞 H⁻¹), and its standard deviations are 4/40 and 2/10.
    assert shift_in_stds(found, np.array([40 * 0.3, 0.0])) == pytest.approx(3 / math.sqrt(2), rel=1e-3)
    assert shift_in_stds(found, np.zeros(2)) == 0.0
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, 5000)
    sick = rng.random(len(age)) < expit(-3 + 0.03 * age)
    schema = Schema(columns={"sick": Levels(["no", "yes"]), "age": Range(0, 100)}, label="sick")

    def said():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dpmcmc.NotForIntervals)
            table = {"sick": np.where(sick, "yes", "no"), "age": age}
            return dpmcmc.fit(None, table, schema, 3.0, progress=False)

    assert "intervals" in said().usable_for
    real = ScoredRows.nonlinear_part
    monkeypatch.setattr(ScoredRows, "nonlinear_part", lambda *given: real(*given) + 100.0)
    bent = said()
    assert "intervals" not in bent.usable_for
    assert any("slopes that change along the path" in one for one in bent.evidence.objections)
