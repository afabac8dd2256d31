"""A noise-aware release of softmax regression: its sensitivity, scores and curvature, and its coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import softmax

import dpmcmc
from dpmcmc.inference.softmax_score import Softmax
from dpmcmc.mechanisms import NoiseAware
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


# --- the posterior ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_intervals_of_contrasts_cover():
    """d = 4, N = 8,000, ε = 1; 15 tables of 8 contrasts, 90 % intervals; their standard error is about .03."""
    n, d, inside, contrast = 8000, 4, [], np.array([[1, 1], [-1, 1], [0, -2]]) / np.sqrt([2, 6])
    plan = NoiseAware(draws=600).plan(target(d), num_records=n, epsilon=1.0, delta=1e-5)
    assert plan.usable_for == ["prediction", "intervals"]
    for seed in range(15):
        records, truth = table(n, d, seed)
        low, high = np.quantile(dpmcmc.sample(plan, records).draws[0] @ contrast, [0.05, 0.95], axis=0)
        inside.append(np.mean((low < truth @ contrast) & (truth @ contrast < high)))
    assert 0.76 < np.mean(inside) < 0.99
