"""The minimiser of a strongly convex objective, with a certificate.

    J(θ) = Σ ℓ_i(θ) + (Λ/2)‖θ‖² + b·θ,      ‖θ − argmin J‖ <= ‖∇J(θ)‖/Λ

Damped Newton in float64 on the gradient's norm: along p = −H⁻¹∇J that norm falls at unit rate, whatever the distance
from the optimum, so halving the step always ends, and no difference of two large objectives is ever taken. A
guarantee rests on one number, ‖∇J‖ at the returned point plus a bound on its rounding. Gradients are summed in
blocks of ``_BLOCK`` rows, so a sum of N vectors of norm <= L is off by at most (_BLOCK + N/_BLOCK)·2^-53·N·L in any
order within a block. A predictor x·θ, hence a gradient, is off by d·2^-53·‖θ‖ times the curvature, and the rest by a
few roundings.

Logistic and linear regression have closed forms in NumPy. Any other convex target goes through JAX in float64, with
conjugate gradients for the Newton step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from dpmcmc.errors import DrawError
from dpmcmc.mechanisms.convexity import Bounds
from dpmcmc.mechanisms.huberised import HuberisedLogistic
from dpmcmc.mechanisms.sums_in_blocks import float64, in_float64, loss_gradient, summed_in_blocks
from dpmcmc.storage.pytree import PyTree, length_of, size_of
from dpmcmc.targets.base import Target, shared_by_equal_targets, target_offers
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression

_BLOCK = 512
_UNIT = 2.0**-53
#: Above so many coefficients a Hessian is not formed.
_DENSE = 2048
_ITERATIONS = 300
#: (∇J(θ), Newton step from ∇J(θ) at the last θ asked for).
_Oracle = tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray, np.ndarray], np.ndarray]]


class NotConverged(DrawError):
    """The optimum was not reached, and nothing was released.

    Whether it is raised depends on the records: it is for the data holder alone.

    Example:
        >>> from dpmcmc.mechanisms import DrawError
        >>> from dpmcmc.mechanisms.minimise import NotConverged
        >>> issubclass(NotConverged, DrawError)  # one handler takes both
        True
    """


def minimise(
    target: Target,
    records: PyTree,
    regularisation: float,
    *,
    tolerance: float,
    linear: np.ndarray | None = None,
) -> tuple[PyTree, float]:
    """Return the minimiser of J to a certified gradient norm.

    Args:
        target: convex losses, bound to its shapes; ℓ_i = −log_likelihood.
        records: pytree of arrays, leaves (N, ...).
        regularisation: Λ > 0.
        tolerance: largest certified gradient norm.
        linear: b, (size,) float64, in the order of ``ravel_pytree``; None for zero.

    Returns:
        (θ, pytree of float64; certified bound on ‖∇J(θ)‖, at most ``tolerance``).

    Raises:
        NotConverged: the tolerance was not reached.
    """
    shapes = jax.eval_shape(target.init, jax.random.key(0))
    size = size_of(shapes)
    num_records = length_of(records)
    b = np.zeros(size) if linear is None else np.asarray(linear, np.float64)
    if type(target) in _CLOSED_FORMS and size <= _DENSE:
        gradient, newton = _closed_form(target, records, regularisation, b)
    else:
        gradient, newton = _generic(target, records, regularisation, b)

    def certificate(theta: np.ndarray, g: np.ndarray) -> float:
        return float(np.linalg.norm(g)) * (1 + 4e-15) + rounding(
            target,
            num_records,
            size,
            radius=float(np.linalg.norm(theta)),
            regularisation=regularisation,
            linear=float(np.linalg.norm(b)),
        )

    theta = np.zeros(size)
    g = gradient(theta)
    certified = certificate(theta, g)
    for _ in range(_ITERATIONS):
        if certified <= tolerance:
            break
        p = newton(theta, g)
        norm = float(np.linalg.norm(g))
        step = 1.0
        while step > 1e-12:
            moved = theta - step * p
            at = gradient(moved)
            if np.linalg.norm(at) <= (1 - 1e-4 * step) * norm:
                break
            step /= 2
        else:
            break
        theta = moved
        g = at
        certified = certificate(theta, g)
    if not certified <= tolerance:
        raise NotConverged(
            f"the optimum was not reached: gradient norm {certified:.3g} where at most {tolerance:.3g} was promised. "
            "Nothing was released; raise regularisation, or check the scale of the rows"
        )
    return unravel(shapes, theta), certified


def radius_bound(num_records: int, regularisation: float, linear: float = 0.0) -> float:
    """Return a radius that holds the minimiser if a record's loss is >= 0, and at most 1 at θ = 0 (as the logistic).

    From J(θ̂) <= J(0): (Λ/2)‖θ̂‖² <= N + ‖b‖‖θ̂‖. For other losses it is a scale on which to choose a tolerance.
    """
    return 2 * linear / regularisation + math.sqrt(2 * num_records / regularisation)


def tolerance_of(
    target: Target,
    bounds: Bounds,
    regularisation: float,
    num_records: int,
    *,
    share: float,
    linear: float = 0.0,
) -> float:
    """Return γ: a share of L, or twice what float64 leaves uncertain at the farthest plausible minimiser.

    Args:
        target: convex losses.
        bounds: of the target.
        regularisation: Λ.
        num_records: N.
        share: γ/L, where float64 allows it.
        linear: bound on ‖b‖.
    """
    radius = radius_bound(num_records, regularisation, linear)
    unsure = rounding(
        target,
        num_records,
        bounds.size,
        radius=radius,
        regularisation=regularisation,
        linear=linear,
    )
    return max(share * bounds.lipschitz, 2 * unsure)


def rounding(
    target: Target,
    num_records: int,
    size: int,
    *,
    radius: float,
    regularisation: float,
    linear: float = 0.0,
) -> float:
    """Return a bound on the rounding error of ∇J at ‖θ‖ <= radius, from public numbers.

    Args:
        target: for its ``gradient_bound`` and ``smoothness``; where one is None its term is left out.
        num_records: N.
        size: number of parameters.
        radius: bound on ‖θ‖.
        regularisation: Λ.
        linear: bound on ‖b‖.
    """
    largest = target_offers(target).gradient_bound or 0.0
    curvature = target_offers(target).smoothness or 0.0
    depth = _BLOCK + num_records / _BLOCK + 16
    sums = depth * num_records * largest + (size + 2) * num_records * curvature * radius
    return _UNIT * (sums + 4 * (regularisation * radius + linear))


def _logistic(target: LogisticRegression, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p = expit(margin)
    # 1 − p as expit(−m), which keeps the residual's relative precision.
    return np.where(y > 0, -expit(-margin), p), p * expit(-margin)


def _huberised(target: HuberisedLogistic, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    residual, curvature = _logistic(target, margin, y)
    return np.clip(residual, -target.clip, target.clip), np.where(np.abs(residual) < target.clip, curvature, 0.0)


def _linear(target: LinearRegression, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (margin - y) / target.noise_scale**2, np.full_like(margin, target.noise_scale**-2)


#: target type -> (first, second) derivative of a record's loss by its linear predictor.
_CLOSED_FORMS: dict[type, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    LogisticRegression: _logistic,
    HuberisedLogistic: _huberised,
    LinearRegression: _linear,
}


def _closed_form(target: Target, records: PyTree, regularisation: float, b: np.ndarray) -> _Oracle:
    x = np.ascontiguousarray(records["x"], np.float64)
    y = np.asarray(records["y"], np.float64)
    family = _CLOSED_FORMS[type(target)]
    scale = target_offers(target).weight_scale
    # s·w of each record; see ``targets/generalised_linear.py``.
    weight = 1.0 if scale is None else scale * np.asarray(records["weight"], np.float64)

    def derivatives(margin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        residual, curvature = family(target, margin, y)
        return weight * residual, weight * curvature

    def gradient(theta: np.ndarray) -> np.ndarray:
        residual = derivatives(x @ theta)[0]
        blocks = [residual[i : i + _BLOCK] @ x[i : i + _BLOCK] for i in range(0, len(x), _BLOCK)]
        return np.sum(blocks, axis=0) + regularisation * theta + b

    def newton(theta: np.ndarray, g: np.ndarray) -> np.ndarray:
        root = np.sqrt(derivatives(x @ theta)[1])
        hessian = regularisation * np.eye(len(theta))
        for i in range(0, len(x), 1 << 13):
            rows = x[i : i + (1 << 13)] * root[i : i + (1 << 13), None]
            hessian += rows.T @ rows
        return cho_solve(cho_factor(hessian), g)

    return gradient, newton


def _generic(target: Target, records: PyTree, regularisation: float, b: np.ndarray) -> _Oracle:
    with float64():
        data = in_float64(records)
        likelihood_gradient, curve = _likelihood(target)

    def gradient(theta: np.ndarray) -> np.ndarray:
        with float64():
            return np.asarray(likelihood_gradient(jnp.asarray(theta), data)) + regularisation * theta + b

    def newton(theta: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Conjugate gradients to a residual of at most 1e-3‖g‖, and of ‖g‖² near the optimum."""
        norm = float(np.linalg.norm(g))

        def curved(direction: np.ndarray) -> np.ndarray:
            with float64():
                image = curve(jnp.asarray(theta), jnp.asarray(direction), data)
            return np.asarray(image) + regularisation * direction

        from scipy.sparse.linalg import LinearOperator, cg  # slow to import

        hessian = LinearOperator((len(g), len(g)), matvec=curved, dtype=np.float64)
        return cg(
            hessian,
            g,
            rtol=max(min(1e-3, norm), 1e-8),
            atol=0.0,
            maxiter=10 * len(g) + 100,
        )[0]

    return gradient, newton


