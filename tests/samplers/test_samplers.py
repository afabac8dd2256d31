"""Large steps, kinetic energy, checks that must fail, and plans. The matrix of laws is in ``test_stationarity.py``.

At temperature 0 and without noise each sampler is an optimiser that can be had elsewhere, step by step.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import dpmcmc
from dpmcmc.privacy.query import randomness
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.second_moment import PrivateSecondMoment
from dpmcmc.samplers import Polynomial
from dpmcmc.testing import check_sampler, check_stationary_variance, gaussian_chain

N = 1000


def sghmc_law(eta, a, temperature):
    return lambda w: (temperature / w) / (1 - eta * w / (4 - 2 * a))


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


STEPS = 50
START = {"a": jnp.arange(3.0), "b": {"matrix": jnp.linspace(-1.0, 2.0, 4).reshape(2, 2), "scalar": jnp.float32(0.7)}}
FLAT, UNFLATTEN = ravel_pytree(START)
D = FLAT.size
#: Curvatures of very different size, and every parameter coupled with every other.
SCALES = jnp.geomspace(1.0, 30.0, D)


@jax.jit
def gradient(params):
    def potential(flat):
        return 0.5 * jnp.sum(SCALES * flat**2) + 3 * jnp.sin(jnp.sum(flat)) + jnp.sum(jnp.cos(2 * flat))

    return UNFLATTEN(jax.grad(potential)(ravel_pytree(params)[0]))


def ours(sampler, releases=()):
    """Flat positions along ``STEPS`` steps without noise."""
    assert np.all(sampler.noise_std(np.arange(3.0)) == 0)
    state, out = sampler.init(jax.random.key(0), START), []
    for t in range(STEPS):
        noiseless = PrivateGradient(gradient(state.position), jnp.float32(0), releases)
        state, _ = sampler.step(jax.random.key(t), state, noiseless, jnp.int32(t))
        out.append(ravel_pytree(state.position)[0])
    return np.array(out)


def optimised(optimiser):
    params, out = START, []
    state = optimiser.init(params)
    for _ in range(STEPS):
        updates, state = optimiser.update(gradient(params), state)
        params = optax.apply_updates(params, updates)
        out.append(ravel_pytree(params)[0])
    return np.array(out)


def same(a, b):
    """To a few float32 roundings a step, and not because nothing moved."""
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    assert np.abs(a[-1] - a[0]).max() > 0.5


def test_sgld_equals_optax_sgd():
    same(ours(dpmcmc.SGLD(N * 0.01, temperature=0.0).bind(N)), optimised(optax.sgd(0.01)))


@pytest.mark.parametrize("schedule", [Polynomial(0.02, 5.0, 0.6), optax.cosine_decay_schedule(0.01, STEPS)])
def test_sgld_on_a_schedule_equals_optax_sgd_on_it(schedule):
    sampler = dpmcmc.SGLD(lambda t: N * schedule(t), temperature=0.0).bind(N)
    same(ours(sampler), optimised(optax.sgd(schedule)))


@pytest.mark.parametrize("a", [0.05, 0.5, 1.0])
def test_sghmc_equals_optax_sgd_with_momentum(a):
    """Momentum 1 − a of optax's trace, m' = g + (1 − a)m, θ' = θ − ηm': v = −ηm."""
    sampler = dpmcmc.SGHMC(N * 0.01, temperature=0.0, friction=a).bind(N)
    same(ours(sampler), optimised(optax.sgd(0.01, momentum=1 - a)))


def damped_newton(curvature, damping, steps=STEPS):
    """θ' = θ − 2(M + damping)⁻¹∇U in float64, every matrix written out."""
    flat, out = np.asarray(FLAT, np.float64), []
    inverse = np.linalg.inv(curvature + damping)
    for _ in range(steps):
        slope = ravel_pytree(gradient(UNFLATTEN(jnp.asarray(flat, jnp.float32))))[0]
        flat = flat - 2 * inverse @ np.asarray(slope, np.float64)
        out.append(flat)
    return np.array(out)


def some_fisher():
    """One record's Fisher information, positive definite and not diagonal."""
    rows = np.random.default_rng(0).normal(size=(3 * D, D))
    return (np.diag(np.asarray(SCALES)) + rows.T @ rows / 10) / N


@pytest.mark.parametrize("structure", ["dense", "diagonal"])
@pytest.mark.parametrize("prior", [0.0, 4.0])
def test_sgfs_with_a_public_fisher_takes_natural_gradient_steps(structure, prior):
    """θ' = θ − 2(N F + λ + 2/η)⁻¹∇U: η∇U for a small step, twice the damped Newton step for a large one."""
    eta, fisher = 0.05, some_fisher()
    sampler = dpmcmc.SGFS(N * eta, 0.0, "public", fisher, prior, structure=structure).bind(N)
    curvature = N * (fisher if structure == "dense" else np.diag(np.diag(fisher))) + prior * np.eye(D)
    same(ours(sampler), damped_newton(curvature, 2 / eta * np.eye(D)))


def test_sgfs_in_a_metric_is_damped_by_it():
    """θ' = θ − 2(N F + (2/η) M Mᵀ)⁻¹∇U for the metric M: the damping is the noise's covariance, up to its size."""
    eta, fisher = 0.05, some_fisher()
    metric = np.eye(D) + np.random.default_rng(1).normal(size=(D, D)) / 10
    sampler = dpmcmc.SGFS(N * eta, 0.0, "public", fisher, structure="dense", metric=metric).bind(N)
    same(ours(sampler), damped_newton(N * fisher, 2 / eta * metric @ metric.T))


def test_sgfs_from_a_query_takes_natural_gradient_steps():
    """A second moment that says the same at every step is the curvature."""
    eta, fisher = 0.05, some_fisher()
    sampler = dpmcmc.SGFS(N * eta, 0.0, "query", structure="dense").bind(N)
    moment = PrivateSecondMoment(jnp.asarray(N * fisher, jnp.float32), jnp.float32(0))
    same(ours(sampler, (moment,)), damped_newton(N * fisher, 2 / eta * np.eye(D)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "optimiser"),
    [
        (dpmcmc.SGLD(1.0, temperature=0.0), optax.sgd(1.0)),
        (dpmcmc.SGHMC(1.0, temperature=0.0, friction=0.25), optax.sgd(1.0, momentum=0.75)),
    ],
)
def test_engine_at_temperature_zero_minimises_the_mean_loss(sampler, optimiser):
    """step_size is the learning rate on the MEAN loss, prior included, as an optimiser knows it."""
    rng = np.random.default_rng(0)
    records = {"x": rng.normal(size=(200, 3)).astype(np.float32), "y": rng.integers(0, 2, 200)}
    target = dpmcmc.targets.LogisticRegression(prior_scale=2.0)
    plan = dpmcmc.plan(target, num_records=200, sampler=sampler, steps=STEPS, privacy=None)
    draws = dpmcmc.sample(plan, records, key=0).draws[0]

    @jax.jit
    @jax.grad
    def mean_loss(params):
        each = jax.vmap(lambda record: target.log_likelihood(params, record))(records)
        return -(target.log_prior(params) + jnp.sum(each)) / 200

    params = jnp.zeros(3)
    state = optimiser.init(params)
    for t in range(STEPS):
        updates, state = optimiser.update(mean_loss(params), state)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(draws[t], params, rtol=1e-4, atol=1e-5)
    assert jnp.linalg.norm(mean_loss(params)) < 1e-3
