"""Draws from a NumPyro model's prior times a normal likelihood of released numbers, by NumPyro's NUTS.

No record is read here. The likelihood is N(u; H t(θ), 𝒞) with t as in ``targets/numpyro/model.py``, and
everything in it is released. θ lives on the real line, and the prior is the model's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from dpmcmc.mechanisms.sums_in_blocks import float64
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    from dpmcmc.targets.numpyro.predictor import Reading


#: Chains, transitions of warm-up of each, and transitions from one kept draw to the next.
_CHAINS, _WARMUP, _THIN = 4, 800, 3


class Likelihood(NamedTuple):
    """−log likelihood = ‖whitened − slope·t‖²/2.

    Attributes:
        whitened: (d,).
        slope: (d, d).
    """

    whitened: np.ndarray
    slope: np.ndarray


def draws(
    reading: Reading,
    likelihood: Likelihood,
    start: np.ndarray,
    count: int,
    key: jax.Array,
) -> tuple[PyTree, np.ndarray]:
    """Return posterior draws on the real line, leaves (count, ...), and their t, (count, d).

    Args:
        reading: of the model.
        likelihood: of what was released.
        start: t to start near, (d,).
        count: how many.
        key: of the dynamics.
    """
    kept = -(-count // _CHAINS)
    with float64():
        keys = jax.random.split(key, _CHAINS)
        found = jax.device_get(_program(reading, kept)(reading.start(start), likelihood, keys))
    drawn, places = jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])[:count], found)
    return drawn, places


@functools.lru_cache(maxsize=16)
def _program(reading: Reading, kept: int) -> Callable[..., PyTree]:
    """Return the compiled chains: (start, likelihood, keys (chains,)) -> draws, leaves (chains, kept, ...)."""
    from numpyro.infer.hmc import hmc  # half a second to import

    target = reading.predictor.target

    def potential_of(likelihood: Likelihood) -> Callable[[PyTree], jax.Array]:
        def potential(params: PyTree) -> jax.Array:
            misfit = likelihood.whitened - likelihood.slope @ reading.place(params)
            return 0.5 * misfit @ misfit - target.log_prior(params)

        return potential

    def chain(start: PyTree, likelihood: Likelihood, key: jax.Array) -> PyTree:
        prepare, transition = hmc(potential_fn_gen=potential_of, algo="NUTS")
        state = prepare(
            start,
            num_warmup=_WARMUP,
            dense_mass=True,
            model_args=(likelihood,),
            rng_key=key,
        )

        def step(state: PyTree, _: None) -> tuple[PyTree, PyTree]:
            state = transition(state, (likelihood,))
            return state, state.z

        _, z = jax.lax.scan(step, state, length=_WARMUP + _THIN * kept)
        kept_states = jax.tree.map(lambda leaf: leaf[_WARMUP + _THIN - 1 :: _THIN], z)
        return kept_states, jax.vmap(reading.place)(kept_states)

    return jax.jit(jax.vmap(chain, (None, None, 0)))
