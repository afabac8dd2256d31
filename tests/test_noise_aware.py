"""A noise-aware release: its sensitivities, its posterior against closed forms, and its coverage."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.special import expit

from dpmcmc.data.row_structure import RowStructure
from dpmcmc.inference import gram as gram_room
from dpmcmc.inference import noise_aware
from dpmcmc.inference.curvature import AverageLaw, ScoredRows, mean_row
from dpmcmc.inference.gram import shrunk
from dpmcmc.inference.noise_aware import Gaussian, Local, Release
from dpmcmc.inference.scores.logistic import Logistic
from dpmcmc.mechanisms import NoiseAware, SufficientStatistics, release
from dpmcmc.mechanisms.linear_statistics import residual_scores, split, statistics
from dpmcmc.mechanisms.noise_aware import bounded_gradient, score_moment
from dpmcmc.mechanisms.noise_aware.bounded_gradient import BoundedGradient, Design
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query import gram_release
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.targets import Custom, LinearRegression, LogisticRegression
from tests.releases import released_stds

SCORE = Logistic()


def logistic(d):
    return LogisticRegression(prior_scale=1.0, num_features=d, row_bound=1.0)


def linear(d, label_bound=3.0):
    return LinearRegression(prior_scale=1.0, noise_scale=0.5, label_bound=label_bound, num_features=d, row_bound=1.0)


def rows(n, d, rng):
    """Correlated rows of norm at most 1, half of them binary, with an intercept."""
    z = rng.normal(size=(n, d - 1)) @ (np.eye(d - 1) + rng.normal(size=(d - 1, d - 1)) / d)
    half = (d - 1) // 2
    z = np.concatenate([np.ones((n, 1)), z[:, :half] > 0, np.clip(z[:, half:], -3, 3) / 3], axis=1)
    return z / math.sqrt(d)


def table(n, d, seed):
    """(records, the truth, which is drawn from the prior)."""
    rng = np.random.default_rng(seed)
    x, truth = rows(n, d, rng), rng.normal(size=d)
    return {"x": x.astype(np.float32), "y": (rng.random(n) < expit(x @ truth)).astype(np.int32)}, truth


# --- privacy ---------------------------------------------------------------------------------------------------


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


def neighbours(n, d, seed):
    """A table, and tables that differ from it in the first record, far ones among them."""
    records, _ = table(n, d, seed)
    x, y = np.asarray(records["x"], np.float64), np.asarray(records["y"], np.float64)
    corner = np.full(d, 1 / math.sqrt(d))
    for row, label in ((corner, 1.0), (-corner, 0.0), (np.zeros(d), 0.0), (np.eye(d)[0], 1.0), (np.eye(d)[1], 0.0)):
        other = x.copy(), y.copy()
        other[0][0], other[1][0] = row, label
        yield (x, y), other


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
    monkeypatch.setattr(bounded_gradient, "within_limit", lambda scores, limit: scores)
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
    with pytest.raises(ValueError, match="row 3 is beyond the public label_bound"):
        release(mechanism.plan(linear(2), num_records=50, epsilon=1.0, delta=1e-3), records)


def test_a_row_beyond_its_bound_is_refused_before_anything_is_computed():
    records, _ = table(50, 4, 0)
    records["x"][7] *= 10
    with pytest.raises(ValueError, match="row 7 has norm"):
        release(NoiseAware().plan(logistic(4), num_records=50, epsilon=1.0, delta=1e-3), records)


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
            gram_release.gram_of(residual_scores(a, 6 * b - 3, np.full(4, 9.0), 3.0), 3.0)
            for a, b in ((x, y), (other_x, other_y))
        )
        worst = max(worst, float(np.linalg.norm(one - two)))
    assert 4.0 < worst <= 9 * math.sqrt(2) * (1 + 1e-9)


def test_a_sandwich_of_a_logistic_regression_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="label-blind weights"):
        NoiseAware(covariance="sandwich").plan(logistic(2), num_records=100, epsilon=1.0, delta=1e-4)


# --- unbiased scores -------------------------------------------------------------------------------------------


def mean_score(x, theta, weight):
    """E[Σ w (p − y) x | x] over labels that are made with θ; weight(p, y) -> (N,)."""
    p = expit(x @ theta)
    return sum(((chance * weight(p, y) * (p - y))[:, None] * x).sum(0) for y, chance in ((1.0, p), (0.0, 1 - p)))


def test_label_blind_weights_leave_the_score_unbiased_and_residual_clipping_does_not():
    rng = np.random.default_rng(3)
    x, theta = rows(200, 4, rng), 4 * rng.normal(size=4)
    norms, clip = np.linalg.norm(x, axis=1), 0.05

    def sees_the_label(p, y):
        return np.minimum(1.0, clip / (np.abs(p - y) * norms))

    assert np.abs(mean_score(x, theta, sees_the_label)).max() > 0.1
    # The mean over labels of what the mechanism sums, one record at a time.
    p, design = expit(x @ theta), Design(200, 4, 1.0, 30 * math.sqrt(4))
    mean = np.zeros(4)
    for label, chance in ((1.0, p), (0.0, 1 - p)):
        access = BoundedGradient.of(x.T @ x, design, SCORE, x, np.full(200, label))
        for k in range(200):
            alone = dataclasses.replace(access, x=x[k : k + 1], y=access.y[:1], row_norms=access.row_norms[k : k + 1])
            mean += chance[k] * alone.sum(theta)
    assert np.abs(mean).max() < 1e-9


def test_the_curvature_is_that_of_a_gaussian_design():
    """H against Σ w p(1 − p) x xᵀ, along θ and across it."""
    rng, d, n = np.random.default_rng(9), 3, 200_000
    x, theta = rng.normal(size=(n, d)), np.array([2.0, 0.0, 0.0])
    p = expit(x @ theta)
    weight = np.minimum(1, 0.6 / np.maximum(p, 1 - p))
    exact = (x * (weight * p * (1 - p))[:, None]).T @ x / n
    found = ScoredRows(SCORE, n * np.eye(d), n, np.zeros(d), 0.6, np.zeros_like).local(theta).curvature / n
    np.testing.assert_allclose(found, exact, atol=3e-3)
    law = AverageLaw.at(SCORE, 0.0, 4.0, limit=0.6)
    assert abs(law.curvature - exact[0, 0]) > 0.03, "the design does not show the term along θ"


def test_with_an_intercept_the_curvature_is_that_of_rows_about_their_mean():
    """Rows (½, z), z normal about (0.3, −0.2), and rare labels: the mean of the logits is not zero."""
    rng, n = np.random.default_rng(10), 400_000
    z = rng.multivariate_normal([0.3, -0.2], [[0.2, 0.1], [0.1, 0.3]], size=n)
    x, theta = np.concatenate([np.full((n, 1), 0.5), z], axis=1), np.array([-5.0, 1.0, 0.7])
    p = expit(x @ theta)
    weight = np.minimum(1, 0.6 / np.maximum(p, 1 - p))
    exact = (x * (weight * p * (1 - p))[:, None]).T @ x / n
    gram = x.T @ x
    mean = mean_row(gram, n, 0)
    np.testing.assert_allclose(mean, x.mean(0), atol=1e-9)
    found = ScoredRows(SCORE, gram, n, mean, 0.6, np.zeros_like).local(theta).curvature / n
    np.testing.assert_allclose(found, exact, atol=1e-3)
    assert not mean_row(gram, n, None).any()
    blind = ScoredRows(SCORE, gram, n, np.zeros(3), 0.6, np.zeros_like).local(theta).curvature / n
    assert np.abs(blind - exact).max() > 0.005, "the design does not show the mean row"


def test_a_weighted_mean_of_releases_is_the_posterior_of_all_of_them():
    """Two gradients of a known linear model, each with its own noise, and their mean say the same."""
    h, metric, stds = np.diag([2.0, 5.0]), np.diag([1.0, 3.0]), np.array([1.0, 2.0])
    positions, gradients = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[0.3, -1.0], [2.0, 0.7]])
    mean = noise_aware.weighted_mean(positions, gradients, stds**-2.0, metric)
    local = Local(h, np.zeros((2, 2)), np.zeros_like)
    found = noise_aware.posterior(mean, local, np.eye(2), Gaussian(np.zeros(2), np.eye(2)))
    precision, towards = np.eye(2), np.zeros(2)
    for position, gradient, std in zip(positions, gradients, stds, strict=True):
        information = h @ np.linalg.inv(std**2 * metric)
        precision, towards = precision + information @ h, towards + information @ (h @ position - gradient)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(precision), rtol=1e-9)
    np.testing.assert_allclose(found.mean, np.linalg.solve(precision, towards), rtol=1e-9)


def test_the_law_of_the_curvature_is_that_of_simulated_logits():
    rng = np.random.default_rng(4)
    z = 1.5 * rng.normal(size=400_000)
    law = AverageLaw.at(SCORE, 0.0, 1.5**2, limit=0.6)
    p = expit(z)
    w = np.minimum(1, 0.6 / np.maximum(p, 1 - p))
    assert law.curvature == pytest.approx(np.mean(w * p * (1 - p)), abs=2e-3)
    assert law.score == pytest.approx(np.mean(w**2 * p * (1 - p)), abs=2e-3)
    # Stein: E[h z²] = variance E[h] + variance² along
    assert np.mean(w * p * (1 - p) * z**2) == pytest.approx(2.25 * law.curvature + 2.25**2 * law.along, abs=5e-3)


# --- the Gram matrix -------------------------------------------------------------------------------------------


def test_projection_meets_what_is_declared_and_brings_the_gram_matrix_nearer():
    rng = np.random.default_rng(5)
    n, structure = 4000, RowStructure(constant=5, blocks=((0, 1, 2), (3, 4)), nonnegative=(), unit_norm=True)
    hot = np.concatenate([np.eye(3)[rng.integers(0, 3, n)], np.eye(2)[rng.integers(0, 2, n)], np.ones((n, 1))], axis=1)
    x = hot / np.sqrt(3)
    exact = x.T @ x
    noisy = exact + 150 * noise_aware.symmetric_noise(rng, 6)
    plain, declared = (gram_room.project(noisy, n, s) for s in (None, structure))
    assert np.linalg.norm(declared - exact) < 0.8 * np.linalg.norm(plain - exact) < np.linalg.norm(noisy - exact)
    assert np.trace(declared) == pytest.approx(n)
    assert np.linalg.eigvalsh(declared).min() > -1e-6 * n
    np.testing.assert_allclose(declared[0, 1], 0, atol=0.01 * n)
    np.testing.assert_allclose(declared[:3].sum(0), declared[5], atol=0.02 * n)
    np.testing.assert_allclose(gram_room.project(exact, n, structure), exact, atol=1e-6 * n)


def test_errors_of_noise_have_the_covariance_that_is_added():
    rng = np.random.default_rng(6)
    u = np.array([1.0, -2.0, 0.5])
    products = np.stack([noise_aware.symmetric_noise(rng, 3) @ u for _ in range(40_000)])
    expected = noise_aware.isotropic_error(1.0)(np.outer(u, u))
    np.testing.assert_allclose(np.cov(products.T), expected, atol=0.12)


# --- the posterior ---------------------------------------------------------------------------------------------


def linear_table(n, d, seed):
    rng = np.random.default_rng(seed)
    x, truth = rows(n, d, rng), rng.normal(size=d)
    y = x @ truth + 0.5 * rng.normal(size=n)
    return {"x": x.astype(np.float32), "y": np.clip(y, -3, 3).astype(np.float32)}, truth


def test_without_noise_the_posterior_of_linear_regression_is_the_conjugate_one():
    records, _ = linear_table(2000, 4, 0)
    target = linear(4)
    plan = NoiseAware(draws=20_000).plan(target, num_records=2000, epsilon=1e7, delta=1e-6, hardened=False)
    draws = release(plan, records, key=0).draws[0]
    mean, covariance = target.posterior(records)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.05 * sd.max())
    np.testing.assert_allclose(draws.std(0), sd, rtol=0.05)


def exact_law(gram, moment, gram_std, moment_std, score, truths):
    """Log density of θ given noisy G and Xᵀy with a flat prior on G, at ``truths`` (k, d).

    Gθ integrates in closed form: Xᵀy − G̃θ is normal with variance score + moment_std² + (gram_std²/2)(‖θ‖² + θθᵀ).
    """
    out = []
    for theta in truths:
        cov = score + moment_std**2 * np.eye(len(theta)) + noise_aware.isotropic_error(gram_std)(np.outer(theta, theta))
        left = moment - gram @ theta
        out.append(-0.5 * left @ np.linalg.solve(cov, left) - 0.5 * np.linalg.slogdet(cov)[1] - 0.5 * theta @ theta)
    return np.array(out)


def test_with_noise_its_standard_deviation_is_that_of_the_exact_law():
    """Importance sampling of the law of θ given the noisy statistics, d = 2."""
    records, _ = linear_table(3000, 2, 1)
    x, y = (np.asarray(records[name], np.float64) for name in ("x", "y"))
    rng = np.random.default_rng(2)
    std = 12.0
    gram, moment = split(statistics(x, y, 1.0) + std * rng.normal(size=5), 2, 1.0)
    local = Local(gram / 0.25, gram / 0.25, lambda q: noise_aware.isotropic_error(std)(q) / 0.25**2)
    seen = Release(np.zeros(2), -moment / 0.25, np.eye(2) * (std / 0.25) ** 2)
    prior = Gaussian(np.zeros(2), np.eye(2))
    ours = noise_aware.posterior(seen, local, np.eye(2), prior, rounds=12)
    wide = ours._replace(covariance=4 * ours.covariance)
    candidates = wide.draws(rng.normal(size=(20_000, 2)))
    away = candidates - ours.mean
    proposal = -0.5 * np.einsum("ki,ij,kj->k", away, np.linalg.inv(wide.covariance), away)
    log_weight = exact_law(gram, moment, std, std, 0.25 * gram, candidates) - proposal
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    assert 1 / np.sum(weight**2) > 1000
    mean = weight @ candidates
    sd = np.sqrt(weight @ (candidates - mean) ** 2)
    np.testing.assert_allclose(np.sqrt(np.diag(ours.covariance)), sd, rtol=0.05)
    np.testing.assert_allclose(ours.mean, mean, atol=0.1 * sd.max())


def covered(mechanism, target, make, epsilon, tables, n, level=0.9):
    """Share of coordinates of truths within central intervals, and its standard error over tables."""
    plan = mechanism.plan(target, num_records=n, epsilon=epsilon, delta=n**-1.2)
    inside = []
    for seed in range(tables):
        records, truth = make(n, target.num_features, seed)
        draws = release(plan, records, key=seed).draws[0]
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        inside.append(np.mean((low < truth) & (truth < high)))
    return float(np.mean(inside)), float(np.std(inside) / math.sqrt(tables))


def assert_covers(found):
    share, error = found
    assert 0.86 - 3 * error <= share <= 0.94 + 3 * error, found


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


def test_a_released_second_moment_is_brought_toward_the_models_as_far_as_its_noise_asks_for():
    model, truth = np.diag([1.0, 2.0, 3.0]) * 1000, np.diag([6.0, 1.0, 2.0]) * 1000
    rng = np.random.default_rng(0)
    for std, nearer in ((1.0, truth), (1e5, 1.5 * model)):
        noisy = NoisyGram(truth + std * noise_aware.symmetric_noise(rng, 3), std, 9000.0, 1.0)
        np.testing.assert_allclose(score_moment.toward(model, noisy), nearer, atol=10)


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
    wide = dataclasses.replace(own, intercept_scale=5.0)
    assert wide.plan(target, num_records=5000, epsilon=1.0, delta=1e-5).usable_for == ["prediction"]
    with pytest.raises(ValueError, match="intercept_scale: nothing declares"):
        NoiseAware(intercept_scale=4.0).plan(target, num_records=5000, epsilon=1.0, delta=1e-5)


def test_an_intercepts_prior_is_kept_in_linear_regression():
    """Without noise the posterior is the conjugate one under the prior diag(3², 1, 1, 1)."""
    records, _ = linear_table(300, 4, 0)
    mechanism = NoiseAware(draws=20_000, intercept_scale=3.0, structure=RowStructure(constant=0))
    draws = release(
        mechanism.plan(linear(4), num_records=300, epsilon=1e7, delta=1e-6, hardened=False), records, key=0
    ).draws[0]
    x, y = (np.asarray(records[name], np.float64) for name in ("x", "y"))
    covariance = np.linalg.inv(x.T @ x / 0.25 + np.diag([1 / 9, 1, 1, 1]))
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws.mean(0), covariance @ x.T @ y / 0.25, atol=0.05 * sd.max())
    np.testing.assert_allclose(draws.std(0), sd, rtol=0.05)


def simulated_coverage(believed, tables=400, d=4):
    """Coverage of 90 % intervals where H, score, noise and error of H are as equation (1) says.

    Args:
        believed: (Release, Local) -> (Release, Local), what the posterior takes them for.
    """
    rng, scale, std = np.random.default_rng(7), 0.25, 40.0
    gram, prior = 400 * np.eye(d), Gaussian(np.zeros(d), np.eye(d))
    noise, inside = 200 * np.eye(d), []
    for _ in range(tables):
        truth, estimate = rng.normal(size=d), gram + std * noise_aware.symmetric_noise(rng, d)
        local = Local(scale * estimate, scale * gram, lambda q: scale**2 * noise_aware.isotropic_error(std)(q))
        score = rng.multivariate_normal(np.zeros(d), local.score + noise)
        seen = Release(np.zeros(d), scale * gram @ -truth + score, noise)
        found = noise_aware.posterior(*believed(seen, local), np.eye(d), prior, rounds=12)
        inside.append(np.abs(found.mean - truth) < 1.6449 * np.sqrt(np.diag(found.covariance)))
    return float(np.mean(inside)), math.sqrt(0.09 / tables)


FAULTS = {
    "none": lambda seen, local: (seen, local),
    "no error of the Gram matrix": lambda seen, local: (seen, local._replace(curvature_error=np.zeros_like)),
    "c in the place of c²": lambda seen, local: (
        seen,
        local._replace(curvature_error=lambda q: local.curvature_error(q) / 0.25),
    ),
    "no noise": lambda seen, local: (seen._replace(noise=0 * seen.noise), local),
    "an eighth of the noise": lambda seen, local: (seen._replace(noise=seen.noise / 8), local),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_coverage_shows_a_constant_that_is_wrong(fault):
    share, error = simulated_coverage(FAULTS[fault])
    right = abs(share - 0.9) < 0.02 + error
    assert right == (fault == "none"), (share, error)


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
    strong = LogisticRegression(prior_scale=2.5, num_features=10, row_bound=1.0)
    for mechanism, target in ((NoiseAware(draws=20), None), (NoiseAware(steps=8), None), (NoiseAware(), strong)):
        few = mechanism.plan(target or logistic(10), num_records=10_000, epsilon=1.0, delta=1e-5)
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


def test_a_declared_norm_of_one_is_the_trace_whatever_the_row_bound():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3))
    records = {"x": (x / np.linalg.norm(x, axis=1)[:, None]).astype(np.float32), "y": (rng.random(4000) < 0.5) * 1}
    stds = []
    for structure in (None, RowStructure(unit_norm=True)):
        target = LogisticRegression(prior_scale=1.0, num_features=3, row_bound=2.0)
        plan = NoiseAware(structure=structure).plan(target, num_records=4000, epsilon=3.0, delta=1e-5)
        stds.append(release(plan, records, key=0).draws[0].std(0))
    np.testing.assert_allclose(stds[0], stds[1], rtol=0.25)


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_a_shrunk_gram_matrix_has_the_error_that_it_states(spread):
    """Entries about 100 I with the standard deviation ``spread``, noise 1: the mean square error is ρ in each of k."""
    rng, d, errors, stated = np.random.default_rng(6), 6, [], []
    for _ in range(300):
        gram = 100 * np.eye(d) + spread * noise_aware.symmetric_noise(rng, d)
        noisy = NoisyGram(gram + noise_aware.symmetric_noise(rng, d), 1.0, float(np.trace(gram)), 0.0)
        found = shrunk(noisy)
        errors.append(np.sum((found.gram - gram) ** 2) / (d * (d + 1) / 2))
        stated.append(found.noise_std**2)
    assert np.mean(stated) == pytest.approx(spread**2 / (1 + spread**2), abs=0.12)
    # At ρ = 0 the estimate of ρ itself is what is left, 2/k of the noise.
    assert np.mean(errors) == pytest.approx(np.mean(stated), abs=0.12)
    assert np.mean(errors) < 1.03


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
            draws = release(plan, {"x": x.astype(np.float32), "y": y.astype(np.float32)}).draws[0]
            std = draws.std(0)
            found.append((np.mean(((draws.mean(0) - truth) / std) ** 2), np.mean(std)))
        return np.mean(found, axis=0)

    square, width = seen()
    assert square == pytest.approx(1, abs=0.2)
    monkeypatch.setattr("dpmcmc.mechanisms.noise_aware.linear.shrunk", lambda noisy: noisy)
    planted, wider = seen()
    assert planted < square - 0.1
    assert wider > 1.2 * width
