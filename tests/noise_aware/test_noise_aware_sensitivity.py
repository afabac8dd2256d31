"""A noise-aware release: one record moves it by no more than is charged, and its noise is what is charged."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import expit, softmax

import dpmcmc
from dpmcmc.data.structure import RowStructure
from dpmcmc.errors import DataError
from dpmcmc.inference.count_score import CLIPS
from dpmcmc.inference.scores import score_of
from dpmcmc.inference.softmax_score import Softmax
from dpmcmc.mechanisms import NoiseAware, SufficientStatistics
from dpmcmc.mechanisms.noise_aware import gradients
from dpmcmc.mechanisms.noise_aware.gradients import Design
from dpmcmc.mechanisms.noise_aware.regression_plan import MOST_RELEASED
from dpmcmc.privacy.accounting import ADJACENCIES, Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query import gram_release
from dpmcmc.targets import (
    Custom,
    LogisticRegression,
    NegativeBinomialRegression,
    PerOwner,
    PoissonRegression,
    SoftmaxRegression,
)
from tests.bounded_rows import Reading
from tests.noise_aware_tables import SCORE, M, linear, linear_table, logistic, owners_table, rows, table
from tests.releases import recorded


def replaced(adjacency):
    return adjacency == Adjacency.REPLACE_ONE


def gradient(adjacency):
    """A gradient moves by its clip norm, 1, and by 2 where a record is replaced."""
    return 2.0 if replaced(adjacency) else 1.0


def moment(adjacency, together=1):
    """A second moment of rows within 1 moves by 1, and by √2 where a record is replaced."""
    return together * (math.sqrt(2) if replaced(adjacency) else 1.0)


def gradients_of(steps=8):
    """Gradients where no curvature is released."""
    return lambda adjacency: [gradient(adjacency)] * steps


def path_of(steps=8, together=1, scale=None):
    """Whitened rows, gradients, a scale thrice among them, the curvature, the spread, its trace.

    An owner's rows have a leverage of at most 1 each, and share one clip norm.
    """
    third = steps - math.ceil(0.4 * steps)
    scales = {min(steps // 4, third - 2), min(int(0.45 * steps), third - 1), third}
    assert len(scales) == 3

    def moves(adjacency):
        out = [moment(adjacency, together)]
        for k in range(steps):
            if scale is not None and k in scales:
                out.append(together * scale(adjacency))
            out.append(gradient(adjacency))
        return [*out, moment(adjacency, together), moment(adjacency), 1.0]

    return moves


def residuals(adjacency):
    """Weights that are not negative and sum to 1."""
    return math.sqrt(2) if replaced(adjacency) else 1.0


def dispersions(adjacency):
    """A number within [−1/9, 1] for each of eleven candidates."""
    return math.sqrt(11) * (10 / 9 if replaced(adjacency) else 1.0)


def rows_of(together=1, *, trace=True):
    """A Gram matrix of rows within 1 moves by 1, and by √2 where a record is replaced; its trace by 1."""
    return lambda adjacency: [
        together * (math.sqrt(2) if replaced(adjacency) else 1.0),
        *([together] if trace or adjacency == Adjacency.ADD_REMOVE else []),
    ]


def statistics_of(together=1):
    """(svec G, Xᵀy/3) with labels within 3: a record adds √2 at most, and a replaced one moves it by 1.5·√2."""
    return lambda adjacency: [together * math.sqrt(2) * (1.5 if replaced(adjacency) else 1.0)]


def number_of_rows(adjacency):
    """An owner's place among those with so many rows."""
    return [math.sqrt(2) if replaced(adjacency) else 1.0]


def sum_of_rows(together=1):
    return lambda adjacency: [together * (2.0 if replaced(adjacency) else 1.0)]


def offsets(adjacency):
    """(o, o²) of an offset within ±1."""
    return [math.sqrt(5) if replaced(adjacency) else math.sqrt(2)]


