"""A noise-aware release: one record moves it by no more than is charged, and its noise is what is charged."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from dpmcmc.data.schema import RowStructure
from dpmcmc.errors import DataError
from dpmcmc.inference.scores import Logistic
from dpmcmc.mechanisms import NoiseAware, SufficientStatistics, release
from dpmcmc.mechanisms.noise_aware import gradients
from dpmcmc.mechanisms.noise_aware.gradients import BoundedGradient, Design
from dpmcmc.mechanisms.sufficient import residual_scores, statistics
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query import gaussian_release
from dpmcmc.targets import Custom, LogisticRegression
from tests.noise_aware_tables import SCORE, linear, linear_table, logistic, neighbours, table
from tests.releases import released_stds


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("structure", [None, RowStructure(unit_norm=True)], ids=["plain", "unit norm"])
def test_noise_that_is_added_to_logistic_regression_is_noise_that_is_charged(adjacency, structure, monkeypatch):
    """μ from the noise that a draw adds and sensitivities written out by hand, b = 1."""
    n, d = 300, 4
    plan = NoiseAware(structure=structure).plan(
        logistic(d), num_records=n, epsilon=0.7, delta=1e-5, adjacency=adjacency
    )
    records, _ = table(n, d, 0)
    stds = released_stds(plan, records, monkeypatch)
    one = adjacency != "replace_one"
    known = structure is not None and adjacency != "add_remove"
    moves = np.array([1 if one else math.sqrt(2), *([] if known else [1.0]), *[1.0 if one else 2.0] * 48])
    assert len(stds) == len(moves)
    mu = math.sqrt(np.sum((moves / stds) ** 2))
    assert mu == pytest.approx(gaussian_mu(0.7, 1e-5), rel=2e-4)
    assert mu <= gaussian_mu(0.7, 1e-5)
    assert 0.699 < plan.guarantee.epsilon <= 0.7


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_noise_that_is_added_to_linear_regression_is_noise_that_is_charged(adjacency, monkeypatch):
    """(svec G, Xᵀy/3) with labels within 3: a record adds √2 at most, and a replaced one moves it by 1.5·√2."""
    plan = NoiseAware().plan(linear(4), num_records=300, epsilon=0.7, delta=1e-5, adjacency=adjacency)
    (std,) = released_stds(plan, linear_table(300, 4, 0)[0], monkeypatch)
    moves = 1.5 if adjacency == "replace_one" else 1.0
    assert moves * math.sqrt(2) / std == pytest.approx(gaussian_mu(0.7, 1e-5), rel=2e-4)
    assert moves * math.sqrt(2) / std <= gaussian_mu(0.7, 1e-5)


@pytest.mark.parametrize("position_scale", [0.0, 1.0, 30.0])
def test_replaced_records_move_the_whitened_gradient_by_at_most_2c(position_scale):
    d, rng = 5, np.random.default_rng(0)
    design = Design(60, d, 1.0, 30 * math.sqrt(d))
    worst = 0.0
    for (x, y), (other_x, other_y) in neighbours(60, d, 1):
        gram, theta = x.T @ x, position_scale * rng.normal(size=d)
        one = BoundedGradient.of(gram, design, SCORE, x, y).sum(theta)
        two = BoundedGradient.of(gram, design, SCORE, other_x, other_y).sum(theta)
        worst = max(worst, float(np.linalg.norm(one - two)))
    assert worst <= 2 + 2 * design.rounding(SCORE)
    assert worst > 0.3, "the neighbours try nothing"


def test_the_bound_of_the_gradient_is_attained():
    """One row under either label, at even odds: its scores are C and −C."""
    d = 3
    design, x = Design(2, d, 1.0, 30 * math.sqrt(d)), np.zeros((2, d))
    x[0, 0] = 1.0
    totals = [
        BoundedGradient.of(2 * np.eye(d) / d, design, SCORE, x, np.array([label, 0.0])).sum(np.zeros(d))
        for label in (0.0, 1.0)
    ]
    assert 1.99 < np.linalg.norm(totals[0] - totals[1]) <= 2 + 2 * design.rounding(SCORE)


def test_a_clip_that_is_dropped_is_caught(monkeypatch):
    monkeypatch.setattr(gradients, "within_limit", lambda scores, limit: scores)
    monkeypatch.setattr(Logistic, "weight", lambda self, eta, limit: np.ones_like(eta))
    with pytest.raises(AssertionError):
        test_replaced_records_move_the_whitened_gradient_by_at_most_2c(1.0)


def test_replaced_records_move_the_gram_matrix_by_at_most_root_2():
    worst = 0.0
    for (x, _), (other, _) in neighbours(40, 4, 2):
        zeros = np.zeros(len(x))
        worst = max(worst, float(np.linalg.norm(statistics(x, zeros, 0.0) - statistics(other, zeros, 0.0))))
    assert worst <= math.sqrt(2) * (1 + 1e-9)
    orthogonal = statistics(np.eye(2)[:1], np.zeros(1), 0.0) - statistics(np.eye(2)[1:], np.zeros(1), 0.0)
    assert np.linalg.norm(orthogonal) == pytest.approx(math.sqrt(2)), "without the root of 2 the charge is too small"


def test_a_record_adds_at_most_its_clip_norm_and_the_square_of_its_norm():
    """add_remove and zero_out: a sum with and without the first record."""
    d, rng = 4, np.random.default_rng(8)
    design = Design(51, d, 1.0, 30 * math.sqrt(d))
    for (x, y), _ in neighbours(50, d, 3):
        x[0] /= max(np.linalg.norm(x[0]), 1e-9)
        gram, theta = x.T @ x, rng.normal(size=d)
        with_, without = (BoundedGradient.of(gram, design, SCORE, x[k:], y[k:]).sum(theta) for k in (0, 1))
        assert np.linalg.norm(with_ - without) <= 1 + design.rounding(SCORE)
        svec = [statistics(x[k:], np.zeros(50 - k), 0.0) for k in (0, 1)]
        assert np.linalg.norm(svec[0] - svec[1]) <= 1 + 1e-9


def test_the_hard_clip_stands_behind_the_weights():
    """A label that no weight expects, and a norm that is a hundredth of the true one."""
    x, y, d = np.eye(3)[:2], np.array([40.0, 0.0]), 3
    access = BoundedGradient.of(2 * np.eye(d) / d, Design(2, d, 1.0, 30 * math.sqrt(d)), SCORE, x, y)
    without = dataclasses.replace(access, y=np.array([0.0, 0.0]))
    assert np.linalg.norm(access.sum(np.zeros(d)) - without.sum(np.zeros(d))) <= 2 + 1e-9


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("mechanism", [NoiseAware(), SufficientStatistics()])
def test_the_smallest_integer_is_no_label_within_a_bound(dtype, mechanism):
    records, _ = linear_table(50, 2, 0)
    records["y"] = np.clip(records["y"], -3, 3).astype(dtype)
    records["y"][3] = np.iinfo(dtype).min
    with pytest.raises(DataError, match="some labels are beyond the public label_bound") as caught:
        release(mechanism.plan(linear(2), num_records=50, epsilon=1.0, delta=1e-3), records)
    assert caught.value.rows == (3,)


def test_a_row_beyond_its_bound_is_refused_before_anything_is_computed():
    records, _ = table(50, 4, 0)
    records["x"][7] *= 10
    with pytest.raises(DataError, match="some rows have a norm beyond the public row_bound") as caught:
        release(NoiseAware().plan(logistic(4), num_records=50, epsilon=1.0, delta=1e-3), records)
    assert caught.value.rows == (7,)


def test_other_targets_and_missing_bounds_are_refused():
    promise = {"num_records": 100, "epsilon": 1.0, "delta": 1e-4}
    with pytest.raises(ValueError, match="noise_aware is derived for"):
        NoiseAware().plan(Custom(lambda key: 0.0, lambda p: 0.0, lambda p, r: 0.0), **promise)
    with pytest.raises(ValueError, match="row_bound"):
        NoiseAware().plan(LogisticRegression(num_features=2), **promise)
    with pytest.raises(ValueError, match="column 9"):
        NoiseAware(structure=RowStructure(constant=9)).plan(logistic(3), **promise)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_sandwich_is_charged_with_the_rest(adjacency, monkeypatch):
    """Statistics as above, then Σ r² x xᵀ and its trace with |r|·‖x‖ <= 3, by hand."""
    plan = NoiseAware(covariance="sandwich").plan(
        linear(4), num_records=300, epsilon=0.7, delta=1e-5, adjacency=adjacency
    )
    stds = released_stds(plan, linear_table(300, 4, 0)[0], monkeypatch)
    moves = np.array([1.5 * math.sqrt(2), 9 * math.sqrt(2), 9] if adjacency == "replace_one" else [math.sqrt(2), 9, 9])
    mu = math.sqrt(np.sum((moves / stds) ** 2))
    assert mu == pytest.approx(gaussian_mu(0.7, 1e-5), rel=2e-4)
    assert mu <= gaussian_mu(0.7, 1e-5)
    assert 0.699 < plan.guarantee.epsilon <= 0.7


def test_replaced_records_move_the_second_moment_of_scores_by_at_most_root_2():
    """Labels at their bound and a position far from every record: residuals are clipped to the label's bound."""
    worst = 0.0
    for (x, y), (other_x, other_y) in neighbours(40, 4, 2):
        one, two = (
            gaussian_release.gram_of(residual_scores(a, 6 * b - 3, np.full(4, 9.0), 3.0), 3.0)
            for a, b in ((x, y), (other_x, other_y))
        )
        worst = max(worst, float(np.linalg.norm(one - two)))
    assert 4.0 < worst <= 9 * math.sqrt(2) * (1 + 1e-9)


def test_a_sandwich_of_a_logistic_regression_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="label-blind weights"):
        NoiseAware(covariance="sandwich").plan(logistic(2), num_records=100, epsilon=1.0, delta=1e-4)
