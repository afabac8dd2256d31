"""NUTS draws from the law it is asked for, on the ball where there is one, and says nothing else.

**Laws.** In two dimensions the truncated posterior is summed on a grid (float64, 400 points a side). Draws are compared
with it by means, variances and the radius' distribution: within 4.5 standard errors for so many independent draws,
which a draw from the posterior without its ball, or without its temper, misses by far.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

from dpmcmc.mechanisms import ball, nuts
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import Custom, LinearRegression, LogisticRegression, record_shapes
from dpmcmc.targets.tempered import Tempered
from experiments.nuts import draws_for_many, nuts_posterior

RNG = np.random.default_rng(0)
N = 24
X = RNG.normal(size=(N, 2)) * [1.0, 0.5]
X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
LINEAR = {"x": X, "y": np.clip(X @ [1.2, 0.8] + 0.5 * RNG.normal(size=N), -3, 3)}
LOGISTIC = {"x": X, "y": (X @ [3.0, 2.0] + RNG.logistic(size=N) > 0).astype(np.int32)}
RADIUS = 1.0


def linear(temper=0.6, prior_temper=1.0):
    target = LinearRegression(1.5, 0.5, 3.0, row_bound=1.0)
    return Tempered(target, temper, prior_temper).bind(record_shapes(LINEAR))


def logistic(temper=0.6):
    return Tempered(LogisticRegression(1.5, row_bound=1.0), temper).bind(record_shapes(LOGISTIC))


def run(target, records, draws, seed=0, radius=None, steps=None):
    found = nuts.posterior_draws(target, records, streams_of(seed)[0], draws=draws, radius=radius, steps=steps)
    return np.asarray(found, np.float64)


def exact(target, records):
    """Mean and covariance of a tempered linear regression."""
    precision = target.temper * records["x"].T @ records["x"] / target.target.noise_scale**2
    precision += target.prior_precision * np.eye(2)
    moment = target.temper * records["x"].T @ records["y"] / target.target.noise_scale**2
    return np.linalg.solve(precision, moment), np.linalg.inv(precision)


class Grid:
    """The law of a 2-D target on a ball, summed."""

    def __init__(self, target, records, radius=RADIUS):
        side = (np.arange(400) + 0.5) / 200 - 1
        self.points = radius * np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
        self.points = self.points[np.linalg.norm(self.points, axis=1) < radius]
        logs = log_density(target, records, self.points)
        self.mass = np.exp(logs - logs.max())
        self.mass /= self.mass.sum()
        self.mean = self.mass @ self.points
        self.covariance = (self.points - self.mean).T @ ((self.points - self.mean) * self.mass[:, None])
        self.radii = np.linalg.norm(self.points, axis=1)
        order = np.argsort(self.radii)
        self.radii, self.cumulative = self.radii[order], np.cumsum(self.mass[order])

    def misses(self, draws):
        """What the draws miss by: (largest z of means and variances, Kolmogorov's p of the radius)."""
        count, std = len(draws), np.sqrt(np.diag(self.covariance))
        z_mean = np.abs(draws.mean(0) - self.mean) / std * np.sqrt(count)
        squares = (draws - self.mean) ** 2
        z_variance = np.abs(squares.mean(0) - std**2) / (squares.std(0) / np.sqrt(count))
        p = kstest(np.linalg.norm(draws, axis=1), lambda r: np.interp(r, self.radii, self.cumulative)).pvalue
        return max(z_mean.max(), z_variance.max()), p

    def check(self, draws):
        z, p = self.misses(draws)
        assert z < 4.5
        assert p > 1e-4


def log_density(target, records, points):
    """Written out again, in float64."""
    m = points @ records["x"].T
    if isinstance(target.target, LogisticRegression):
        each = records["y"] * m - np.logaddexp(0, m)
    else:
        each = -0.5 * (records["y"] - m) ** 2 / target.target.noise_scale**2
    prior = -0.5 * np.sum(points**2, axis=1) / target.target.prior_scale**2
    return target.temper * each.sum(axis=1) + target.prior_temper * prior


@pytest.mark.parametrize("size", [1, 3, 40])
def test_ball_map_carries_normals_to_the_uniform_law(size):
    u = RNG.normal(size=(3000, size)).astype(np.float32)
    theta = np.asarray(jax.vmap(lambda v: ball.onto_ball(v, 2.0))(u), np.float64)
    assert kstest((np.linalg.norm(theta, axis=1) / 2) ** size, "uniform").pvalue > 1e-3
    assert np.all(np.sum(theta * u, axis=1) > 0)


def test_ball_map_is_smooth_at_the_centre_and_far_out():
    hessian = jax.jit(jax.hessian(lambda v: ball.onto_ball(v, 2.0)))
    for scale in (0.0, 1e-8, 1.0, 30.0):
        assert np.all(np.isfinite(hessian(jnp.full(3, scale, jnp.float32))))
    assert np.linalg.norm(ball.onto_ball(jnp.full(3, 1e6), 2.0)) <= 2.0 * (1 + 1e-6)


@pytest.mark.slow
def test_truncated_logistic_posterior_by_nuts():
    for radius in (RADIUS, 6.0):
        found = run(logistic(), LOGISTIC, 1000, radius=radius)
        assert np.linalg.norm(found, axis=1).max() <= radius * (1 + 1e-6)
        Grid(logistic(), LOGISTIC, radius).check(found)


@pytest.mark.slow
def test_whole_linear_posterior():
    mean, covariance = exact(linear(0.6, 0.5), LINEAR)
    whitened = (run(linear(0.6, 0.5), LINEAR, 400) - mean) @ np.linalg.cholesky(np.linalg.inv(covariance))
    error = 4.5 / np.sqrt(400)
    np.testing.assert_allclose(whitened.mean(0), 0, atol=error)
    np.testing.assert_allclose(whitened.T @ whitened / 400, np.eye(2), atol=np.sqrt(2) * error)


@pytest.mark.exhaustive
def test_many_posteriors_at_once_are_those_drawn_one_by_one():
    tempers, precisions = [0.1, 0.6, 1.0], [2.0, 0.5, 1.0]
    target = LinearRegression(1.0, 0.5)
    posteriors = [
        Tempered(target, temper, power, precision)
        for temper, power, precision in zip(tempers, (1, 1, 0.5), precisions, strict=True)
    ]
    many = draws_for_many(posteriors, LINEAR, 500, jax.random.key(1))
    for posterior, found in zip(posteriors, many, strict=True):
        mean, covariance = exact(posterior, LINEAR)
        whitened = (found - mean) @ np.linalg.cholesky(np.linalg.inv(covariance))
        np.testing.assert_allclose(whitened.mean(0), 0, atol=4.5 / np.sqrt(500))
        np.testing.assert_allclose(whitened.T @ whitened / 500, np.eye(2), atol=4.5 * np.sqrt(2 / 500))


@pytest.mark.slow
def test_many_posteriors_in_groups_have_one_program_and_padding_is_dropped(monkeypatch):
    monkeypatch.setattr(nuts, "_CHAIN_NUMBERS", {jax.default_backend(): 2 * N * 2})
    target = LinearRegression(1.0, 0.5)
    posteriors = [Tempered(target, temper, 1.0, 1.0) for temper in (0.1, 0.2, 0.3)]
    found = draws_for_many(posteriors, LINEAR, 2, jax.random.key(1), steps=4)
    assert [leaf.shape for leaf in found] == [(2, 2)] * 3
    for wrong in ([], [*posteriors, Tempered(target, 0.2)]):
        with pytest.raises(ValueError, match=r"^posteriors"):
            draws_for_many(wrong, LINEAR, 2, jax.random.key(1))


@pytest.mark.slow
def test_reference_posterior_is_the_targets_own():
    found = nuts_posterior(LinearRegression(1.5, 0.5), LINEAR, 300, jax.random.key(0), chains=4, warmup=50)
    assert found.shape == (4, 300, 2)
    mean, covariance = exact(linear(1.0), LINEAR)
    # Successive states of NUTS on a whitened Gaussian are about independent.
    np.testing.assert_allclose(found.mean((0, 1)), mean, atol=4.5 * np.sqrt(covariance.max() / 1200))


@pytest.mark.slow
def test_nuts_takes_any_pytree():
    target = Custom(
        init=lambda key: {"a": jnp.zeros(()), "b": jnp.zeros((1, 2))},
        log_prior=lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2)),
        log_likelihood=lambda p, record: -0.5 * (record["y"] - p["a"] - p["b"][0] @ record["x"]) ** 2,
    )
    found = nuts.posterior_draws(Tempered(target, 0.5), LINEAR, streams_of(0)[0], draws=3, radius=1.0, steps=6)
    assert found["a"].shape == (3,)
    assert found["b"].shape == (3, 1, 2)


@pytest.mark.slow
def test_draws_are_a_function_of_secret_keys_alone():
    first, again, other = (run(linear(), LINEAR, 3, seed, 4.0, 40) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.any(np.isclose(first, other, rtol=1e-6))
    assert len(np.unique(first[:, 0])) == 3


@pytest.mark.slow
def test_nothing_is_printed_or_warned_of(capfd):
    # An ill-conditioned posterior at the edge of a ball, a few steps: what a library would complain about.
    records = {"x": np.tile([[1.0, 0.0]], (N, 1)), "y": np.full(N, 3.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(linear(0.01, 1e-3), records, 2, radius=4.0, steps=20)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_rows_stay_within_their_bound_in_float32():
    x = RNG.normal(size=(500, 7))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    rounded = np.asarray(nuts._on_device(x), np.float64)
    assert np.all(np.abs(rounded) <= np.abs(x))
    np.testing.assert_allclose(rounded, x, rtol=2e-7)
    assert nuts._on_device(np.arange(3)).dtype == jnp.int32