POISSON = PoissonRegression(prior_scale=1.0, num_features=4, row_bound=1.0)
SOFTMAX = SoftmaxRegression(prior_scale=1.0, num_classes=3, num_features=4, row_bound=1.0)
UNIT_NORM, INTERCEPT = RowStructure(unit_norm=True), RowStructure(constant=0)
SANDWICH = {"covariance": "sandwich", "steps": 8}
#: Rows of so many features have more numbers than a curvature is released for.
MANY = MOST_RELEASED // 3 + 1
#: A target, what the mechanism is told, and sensitivities of its releases in their order, written out by hand; b = 1.
CHARGED = {
    "logistic": (logistic(4), {}, [rows_of(), path_of(NoiseAware().steps)]),
    "logistic, sandwich": (logistic(4), SANDWICH, [rows_of(), path_of()]),
    "offset": (dataclasses.replace(logistic(4), offset_bound=2.0), SANDWICH, [rows_of(), offsets, path_of()]),
    "unit norm": (logistic(4), {"structure": UNIT_NORM, "steps": 8}, [rows_of(trace=False), path_of()]),
    "softmax": (SOFTMAX, {"steps": 8}, [rows_of(), path_of()]),
    "softmax, many": (
        dataclasses.replace(SOFTMAX, num_features=MANY),
        {"steps": 8},
        [rows_of(), gradients_of()],
    ),
    "counts": (POISSON, {"steps": 8}, [rows_of(), sum_of_rows(), path_of()]),
    "counts, sandwich": (POISSON, SANDWICH, [rows_of(), sum_of_rows(), path_of(scale=dispersions)]),
    "intercept": (POISSON, {"structure": INTERCEPT, "steps": 8}, [rows_of(), path_of()]),
    "linear": (linear(4), {}, [statistics_of()]),
    "linear, sandwich": (linear(4), SANDWICH, [rows_of(), path_of(scale=residuals)]),
    "linear, few gradients": (
        linear(4),
        {"steps": 4, "covariance": "sandwich"},
        [rows_of(), path_of(4, scale=residuals)],
    ),
    "owners": (PerOwner(logistic(4), M), {"steps": 8}, [rows_of(M), number_of_rows, path_of(together=M)]),
    "owners of counts": (
        PerOwner(POISSON, M),
        {"steps": 8},
        [rows_of(M), sum_of_rows(M), number_of_rows, path_of(together=M)],
    ),
    "owners, linear": (PerOwner(linear(4), M), {}, [statistics_of(M)]),
    "owners, sandwich": (
        PerOwner(linear(4), M),
        SANDWICH,
        [rows_of(M), number_of_rows, path_of(together=M, scale=residuals)],
    ),
    "owners of counts, sandwich": (
        PerOwner(POISSON, M),
        SANDWICH,
        [rows_of(M), sum_of_rows(M), number_of_rows, path_of(together=M, scale=dispersions)],
    ),
}


def spent(name, adjacency, monkeypatch):
    """μ of the noise that a draw adds, and the guarantee that is stated."""
    target, told, moves = CHARGED[name]
    plan = NoiseAware(**told).plan(target, num_records=300, epsilon=0.7, delta=1e-5, adjacency=adjacency)
    size = target.target.num_features if isinstance(target, PerOwner) else target.num_features
    records = owners_table(300, 4, 0)[0] if "owners" in name else table(300, size, 0)[0]
    if name == "offset":
        records["offset"] = np.linspace(-2, 2, 300)
    seen = recorded(monkeypatch)
    dpmcmc.sample(plan, records, key=0)
    stds = np.array([std for std, _ in seen])
    expected = np.concatenate([part(adjacency) for part in moves])
    assert len(stds) == len(expected)
    if name == "softmax, many":
        assert {size for _, size in seen[2:]} == {MANY * 3}, "a gradient has a number for each feature of each class"
    return math.sqrt(np.sum((expected / stds) ** 2)), plan.guarantee


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", CHARGED)
def test_noise_that_is_added_is_noise_that_is_charged(name, adjacency, monkeypatch):
    mu, guarantee = spent(name, adjacency, monkeypatch)
    assert mu == pytest.approx(gaussian_mu(0.7, 1e-5), rel=2e-4)
    assert mu <= gaussian_mu(0.7, 1e-5)
    assert 0.699 < guarantee.epsilon <= 0.7


