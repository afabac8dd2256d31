"""Public checks for a sampler, shared by the test suite and by extensions.

:func:`check_sampler` drives a sampler with exact gradients of a Gaussian and compares what it keeps with
the law it claims. It raises on the first law that breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy import randomness
from dpmcmc.privacy.query import PrivateGradient
from dpmcmc.samplers.base import PROTOCOL


def gaussian_chain(
    sampler: Any,
    curvature: np.ndarray,
    *,
    steps: int,
    chains: int,
    noise_std: float | None = None,
    seed: int = 0,
    start_std: np.ndarray | None = None,
) -> np.ndarray:
    """Positions of ``chains`` chains on the potential Σ w_i x_i²/2 at the last step and along the way.

    Args:
        sampler: bound to its number of records.
        curvature: w, (d,).
        steps: per chain.
        chains: independent chains.
        noise_std: gradient noise; the sampler's own by default.
        seed: of the whole check.
        start_std: std of the starting points, (d,); zeros by default.

    Returns:
        (samples, chains, d) float64, every tenth step of the second half.
    """
    w = jnp.asarray(curvature, jnp.float32)
    root = jax.random.key(seed)
    start_key, chain_key = jax.random.split(root)
    scale = np.zeros(len(curvature)) if start_std is None else start_std
    start = randomness.normal(start_key, (chains, len(curvature))) * jnp.asarray(scale, jnp.float32)
    state = jax.vmap(sampler.init)(jax.random.split(chain_key, chains), start)

    def step(state: Any, t: jax.Array) -> tuple[Any, Any]:
        key = jax.random.fold_in(root, t)
        noise_key, dynamics_key = jax.random.split(key)
        s = jnp.float32(sampler.noise_std(t) if noise_std is None else noise_std)
        gradient = state.position * w + s * randomness.normal(noise_key, (chains, len(curvature)))

        def one(key: jax.Array, state: Any, g: jax.Array) -> Any:
            return sampler.step(key, state, PrivateGradient(g, s), t)[0]

        state = jax.vmap(one)(jax.random.split(dynamics_key, chains), state, gradient)
        return state, state.position

    _, positions = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(steps)))(state)
    return np.asarray(positions[steps // 2 :: 10], np.float64)


def check_stationary_variance(
    sampler: Any, curvature: np.ndarray, law: Callable[[np.ndarray], np.ndarray], tolerance: float, **run: Any
) -> None:
    """Raise AssertionError unless Var[x_i] is within ``tolerance`` (relative) of ``law(curvature)``."""
    wanted = law(np.asarray(curvature, np.float64))
    samples = gaussian_chain(sampler, curvature, start_std=np.sqrt(wanted), **run)
    found = samples.reshape(-1, len(wanted)).var(axis=0)
    worst = float(np.max(np.abs(found / wanted - 1)))
    if not worst <= tolerance:
        raise AssertionError(
            f"{sampler} keeps variances {found} where its law says {wanted}: off by {100 * worst:.1f} %, allowed "
            f"{100 * tolerance:.1f} %"
        )


def check_sampler(sampler: Any, num_records: int = 1000, seed: int = 0) -> None:
    """Protocol and stationarity of a sampler; raises AssertionError on the first law it breaks.

    Checks that the state holds a ``position``, that ``noise_std`` agrees on host and device and does not
    depend on data, that a step is deterministic given its key, and that on a Gaussian with ηw from 0.02 to 0.04 the
    variance is temperature / curvature within 6 %: up to 2 % is the bias that a step of that size may have, and
    2048 chains over 1000 steps hold 4e4 independent draws of the slowest direction, 4 standard errors of whose
    variance are 2.8 %.

    Args:
        sampler: with numbers for hyper-parameters; it is bound to ``num_records`` here.
        num_records: N.
        seed: of the check.
    """
    missing = [name for name in PROTOCOL if not hasattr(sampler, name)]
    if missing:
        raise AssertionError(f"{sampler} lacks {', '.join(missing)} of the Sampler protocol")
    bound = sampler.bind(num_records)
    if tuple(bound.queries) != ("gradient",):
        raise AssertionError(f"{sampler} must ask for one gradient a step, and asks for {bound.queries}")
    state = bound.init(jax.random.key(seed), jnp.zeros(3))
    if not hasattr(state, "position"):
        raise AssertionError(f"{type(state).__name__} must have a field `position`")
    host = float(np.broadcast_to(np.asarray(bound.noise_std(np.arange(2.0))), 2)[1])
    device = float(jax.jit(bound.noise_std)(jnp.int32(1)))
    if not math.isclose(host, device, rel_tol=1e-5):
        raise AssertionError(f"noise_std differs between host ({host}) and device ({device})")
    gradient = PrivateGradient(jnp.ones(3), jnp.float32(host))
    key = jax.random.key(seed)
    first, again = (bound.step(key, state, gradient, jnp.int32(0)) for _ in range(2))
    if not isinstance(first, tuple) or len(first) != 2:
        raise AssertionError("step must return (State, Info)")
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        if not np.array_equal(np.asarray(a), np.asarray(b)):
            raise AssertionError("step is not a function of its arguments")
    if bound.temperature > 0:
        # η over the friction: the time in which a direction of curvature w relaxes is 1/w for every sampler.
        eta = float(np.asarray(bound.time_at(np.full(1, host), np.arange(1.0))).ravel()[0])
        # 32 coordinates, so that a thermostat shared by them is within its validity region.
        curvature = np.geomspace(0.02, 0.04, 32) / eta
        check_stationary_variance(
            bound,
            curvature,
            lambda w: bound.temperature / w,
            tolerance=0.06,
            steps=2000,
            chains=2048,
            seed=seed,
        )
