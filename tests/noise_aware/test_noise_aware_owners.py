"""Noise-aware posteriors of owners with several rows: sensitivities, neighbours, padding and coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit

import dpmcmc
from dpmcmc.inference.scores import score_of
from dpmcmc.mechanisms import NoiseAware, statistics
from dpmcmc.mechanisms.noise_aware.gradients import Design
from dpmcmc.mechanisms.rows import Rows
from dpmcmc.privacy.query.record_sums import Whole
from dpmcmc.targets.per_owner import PerOwner
from tests.bounded_rows import Reading
from tests.noise_aware_tables import M, assert_covers, linear, logistic, owners_table, rows


def neighbours(num_owners, d, seed):
    """Rows of owners in pairs of tables that differ in the first owner's, far ones and fewer among them."""
    records, _ = owners_table(num_owners, d, seed)
    corner, unit = np.full(d, 1 / math.sqrt(d)), np.eye(d)
    for row, label, count in ((corner, 1, M), (-corner, 0, M), (unit[0], 1, M), (unit[1], 0, M), (corner, 0, 1)):
        sides = []
        for own, y, k in ((unit[0], 0, M), (row, label, count)):
            other = {name: leaf.copy() for name, leaf in records.items()}
            other["x"][0], other["y"][0], other["mask"][0] = own, y, np.arange(M) < k
            sides.append(other)
        yield sides


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "planted: every row has the whole clip norm"])
def test_replaced_owners_move_the_whitened_gradient_by_at_most_2c(shared, monkeypatch):
    whole = Rows.__call__
    if not shared:
        alone = lambda self, records: {**(made := whole(self, records)), "sharers": np.ones_like(made["y"])}  # noqa: E731
        monkeypatch.setattr(Rows, "__call__", alone)
    d, rng, worst = 5, np.random.default_rng(0), 0.0
    design, score = Design(60 * M, d, 1.0, 30 * math.sqrt(d)), score_of(logistic(d))
    for scale in (0.0, 1.0, 30.0):
        for sides in neighbours(60, d, 1):
            flat = np.where(sides[0]["mask"][..., None], sides[0]["x"], 0.0).reshape(-1, d)
            theta = scale * rng.normal(size=d)
            # C is that of one row, so that limits bind.
            sums = [Reading.of(flat.T @ flat, design, score, **side).sum(theta) for side in sides]
            worst = max(worst, float(np.linalg.norm(sums[0] - sums[1])))
    assert (worst <= 2 + 1e-12) == shared
    assert worst > 0.5, "the neighbours try nothing"


def statistics_of(records, weight):
    rows = Rows(None, 1.0)
    return statistics.statistics(*rows.with_labels(Whole(records).prepared(rows), 3.0), weight).floats


def test_replaced_owners_move_statistics_by_at_most_what_is_charged():
    worst = np.zeros(2)
    for one, two in neighbours(20, 4, 2):
        totals = [statistics_of({**side, "y": 3 * np.sign(side["y"] - 0.5)}, 1 / 3) for side in (one, two)]
        zeros = [statistics_of({**side, "y": np.zeros(side["y"].shape)}, 0.0) for side in (one, two)]
        moved = [float(np.linalg.norm(np.subtract(*pair))) for pair in (totals, zeros)]
        worst = np.maximum(worst, moved)
    assert worst[0] <= M * 1.5 * math.sqrt(2) * (1 + 1e-9)
    assert M < worst[1] <= M * math.sqrt(2) * (1 + 1e-6)
    same, other = np.zeros((2, M, 2))
    same[:, 0] = other[:, 1] = 1.0
    apart = same.T @ same - other.T @ other
    assert np.linalg.norm(apart) == pytest.approx(M * math.sqrt(2)), "the bound is attained"


def test_scores_of_owners_have_mean_zero_at_the_truth():
    """The mean over labels of one owner's sum, at a limit that binds."""
    rng, d = np.random.default_rng(3), 3
    x, theta = rows(M, d, rng), 4 * rng.normal(size=d)
    p, score, mean, worst = expit(x @ theta), score_of(logistic(d)), np.zeros(d), 0.0
    design = Design(M, d, 1.0, 100.0)
    for number in range(2**M):
        y = (number >> np.arange(M)) & 1
        chance = float(np.prod(np.where(y == 1, p, 1 - p)))
        total = Reading.of(x.T @ x, design, score, x[None], y[None], mask=np.ones((1, M), bool)).sum(theta)
        mean, worst = mean + chance * total, max(worst, float(np.linalg.norm(total)))
    assert np.abs(mean).max() < 1e-6
    assert 0.3 < worst <= 1 + 1e-9


