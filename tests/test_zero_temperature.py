"""At temperature 0 and without noise each sampler is an optimiser that can be had elsewhere, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import dpmcmc
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.second_moment import PrivateSecondMoment
from dpmcmc.samplers import Polynomial

N = 1000
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
