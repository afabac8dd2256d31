"""Large steps, kinetic energy, checks that must fail, and plans. The matrix of laws is in ``test_stationarity.py``."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.privacy.query import randomness
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.testing import check_sampler, check_stationary_variance, gaussian_chain

N = 1000


def sghmc_law(eta, a, temperature):
    return lambda w: (temperature / w) / (1 - eta * w / (4 - 2 * a))


def test_sgld_variance_matches_its_discretised_law_at_half_the_stable_step():
    curvature = np.array([1.0, 0.5, 0.25, 0.1]) * 40.0
    eta, temperature = 1.0 / curvature.max(), 4.0
    sampler = dpmcmc.SGLD(step_size=N * eta, temperature=temperature).bind(N)
    # ηw from .1 to 1: 1024 chains over 200 steps are 1024·200·.1 = 20 000 independent draws, 4 errors of Var 4 %.
    law = sghmc_law(eta, 1.0, temperature)
    check_stationary_variance(sampler, curvature, law, tolerance=0.04, steps=400, chains=1024)


@pytest.mark.slow
def test_public_check_passes_sgld_and_catches_a_wrong_noise():
    check_sampler(dpmcmc.SGLD(step_size=1.0), chains=256)

    @dataclasses.dataclass(frozen=True)
    class Cold(dpmcmc.SGLD):
        def noise_std(self, t):
            return super().noise_std(t) / 2**0.5

    with pytest.raises(AssertionError, match="off by"):
        check_sampler(Cold(step_size=1.0), chains=256)


@pytest.mark.slow
def test_sghmc_kinetic_energy_matches_its_law():
    a, eta, w, chains = 0.3, 0.005, 40.0, 20_000
    sampler = dpmcmc.SGHMC(step_size=N * eta, friction=a).bind(N)
    key = jax.random.key(0)
    state = jax.vmap(sampler.init)(jax.random.split(key, chains), jnp.zeros((chains, 1)))
    s = jnp.float32(sampler.noise_std(0))

    def step(state, t):
        noise = randomness.normal(jax.random.fold_in(key, t), (chains, 1))
        gradient = PrivateGradient(state.position * w + s * noise, s)
        return sampler.step(key, state, gradient, t)[0], None

    state = jax.lax.scan(step, state, jnp.arange(400))[0]
    kinetic = (1 - a / 2) * float(jnp.mean(state.velocity**2)) / eta
    wanted = w * sghmc_law(eta, a, 1.0)(w)
    assert kinetic == pytest.approx(wanted, rel=4 * np.sqrt(2 / chains))


@pytest.mark.slow
def test_old_momentum_order_is_rejected():
    """Explicit Euler, as printed: variance inflated by a/(a − ηw) and the check must see it."""

    class Euler(dpmcmc.SGHMC):
        def step(self, key, state, gradient, t):
            after, info = super().step(key, state, gradient, t)
            return after._replace(position=jax.tree.map(jnp.add, state.position, state.velocity)), info

    eta, w = 0.005, np.array([10.0, 40.0])
    sampler = Euler(step_size=N * eta, friction=0.5).bind(N)
    with pytest.raises(AssertionError, match="off by"):
        check_stationary_variance(sampler, w, sghmc_law(eta, 0.5, 1.0), tolerance=0.063, steps=1200, chains=1024)


@pytest.mark.slow
def test_printed_thermostat_is_rejected():
    """α + v·v/d − η, as printed: the variance comes out low, and the check must see it."""

    class Printed(dpmcmc.SGNHT):
        def step(self, key, state, gradient, t):
            after, info = super().step(key, state, gradient, t)
            kinetic = info.kinetic_temperature * self.eta(t)
            printed = after.thermostat + kinetic / (1 - info.thermostat / 2) - kinetic
            return after._replace(thermostat=printed), info

    w = np.full(64, 10.0)
    sampler = Printed(step_size=N * 0.001, friction=0.3).bind(N)
    samples = gaussian_chain(sampler, w, steps=2000, chains=128, start_std=w**-0.5)
    assert (samples**2 * w).mean() < 0.9


def test_one_thermostat_for_the_whole_pytree():
    sampler = dpmcmc.SGNHT(step_size=1.0).bind(N)
    tree = {"a": jnp.ones(3), "b": {"c": jnp.ones((2, 2))}}
    flat = jnp.ones(7)
    states = sampler.init(jax.random.key(0), tree), sampler.init(jax.random.key(0), flat)
    s = jnp.float32(sampler.noise_std(0))
    for t in range(3):
        states = (
            sampler.step(
                jax.random.key(1), states[0], PrivateGradient(jax.tree.map(jnp.sin, states[0].position), s), t
            )[0],
            sampler.step(jax.random.key(1), states[1], PrivateGradient(jnp.sin(states[1].position), s), t)[0],
        )
    assert states[0].thermostat.shape == ()
    leaves = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(states[0].position)])
    np.testing.assert_allclose(leaves, states[1].position, rtol=1e-6)


def private(sampler, **changes):
    settings = {"num_records": 5000, "steps": 100, "privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-5)}
    return dpmcmc.plan(dpmcmc.targets.LogisticRegression(), sampler=sampler, **(settings | changes))


def test_matched_friction_keeps_temperature_one_on_the_whole_budget():
    plan = private(dpmcmc.SGHMC(step_size=0.5, friction="matched"))
    np.testing.assert_allclose(plan.temperatures, 1.0, rtol=1e-5)
    assert plan.free_fraction == 1.0
    assert 0.99 < plan.guarantee.epsilon <= 1.0
    assert 0 < plan.sampler.friction <= 1
    assert plan.time == pytest.approx(plan.private_time, rel=0.01)


def test_thermostat_time_obeys_the_law_of_private_time():
    plan = private(dpmcmc.SGNHT(step_size=0.5, friction=0.01))
    np.testing.assert_allclose(plan.temperatures, 1.0)
    assert plan.free_fraction == 0.0
    assert plan.time == pytest.approx(plan.private_time, rel=0.01)


def test_a_friction_that_cannot_take_the_noise_is_refused_at_plan_time():
    with pytest.raises(ValueError, match="beyond 1"):
        private(dpmcmc.SGHMC(step_size=50.0, friction="matched"))


def test_sgld_is_sghmc_at_friction_one():
    """One law: noise, temperature, time and stability are the same numbers, and so are positions, to the bit."""
    steps = dpmcmc.samplers.Polynomial(3.0)
    sgld, sghmc = dpmcmc.SGLD(steps, 2.0).bind(N), dpmcmc.SGHMC(steps, 2.0, friction=1.0).bind(N)
    t, s = np.arange(5.0), np.linspace(1.0, 40.0, 5)
    np.testing.assert_array_equal(sgld.noise_std(t), sghmc.noise_std(t))
    for law in ("temperature_at", "time_at", "stability_limit"):
        np.testing.assert_array_equal(getattr(sgld, law)(s, t), getattr(sghmc, law)(s, t))
    auto = dpmcmc.SGLD("auto", 2.0).bind(N), dpmcmc.SGHMC("auto", 2.0, friction=1.0).bind(N)
    assert auto[0].with_noise(7.0).step_size == auto[1].with_noise(7.0).step_size
    key = jax.random.key(0)
    states = [sampler.init(key, jnp.zeros(3)) for sampler in (sgld, sghmc)]
    for t in range(4):
        gradient = PrivateGradient(jax.random.normal(jax.random.fold_in(key, t), (3,)), jnp.float32(1.0))
        states = [s.step(key, state, gradient, jnp.int32(t))[0] for s, state in zip((sgld, sghmc), states, strict=True)]
        np.testing.assert_array_equal(states[0].position, states[1].position)
