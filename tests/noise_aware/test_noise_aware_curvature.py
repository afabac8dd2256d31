"""Curvature, spread and scale of a regression: no record moves them too far, and they are what they say."""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from dpmcmc.inference.count_score import Counts
from dpmcmc.inference.linear_score import Huber
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.normal_law import symmetric_noise
from dpmcmc.inference.softmax_score import Softmax
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.noise_aware import dispersion, metric, regression_plan, residuals
from dpmcmc.mechanisms.noise_aware.dispersion import Dispersion
from dpmcmc.mechanisms.noise_aware.gradients import Bounds, Design
from dpmcmc.mechanisms.noise_aware.residuals import Residuals
from dpmcmc.privacy.query.gram_release import svec
from dpmcmc.targets import LinearRegression, LogisticRegression, PerOwner, PoissonRegression, SoftmaxRegression
from tests.bounded_rows import Reading
from tests.noise_aware.test_count_scores import ETAS, chances
from tests.noise_aware_tables import M
from tests.one_shot_replay import charged, measured

D, OWNERS = 3, 6
FAMILIES: dict[str, Any] = {
    "logistic": Logistic(),
    "logistic, wide": Logistic(clip=3.0),
    "softmax": Softmax(3),
    "softmax, wide": Softmax(3, clip=3.0),
    "linear": Huber.of(0.2 / 1.645, 1.645),
    "poisson": Counts(),
    "negative binomial": Counts(0.5, clip=3.0),
}
#: Families whose curvature is released under add_remove, too.
BOUNDED = [name for name, score in FAMILIES.items() if not isinstance(score, Counts)]


class Owner(NamedTuple):
    """One record of the guarantee: ``count`` times one row."""

    row: np.ndarray
    label: float
    offset: float
    weight: float
    count: int


ROWS = [np.full(D, 1 / math.sqrt(D)), -np.full(D, 1 / math.sqrt(D)), np.eye(D)[0], -np.eye(D)[2], np.zeros(D)]
ROWS += [np.array([5e-324, -1e-200, 0.0])]
#: Some of them are labels that a model does not know.
LABELS = (0.0, 1.0, 2.0, np.nan, 1e300, -1e300)
TOLD = ((0.0, 1.0), (0.0, 0.3), (0.0, 1e-300), (0.0, 0.0), (700.0, 1.0), (-1e308, 1.0))


def access_of(score, owners, each):
    """The access to some owners of ``each`` rows at most, in one metric, in which a direction is weak."""
    design = Design(OWNERS * each, D, 1.0, 100.0, floor=1e-3)
    x, y, offset, weight, mask = (np.zeros((len(owners), each, *more)) for more in [(D,), *[()] * 4])
    for k, one in enumerate(owners):
        own = slice(0, one.count)
        x[k, own], y[k, own], offset[k, own], weight[k, own] = one.row, one.label, one.offset, one.weight
        mask[k, own] = 1.0
    gram = np.diag([0.6, 0.1, 1e-4]) * design.num_records
    made = Reading.of(gram, design, score, x, y, mask=mask, offset=offset, weight=weight)
    norm = made.access.norm
    clip = metric.clip_of(score, norm, design.longest)
    longest = metric.longest_row(norm, design.longest)
    leverage = score.leverage(clip, longest)
    # Below the family's own bound, as where a label is rare, so that weights keep it.
    return made.bounded(Bounds(clip, longest, 0.5 * leverage if math.isfinite(leverage) else clip * norm))


def sums(score, owners, each, theta):
    """Everything that noise is added to, by name."""
    access = access_of(score, owners, each)
    found = {
        "gradient": access.sum(theta),
        "whitened rows": svec(access.moment(0.7 * access.access.norm)),
        "curvature": svec(access.curvature(theta)),
        "spread": svec(access.spread(theta)),
        "expected spread": svec(access.expected_spread(theta)),
    }
    if score.size == 1:
        found["residuals"] = access.labels(theta, Residuals(1.0).statistic)
        found["dispersions"] = access.labels(theta, Dispersion().statistic)
    return found


