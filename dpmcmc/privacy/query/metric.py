r"""A public d×d matrix: the metric F in which gradients are clipped and noised, or a public Fisher matrix.

With a metric the query clips ‖F⁻¹g‖ <= C and adds s·F·Z, so that in whitened units F⁻¹g nothing changes: the noise
multiplier is a scalar, and the guarantee that of any query. Privacy depends on the norm of the whitened
vector as computed; F is applied again only after the noise. F must not be read from private data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.errors import InputError
from dpmcmc.storage.regular_file import opened

#: A matrix with a larger condition number counts as singular in float32.
_WORST_CONDITION = 1e6


class PublicMatrix:
    """A number, a diagonal (d,) or a matrix (d, d), over raveled parameters; hashable, so that plans can be cached.

    Args:
        value: number, array, nested list, another PublicMatrix, or the path of a ``.npy`` file.
        name: what to call it in errors.

    Raises:
        ValueError: not finite, not square, or a file that cannot be read.
    """

    def __init__(self, value: Any, name: str = "matrix") -> None:
        if isinstance(value, PublicMatrix):
            value = np.array(value.array)
        if isinstance(value, (str, Path)):
            try:
                with opened(os.path.expanduser(value)) as stream:
                    value = np.load(stream, allow_pickle=False)
            except Exception as error:  # a file that is no array makes NumPy raise anything
                reason = getattr(error, "strerror", None) or type(error).__name__
                raise InputError(f"{name} {value} cannot be read as a .npy array of numbers ({reason})", name) from None
        try:
            array = np.array(value, np.float64)  # a copy: nobody else may change it
        except (TypeError, ValueError):
            raise InputError(f"{name} must be a number, d numbers, d rows of d numbers, or a .npy file", name) from None
        if array.ndim > 2 or (array.ndim == 2 and array.shape[0] != array.shape[1]):
            raise InputError(f"{name} must have shape (), (d,) or (d, d), got {array.shape}", name)
        if not (array.size and np.all(np.isfinite(array))):
            raise InputError(f"{name} must hold finite numbers", name)
        self.array: np.ndarray = array
        self.array.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicMatrix) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((self.array.shape, self.array.tobytes()))

    def __repr__(self) -> str:
        return f"PublicMatrix({self.array if self.array.ndim == 0 else f'shape {self.array.shape}'})"

    def check_invertible(self, name: str) -> None:
        """Raise ValueError where whitening by this matrix would divide by nothing."""
        values = np.linalg.svd(self.array, compute_uv=False) if self.array.ndim == 2 else np.abs(np.ravel(self.array))
        if values.max() > 0 and not 1e-9 <= values.max() <= 1e9:
            raise InputError(
                f"{name} must have its largest singular value in [1e-9, 1e9], got {values.max():.3g}", name
            )
        if not values.min() > values.max() / _WORST_CONDITION:
            raise InputError(
                f"{name} is singular (its singular values go from {values.min():.3g} to {values.max():.3g}): clipping "
                "in its norm needs an invertible matrix",
                name,
            )

    def check_positive(self, name: str, definite: bool) -> None:
        """Raise ValueError unless symmetric and positive semidefinite (or definite)."""
        if self.array.ndim == 2 and not np.allclose(self.array, self.array.T):
            raise InputError(f"{name} must be symmetric", name)
        values = np.linalg.eigvalsh(self.array) if self.array.ndim == 2 else np.ravel(self.array)
        slack = 1e-9 * max(float(np.abs(values).max()), 1e-300)
        if values.min() < -slack:
            raise InputError(
                f"{name} must be positive semidefinite, and its smallest eigenvalue is {values.min():.3g}", name
            )
        if definite and values.min() <= slack:
            raise InputError(
                f"{name} is singular (smallest eigenvalue {values.min():.3g}), so some direction has no curvature: "
                "give prior_precision > 0, or a matrix that is positive definite",
                name,
            )

    def check_size(self, parameters: int, name: str) -> None:
        """Raise ValueError unless it fits this many raveled parameters."""
        if self.array.ndim and self.array.shape[0] != parameters:
            raise InputError(f"{name} is for {self.array.shape[0]} parameters, and the target has {parameters}", name)

    def times(self, vector: jax.Array) -> jax.Array:
        """F v for a flat vector (d,)."""
        matrix = jnp.asarray(self.array, jnp.float32)
        return matrix @ vector if matrix.ndim == 2 else matrix * vector

    def whiten(self, vector: jax.Array, transpose: bool = False) -> jax.Array:
        """F⁻¹v (or F⁻ᵀv) for a flat vector (d,)."""
        if self.array.ndim < 2:
            return vector / jnp.asarray(self.array, jnp.float32)
        inverse = np.linalg.inv(self.array.T if transpose else self.array)
        return jnp.asarray(inverse, jnp.float32) @ vector

    def whiten_matrix(self, matrix: jax.Array) -> jax.Array:
        """F⁻¹MF⁻ᵀ for a symmetric matrix (d, d)."""
        rows = jax.vmap(self.whiten, in_axes=1, out_axes=1)
        return rows(rows(matrix).T).T

    def stretch(self) -> float:
        """Smallest singular value: the least by which F stretches a vector."""
        if self.array.ndim < 2:
            return float(np.min(np.abs(self.array)))
        return float(np.linalg.svd(self.array, compute_uv=False).min())

    def smallest(self) -> float:
        """Smallest eigenvalue of a symmetric matrix."""
        return float(np.min(np.linalg.eigvalsh(self.array) if self.array.ndim == 2 else self.array))

    def matrix(self, parameters: int, dense: bool) -> jax.Array:
        """As (d, d), or its diagonal (d,)."""
        array = jnp.asarray(self.array, jnp.float32)
        if not dense:
            return jnp.broadcast_to(jnp.diagonal(array) if array.ndim == 2 else array, (parameters,))
        return array if array.ndim == 2 else array * jnp.eye(parameters, dtype=jnp.float32)


#: Values that a PublicMatrix is made from.
MatrixLike = float | Sequence[Any] | str | np.ndarray | PublicMatrix


def flat(tree: Any) -> tuple[jax.Array, Any]:
    """(raveled vector, function back to the pytree)."""
    return ravel_pytree(tree)
