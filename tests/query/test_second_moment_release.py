"""Noise of a gradient and a second moment, what the release reads, and the best attack on it."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpmcmc
from dpmcmc.engine import program
from dpmcmc.privacy import FixedSize, Full, Poisson, Privacy
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.query import matrix_forms
from dpmcmc.privacy.query.matrix_forms import DENSE
from dpmcmc.privacy.query.query import GradientQuery, PrivateGradient
from dpmcmc.privacy.query.second_moment import PrivateSecondMoment, SecondMoment, multiples
from dpmcmc.samplers import SGFS
from tests.second_moments import (
    LARGE,
    METRICS,
    D,
    Given,
    MomentReplay,
    charged,
    one_event_per_minibatch,
    queries_of,
    query_plan,
    worst_rows,
)


class Seen(NamedTuple):
    gradient: jax.Array
    moment: jax.Array


class Recorder(SGFS):
    """Stays where it is and shows what it was given."""

    def step(self, key, state, gradient, t):
        return state, Seen(jnp.ravel(gradient.value), gradient.releases[0].value)


def recorded_noise(plan) -> tuple[np.ndarray, np.ndarray]:
    """(steps, D) and (steps, ...) draws in units of C and C² on the sum, from records without gradient."""
    clip, scale = plan.privacy.clip, plan.num_records / plan.batch_size
    info = dpmcmc.sample(plan, {"g": np.zeros((plan.num_records, D), np.float32)}, key=0).info
    gradient, moment = (np.asarray(v, np.float64)[0] for v in info)
    return gradient / (clip * scale), moment / (clip**2 * scale)


def off_diagonal(moment):
    row, column = np.triu_indices(D, 1)
    return moment[:, row, column]


def check_noise(gradient, moment, z: float, ratio: float) -> None:
    """Every part has the std its event claims, and no two parts share randomness."""

    def has_std(noise, std):
        assert abs(np.mean((noise / std) ** 2) - 1) < 5 * math.sqrt(2 / noise.size)
        assert abs(np.mean(noise)) < 5 * std / math.sqrt(noise.size)
        assert stats.kstest(np.ravel(noise) / std, "norm").pvalue > 1e-5

    parts = [gradient / z]
    has_std(gradient, z)
    if moment.ndim == 3:
        np.testing.assert_array_equal(moment, np.swapaxes(moment, 1, 2))
        diagonal, off = np.diagonal(moment, axis1=1, axis2=2), off_diagonal(moment)
        has_std(diagonal, ratio * z)
        has_std(off, ratio * z * 0.5**0.5)
        parts += [diagonal / (ratio * z), off / (ratio * z * 0.5**0.5)]
    else:
        has_std(moment, ratio * z)
        parts += [moment / (ratio * z)]
    every = np.concatenate(parts, axis=1)
    for view in (every, every**2, np.abs(every)):  # a shared radius shows in sizes, not in signs
        correlation = np.corrcoef(view.T) - np.eye(every.shape[1])
        assert np.abs(correlation).max() < 6 / math.sqrt(len(every))
    shifted = np.corrcoef(every[1:, 0], every[:-1, 0])[0, 1]
    assert abs(shifted) < 6 / math.sqrt(len(every))


def recorder(ratio, structure="dense", **more):
    return Recorder(
        step_size=LARGE, fisher="query", noise_ratio=ratio, structure=structure, **{"query_every": 1} | more
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "structure", "clip", "sampling"),
    [(0.02, "dense", 1.0, FixedSize(40)), (1.0, "diagonal", 30.0, Poisson(40.0))],
)
def test_gradient_and_second_moment_carry_independent_noise_of_the_charged_size(ratio, structure, clip, sampling):
    plan = query_plan(sampling, steps=2000, sampler=recorder(ratio, structure), clip=clip, accountant="rdp")
    one_event_per_minibatch(plan)
    gradient, moment = recorded_noise(plan)
    z = float(plan.noise_multipliers[0])
    check_noise(gradient, moment, z, ratio)
    # The event's claim, from the noise as measured.
    diagonal = moment if moment.ndim == 2 else np.diagonal(moment, axis1=1, axis2=2)
    measured = (1 / np.mean(gradient**2) + 1 / np.mean(diagonal**2)) ** -0.5
    (event,) = queries_of(plan)
    assert measured == pytest.approx(event.noise_multiplier, rel=5 / math.sqrt(2000 * D))


@pytest.mark.slow
def test_a_metric_shapes_the_gradients_noise_and_leaves_the_second_moments_whitened():
    rng = np.random.default_rng(3)
    f = rng.normal(size=(D, D)) + 3 * np.eye(D)
    plan = query_plan(Poisson(40.0), steps=2000, sampler=recorder(2.0, metric=f, own_batch=True), accountant="rdp")
    one_event_per_minibatch(plan)
    gradient, moment = recorded_noise(plan)
    check_noise(gradient @ np.linalg.inv(f).T, moment, float(plan.noise_multipliers[0]), 2.0)


@pytest.mark.slow
def test_off_diagonal_noise_twice_too_small_is_caught(monkeypatch):
    """Planted fault."""
    right = DENSE.noise_scale

    def halved(parameters):
        scale = right(parameters)
        return np.where(scale < 1, scale / 2, scale).astype(np.float32)

    monkeypatch.setattr(matrix_forms, "DENSE", DENSE._replace(noise_scale=halved))
    plan = query_plan(Poisson(39.0), steps=1000, sampler=recorder(3.0), accountant="rdp")  # a plan not compiled before
    with pytest.raises(AssertionError):
        check_noise(*recorded_noise(plan), float(plan.noise_multipliers[0]), 3.0)


@pytest.mark.parametrize("fisher", ["gradients", "public"])
def test_free_fisher_information_asks_for_one_gradient_and_ignores_other_releases(fisher):
    sampler = SGFS(step_size=1.0, fisher=fisher, public_fisher=1.0 if fisher == "public" else None).bind(10)
    assert sampler.queries == ("gradient",)
    state = sampler.init(jax.random.key(0), jnp.ones(D))
    key, value, std = jax.random.key(1), jnp.arange(float(D)), jnp.float32(3.0)
    poison = (PrivateSecondMoment(jnp.full((D, D), jnp.nan), std),)
    clean = sampler.step(key, state, PrivateGradient(value, std), jnp.int32(0))
    with_poison = sampler.step(key, state, PrivateGradient(value, std, poison), jnp.int32(0))
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(with_poison), strict=True):
        np.testing.assert_array_equal(a, b)


class Reached(Exception):
    pass


@pytest.mark.parametrize("own", [False, True])
def test_a_private_run_never_takes_the_plain_path(own, monkeypatch):
    asked = []

    def spy(*arguments, **more):
        asked.append(GradientQuery(*arguments, **more))
        raise Reached

    def plain(*arguments):
        raise Reached

    monkeypatch.setattr(program, "GradientQuery", spy)
    monkeypatch.setattr(GradientQuery, "plain_sum", plain)
    sampler = SGFS(step_size=LARGE, fisher="query", noise_ratio=1e4, own_batch=own, metric=2.0)
    for privacy in (Privacy(epsilon=2.0, delta=1e-4, accountant="rdp"), None):
        plan = dpmcmc.plan(Given(), num_records=400, sampling=Poisson(41.5), sampler=sampler, steps=2, privacy=privacy)
        with pytest.raises(Reached):
            dpmcmc.sample(plan, {"g": np.ones((400, D), np.float32)}, key=0)
        inputs = jnp.zeros(D), {"g": jnp.ones((400, D))}, jax.random.key(0), jax.random.key(1), jnp.float32(1.0)
        if privacy is not None:
            assert asked[-1].clip is not None
            asked[-1] = dataclasses.replace(asked[-1], clip=privacy.clip)
            assert (asked[-1].bits, asked[-1].second_bits) == (plan.noise.bits, plan.noise.second_bits)
            assert plan.noise.second_bits < plan.noise.bits
            jax.eval_shape(asked[-1], *inputs)
        else:
            assert asked[-1].clip is None
            with pytest.raises(Reached):
                jax.eval_shape(asked[-1], *inputs)


@pytest.mark.optimised
def test_the_compiled_query_holds_no_record():
    replay = MomentReplay(SecondMoment(1.0, "dense"), METRICS["dense"], Poisson(75.0))
    records = replay.records(worst_rows()["aligned"], replay.at)
    rows = np.asarray(records["g"])

    def call(records, key):
        return replay.query(replay.params, records, key, key, replay.std)

    def holds_a_record(program) -> bool:
        numbers = [np.asarray(c) for c in program.consts if jnp.issubdtype(c.dtype, jnp.number)]
        return any(np.isin(rows[rows != 0], constant).any() for constant in numbers)

    assert not holds_a_record(jax.make_jaxpr(call)(records, jax.random.key(0)))
    # Planted: a closure over the records.
    assert holds_a_record(jax.make_jaxpr(lambda key: call(records, key))(jax.random.key(0)))


@pytest.mark.slow
def test_the_best_attack_on_the_pair_stays_below_its_charge_and_beats_that_of_the_gradient():
    """One step at rate 1, two parameters, a record of norm C or none: the likelihood ratio is linear in the pair."""
    draws, z, ratio, delta = 400_000, 1.0, 0.5, 1e-5
    target = dpmcmc.targets.Custom(
        init=lambda key: jnp.zeros(2), log_prior=lambda p: 0.0 * jnp.sum(p), log_likelihood=lambda p, r: -r["g"] @ p
    )
    n = 20
    q = GradientQuery(target, n, float(n), 1.0, None, second=SecondMoment(ratio, "diagonal"))
    rows = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    # All of its second moment shows in the diagonal.
    row = np.array([1.0, 0.0])
    batch = jax.random.key(9)

    def observe(present: bool, seed: int) -> np.ndarray:
        mine = rows.copy()
        mine[0] = 10 * row * present
        records = {"g": jnp.asarray(mine)}
        one = lambda k: q(jnp.zeros(2), records, batch, k, jnp.float32(z))  # noqa: E731
        out = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=4096))(
            jax.random.split(jax.random.key(seed), draws)
        )
        return whitened(np.asarray(out.value, np.float64), np.asarray(out.releases[0].value, np.float64))

    def whitened(gradient, moment):
        return np.concatenate([gradient / z, moment / (ratio * z)], axis=-1)

    shift = whitened(row, row**2)
    mu = float(np.linalg.norm(shift))
    assert mu == pytest.approx(1 / charged(SecondMoment(ratio), z)[0], rel=1e-4)
    base = observe(False, 1)
    centre = float(np.mean(base @ shift / mu))
    # A threshold fixed by the theory alone, where false alarms are about one in 10⁵.
    threshold = centre + 4.2
    alarms = [int(np.sum(observe(present, seed) @ shift / mu > threshold)) for present, seed in ((False, 2), (True, 3))]
    false_alarms = stats.beta.ppf(0.995, alarms[0] + 1, draws - alarms[0])
    hits = stats.beta.ppf(0.005, alarms[1], draws - alarms[1] + 1)
    found = math.log((hits - delta) / false_alarms)
    claimed = account(
        z * multiples(SecondMoment(ratio))[0], steps=1, sampling=Full(), num_records=n, delta=delta,
        adjacency="zero_out",
    ).epsilon  # fmt: skip
    gradient_alone = account(z, steps=1, sampling=Full(), num_records=n, delta=delta, adjacency="zero_out").epsilon
    assert claimed == pytest.approx(gaussian_epsilon(mu, delta), rel=1e-3)
    assert gradient_alone < found < claimed
