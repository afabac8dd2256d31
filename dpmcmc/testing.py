"""Public checks for a sampler or a target of one's own, shared by the test suite and by extensions.

:func:`check_sampler` drives a sampler with exact gradients of a Gaussian and compares what it keeps with the law it
claims; :func:`check_target` compares a target's gradients, sums and bounds with each other. Both raise AssertionError
on the first thing that breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy.query import randomness
from dpmcmc.privacy.query.matrix_forms import form_of
from dpmcmc.privacy.query.metric import PublicMatrix
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.second_moment import PrivateSecondMoment, SecondMoment, asked
from dpmcmc.samplers.base import Sampler, missing_of, sampler_offers
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    from dpmcmc.targets.base import Target


class Run(TypedDict, total=False):
    """How a sampler is run on a Gaussian.

    Attributes:
        steps: per chain.
        chains: independent chains.
        noise_std: gradient noise, in units of the sampler's metric; the sampler's own by default.
        seed: of the whole check; 0 by default.
        start_std: std of the starting points, (d,); zeros by default.
        every: distance in steps between samples; 10 by default.

    Example:
        >>> from dpmcmc.testing import Run
        >>> Run(steps=1000, chains=64)
        {'steps': 1000, 'chains': 64}
    """

    steps: Required[int]
    chains: Required[int]
    noise_std: float | None
    seed: int
    start_std: np.ndarray
    every: int


def gaussian_chain(sampler: Sampler, curvature: np.ndarray, **run: Unpack[Run]) -> np.ndarray:
    """Return the positions of :func:`gaussian_run`, which has the same arguments: (samples, chains, d) float64."""
    return gaussian_run(sampler, curvature, **run)[0]


def gaussian_run(sampler: Sampler, curvature: np.ndarray, **run: Unpack[Run]) -> tuple[np.ndarray, PyTree]:
    """Run ``chains`` chains on the potential Σ w_i x_i²/2, and sample the second half of the run.

    Args:
        sampler: bound to its number of records.
        curvature: w, (d,).
        **run: keywords of :class:`Run`.

    Returns:
        (positions (samples, chains, d) float64, the sampler's Info at the same steps, leaves (samples, chains)).
    """
    check_not_forked()
    chains = run["chains"]
    noise_std = run.get("noise_std")
    every = run.get("every", 10)
    d = len(curvature)
    w = jnp.asarray(curvature, jnp.float32)
    root = jax.random.key(run.get("seed", 0))
    start_key, chain_key = jax.random.split(root)
    start = randomness.normal(start_key, (chains, d)) * jnp.asarray(run.get("start_std", np.zeros(d)), jnp.float32)
    state = jax.vmap(sampler.init)(jax.random.split(chain_key, chains), start)
    second = asked(sampler.queries)
    metric = sampler_offers(sampler).metric

    def step(state: PyTree, t: jax.Array) -> tuple[PyTree, PyTree]:
        key = jax.random.fold_in(root, t)
        noise_key, dynamics_key = jax.random.split(key)
        s = jnp.asarray(sampler.noise_std(t) if noise_std is None else noise_std, jnp.float32)
        noise = s * randomness.normal(noise_key, (chains, d))

        def one(key: jax.Array, state: PyTree, noise: jax.Array) -> PyTree:
            noise = noise if metric is None else metric.times(noise)
            gradient = PrivateGradient(state.position * w + noise, s, _exact_moment(second, w, metric))
            return sampler.step(key, state, gradient, t)

        state, info = jax.vmap(one)(jax.random.split(dynamics_key, chains), state, noise)
        return state, (state.position, info)

    def whole(state: PyTree) -> PyTree:
        # Only samples stay in memory: each stretch of ``every`` steps ends in one.
        def stretch(state: PyTree, first: jax.Array) -> PyTree:
            state, out = jax.lax.scan(step, state, first + jnp.arange(every))
            return state, jax.tree.map(lambda leaf: leaf[-1], out)

        return jax.lax.scan(stretch, state, every * jnp.arange(run["steps"] // every))[1]

    positions, info = jax.jit(whole)(state)
    half = run["steps"] // every // 2
    return np.asarray(positions[half:], np.float64), jax.tree.map(lambda leaf: np.asarray(leaf)[half:], info)


def _exact_moment(
    second: SecondMoment | None, w: jax.Array, metric: PublicMatrix | None
) -> tuple[PrivateSecondMoment, ...]:
    """Return the answer of a second-moment query on the Gaussian, whitened and without noise."""
    if second is None:
        return ()
    matrix = w if metric is None else metric.whitened(w)
    return (PrivateSecondMoment(form_of(second.structure, w.size).of(matrix), jnp.float32(0)),)


def _squared_scale(metric: PublicMatrix | None) -> np.ndarray | float:
    """F² of a diagonal metric; the smallest squared singular value of a matrix."""
    if metric is None:
        return 1.0
    array = metric.array
    return array**2 if array.ndim < 2 else metric.stretch() ** 2


def _walked(
    sampler: Sampler, position: PyTree, noise_std: float, moment: tuple[PrivateSecondMoment, ...]
) -> np.ndarray:
    """Return where four steps lead whose gradient is ``noise_std`` times the position: its leaves in one vector."""
    state = sampler.init(jax.random.key(0), position)
    for t in range(4):
        value = jax.tree.map(lambda leaf: noise_std * leaf, state.position)
        gradient = PrivateGradient(value, jnp.float32(noise_std), moment)
        state, _ = sampler.step(jax.random.key(t), state, gradient, jnp.int32(t))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.position)])


def check_stationary_variance(
    sampler: Sampler,
    curvature: np.ndarray,
    law: Callable[[np.ndarray], np.ndarray],
    tolerance: float,
    **run: Unpack[Run],
) -> None:
    """Raise AssertionError unless Var[x_i] is within ``tolerance`` (relative) of ``law(curvature)``."""
    wanted = law(np.asarray(curvature, np.float64))
    samples = gaussian_chain(sampler, curvature, **{"start_std": np.sqrt(wanted), **run})
    found = samples.reshape(-1, len(wanted)).var(axis=0)
    worst = float(np.max(np.abs(found / wanted - 1)))
    if not worst <= tolerance:
        raise AssertionError(
            f"{sampler} keeps variances {found} where its law says {wanted}: off by {100 * worst:.1f} %, allowed "
            f"{100 * tolerance:.1f} %"
        )


def check_sampler(
    sampler: Sampler,
    num_records: int = 1000,
    seed: int = 0,
    dimension: int = 32,
    chains: int = 2048,
) -> None:
    """Protocol and stationarity of a sampler; raises AssertionError on the first law it breaks.

    * The state holds a ``position``, and ``noise_std`` agrees on host and device.
    * A step is deterministic given its key, and a pytree of two leaves moves as one vector does.
    * On a Gaussian with ηw from 0.02 to 0.04 the variance is temperature / curvature. A step of that size may be biased
      by 3 %. 1000 steps of a chain hold 20 independent draws of the slowest direction, and the check allows for 4
      standard errors (2.8 % with 2048 chains). With temperature 0 this check is left out.

    Args:
        sampler: with numbers for hyper-parameters; it is bound to ``num_records`` here.
        num_records: N.
        seed: of the check.
        dimension: parameters of the Gaussian; 32, so that a thermostat shared by them is within its validity region.
        chains: fewer are faster and tell less.
    """
    check_not_forked()
    missing = missing_of(sampler)
    if missing:
        raise AssertionError(f"{sampler} lacks {', '.join(missing)} of the Sampler protocol")
    bound = sampler.bind(num_records)
    try:
        second = asked(bound.queries)
    except ValueError as error:
        raise AssertionError(f"{sampler}: {error}") from None
    state = bound.init(jax.random.key(seed), jnp.zeros(dimension))
    if not hasattr(state, "position"):
        raise AssertionError(f"{type(state).__name__} must have a field `position`")
    host = float(np.broadcast_to(np.asarray(bound.noise_std(np.arange(2.0))), 2)[1])
    device = float(jax.jit(bound.noise_std)(jnp.int32(1)))
    if not math.isclose(host, device, rel_tol=1e-5):
        raise AssertionError(f"noise_std differs between host ({host}) and device ({device})")
    moment = _exact_moment(second, jnp.ones(dimension), sampler_offers(bound).metric)
    gradient = PrivateGradient(jnp.ones(dimension), jnp.float32(host), moment)
    key = jax.random.key(seed)
    first, again = (bound.step(key, state, gradient, jnp.int32(0)) for _ in range(2))
    if not isinstance(first, tuple) or len(first) != 2:
        raise AssertionError("step must return (State, Info)")
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        if not np.array_equal(np.asarray(a), np.asarray(b)):
            raise AssertionError("step is not a function of its arguments")
    start = jnp.linspace(0.5, 2.0, dimension)
    leaves = {"a": start[: dimension // 4], "b": start[dimension // 4 :]}
    flat, tree = (_walked(bound, position, host, moment) for position in (start, leaves))
    if not np.allclose(flat, tree, rtol=1e-4, atol=1e-5):
        raise AssertionError(f"{sampler} moves a pytree differently from the same numbers in one array")
    if bound.temperature > 0:
        # η over the friction: the time in which a direction of curvature w relaxes is 1/w for every sampler.
        eta = float(np.asarray(bound.time_at(np.full(1, host), np.arange(1.0))).ravel()[0])
        # A metric whitens the curvature, since a step of η is one in its units.
        curvature = np.geomspace(0.02, 0.04, dimension) / eta * _squared_scale(sampler_offers(bound).metric)
        check_stationary_variance(
            bound,
            curvature,
            lambda w: bound.temperature / w,
            tolerance=0.03 + 4 * math.sqrt(2 / (20 * chains)),
            steps=2000,
            chains=chains,
            seed=seed,
        )


def check_target(target: Target, records: PyTree, seed: int = 0) -> None:
    """Raise AssertionError on the first rule of targets that this one breaks.

    Rules are about the protocol and its shapes, finite densities and gradients, ``gradient_bound``, ``predict``, and a
    ``clipped_gradient_sum`` that agrees with the generic path and moves by at most 2C when a record is replaced.

    Args:
        target: a Target, bound or not.
        records: pytree of arrays, leaves (n, ...): synthetic or public ones, because they are read without privacy.
        seed: of the check.

    Raises:
        AssertionError: the rule that is broken.
    """
    from dpmcmc.targets import checks

    checks.check_target(target, records, seed)
