"""Posteriors from the trace of a chain: the law of its mean gradient, simulated; coverage; refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit

from dpmcmc.inference import from_trace
from dpmcmc.inference.from_trace import Known, Path, Score
from dpmcmc.inference.gram import Denoised, denoised
from dpmcmc.inference.noise_aware import symmetric_noise


def exact(gram):
    """A second moment without an error."""
    return Denoised(gram, np.zeros_like)


def path_of(positions, gradients, noise_std):
    """Mean of steps with one noise."""
    count = len(positions)
    spread = np.cov(positions.T).reshape(positions.shape[1], -1)
    return Path(positions.mean(0), gradients.mean(0), spread, count / noise_std**2, 1 / count)


# --- the law of a path's mean gradient -------------------------------------------------------------------------


def test_a_path_of_exact_gradients_gives_the_conjugate_posterior_of_linear_regression():
    rng, n, d, noise = np.random.default_rng(0), 300, 3, 0.5
    x = rng.normal(size=(n, d))
    y = x @ rng.normal(size=d) + noise * rng.normal(size=n)
    positions = 2 + rng.normal(size=(40, d))
    gradients = np.stack([x.T @ (x @ theta - y) / noise**2 for theta in positions])
    path = path_of(positions, gradients, 1e-6)
    score = Score("linear", dispersion=noise**2)
    found = from_trace.conclude(path, Known(n, np.eye(d), np.eye(d)), exact(x.T @ x), score)
    precision = np.eye(d) + x.T @ x / noise**2
    np.testing.assert_allclose(found.covariance, np.linalg.inv(precision), rtol=1e-6)
    np.testing.assert_allclose(found.mean, np.linalg.solve(precision, x.T @ y / noise**2), rtol=1e-6)


def test_privacy_noise_adds_its_variance_over_the_steps():
    """Linear model, identity Gram matrix: 𝒞 = 1 + s²F²/K, and S = 1/(1 + 1/𝒞)."""
    path = Path(np.zeros(2), np.zeros(2), np.zeros((2, 2)), 50 / 3.0**2, 1 / 50)
    metric = np.diag([1.0, 4.0])
    found = from_trace.conclude(path, Known(100, metric, np.eye(2)), exact(np.eye(2)), Score("linear"))
    inside = 1 + 9 / 50 * np.diag(metric)
    np.testing.assert_allclose(np.diag(found.covariance), 1 / (1 + 1 / inside), rtol=1e-9)


@pytest.mark.parametrize("spread", [0.003, 0.3])
@pytest.mark.parametrize("clip", [math.inf, 0.6])
def test_the_mean_gradient_of_a_path_is_that_of_a_simulated_one(spread, clip):
    """Normal rows; each meets a point of its own of a path, about a centre that is away from the truth."""
    rng, n, d = np.random.default_rng(1), 400_000, 8
    x, truth, centre = rng.normal(size=(n, d)), np.zeros(d), np.zeros(d)
    truth[:3], centre[:3] = (1.2, -0.5, 0.3), (1.4, -0.4, 0.0)
    p, noise = expit(x @ truth), rng.normal(size=n)
    total, squares = np.zeros(d), 0.0
    for sign in (1, -1):  # antithetic
        margin = x @ centre + sign * math.sqrt(spread / d) * np.linalg.norm(x, axis=1) * noise
        weight = np.minimum(1.0, clip / np.maximum(expit(margin), expit(-margin)))
        gap = weight * (expit(margin) - p)
        total += x.T @ gap / 2
        squares += np.sum((gap**2 + weight**2 * p * (1 - p))[:, None] * x**2) / 2
    path, gram = Path(centre, np.zeros(d), spread / d * np.eye(d), 1.0, 1.0), exact(n * np.eye(d))
    found = from_trace.expected(path, truth, n, gram, Score("logistic", clip=clip, norm=1.0))
    np.testing.assert_allclose(found.gradient / n, total / n, atol=1.5e-3)
    assert np.trace(found.squares) == pytest.approx(squares, rel=0.1)
    if spread > 0.1:
        narrow = from_trace.expected(path._replace(spread=0 * path.spread), truth, n, gram, Score("logistic", clip, 1.0))
        assert np.abs(narrow.gradient - total).max() > 5e-3 * n, "the path's spread shows nothing"


@pytest.mark.parametrize("scheme", ["poisson", "fixed_size"])
def test_the_minibatch_term_is_the_variance_of_simulated_batches(scheme):
    """An intercept far from the truth: records' gradients have a mean, which Poisson batches count and fixed ones not."""
    rng, n, rate, noise = np.random.default_rng(2), 2000, 0.05, 1.0
    x, y, theta = np.ones((n, 1)), noise * rng.normal(size=n), np.array([3.0])
    gradients = (x @ theta - y) / noise**2
    totals = []
    for _ in range(4000):
        if scheme == "poisson":
            totals.append(gradients[rng.random(n) < rate].sum() / rate)
        else:
            totals.append(gradients[rng.choice(n, int(n * rate), replace=False)].sum() / rate)
    path = Path(theta, np.zeros(1), np.zeros((1, 1)), 1.0, 1.0)
    score = Score("linear", dispersion=noise**2)
    here = from_trace.expected(path, np.zeros(1), n, exact(x.T @ x), score)
    known = Known(n, np.eye(1), np.eye(1), scheme, rate)
    assert from_trace.minibatch(here, path, known)[0, 0] == pytest.approx(np.var(totals), rel=0.1)
    other = known._replace(scheme="fixed_size" if scheme == "poisson" else "poisson")
    assert not from_trace.minibatch(here, path, other)[0, 0] == pytest.approx(np.var(totals), rel=0.5)