@shared_by_equal_targets(maxsize=16)
def _likelihood(
    target: Target,
) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
    """Return jitted (θ, data) -> Σ ∇ℓ_i and (θ, p, data) -> Σ ∇²ℓ_i p, summed in blocks of rows."""
    shapes = jax.eval_shape(target.init, jax.random.key(0))
    unflatten = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.float64), shapes))[1]

    @jax.jit
    def gradient(flat: jax.Array, data: PyTree) -> jax.Array:
        return summed_in_blocks(
            lambda block: loss_gradient(target, unflatten, flat, block),
            data,
            flat,
            _BLOCK,
        )

    @jax.jit
    def curve(flat: jax.Array, direction: jax.Array, data: PyTree) -> jax.Array:
        def of_block(block: PyTree) -> jax.Array:
            return jax.jvp(
                lambda p: loss_gradient(target, unflatten, p, block),
                (flat,),
                (direction,),
            )[1]

        return summed_in_blocks(of_block, data, flat, _BLOCK)

    return gradient, curve


def ravel(tree: PyTree) -> np.ndarray:
    """Return all leaves in one float64 vector, in the order of JAX's ``ravel_pytree``."""
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def unravel(shapes: PyTree, flat: np.ndarray) -> PyTree:
    """Return the inverse of :func:`ravel`: leaves shaped like those of ``shapes``."""
    leaves, structure = jax.tree.flatten(shapes)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    parts = np.split(flat, ends[:-1])
    return jax.tree.unflatten(structure, [p.reshape(s.shape) for p, s in zip(parts, leaves, strict=True)])
