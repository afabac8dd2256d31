"""A compiled program serves every plan that differs in numbers alone, and holds neither a number nor a record."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query import exact_sums

RNG = np.random.default_rng(0)
N, D = 400, 3
X = RNG.normal(size=(N, D)).astype(np.float32)
X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
DATA = {"x": X, "y": (X[:, 0] > 0).astype(np.int32)}
OTHER = {"x": np.roll(-X, 1, axis=0), "y": 1 - DATA["y"]}


def draws(sampler, data=DATA, key=1, **privacy):
    """Draws of a short run whose noise is known."""
    promise = {"epsilon": 0.1, "delta": 1e-4, "clip": 1.0}
    plan = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(prior_scale=1.0),
        num_records=N,
        sampler=sampler,
        sampling=dpmcmc.Full(),
        steps=8,
        privacy=dpmcmc.Privacy(**promise | privacy),
    )
    return dpmcmc.sample(plan, data, key=key).draws


@pytest.fixture
def compiled():
    """Names of the programs that XLA compiles from now on."""
    seen = []

    def listener(name, duration, **facts):
        if name == "/jax/core/compile/backend_compile_duration":
            seen.append(facts.get("fun_name", duration))

    jax.monitoring.register_event_duration_secs_listener(listener)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listener)


def test_other_numbers_and_other_records_compile_nothing_and_are_used(compiled):
    first = draws(dpmcmc.SGLD(0.5))
    compiled.clear()
    others = [
        draws(dpmcmc.SGLD(0.25)),
        draws(dpmcmc.SGLD(0.5), epsilon=0.09),
        draws(dpmcmc.SGLD(0.5), clip=0.9),
        draws(dpmcmc.SGLD(0.5), OTHER),
    ]
    assert compiled == []
    assert all(np.abs(other - first).max() > 1e-6 for other in others)


@dataclass(frozen=True)
class Plain(dpmcmc.SGLD):
    """Keeps something worked out from a number beside its fields; JAX does not know it."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "_gain", float(self.step_size) ** 0.5)

    def step(self, key, state, gradient, t):
        return super().step(key, state, gradient._replace(value=self._gain * gradient.value), t)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Registered(dpmcmc.SGLD):
    """The same, whose numbers are leaves."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "_gain", self.step_size**0.5)

    def step(self, key, state, gradient, t):
        return super().step(key, state, gradient._replace(value=self._gain * gradient.value), t)


@pytest.mark.slow
def test_a_number_worked_out_from_another_follows_it():
    for step in (0.5, 0.1):
        np.testing.assert_allclose(draws(Plain(step)), draws(Registered(step)), rtol=2e-5, atol=1e-6)


@pytest.mark.optimised
@pytest.mark.parametrize("clip", [1e-6, 0.3, 1.0, 7.0, 1e6])
def test_a_traced_clip_clips_to_the_same_grid_and_bound(clip):
    rng = np.random.default_rng(3)
    rows = (rng.normal(size=(64, 9)) * 10.0 ** rng.uniform(-12, 12, size=(64, 1))).astype(np.float32)
    mask = jnp.ones(1, bool)

    def sums(row, c):
        residual = jnp.ones(1)
        return exact_sums.clipped_sum(row, mask, c, 21), exact_sums.linear_sum(residual, row, mask, c, 21)

    traced, static = jax.jit(sums), jax.jit(lambda row: sums(row, clip))
    for row in rows[:, None]:
        for one, other in zip(traced(row, jnp.float32(clip)), static(row), strict=True):
            found = one.to_float64(clip, 21)
            assert np.linalg.norm(found) <= clip * (1 + KAPPA)
            # 1/C is rounded once either way; a grid step where the device rounds it otherwise.
            np.testing.assert_allclose(found, other.to_float64(clip, 21), atol=1.01 * clip * 2.0**-21)
            floats = one.to_float(jnp.float32(clip), 21)
            # The two limbs of a small negative number cancel to a hundredth of a grid step.
            np.testing.assert_allclose(floats, found, rtol=1e-6, atol=0.01 * clip * 2.0**-21)
