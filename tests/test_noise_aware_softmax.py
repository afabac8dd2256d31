"""A noise-aware release of softmax regression: its sensitivity, scores and curvature, and its coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import softmax

from dpmcmc.inference import normal_law
from dpmcmc.inference.curvature import ScoredRows
from dpmcmc.inference.several_predictors import SeveralPredictors, average_law
from dpmcmc.inference.softmax_score import Softmax
from dpmcmc.mechanisms import NoiseAware, release
from dpmcmc.mechanisms.noise_aware.gradients import Design
from dpmcmc.privacy.query import gram_release
from dpmcmc.targets import SoftmaxRegression
from tests.bounded_rows import Reading

K = 3
SCORE = Softmax(K)


def target(d, classes=K):
    return SoftmaxRegression(prior_scale=1.0, num_classes=classes, num_features=d, row_bound=1.0)


def table(n, d, seed):
    """(records, the truth (d, K), which is drawn from the prior)."""
    rng = np.random.default_rng([seed, n])
    x = rng.normal(size=(n, d)) @ (np.eye(d) + rng.normal(size=(d, d)) / d)
    x[:, : d // 2] = x[:, : d // 2] > 0
    x = gram_release.within(x / math.sqrt(d), 1.0)
    truth = rng.normal(size=(d, K))
    y = (softmax(x @ truth, axis=1).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return {"x": x.astype(np.float32), "y": np.minimum(y, K - 1).astype(np.int32)}, truth


# --- privacy ---------------------------------------------------------------------------------------------------


def test_too_many_coefficients_are_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"at most 1,024 coefficients.* 1,030"):
        NoiseAware().plan(target(103, 10), num_records=1000, epsilon=1.0, delta=1e-4)


# --- unbiased scores -------------------------------------------------------------------------------------------


def mean_score(score, d=4):
    """(‖E Σ F⁻¹ x ψ‖/C over labels that are made with θ, Σ of the lengths of scores), at a clip that binds."""
    rng = np.random.default_rng(3)
    records, _ = table(80, d, 3)
    x, theta = np.asarray(records["x"], np.float64), 4 * rng.normal(size=d * K)
    p, design = softmax(x @ theta.reshape(d, K), axis=1), Design(1, d, 1.0, 1e3)
    mean, total = np.zeros(d * K), 0.0
    for row, chances in zip(x, p, strict=True):
        for label, chance in enumerate(chances):
            alone = Reading.of(x.T @ x / len(x), design, score, row[None], np.array([label])).sum(theta)
            mean, total = mean + chance * alone, total + chance * float(np.linalg.norm(alone))
    return float(np.linalg.norm(mean)), total


def test_scores_have_mean_zero_at_the_truth():
    mean, total = mean_score(SCORE)
    assert total > 10
    assert mean < 1e-7 * total


def design_of_rows(d=4, scale=1.5):
    """(mean row, covariance, θ (d, K)) with logits that spread and a mean that is not zero."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(d, d)) / math.sqrt(d)
    return 0.4 * rng.normal(size=d), root @ root.T, scale * rng.normal(size=(d, K))


def test_curvature_and_variance_are_those_of_a_gaussian_design():
    mean, covariance, theta = design_of_rows()
    n, d = 200_000, len(mean)
    x = np.random.default_rng(6).multivariate_normal(mean, covariance, size=n)
    gram = covariance + np.outer(mean, mean)
    found = SeveralPredictors(SCORE, n * gram, n, mean, 0.6, np.zeros_like).local(theta.ravel())
    p = softmax(x @ theta, axis=1)
    weight = np.minimum(1, 0.6 / np.max(np.linalg.norm(p[:, None] - np.eye(K), axis=2), axis=1))
    inner = p[:, :, None] * np.eye(K) - p[:, :, None] * p[:, None, :]
    for part, w in ((found.curvature, weight), (found.score, weight**2)):
        exact = np.zeros((d, K, d, K))
        for a in range(K):
            for b in range(K):
                exact[:, a, :, b] = (x * (w * inner[:, a, b])[:, None]).T @ x / n
        exact = exact.reshape(d * K, -1)
        assert np.linalg.norm(part / n - exact) < 0.01 * np.linalg.norm(exact)
        assert np.linalg.eigvalsh(part)[0] > -1e-9 * n
    flat = np.kron(gram, np.mean(weight[:, None, None] * inner, axis=0))
    assert np.linalg.norm(found.curvature / n - flat) > 0.05 * np.linalg.norm(flat), "no term along θ is seen"


def test_two_classes_have_the_curvature_of_logistic_regression():
    """Softmax of (0, η) is σ(η), and max ‖p − e_y‖ = √2·max(p, 1 − p)."""
    from dpmcmc.inference.logistic_score import Logistic

    mean, covariance, theta = design_of_rows()
    gram = 1000 * (covariance + np.outer(mean, mean))
    both = np.stack([np.zeros(len(theta)), theta[:, 0]], axis=1)
    several = SeveralPredictors(Softmax(2), gram, 1000, mean, 0.6 * math.sqrt(2), np.zeros_like).local(both.ravel())
    one = ScoredRows(Logistic(), gram, 1000, mean, 0.6, np.zeros_like).local(theta[:, 0])
    own = several.curvature.reshape(4, 2, 4, 2)[:, 1, :, 1]
    np.testing.assert_allclose(own, one.curvature, atol=2e-3 * np.abs(own).max())
    contrast = several.curvature @ np.kron(np.eye(4), np.ones((2, 1)))
    assert np.abs(contrast).max() < 1e-9 * np.abs(own).max()
    # A contrast is (1, −1)/√2, and its curvature twice that of η.
    assert average_law(Softmax(2), 1.0, math.inf).curvature == pytest.approx(
        2 * average_law(Logistic(), 2.0, math.inf).curvature, rel=5e-3
    )


def test_the_error_of_the_curvature_is_that_of_simulated_gram_matrices():
    """Cov[(E ⊗ c) u] for a Q with every cross term, where E ⊗ c is what the noise adds to H near θ = 0."""
    rng, d, std = np.random.default_rng(7), 3, 0.2
    rows = SeveralPredictors(SCORE, np.eye(d), 1, np.zeros(d), 0.6, normal_law.isotropic_error(std))
    near = rows.local(np.full(d * K, 1e-4))
    root = rng.normal(size=(d * K, d * K))
    q, mean, found = root @ root.T, near.curvature[:K, :K], np.zeros((d * K, d * K))
    for _ in range(4000):
        error = np.kron(std * normal_law.symmetric_noise(rng, d), mean)
        found += error @ q @ error / 4000
    stated = near.curvature_error(q)
    assert np.linalg.norm(stated - found) < 0.1 * np.linalg.norm(found)
    np.testing.assert_allclose(stated, stated.T, atol=1e-12)


# --- the posterior ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_intervals_of_contrasts_cover():
    """d = 4, N = 8,000, ε = 1; 15 tables of 8 contrasts, 90 % intervals; their standard error is about .03."""
    n, d, inside, contrast = 8000, 4, [], np.array([[1, 1], [-1, 1], [0, -2]]) / np.sqrt([2, 6])
    plan = NoiseAware(draws=600).plan(target(d), num_records=n, epsilon=1.0, delta=1e-5)
    assert plan.usable_for == ["prediction", "intervals"]
    for seed in range(15):
        records, truth = table(n, d, seed)
        low, high = np.quantile(release(plan, records).draws[0] @ contrast, [0.05, 0.95], axis=0)
        inside.append(np.mean((low < truth @ contrast) & (truth @ contrast < high)))
    assert 0.76 < np.mean(inside) < 0.99
