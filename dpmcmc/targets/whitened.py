"""A target in the coordinates φ = Fθ of a public, invertible metric F.

    log p(x | φ) = log p(x | θ = F⁻¹φ),     ∇_φ = F⁻ᵀ ∇_θ

A query that clips ‖∇_φ‖ and adds isotropic noise there clips and noises in the metric F. It needs to know nothing of
F, nor does a sampler: its law holds in φ, and F is constant, so that there is no drift to correct. Draws are mapped
back.

:class:`WhitenedRows` is a generalised linear model. Its parameters meet a record in x·θ = (F⁻ᵀx)·φ alone, so it is
the same model on rows F⁻ᵀx, which :func:`whitened_rows` computes once; only its prior is written in φ.
:class:`Whitened` is any other target, whose parameters are raveled into one vector.

F must be public: released with its cost, or known beforehand. ``root`` is F and ``inverse`` F⁻¹, both float32, and
``inverse`` is what the model is evaluated with, so draws are mapped back with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, TargetOffers
from dpmcmc.targets.generalised_linear import GeneralisedLinear

if TYPE_CHECKING:
    from jaxtyping import Float
from dpmcmc.targets.of_inner import of_inner

#: A matrix, of NumPy or traced.
Matrix = np.ndarray | jax.Array
#: Rows that are whitened at a time, all blocks alike, so that a row's rounding does not depend on its place.
_ROWS = 1 << 13


@dataclass(frozen=True, eq=False)
class _InMetric(TargetOffers):
    """Fields and methods of both kinds."""

    target: Target
    root: Matrix
    inverse: Matrix
    #: The metric decides.
    gradient_bound = None

    def at(self, root: np.ndarray, inverse: np.ndarray) -> Self:
        """Return the same target in another metric."""
        return type(self)(self.target, root.astype(np.float32), inverse.astype(np.float32))

    def own(self, params: jax.Array) -> PyTree:
        """Return θ = F⁻¹φ, the model's own parameters."""
        return jnp.asarray(self.inverse) @ params

    def log_prior(self, params: jax.Array) -> jax.Array:
        """The model's log prior at F⁻¹φ, up to a constant."""
        return self.target.log_prior(self.own(params))

    def predict(self, params: jax.Array, x: jax.Array) -> jax.Array:
        """The model's prediction at F⁻¹φ for rows of its own."""
        return self.target.predict(self.own(params), x)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class WhitenedRows(_InMetric):
    """A generalised linear model on whitened rows; its parameters φ have the shape of θ, with F on the first axis.

    Args:
        target: the model in its own coordinates, bound to the shapes of the records.
        root, inverse: F and F⁻¹, (d, d) float32.
    """

    clipped_gradient_sum = of_inner()
    prepared = of_inner()
    longest_labels = of_inner()
    bounded_labels = of_inner()
    predictor = of_inner()

    def init(self, key: jax.Array) -> jax.Array:
        """F times the model's starting point."""
        return jnp.asarray(self.root) @ self.target.init(key)

    def log_likelihood(self, params: jax.Array, record: PyTree) -> jax.Array:
        """The model's log-likelihood of a whitened record."""
        return self.target.log_likelihood(params, record)

    def before(self, records: PyTree) -> PyTree:
        """Return the records with rows of the type of whitened ones, which the program is compiled for."""
        return {**records, "x": records["x"].astype(np.float32)}

    def records(self, records: PyTree) -> PyTree:
        """Return the records with whitened rows."""
        return {**records, "x": whitened_rows(records["x"], np.asarray(self.inverse))}

    def positions(self, positions: PyTree) -> np.ndarray:
        """Return θ = F⁻¹φ, (chains, draws, d, ...), of positions of the chains."""
        inverse = np.asarray(self.inverse, np.float64)
        return np.einsum("ij,cnj...->cni...", inverse, np.asarray(positions, np.float64)).astype(np.float32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Whitened(_InMetric):
    """Any target in raveled parameters φ, (p,).

    Args:
        target: the model in its own coordinates, bound to the shapes of the records.
        root, inverse: F and F⁻¹, (p, p) float32.
    """

    def init(self, key: jax.Array) -> Float[jax.Array, " p"]:
        """F times the raveled starting point."""
        return jnp.asarray(self.root) @ ravel_pytree(self.target.init(key))[0]

    def own(self, params: Float[jax.Array, " p"]) -> PyTree:
        """Return θ = F⁻¹φ, the model's own parameters."""
        return self._unraveled(super().own(params))

    def log_likelihood(self, params: Float[jax.Array, " p"], record: PyTree) -> Float[jax.Array, ""]:
        """The model's log-likelihood of one record at F⁻¹φ."""
        return self.target.log_likelihood(self.own(params), record)

    bounded_labels = of_inner()

    def predictor(self, params: Float[jax.Array, " p"], record: PyTree) -> jax.Array:
        """The model's linear predictor of one record at F⁻¹φ."""
        return self.target.predictor(self.own(params), record)  # type: ignore[attr-defined]

    def longest_labels(self, predictor: jax.Array, whitened: bool = True) -> jax.Array:
        """The model's labels one of which has the longest gradient in any metric."""
        return self.target.longest_labels(predictor, True)  # type: ignore[attr-defined]

    def before(self, records: PyTree) -> PyTree:
        """Return the records as they are."""
        return records

    def records(self, records: PyTree) -> PyTree:
        """Return the records as they are."""
        return records

    def positions(self, positions: PyTree) -> PyTree:
        """Return θ = F⁻¹φ, a pytree like the model's parameters, leaves (chains, draws, ...)."""
        flat = np.asarray(positions, np.float64) @ np.asarray(self.inverse, np.float64).T
        return jax.tree.map(
            np.asarray,
            jax.vmap(jax.vmap(self._unraveled))(jnp.asarray(flat, jnp.float32)),
        )

    def _unraveled(self, flat: jax.Array) -> PyTree:
        # The key is made inside, so that no trace of a step makes one.
        shapes = jax.eval_shape(lambda: self.target.init(jax.random.key(0)))
        return ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))[1](flat)


