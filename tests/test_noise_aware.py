"""A noise-aware posterior against closed forms and exact laws."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.special import expit

from dpmcmc.data.schema import RowStructure
from dpmcmc.inference import noise_aware
from dpmcmc.inference import noise_aware as gram_room
from dpmcmc.inference.noise_aware import AverageLaw, Gaussian, Local, Release, ScoredRows, mean_row, shrunk
from dpmcmc.mechanisms import NoiseAware, release
from dpmcmc.mechanisms.noise_aware import gradients
from dpmcmc.mechanisms.noise_aware.gradients import BoundedGradient, Design
from dpmcmc.mechanisms.sufficient import split, statistics
from dpmcmc.privacy.query.gaussian_release import NoisyGram
from dpmcmc.targets import LogisticRegression
from tests.noise_aware_tables import SCORE, linear_table, rows


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


def test_a_released_second_moment_is_brought_toward_the_models_as_far_as_its_noise_asks_for():
    model, truth = np.diag([1.0, 2.0, 3.0]) * 1000, np.diag([6.0, 1.0, 2.0]) * 1000
    rng = np.random.default_rng(0)
    for std, nearer in ((1.0, truth), (1e5, 1.5 * model)):
        noisy = NoisyGram(truth + std * noise_aware.symmetric_noise(rng, 3), std, 9000.0, 1.0)
        np.testing.assert_allclose(gradients.toward(model, noisy), nearer, atol=10)


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
