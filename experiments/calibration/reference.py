"""The non-private posterior of a simulated table, by its normal approximation at the mode."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets import Target

#: Newton steps at most, and the length of the last one in standard deviations.
_STEPS, _CLOSE = 25, 1e-3


@functools.lru_cache(maxsize=16)
def _derivatives(target: Target) -> tuple[np.ndarray, Callable[[jax.Array, PyTree], tuple[jax.Array, jax.Array]]]:
    """Return a start, and (flat parameters, records) -> gradient and Hessian of the negative log posterior."""
    start, unravel = ravel_pytree(target.init(jax.random.key(0)))

    def potential(flat: jax.Array, records: PyTree) -> jax.Array:
        params = unravel(flat)
        each = jax.vmap(lambda record: target.log_likelihood(params, record))(records)
        return -jnp.sum(each) - target.log_prior(params)

    both = jax.jit(lambda flat, records: (jax.grad(potential)(flat, records), jax.hessian(potential)(flat, records)))
    return np.zeros(start.shape), both


def laplace(target: Target, records: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (d,) and covariance (d, d); exact where the posterior is normal."""
    at, both = _derivatives(target)
    records = jax.tree.map(jnp.asarray, records)
    for _ in range(_STEPS):
        gradient, hessian = (np.asarray(a, np.float64) for a in both(jnp.asarray(at, jnp.float32), records))
        covariance = np.linalg.inv(hessian)
        step = covariance @ gradient
        at = at - step
        if np.max(np.abs(step) / np.sqrt(np.diag(covariance))) < _CLOSE:
            break
    return at, covariance