def in_metric(target: Target, rows: bool) -> WhitenedRows | Whitened:
    """Return a bound target in a stand-in metric of the right shape, which no axis is special to.

    Args:
        target: bound to the shapes of its records.
        rows: whether the metric is one of rows (d, d), of a generalised linear model; else of raveled parameters.
    """
    params = jax.eval_shape(target.init, jax.random.key(0))
    size = params.shape[0] if rows else sum(leaf.size for leaf in jax.tree.leaves(params))
    root = np.eye(size) + np.ones((size, size)) / size
    kind = WhitenedRows if rows else Whitened
    return kind(target, root.astype(np.float32), np.linalg.inv(root).astype(np.float32))


def metric_of_rows(target: Target) -> bool:
    """Return whether a metric of raveled parameters is one of rows: those of a model of one linear predictor."""
    return isinstance(target, GeneralisedLinear) and target.linear_predictor


def whitened_rows(x: np.ndarray | jax.Array, inverse: np.ndarray) -> np.ndarray:
    """Return F⁻ᵀx of rows (N, d), float32, each a function of the row and of F alone.

    The product is taken in float64 over blocks of one size, the last one filled with zeros, so that a row's rounding
    does not depend on its place.
    """
    x = np.asarray(x)
    matrix = np.asarray(inverse, np.float64)
    out = np.empty((len(x), matrix.shape[1]), np.float32)
    # A row that overflows contributes zero to the query; a warning of it would tell of the row.
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(0, len(x), _ROWS):
            rows = np.zeros((_ROWS, x.shape[1]))
            part = x[i : i + _ROWS]
            rows[: len(part)] = part
            out[i : i + len(part)] = (rows @ matrix)[: len(part)]
    return out