def test_an_owner_who_is_charged_as_one_record_is_caught(monkeypatch):
    whole = gram_release.RowFacts.moved
    as_one = lambda self, adjacency: whole(self._replace(together=1), adjacency)  # noqa: E731
    monkeypatch.setattr(gram_release.RowFacts, "moved", as_one)
    mu, _ = spent("owners", Adjacency.REPLACE_ONE, monkeypatch)
    assert mu > 1.5 * gaussian_mu(0.7, 1e-5)


class Family(NamedTuple):
    """A score, labels that a record may have, and the score that has no bound, for a planted fault."""

    score: Any
    labels: tuple[float, ...]
    unbounded: Callable[[np.ndarray, np.ndarray], np.ndarray]


COUNTS = (0.0, 7.0, 1e12, np.nan)
#: Exact sums lie no farther apart than they are charged for; the test subtracts and measures them in float64.
EPSILON = 1e-12
NEGATIVE_BINOMIAL = NegativeBinomialRegression(prior_scale=1.0, dispersion=0.5, num_features=4, row_bound=1.0)


def of_counts(target, clip):
    score = dataclasses.replace(score_of(target), clip=clip)
    return Family(score, COUNTS, lambda eta, y: np.exp(np.minimum(eta, 8)) - y)


FAMILIES = {
    "logistic": Family(SCORE, (0.0, 1.0), lambda eta, y: expit(eta) - y),
    "softmax": Family(Softmax(3), (0.0, 1.0, 2.0), lambda eta, y: softmax(eta, axis=1) - (np.arange(3) == y[:, None])),
    **{f"poisson, clip {clip}": of_counts(POISSON, clip) for clip in CLIPS},
    **{f"negative binomial, clip {clip}": of_counts(NEGATIVE_BINOMIAL, clip) for clip in CLIPS},
}


def farthest(family):
    """Farthest that whitened sums lie apart of tables that differ in one record, and of tables with and without it.

    Positions are near and far; the record's row is at the bound in several directions, or zero.
    """
    n, d, rng = 60, 5, np.random.default_rng(0)
    x, y = rows(n, d, rng), rng.choice(family.labels[:2], size=n)
    design = Design(n, d, 1.0, 30 * math.sqrt(d * family.score.size))
    corner, unit = np.full(d, 1 / math.sqrt(d)), np.eye(d)
    gram, apart, alone = x.T @ x, 0.0, 0.0
    for scale in (0.0, 1.0, 30.0):
        theta = scale * rng.normal(size=d * family.score.size)

        def total(x, y, theta=theta):
            return Reading.of(gram, design, family.score, x, y).sum(theta)

        sums = []
        for row, label in itertools.product((corner, -corner, 0 * corner, unit[0], -unit[0], unit[1]), family.labels):
            sums.append(total(np.concatenate([row[None], x[1:]]), np.concatenate([[label], y[1:]])))
        apart = max(apart, *(float(np.linalg.norm(one - two)) for one, two in itertools.combinations(sums, 2)))
        without = total(x[1:], y[1:])
        alone = max(alone, *(float(np.linalg.norm(one - without)) for one in sums))
    return apart, alone


