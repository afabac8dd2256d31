"""Every engine draws from the law it is asked for, on the ball where there is one, and says nothing else.

**Laws.** In two dimensions the truncated posterior is summed on a grid (float64, 400 points a side). Draws are compared
with it by means, variances and the radius' distribution: within 4.5 standard errors for so many independent draws,
which a draw from the posterior without its ball, or without its temper, misses by far.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

from dpmcmc.mechanisms.engines import ENGINES, DrawError, Wanted, nuts
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LinearRegression, LogisticRegression, record_shapes
from dpmcmc.targets.transformed import Tempered
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


def run(engine, target, records, draws, seed=0, radius=None, steps=None):
    return np.asarray(
        ENGINES[engine].draw(target, records, Wanted(draws, radius, steps), streams_of(seed)[0]),
        np.float64,
    )


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
    theta = np.asarray(jax.vmap(lambda v: nuts.onto_ball(v, 2.0))(u), np.float64)
    assert kstest((np.linalg.norm(theta, axis=1) / 2) ** size, "uniform").pvalue > 1e-3
    assert np.all(np.sum(theta * u, axis=1) > 0)


def test_ball_map_is_smooth_at_the_centre_and_far_out():
    hessian = jax.jit(jax.hessian(lambda v: nuts.onto_ball(v, 2.0)))
    for scale in (0.0, 1e-8, 1.0, 30.0):
        assert np.all(np.isfinite(hessian(jnp.full(3, scale, jnp.float32))))
    assert np.linalg.norm(nuts.onto_ball(jnp.full(3, 1e6), 2.0)) <= 2.0 * (1 + 1e-6)


def test_truncated_linear_posterior_in_closed_form():
    found = run("closed_form", linear(), LINEAR, 4000, radius=RADIUS)
    assert np.linalg.norm(found, axis=1).max() <= RADIUS * (1 + 1e-6)
    Grid(linear(), LINEAR, RADIUS).check(found)


@pytest.mark.slow
def test_truncated_logistic_posterior_by_nuts():
    for radius in (RADIUS, 6.0):
        found = run("nuts", logistic(), LOGISTIC, 1000, radius=radius)
        assert np.linalg.norm(found, axis=1).max() <= radius * (1 + 1e-6)
        Grid(logistic(), LOGISTIC, radius).check(found)


@pytest.mark.parametrize(
    ("engine", "draws"), [("closed_form", 4000), pytest.param("nuts", 400, marks=pytest.mark.slow)]
)
def test_whole_linear_posterior(engine, draws):
    mean, covariance = linear(0.6, 0.5).posterior(LINEAR)
    whitened = (run(engine, linear(0.6, 0.5), LINEAR, draws) - mean) @ np.linalg.cholesky(np.linalg.inv(covariance))
    error = 4.5 / np.sqrt(draws)
    np.testing.assert_allclose(whitened.mean(0), 0, atol=error)
    np.testing.assert_allclose(whitened.T @ whitened / draws, np.eye(2), atol=np.sqrt(2) * error)


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
    mean, covariance = linear(1.0).posterior(LINEAR)
    # Successive states of NUTS on a whitened Gaussian are about independent.
    np.testing.assert_allclose(found.mean((0, 1)), mean, atol=4.5 * np.sqrt(covariance.max() / 1200))


@pytest.mark.parametrize("engine", ["closed_form", pytest.param("nuts", marks=pytest.mark.slow)])
def test_draws_are_a_function_of_secret_keys_alone(engine):
    first, again, other = (run(engine, linear(), LINEAR, 3, seed, 4.0, 40) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.any(np.isclose(first, other, rtol=1e-6))
    assert len(np.unique(first[:, 0])) == 3


def test_closed_form_gives_up_where_the_ball_has_no_mass():
    far = {"x": np.tile([[1.0, 0.0]], (2000, 1)), "y": np.full(2000, 3.0)}
    with pytest.raises(DrawError, match=r"^radius.*Nothing was released"):
        run("closed_form", linear(), far, 1, radius=0.5)


def test_closed_form_is_float64():
    found = run("closed_form", linear(), LINEAR, 2000)
    assert np.any(found != found.astype(np.float32))
    assert len(np.unique(found)) == found.size


def test_rows_stay_within_their_bound_in_float32():
    x = RNG.normal(size=(500, 7))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    rounded = np.asarray(nuts._on_device(x), np.float64)
    assert np.all(np.abs(rounded) <= np.abs(x))
    np.testing.assert_allclose(rounded, x, rtol=2e-7)
    assert nuts._on_device(np.arange(3)).dtype == jnp.int32


def test_engines_refuse_targets_they_are_not_for():
    with pytest.raises(ValueError, match=r"^engine: closed_form"):
        ENGINES["closed_form"].check(LogisticRegression())
    ENGINES["nuts"].check(LogisticRegression())
    assert all(isinstance(module.EXACT, bool) for module in ENGINES.values())
