"""The non-private posterior, by Laplace's approximation at the MAP, and how far draws are from it.

Reads every training record without privacy: a confidential diagnostic, released only where the records are
public. It never feeds back into a private run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from scipy.stats import norm

#: Beyond this many parameters the dense Hessian is not attempted.
_MOST_PARAMETERS = 2000


@dataclass(frozen=True)
class Laplace:
    """N(mean, covariance) over the flattened parameters.

    Attributes:
        mean: MAP, (p,) float64.
        covariance: inverse Hessian of the potential there, (p, p) float64.
        unravel: (p,) -> parameter pytree.
    """

    mean: np.ndarray
    covariance: np.ndarray
    unravel: Any

    @property
    def std(self) -> np.ndarray:
        """Marginal standard deviations, (p,)."""
        return np.sqrt(np.diag(self.covariance))

    def draws(self, count: int, seed: int = 0) -> Any:
        """Pytree of ``count`` draws, leaves (count, ...). Seeded: a reference, not a release."""
        z = np.random.default_rng(seed).standard_normal((count, len(self.mean)))
        flat = self.mean + z @ np.linalg.cholesky(self.covariance).T
        return jax.vmap(self.unravel)(jnp.asarray(flat, jnp.float32))


def laplace(target: Any, records: Any, steps: int = 400) -> Laplace:
    """MAP by optax L-BFGS from the target's starting point, and the inverse Hessian there.

    Raises:
        ValueError: too many parameters for a dense Hessian, or a Hessian that is not positive definite.
    """
    records = jax.tree.map(jnp.asarray, records)
    start, unravel = ravel_pytree(target.init(jax.random.key(0)))
    if start.size > _MOST_PARAMETERS:
        raise ValueError(
            f"Laplace's approximation is dense, and {start.size} parameters are more than {_MOST_PARAMETERS}"
        )
    # The mean loss keeps float32 gradients well scaled.
    count = len(jax.tree.leaves(records)[0])

    # Records are arguments of everything compiled: a closure would write them into the compilation cache.
    def loss(flat: jax.Array, records: Any) -> jax.Array:
        params = unravel(flat)
        each = jax.vmap(lambda record: target.log_likelihood(params, record))(records)
        return -(jnp.sum(each) + target.log_prior(params)) / count

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(loss)

    def unfinished(carry: tuple) -> jax.Array:
        _, state, i = carry
        gradient = optax.tree.get(state, "grad")
        return (i == 0) | ((i < steps) & (jnp.linalg.norm(gradient) > 1e-7))

    @jax.jit
    def solve(start: jax.Array, records: Any) -> jax.Array:
        def body(carry: tuple) -> tuple:
            flat, state, i = carry
            value, gradient = value_and_grad(flat, records, state=state)
            updates, state = solver.update(
                gradient, state, flat, value=value, grad=gradient, value_fn=loss, records=records
            )
            return optax.apply_updates(flat, updates), state, i + 1

        return jax.lax.while_loop(unfinished, body, (start, solver.init(start), 0))[0]

    flat = solve(start, records)
    precision = np.asarray(jax.jit(jax.hessian(loss))(flat, records), np.float64) * count
    if not np.all(np.isfinite(precision)) or np.any(np.linalg.eigvalsh((precision + precision.T) / 2) <= 0):
        raise ValueError("the Hessian at the MAP is not positive definite; the target has no Laplace fit")
    covariance = np.linalg.inv((precision + precision.T) / 2)
    return Laplace(np.asarray(flat, np.float64), covariance, unravel)


def distance(reference: Laplace, flat_draws: Any) -> dict[str, float]:
    """How far draws are from the reference, marginally, in units of its standard deviations.

    Returns:
        ``wasserstein_mean`` and ``wasserstein_max`` over coordinates (marginal W₁ / reference std),
        ``std_ratio`` (median over coordinates), ``coverage_90`` (share of coordinates whose reference mean lies
        in the draws' central 90 % interval).
    """
    flat = np.asarray(jax.vmap(lambda p: ravel_pytree(p)[0])(jax.tree.map(jnp.asarray, flat_draws)), np.float64)
    count = len(flat)
    quantiles = norm.ppf((np.arange(count) + 0.5) / count)
    wanted = reference.mean[None, :] + quantiles[:, None] * reference.std[None, :]
    w1 = np.mean(np.abs(np.sort(flat, axis=0) - wanted), axis=0) / reference.std
    low, high = np.quantile(flat, [0.05, 0.95], axis=0)
    return {
        "wasserstein_mean": float(w1.mean()),
        "wasserstein_max": float(w1.max()),
        "std_ratio": float(np.median(flat.std(axis=0) / reference.std)) if count > 1 else math.nan,
        "coverage_90": float(np.mean((low <= reference.mean) & (reference.mean <= high))),
    }