def test_padding_contributes_nothing_and_owners_of_one_row_are_records():
    target = PerOwner(logistic(3), M)
    plan = NoiseAware(draws=10, steps=4).plan(target, num_records=100, epsilon=1.0, delta=1e-4)
    records, _ = owners_table(100, 3, 0)
    rubbish = {name: leaf.copy() for name, leaf in records.items()}
    rubbish["x"][~records["mask"]], rubbish["y"][~records["mask"]] = 0.5, 1
    np.testing.assert_array_equal(dpmcmc.sample(plan, records, key=0).draws, dpmcmc.sample(plan, rubbish, key=0).draws)
    x, y = records["x"][:, 0], records["y"][:, 0]
    one = {"x": x[:, None], "y": y[:, None], "mask": np.ones((100, 1), bool)}
    plans = [
        NoiseAware(draws=10, steps=4).plan(of, num_records=100, epsilon=1.0, delta=1e-4)
        for of in (logistic(3), PerOwner(logistic(3), 1))
    ]
    draws = [dpmcmc.sample(p, r, key=0).draws for p, r in zip(plans, ({"x": x, "y": y}, one), strict=True)]
    np.testing.assert_array_equal(*draws)


def test_a_plan_for_owners_says_whom_it_protects_and_what_it_supposes():
    target = PerOwner(logistic(3), M)
    plan = NoiseAware().plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
    assert plan.usable_for == ["prediction", "intervals"]
    assert "independent given the parameters" in plan.verdict.reasons["intervals"]
    assert "owner (at most 4 rows)" in plan.target.unit
    with pytest.raises(ValueError, match="records_per_owner: PerOwner needs it"):
        NoiseAware().plan(PerOwner(logistic(3)), num_records=1000, epsilon=1.0, delta=1e-5)
    records, _ = owners_table(1000, 3, 0)
    records["mask"][0], records["x"][0, 2] = True, [2.0, 0, 0]
    with pytest.raises(ValueError, match="some rows have a norm beyond the public row_bound"):
        dpmcmc.sample(plan, records, key=0)


def covered(mechanism, target, tables, num_owners, epsilon=1.0, effect=0.0):
    """Share of coordinates of truths within 90 % intervals, and its standard error over tables."""
    plan = mechanism.plan(PerOwner(target, M), num_records=num_owners, epsilon=epsilon, delta=1e-6)
    inside = []
    for seed in range(tables):
        records, truth = owners_table(num_owners, target.num_features, seed, target, effect)
        low, high = np.quantile(dpmcmc.sample(plan, records, key=seed).draws[0], [0.05, 0.95], axis=0)
        inside.append(np.mean((low < truth) & (truth < high)))
    return float(np.mean(inside)), float(np.std(inside) / math.sqrt(tables))


@pytest.mark.slow
def test_intervals_of_a_logistic_regression_of_owners_cover():
    """2,000 owners of 1 to 4 rows, d = 6, ε = 1; 80 tables gave .900 ± .018."""
    assert_covers(covered(NoiseAware(draws=400), logistic(6), 40, 2000))


@pytest.mark.slow
def test_intervals_of_a_linear_regression_of_owners_cover():
    """As above; 40 tables gave .912 ± .024."""
    assert_covers(covered(NoiseAware(draws=400), linear(6), 40, 5000))


@pytest.mark.slow
def test_effects_of_owners_need_the_sandwich():
    """An intercept of sd 1 of each owner's own: records of one owner depend on each other."""
    target = linear(4)
    share, error = covered(NoiseAware(draws=400), target, 40, 20_000, 10.0, effect=1.0)
    assert share + 3 * error < 0.86, (share, error)
    assert_covers(covered(NoiseAware(draws=400, covariance="sandwich"), target, 40, 20_000, 10.0, effect=1.0))
