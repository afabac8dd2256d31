"""Simulation-based calibration (Talts et al. 2018) of every sampler on Bayesian logistic regression.

Draw θ* from the prior and labels from the model at θ*; then θ* is a draw of that data set's posterior, and its rank
among L independent draws of a sampler that targets the posterior is uniform on 0, …, L. It needs no posterior in
closed form, and averages over data sets from easy to nearly separable ones.

1000 data sets of 50 records, L = 15 draws each, ranks in 8 bins of 125 expected; ranks of each coefficient and of the
log-likelihood. A chi-square test of uniformity for each, at 1 % for the three of a sampler together. Small steps: a
variance 3 % too large would shift a bin by less than 1 in 125.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import dpmcmc
from dpmcmc.privacy.query import randomness
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.second_moment import PrivateSecondMoment, asked

#: Thousands of steps of thousands of records: optimised programs take half the time, their compilation included.
pytestmark = pytest.mark.optimised

SIMULATIONS, N, D, L, BINS = 1000, 50, 2, 15, 8
TARGET = dpmcmc.targets.LogisticRegression(prior_scale=1.0)
#: Steps between draws, and before the first: about 3 and 20 relaxation times of the slowest direction.
THIN, BURN_IN = 150, 1000
ETA = 0.004


@functools.cache
def simulations():
    """(θ* (simulations, D), records with leaves (simulations, N, ...))."""
    theta_key, x_key, y_key = jax.random.split(jax.random.key(0), 3)
    theta = randomness.normal(theta_key, (SIMULATIONS, D))
    x = randomness.normal(x_key, (SIMULATIONS, N, D))
    y = jax.random.uniform(y_key, (SIMULATIONS, N)) < jax.nn.sigmoid(jnp.einsum("snd,sd->sn", x, theta))
    return theta, {"x": x, "y": y.astype(jnp.float32)}


def log_likelihood(params, records):
    return jnp.sum(jax.vmap(lambda record: TARGET.log_likelihood(params, record))(records))


def posterior_draws(sampler, noise_factor=1.0):
    """(L, simulations, D): draws from one jitted run of all data sets at once, from starts that know nothing of θ*."""
    records = simulations()[1]
    second = asked(sampler.queries)
    root = jax.random.key(1)
    start = randomness.normal(jax.random.fold_in(root, 0), (SIMULATIONS, D))
    states = jax.vmap(sampler.init)(jax.random.split(root, SIMULATIONS), start)

    def one(key, state, records, noise, s, t):
        def loss(params, record):
            return -TARGET.log_likelihood(params, record)

        each = jax.vmap(jax.grad(loss), in_axes=(None, 0))(state.position, records)
        value = jnp.sum(each, axis=0) - jax.grad(TARGET.log_prior)(state.position) + s * noise
        moment = () if second is None else (PrivateSecondMoment(jnp.sum(each**2, axis=0), jnp.float32(0)),)
        return sampler.step(key, state, PrivateGradient(value, s, moment), t)[0]

    def step(states, t):
        noise_key, dynamics_key = jax.random.split(jax.random.fold_in(root, t + 1))
        noise = randomness.normal(noise_key, (SIMULATIONS, D))
        s = noise_factor * jnp.asarray(sampler.noise_std(t), jnp.float32)
        keys = jax.random.split(dynamics_key, SIMULATIONS)
        return jax.vmap(one, in_axes=(0, 0, 0, 0, None, None))(keys, states, records, noise, s, t), None

    def stretch(states, first):
        states = jax.lax.scan(step, states, first + jnp.arange(THIN))[0]
        return states, states.position

    @jax.jit
    def run(states):
        states = jax.lax.scan(step, states, jnp.arange(BURN_IN))[0]
        return jax.lax.scan(stretch, states, BURN_IN + THIN * jnp.arange(L))[1]

    return run(states)


def p_values(draws):
    """p of uniformity of the ranks of θ*: of each coefficient, and of the log-likelihood."""
    theta, records = simulations()
    over_data = jax.vmap(log_likelihood)
    quantities = jnp.concatenate([draws, jax.vmap(over_data, in_axes=(0, None))(draws, records)[..., None]], axis=-1)
    truth = jnp.concatenate([theta, over_data(theta, records)[:, None]], axis=-1)
    ranks = np.asarray(jnp.sum(quantities < truth, axis=0))
    counts = [np.bincount(ranks[:, k] * BINS // (L + 1), minlength=BINS) for k in range(D + 1)]
    return np.array([scipy.stats.chisquare(c).pvalue for c in counts])


SAMPLERS = {
    "sgld": dpmcmc.SGLD(N * ETA),
    "sghmc": dpmcmc.SGHMC(N * ETA, friction=0.3),
    # Two parameters: the thermostat fluctuates by √(ηT/d) = .045 about its .3.
    "sgnht": dpmcmc.SGNHT(N * ETA, friction=0.3),
    "sgfs": dpmcmc.SGFS(3 * N * ETA, fisher="query", prior_precision=1.0, structure="diagonal"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sgld", "sghmc", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("sgnht", "sgfs"))]
)
def test_ranks_of_the_truth_are_uniform(name):
    draws = posterior_draws(SAMPLERS[name].bind(N))
    centred = draws - draws.mean(axis=0)
    neighbours = jnp.mean(centred[1:] * centred[:-1]) / jnp.mean(centred**2)
    # Independent draws about their own mean have −1/(L − 1) or so.
    assert abs(neighbours + 1 / (L - 1)) < 0.05
    assert p_values(draws).min() > 0.01 / (D + 1)


@pytest.mark.slow
def test_temperature_half_of_the_printed_algorithm_is_caught():
    """Planted: noise variance η in place of 2η. Ranks pile up at both ends."""
    assert p_values(posterior_draws(SAMPLERS["sgld"].bind(N), noise_factor=0.5**0.5))[:D].max() < 1e-6
