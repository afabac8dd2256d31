"""SGLD keeps its exact discretised law, over step size, temperature and curvature."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpmcmc
from dpmcmc.privacy.query import PrivateGradient
from dpmcmc.samplers import Polynomial
from dpmcmc.testing import check_sampler, check_stationary_variance

N = 1000


def exact_law(eta, temperature):
    return lambda w: (temperature / w) * 2 / (2 - eta * w)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("eta_w", [0.05, 0.2, 1.0])
def test_sgld_stationary_variance_matches_its_discretised_law(eta_w, temperature):
    curvature = np.array([1.0, 0.5, 0.25, 0.1]) * 40.0
    eta = eta_w / curvature.max()
    sampler = dpmcmc.SGLD(step_size=N * eta, temperature=temperature).bind(N)
    # 2048 chains over 600 steps: at least 2048·(1 + 600·ηw_min) = 8200 independent draws, 4 errors of Var 6.2 %.
    check_stationary_variance(sampler, curvature, exact_law(eta, temperature), tolerance=0.062, steps=1200, chains=2048)


def test_temperature_half_law_of_the_printed_algorithm_is_rejected():
    """The thesis prints noise variance η: that is temperature 1/2, and the check must see it."""
    sampler = dpmcmc.SGLD(step_size=2.0).bind(N)
    curvature = np.array([10.0, 40.0])
    with pytest.raises(AssertionError, match="off by"):
        check_stationary_variance(
            sampler,
            curvature,
            exact_law(2.0 / N, 1.0),
            tolerance=0.05,
            steps=1200,
            chains=512,
            noise_std=float(sampler.noise_std(0)) / np.sqrt(2),
        )


def test_hot_chain_keeps_the_reported_temperature():
    sampler = dpmcmc.SGLD(step_size=2.0).bind(N)
    s = 3.0 * float(sampler.noise_std(0))
    temperature = float(sampler.temperature_at(s, 0))
    assert temperature == pytest.approx(9.0)
    check_stationary_variance(
        sampler,
        np.array([20.0, 60.0]),
        exact_law(2.0 / N, temperature),
        tolerance=0.05,
        steps=1200,
        chains=1024,
        noise_std=s,
    )


def test_zero_temperature_equals_optax_sgd():
    sampler = dpmcmc.SGLD(step_size=3.0, temperature=0.0).bind(N)
    optimiser = optax.sgd(3.0 / N)
    params = {"a": jnp.arange(3.0), "b": jnp.ones((2, 2))}
    state = sampler.init(jax.random.key(0), params)
    opt_state = optimiser.init(params)
    for t in range(5):
        gradient = jax.tree.map(lambda p, t=t: jnp.sin(p + t), state.position)
        state, _ = sampler.step(jax.random.key(t), state, PrivateGradient(gradient, jnp.float32(0)), t)
        updates, opt_state = optimiser.update(jax.tree.map(lambda p, t=t: jnp.sin(p + t), params), opt_state)
        params = optax.apply_updates(params, updates)
    for a, b in zip(jax.tree.leaves(state.position), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("schedule", [Polynomial(2.0, 10.0, 0.55), optax.exponential_decay(2.0, 50, 0.9)])
def test_schedules_agree_on_host_and_device(schedule):
    sampler = dpmcmc.SGLD(step_size=schedule).bind(N)
    t = np.arange(40, dtype=np.float64)
    device = jax.jit(jax.vmap(sampler.noise_std))(jnp.arange(40))
    np.testing.assert_allclose(sampler.noise_std(t), device, rtol=1e-5)
    assert np.all(np.diff(sampler.noise_std(t)) > 0)


def test_public_check_passes_sgld_and_catches_a_wrong_noise():
    check_sampler(dpmcmc.SGLD(step_size=1.0))

    @dataclasses.dataclass(frozen=True)
    class Cold(dpmcmc.SGLD):
        def noise_std(self, t):
            return super().noise_std(t) / 2**0.5

    with pytest.raises(AssertionError, match="off by"):
        check_sampler(Cold(step_size=1.0))


@pytest.mark.parametrize(
    "bad", [{"step_size": 0.0}, {"step_size": float("nan")}, {"temperature": -1.0}, {"step_size": "fast"}]
)
def test_impossible_hyperparameters_are_refused(bad):
    with pytest.raises(ValueError):
        dpmcmc.SGLD(**{"step_size": 1.0, **bad})
