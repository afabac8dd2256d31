"""The non-private posterior, by Laplace's approximation at the MAP, and how far draws are from it.

Where a dense covariance is too large (a network), the MAP alone still shows how well the model can predict.

Reads every training record without privacy: a confidential diagnostic, released only where the records are
public. It never feeds back into a private run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.special import ndtri

from dpmcmc.errors import InputError
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree, length_of
from dpmcmc.targets.base import Target

#: (p,) -> parameters.
Unravel: TypeAlias = Callable[[jax.Array], PyTree]

#: Beyond this many parameters the dense Hessian is not attempted.
_MOST_PARAMETERS = 2000


@dataclass(frozen=True)
class Laplace:
    """N(mean, covariance) over the flattened parameters.

    Attributes:
        mean: MAP, (p,) float64.
        covariance: inverse Hessian of the potential there, (p, p) float64.
        unravel: from a flat vector to the pytree of parameters.
    """

    mean: np.ndarray
    covariance: np.ndarray
    unravel: Unravel

    method = "Laplace at the MAP"

    @property
    def std(self) -> np.ndarray:
        """Marginal standard deviations, (p,)."""
        return np.sqrt(np.diag(self.covariance))

    @on_one_blas_thread
    def draws(self, count: int, seed: int = 0) -> PyTree:
        """Return a pytree of ``count`` draws, leaves (count, ...). Seeded: a reference, not a release."""
        z = np.random.default_rng(seed).standard_normal((count, len(self.mean)))
        flat = self.mean + z @ np.linalg.cholesky(self.covariance).T
        return jax.vmap(self.unravel)(jnp.asarray(flat, jnp.float32))


@dataclass(frozen=True)
class MaximumAPosteriori:
    """The most probable parameters alone.

    Attributes:
        mean: MAP, (p,) float64.
        unravel: from a flat vector to the pytree of parameters.
        reason: why there is no covariance; empty where none was tried.
    """

    mean: np.ndarray
    unravel: Unravel
    reason: str = ""

    method = "MAP"

    def draws(self, count: int = 1, seed: int = 0) -> PyTree:
        """Return the MAP as one draw, leaves (1, ...), whatever the arguments, since copies would predict the same."""
        return jax.vmap(self.unravel)(jnp.asarray(self.mean[None, :], jnp.float32))


@on_one_blas_thread
def fit(target: Target, records: PyTree, steps: int = 400) -> Laplace | MaximumAPosteriori:
    """Return Laplace's approximation, or where there is none the MAP alone, with the reason.

    Args:
        target: bound to its shapes.
        records: pytree, leaves (N, ...).
        steps: at most so many of L-BFGS.

    Raises:
        ValueError: the search for the MAP left the finite numbers.
    """
    point = maximum_a_posteriori(target, records, steps)
    try:
        return laplace(target, records, point)
    except ValueError as error:  # LinAlgError of NumPy is one
        return dataclasses.replace(point, reason=str(error))


def maximum_a_posteriori(target: Target, records: PyTree, steps: int = 400) -> MaximumAPosteriori:
    """Return the MAP by SciPy's L-BFGS on full batches, from the target's starting point under a fixed key.

    Gradients are of float32, so each coordinate is within a small part of its standard deviation.

    Raises:
        ValueError: the search left the finite numbers.
    """
    from scipy.optimize import minimize  # a tenth of a second to import, and runs that fit nothing do not need it

    check_not_forked()
    records = jax.tree.map(jnp.asarray, records)
    start, unravel = ravel_pytree(target.init(jax.random.key(0)))
    value_and_grad = jax.jit(jax.value_and_grad(_mean_loss(target, unravel)))

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_grad(jnp.asarray(flat, jnp.float32), records)
        return float(value), np.asarray(gradient, np.float64)

    options = {"maxiter": steps, "gtol": 1e-7, "ftol": 0.0}
    found = minimize(evaluate, np.asarray(start, np.float64), jac=True, method="L-BFGS-B", options=options)
    if not (np.isfinite(found.fun) and np.all(np.isfinite(found.x))):
        raise InputError("the search for the MAP left the finite numbers")
    return MaximumAPosteriori(found.x, unravel)


@on_one_blas_thread
def laplace(target: Target, records: PyTree, at: MaximumAPosteriori | None = None) -> Laplace:
    """Return the MAP and the inverse Hessian there.

    Args:
        target: bound to its shapes.
        records: pytree, leaves (N, ...).
        at: the MAP, where it is known.

    Raises:
        ValueError: too many parameters for a dense Hessian, or a Hessian that is not positive definite.
    """
    check_not_forked()
    records = jax.tree.map(jnp.asarray, records)
    size = ravel_pytree(target.init(jax.random.key(0)))[0].size
    if size > _MOST_PARAMETERS:
        raise InputError(f"Laplace's approximation is dense, and {size} parameters are more than {_MOST_PARAMETERS}")
    point = maximum_a_posteriori(target, records) if at is None else at
    loss = _mean_loss(target, point.unravel)

    @jax.jit
    def curvature(flat: jax.Array, records: PyTree) -> tuple[jax.Array, jax.Array]:
        gradient, derivative = jax.linearize(lambda at: jax.grad(loss)(at, records), flat)
        # A few columns at a time: jax.hessian would hold what every column needs of every record. Columns beyond the
        # last one fill its batch, since a shorter one is traced and compiled anew.
        columns = jax.lax.map(derivative, jnp.eye(size + -size % 16, size), batch_size=16)
        return gradient, columns[:size]

    found = curvature(jnp.asarray(point.mean, jnp.float32), records)
    gradient, hessian = (np.asarray(leaf, np.float64) for leaf in found)
    precision = (hessian + hessian.T) / 2 * length_of(records)
    if not np.all(np.isfinite(precision)) or np.any(np.linalg.eigvalsh(precision) <= 0):
        raise InputError("the Hessian at the MAP is not positive definite; the target has no Laplace fit")
    covariance = np.linalg.inv(precision)
    # L-BFGS stops at the rounding of the potential, which says less of the MAP than that of its gradient.
    return Laplace(point.mean - covariance @ gradient * length_of(records), covariance, point.unravel)


def _mean_loss(target: Target, unravel: Unravel) -> Callable[[jax.Array, PyTree], jax.Array]:
    """Return the potential over N, which keeps float32 gradients well scaled, as a function of (flat, records).

    Records are an argument of everything compiled: a closure would write them into the compilation cache.
    """

    def loss(flat: jax.Array, records: PyTree) -> jax.Array:
        params = unravel(flat)
        each = jax.vmap(lambda record: target.log_likelihood(params, record))(records)
        return -(jnp.sum(each) + target.log_prior(params)) / length_of(records)

    return loss


def distance(reference: Laplace, flat_draws: PyTree) -> dict[str, float | None]:
    """Return the distance of draws from the reference, marginally, in units of its standard deviations.

    Returns:
        ``wasserstein_mean`` and ``wasserstein_max`` over coordinates (marginal W₁ / reference std),
        ``std_ratio`` (median over coordinates), ``coverage_90`` (share of coordinates whose reference mean lies
        in the draws' central 90 % interval).
    """
    flat = np.asarray(
        jax.vmap(lambda p: ravel_pytree(p)[0])(jax.tree.map(jnp.asarray, flat_draws)),
        np.float64,
    )
    count = len(flat)
    quantiles = ndtri((np.arange(count) + 0.5) / count)
    wanted = reference.mean[None, :] + quantiles[:, None] * reference.std[None, :]
    w1 = np.mean(np.abs(np.sort(flat, axis=0) - wanted), axis=0) / reference.std
    low, high = np.quantile(flat, [0.05, 0.95], axis=0)
    return {
        "wasserstein_mean": float(w1.mean()),
        "wasserstein_max": float(w1.max()),
        "std_ratio": float(np.median(flat.std(axis=0) / reference.std)) if count > 1 else None,
        "coverage_90": float(np.mean((low <= reference.mean) & (reference.mean <= high))),
    }
