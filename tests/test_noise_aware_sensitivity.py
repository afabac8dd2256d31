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
from dpmcmc.targets import Custom, LogisticRegression, PerOwner, PoissonRegression, SoftmaxRegression
from tests.noise_aware_tables import SCORE, M, linear, linear_table, logistic, neighbours, owners_table, table
from tests.releases import recorded


def replaced(adjacency):
    return adjacency == Adjacency.REPLACE_ONE


def gradients_of(steps):
    """A gradient moves by its clip norm, 1, and by 2 where a record is replaced."""
    return lambda adjacency: [2.0 if replaced(adjacency) else 1.0] * steps


def rows_of(together=1, *, trace=True):
    """A Gram matrix of rows within 1 moves by 1, and by √2 where a record is replaced; its trace by 1."""
    return lambda adjacency: [
        together * (math.sqrt(2) if replaced(adjacency) else 1.0),
        *([together] if trace or adjacency == Adjacency.ADD_REMOVE else []),
    ]


def statistics_of(together=1):
    """(svec G, Xᵀy/3) with labels within 3: a record adds √2 at most, and a replaced one moves it by 1.5·√2."""
    return lambda adjacency: [together * math.sqrt(2) * (1.5 if replaced(adjacency) else 1.0)]


def sandwich_of(together=1):
    """Σ v vᵀ and its trace, ‖v‖ <= 3 for each row: |r|·‖x‖ with |r| <= 3."""
    largest = (3 * together) ** 2
    return lambda adjacency: [largest * (math.sqrt(2) if replaced(adjacency) else 1.0), largest]


def number_of_rows(adjacency):
    """An owner's place among those with so many rows."""
    return [math.sqrt(2) if replaced(adjacency) else 1.0]


def sum_of_rows(together=1):
    return lambda adjacency: [together * (2.0 if replaced(adjacency) else 1.0)]


POISSON = PoissonRegression(prior_scale=1.0, num_features=4, row_bound=1.0)
SOFTMAX = SoftmaxRegression(prior_scale=1.0, num_classes=3, num_features=4, row_bound=1.0)
UNIT_NORM, INTERCEPT = RowStructure(unit_norm=True), RowStructure(constant=0)
#: A target, what the mechanism is told, and sensitivities of its releases in their order, written out by hand; b = 1.
CHARGED = {
    "logistic": (logistic(4), {}, [rows_of(), gradients_of(48)]),
    "unit norm": (logistic(4), {"structure": UNIT_NORM, "steps": 4}, [rows_of(trace=False), gradients_of(4)]),
    "softmax": (SOFTMAX, {"steps": 4}, [rows_of(), gradients_of(4)]),
    "counts": (POISSON, {"steps": 4}, [rows_of(), sum_of_rows(), gradients_of(4)]),
    "intercept": (POISSON, {"structure": INTERCEPT, "steps": 4}, [rows_of(), gradients_of(4)]),
    "linear": (linear(4), {}, [statistics_of()]),
    "sandwich": (linear(4), {"covariance": "sandwich"}, [statistics_of(), sandwich_of()]),
    "owners": (PerOwner(logistic(4), M), {"steps": 4}, [rows_of(M), number_of_rows, gradients_of(4)]),
    "owners of counts": (
        PerOwner(POISSON, M),
        {"steps": 4},
        [rows_of(M), number_of_rows, sum_of_rows(M), gradients_of(4)],
    ),
    "owners, sandwich": (
        PerOwner(linear(4), M),
        {"covariance": "sandwich"},
        [statistics_of(M), sandwich_of(M)],
    ),
}


def spent(name, adjacency, monkeypatch):
    """μ of the noise that a draw adds, and the guarantee that is stated."""
    target, told, moves = CHARGED[name]
    plan = NoiseAware(**told).plan(target, num_records=300, epsilon=0.7, delta=1e-5, adjacency=adjacency)
    records = owners_table(300, 4, 0)[0] if "owners" in name else table(300, 4, 0)[0]
    seen = recorded(monkeypatch)
    release(plan, records, key=0)
    stds = np.array([std for std, _ in seen])
    expected = np.concatenate([part(adjacency) for part in moves])
    assert len(stds) == len(expected)
    if name == "softmax":
        assert {size for _, size in seen[2:]} == {4 * 3}, "a gradient has a number for each feature of each class"
    return math.sqrt(np.sum((expected / stds) ** 2)), plan.guarantee


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("name", CHARGED)
def test_noise_that_is_added_is_noise_that_is_charged(name, adjacency, monkeypatch):
    mu, guarantee = spent(name, adjacency, monkeypatch)
    assert mu == pytest.approx(gaussian_mu(0.7, 1e-5), rel=2e-4)
    assert mu <= gaussian_mu(0.7, 1e-5)
    assert 0.699 < guarantee.epsilon <= 0.7


def test_an_owner_who_is_charged_as_one_record_is_caught(monkeypatch):
    whole = gaussian_release.Rows.moved
    as_one = lambda self, adjacency: whole(self._replace(together=1), adjacency)  # noqa: E731
    monkeypatch.setattr(gaussian_release.Rows, "moved", as_one)
    mu, _ = spent("owners", Adjacency.REPLACE_ONE, monkeypatch)
    assert mu > 1.5 * gaussian_mu(0.7, 1e-5)


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