def charges(each):
    """How far two tables may lie apart that differ in one owner, and tables with and without it."""
    many = math.sqrt(len(dispersion._CANDIDATES)) * each
    return {
        "gradient": (2.0, 1.0),
        "whitened rows": (math.sqrt(2) * each, 1.0 * each),
        "curvature": (math.sqrt(2) * each, 1.0 * each),
        "spread": (math.sqrt(2), 1.0),
        "expected spread": (math.sqrt(2), 1.0),
        "residuals": (math.sqrt(2) * each, 1.0 * each),
        "dispersions": (10 / 9 * many, many),
    }


@pytest.mark.parametrize("each", [1, M], ids=["records", "owners"])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_record_moves_a_sum_beyond_what_is_charged(name, each):
    """Replaced, added and removed ones: rows at the bound, zero and denormal, unknown labels, far offsets, weights."""
    score, rng = FAMILIES[name], np.random.default_rng(0)
    others = [Owner(rng.uniform(-0.5, 0.5, D), float(k % 2), 0.0, 1.0, 1 + k % each) for k in range(OWNERS - 1)]
    labels, told_of, counts = (LABELS, TOLD, (1,)) if each == 1 else ((0.0, 2.0, *LABELS[3:5]), TOLD[::2], (1, each))
    farthest = dict.fromkeys(charges(each), (0.0, 0.0))
    for theta in (np.zeros(D * score.size), 4 * rng.normal(size=D * score.size)):
        with np.errstate(all="ignore"):
            without = sums(score, others, each, theta)
            tables = [
                sums(score, [Owner(row, label, *told, count), *others], each, theta)
                for row, label, told, count in itertools.product(ROWS, labels, told_of, counts)
            ]
        for what, base in without.items():
            values = np.stack([table[what] for table in tables])
            assert np.isfinite(values).all()
            apart, alone = pdist(values).max(), np.linalg.norm(values - base, axis=1).max()
            farthest[what] = (max(farthest[what][0], apart), max(farthest[what][1], alone))
    for what, moved in farthest.items():
        most = charges(each)[what]
        assert moved[0] <= most[0] * (1 + 1e-9), what
        assert moved[1] <= most[1] * (1 + 1e-9), what
        if what in without:
            assert moved[0] > 0.01 * most[0], f"the tables do not try {what}"


PLANNED = {"prior_scale": 1.0, "num_features": D, "row_bound": 1.0}
TARGETS = {
    "logistic": (LogisticRegression(**PLANNED), "int8", (0, 1)),
    "softmax": (SoftmaxRegression(**PLANNED, num_classes=3), "int64", (0, 1, 2)),
    "linear": (LinearRegression(**PLANNED, noise_scale=0.5, label_bound=3.0), "float32", (3.0, -3.0, 1e-45)),
    "poisson": (PoissonRegression(**PLANNED), "float64", (0.0, 1e300, 2.0**53 + 2)),
}


def tables_of(name, dtype, each):
    """A table of records or owners, and tables whose first one is replaced."""
    rng, (target, kind, labels) = np.random.default_rng(0), TARGETS[name]
    shape = (40,) if each == 1 else (40, each)
    x = rng.uniform(-0.5, 0.5, (*shape, D)).astype(dtype)
    records = {"x": x, "y": rng.integers(0, 2, shape).astype(kind)}
    if each > 1:
        records["mask"] = np.ones(shape, bool)
    neighbours = []
    for row, label in itertools.product((0.999 * ROWS[0], -0.999 * ROWS[2], ROWS[4]), labels):
        neighbours.append({key: leaf.copy() for key, leaf in records.items()})
        neighbours[-1]["x"][0], neighbours[-1]["y"][0] = row, label
    if each > 1:
        neighbours[-1]["mask"][0, 1:] = False
    return (target if each == 1 else PerOwner(target, each)), records, neighbours


@pytest.mark.parametrize("each", [1, M], ids=["records", "owners"])
@pytest.mark.parametrize(("name", "dtype"), [*zip(TARGETS, ["float32", "float64", "float64", "float32"], strict=True)])
def test_a_replaced_record_costs_no_more_than_a_plan_with_a_sandwich_charges(name, dtype, each):
    """Whole runs: what follows a release is given the same release."""
    target, records, neighbours = tables_of(name, dtype, each)
    way = NoiseAware(draws=4, steps=8, covariance="sandwich")
    plan = way.plan(target, num_records=40, epsilon=0.5, delta=1e-5)
    found = measured(plan, records, *neighbours)
    assert 0.1 * charged(plan) < found <= charged(plan)