# --- coverage --------------------------------------------------------------------------------------------------


def logistic_table(n, d, rng):
    """(rows of norm at most 1, half of them binary, with an intercept; labels; the truth)."""
    z = rng.normal(size=(n, d - 1)) @ (np.eye(d - 1) + rng.normal(size=(d - 1, d - 1)) / d)
    half = (d - 1) // 2
    x = np.concatenate([np.ones((n, 1)), z[:, :half] > 0, np.clip(z[:, half:], -3, 3) / 3], axis=1) / math.sqrt(d)
    truth = rng.normal(size=d)
    return x, (rng.random(n) < expit(x @ truth)).astype(float), truth


def coverage(tables, conclude, *, gram_std=10.0, noise_std=30.0, rate=1.0, steps=100, burn_in=50, step=0.5):
    """Share of coefficients in 90 % intervals, and the mean square of (mean − truth)/std; SGLD in a private metric."""
    inside, squares, n, d = [], [], 1000, 5
    for seed in range(tables):
        rng = np.random.default_rng(seed)
        x, y, truth = logistic_table(n, d, rng)
        gram = denoised(x.T @ x + gram_std * symmetric_noise(rng, d), gram_std, float(np.sum(x**2)), None)
        metric = gram.gram / n + np.eye(d) / d
        root = np.linalg.cholesky(metric)
        white = np.linalg.solve(root, x.T).T
        norms = np.linalg.norm(white, axis=1)
        norm = math.sqrt(np.trace(np.linalg.solve(metric, gram.gram)) / n)
        eta = step / (0.25 * np.linalg.norm(white.T @ white, 2))
        phi, positions, gradients = np.zeros(d), [], []
        for _ in range(steps):
            theta = np.linalg.solve(root.T, phi)
            chosen = rng.random(n) < rate
            p = expit(x[chosen] @ theta)
            weight = np.minimum(1, 0.5 * norm / (np.maximum(p, 1 - p) * norms[chosen]))
            g = (weight * (p - y[chosen])) @ white[chosen] / rate + noise_std * rng.normal(size=d)
            positions.append(theta)
            gradients.append(root @ g)
            phi = phi - eta * (g + np.linalg.solve(root, theta))
        path = path_of(np.array(positions[burn_in:]), np.array(gradients[burn_in:]), noise_std)
        known = Known(n, metric, np.eye(d), "full" if rate == 1 else "poisson", rate)
        mean, covariance = conclude(path, known, gram, Score("logistic", 0.5 * norm, norm))
        z = (mean - truth) / np.sqrt(np.diag(covariance))
        inside.append(np.mean(np.abs(z) < 1.645))
        squares.append(np.mean(z**2))
    return float(np.mean(inside)), float(np.mean(squares))


def within(found):
    """Whether a coverage over 60 tables of 5 coefficients is 90 % up to three standard errors, and z² about 1."""
    return abs(found[0] - 0.9) < 3 * math.sqrt(0.09 / 300) * 1.3 and 0.75 < found[1] < 1.3


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"noise_std": 100.0, "steps": 200},
        {"rate": 0.05, "steps": 200},
        {"gram_std": 60.0, "burn_in": 0, "step": 0.05},
    ],
    ids=["full batches", "hot", "Poisson", "a metric of little budget, on the way"],
)
def test_intervals_from_a_simulated_path_cover(case):
    assert within(coverage(60, from_trace.conclude, **case))


def test_planted_the_error_of_the_gram_matrix_left_out_is_caught_by_coverage():
    def faulty(path, known, gram, score):
        return from_trace.conclude(path, known, exact(gram.gram), score)

    assert not within(coverage(60, faulty, gram_std=60.0, burn_in=0, step=0.05))


def test_planted_minibatch_noise_left_out_is_caught_by_coverage():
    def faulty(path, known, gram, score):
        return from_trace.conclude(path, known._replace(scheme="full", rate=1.0), gram, score)

    assert not within(coverage(60, faulty, noise_std=3.0, rate=0.01))


def test_planted_a_centred_minibatch_variance_is_caught_by_coverage():
    """The mean of one number, a hot path, Poisson batches: scores have a mean wherever the path is."""

    def z_squared(scheme):
        found, n, rate, steps, rng = [], 500, 0.02, 64, np.random.default_rng(3)
        for _ in range(200):
            truth = rng.normal()
            y = truth + rng.normal(size=n)
            theta = truth + 4 * rng.normal(size=(steps, 1))
            gradients = np.array([[np.sum(t - y[rng.random(n) < rate]) / rate] for (t,) in theta])
            gradients += rng.normal(size=(steps, 1))
            known = Known(n, np.eye(1), np.eye(1), scheme, rate)
            mean, covariance = from_trace.conclude(path_of(theta, gradients, 1.0), known, exact(n * np.eye(1)), Score("linear"))
            found.append((mean[0] - truth) ** 2 / covariance[0, 0])
        return np.mean(found)

    assert 0.7 < z_squared("poisson") < 1.35
    assert z_squared("fixed_size") > 3