@pytest.mark.parametrize("name", FAMILIES)
def test_one_record_moves_the_whitened_gradient_by_at_most_its_clip_norm(name, monkeypatch):
    """Twice as far where it is replaced, and nearly so far."""
    family = FAMILIES[name]
    apart, alone = farthest(family)
    assert 1.2 < apart <= 2 + EPSILON
    assert 0.6 < alone <= 1 + EPSILON
    monkeypatch.setattr(gradients, "within_limit", lambda scores, limit: np.nan_to_num(scores))
    monkeypatch.setattr(gradients, "whole_within", lambda numbers, most: np.rint(np.clip(numbers, -(2**44), 2**44)))
    assert farthest(family)[0] <= 2 + 1e-9, "the score is bounded without the clips behind it"
    monkeypatch.setattr(type(family.score), "residual", lambda self, eta, y, limit: family.unbounded(eta, y))
    assert farthest(family)[0] > 2 + 1e-3, "planted: no bound"


def test_the_bound_of_the_gradient_is_attained():
    """One row under either label, at even odds: its scores are C and −C."""
    d = 3
    design, x = Design(2, d, 1.0, 30 * math.sqrt(d)), np.zeros((2, d))
    x[0, 0] = 1.0
    totals = [
        Reading.of(2 * np.eye(d) / d, design, SCORE, x, np.array([label, 0.0])).sum(np.zeros(d)) for label in (0.0, 1.0)
    ]
    assert 1.99 < np.linalg.norm(totals[0] - totals[1]) <= 2 + EPSILON


def test_the_hard_clip_stands_behind_the_weights():
    """A label that no weight expects, and a norm that is a hundredth of the true one."""
    x, y, d = np.eye(3)[:2], np.array([40.0, 0.0]), 3
    access = Reading.of(2 * np.eye(d) / d, Design(2, d, 1.0, 30 * math.sqrt(d)), SCORE, x, y)
    without = dataclasses.replace(access, records={"x": x, "y": np.array([0.0, 0.0])})
    assert np.linalg.norm(access.sum(np.zeros(d)) - without.sum(np.zeros(d))) <= 2 + 1e-9


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("mechanism", [NoiseAware(), SufficientStatistics()])
def test_the_smallest_integer_is_no_label_within_a_bound(dtype, mechanism):
    records, _ = linear_table(50, 2, 0)
    records["y"] = np.clip(records["y"], -3, 3).astype(dtype)
    records["y"][3] = np.iinfo(dtype).min
    with pytest.raises(DataError, match="some labels are beyond the public label_bound") as caught:
        dpmcmc.sample(mechanism.plan(linear(2), num_records=50, epsilon=1.0, delta=1e-3), records)
    assert caught.value.rows == (3,)


def test_a_row_beyond_its_bound_is_refused_before_anything_is_computed():
    records, _ = table(50, 4, 0)
    records["x"][7] *= 10
    with pytest.raises(DataError, match="some rows have a norm beyond the public row_bound") as caught:
        dpmcmc.sample(NoiseAware().plan(logistic(4), num_records=50, epsilon=1.0, delta=1e-3), records)
    assert caught.value.rows == (7,)


def test_other_targets_and_missing_bounds_are_refused():
    promise = {"num_records": 100, "epsilon": 1.0, "delta": 1e-4}
    with pytest.raises(ValueError, match="noise_aware is derived for"):
        NoiseAware().plan(Custom(lambda key: 0.0, lambda p: 0.0, lambda p, r: 0.0), **promise)
    with pytest.raises(ValueError, match="row_bound"):
        NoiseAware().plan(LogisticRegression(num_features=2), **promise)
    with pytest.raises(ValueError, match="column 9"):
        NoiseAware(structure=RowStructure(constant=9)).plan(logistic(3), **promise)


def test_a_sandwich_of_many_coefficients_is_refused_with_the_reason():
    target = dataclasses.replace(SOFTMAX, num_features=MANY)
    with pytest.raises(ValueError, match=f"the spread of {3 * MANY} numbers would be noise"):
        NoiseAware(covariance="sandwich").plan(target, num_records=100, epsilon=1.0, delta=1e-4)