@pytest.mark.parametrize("each", [1, M], ids=["records", "owners"])
@pytest.mark.parametrize("name", TARGETS)
def test_a_replaced_record_with_an_offset_and_a_weight_costs_no_more_than_is_charged(name, each):
    if name == "softmax":
        pytest.skip("softmax regression has no offsets")
    _, records, neighbours = tables_of(name, "float64", each)
    model = dataclasses.replace(TARGETS[name][0], offset_bound=50.0, weight_scale=2.0)
    rng = np.random.default_rng(1)
    more = {"offset": rng.uniform(-1, 1, records["y"].shape), "weight": rng.uniform(0, 1, records["y"].shape)}
    tables = []
    for table, offset, weight in zip(neighbours, itertools.cycle((0.0, 50.0, -50.0)), itertools.cycle((1.0, 0.0, 0.3))):
        tables.append(table | {key: leaf.copy() for key, leaf in more.items()})
        tables[-1]["offset"][0], tables[-1]["weight"][0] = offset, weight
    way = NoiseAware(draws=4, steps=8, covariance="sandwich")
    plan = way.plan(model if each == 1 else PerOwner(model, each), num_records=40, epsilon=0.5, delta=1e-5)
    assert 0.05 * charged(plan) < measured(plan, records | more, *tables) <= charged(plan)


@pytest.mark.parametrize("each", [1, M], ids=["records", "owners"])
@pytest.mark.parametrize("name", TARGETS)
def test_intervals_of_every_family_with_a_sandwich_are_of_the_best_fitting_coefficients(name, each):
    target = TARGETS[name][0] if each == 1 else PerOwner(TARGETS[name][0], each)
    way = NoiseAware(covariance="sandwich")
    plan = way.plan(target, num_records=20_000, epsilon=1.0, delta=1e-6)
    assert plan.usable_for == ["prediction", "intervals"]
    assert "for the best-fitting coefficients" in plan.verdict.reasons["intervals"]
    released = {name for name in plan.settings if name.endswith("noise_std")}
    assert "whitened_noise_std" in released
    assert {"curvature_noise_std", "spread_noise_std", "spread_trace_noise_std"} <= released
    assert (regression_plan.SCALES[0] in released) == (name in ("linear", "poisson"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_beyond_the_longest_weighs_less_in_the_curvature_alone(name):
    """A weight in the score would move its zero where the model is wrong for long rows."""
    score, rng = FAMILIES[name], np.random.default_rng(4)
    rows = [np.array([0.0, 0.0, 1.0]), *(rng.normal(size=(6, D)) / 10)]
    access = access_of(score, [Owner(row, 0.0, 0.0, 1.0, 1) for row in rows], 1)
    open_ = access.bounded(access.access.bounds._replace(longest=1e6, leverage=1e3))
    assert access.rows.records["norm"][0, 0] > 2 * access.access.bounds.longest
    theta = 0.1 * rng.normal(size=D * score.size)
    np.testing.assert_array_equal(access.sum(theta), open_.sum(theta))
    np.testing.assert_array_equal(access.spread(theta), open_.spread(theta))
    less, full = (one.access.bounds.leverage * one.curvature(theta) for one in (access, open_))
    assert np.trace(less) < 0.9 * np.trace(full)
    assert np.linalg.eigvalsh(full - less)[0] > -1e-4 * np.trace(full)


@pytest.mark.parametrize("name", BOUNDED)
def test_no_row_within_the_longest_has_more_leverage_than_its_family_says(name):
    """Random rows, predictors and weights, under v‖z‖‖ψ‖ <= C; the bound is nearly attained."""
    score, rng, n = FAMILIES[name], np.random.default_rng(2), 20_000
    eta = rng.choice([0.0, 0.1, 1.0, 4.0], size=n)
    eta = eta * rng.normal(size=n) if score.size == 1 else eta[:, None] * rng.normal(size=(n, score.size))
    longest = np.exp(rng.uniform(-1, 3, n))
    norm = longest * rng.choice([1.0, 1.0, 0.3, 0.01], size=n)
    clip = longest * np.exp(rng.uniform(-3, 1, n))
    if isinstance(score, Huber):
        clip = score.bound * longest
    weight = rng.choice([1.0, 1.0, 0.2], size=n)
    y = rng.integers(0, score.size, n).astype(float) if score.size > 1 else eta + 0.2 * rng.normal(size=n)
    slope = score.slope(eta, y, clip / (weight * norm))
    trace = slope if slope.ndim == 1 else np.trace(slope, axis1=1, axis2=2)
    most = np.array([score.leverage(c, r) for c, r in zip(clip, longest, strict=True)])
    ratio = weight * trace * norm**2 / most
    assert 0.9 < ratio.max() <= 1 + 1e-12


@pytest.mark.parametrize("index", range(len(dispersion._CANDIDATES)))
def test_the_statistic_of_a_dispersion_has_mean_zero_at_the_true_one(index):
    """Exact sums over counts; it is within [−1/9, 1], whatever the count."""
    alpha = dispersion._CANDIDATES[index]
    for eta in ETAS[:-1]:
        count, chance = chances(alpha, eta)
        found = Dispersion().statistic(np.full(len(count), eta), count.astype(float))
        assert -1 / 9 <= found.min() <= found.max() <= 1
        assert abs(chance @ found[:, index]) < 1e-7
        # A smaller candidate than the truth leaves a positive mean, a larger one a negative; rare counts tell nothing.
        mean = chance @ found if eta > -1 else np.zeros(0)
        assert np.all(mean[:index] > 0)
        assert np.all(mean[index + 1 :] < 0)
    far = Dispersion().statistic(np.array([0.0, 1e300, np.nan]), np.array([1e300, np.nan, 0.0]))
    assert np.all((far >= -1 / 9) & (far <= 1))


def test_the_bound_of_residuals_is_their_quantile_and_their_shift_is_what_it_leaves_out():
    rng, n, found = np.random.default_rng(6), 40_000, Residuals(3.0)
    for law in (rng.normal(size=n), rng.laplace(size=n), rng.exponential(size=n) - 1):
        r = 0.15 * law
        candidates = found.learnt(found.statistic(np.zeros(n), r).sum(axis=0), 1e-3, n, np.ones(1))
        bounds = [one.score.bound for one in candidates]
        assert np.mean(np.abs(r) <= bounds[0]) == pytest.approx(0.9, abs=0.05)
        assert np.allclose(np.divide(bounds, bounds[0]), np.divide(residuals.BOUNDS_IN_STD, residuals.BOUNDS_IN_STD[0]))
        for one in candidates:
            left = np.mean(r - np.clip(r, -one.score.bound, one.score.bound))
            assert one.shift == pytest.approx(left, abs=4 * np.std(r) / math.sqrt(n))
            assert one.variance == pytest.approx(np.mean(np.minimum(np.abs(r), one.score.bound) ** 2), rel=0.2)
            far = np.abs(r) * (np.abs(r) > one.score.bound)
            # A law of the tail with two parameters, and a knot every quarter of a size.
            # It may be twice too large, which widens intervals, and hardly too small.
            assert 0.5 * np.mean(far) < one.mean_beyond + 0.02 * np.std(r)
            assert one.mean_beyond < 2.5 * np.mean(far) + 0.02 * np.std(r)
    learnt = candidates[0]
    assert learnt.shift > 3 * math.sqrt(learnt.shift_variance), "an exponential law is skewed"


def drawn(seed, deviation, noise_std, values=(400.0, 90.0, 25.0)):
    """(model, the matrix, its release): the matrix deviates from its model as :func:`corrected` takes it to."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    root = turn * np.sqrt(values)
    matrix = root @ (np.eye(3) + deviation * symmetric_noise(rng, 3)) @ root.T
    return turn * values @ turn.T, matrix, matrix + noise_std * symmetric_noise(rng, 3)
