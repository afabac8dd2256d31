"""A public d×d matrix: the metric F in which gradients are clipped and noised, or a public Fisher matrix.

With a metric the query clips ‖F⁻¹g‖ <= C and adds s·F·Z, so that in whitened units F⁻¹g nothing changes: the noise
multiplier is a scalar, and the guarantee that of any query. Privacy depends on the norm of the whitened
vector as computed; F is applied again only after the noise. F must not be read from private data.

Claim: A private metric costs its release, and gradients in it cost what any others do.
Proof: the metric is a function of a Gaussian release, and the clip is in its norm.
Held by: test_release_moves_by_no_more_than_is_charged_and_by_as_much,
test_gradients_in_the_metric_move_by_no_more_than_twice_the_clip, test_metric_is_a_function_of_the_release_alone,
"a replaced row counted as an added one", "metric of the records themselves", "clip in the identity metric",
"metric's release left out of the guarantee"

Claim: A gradient and a second moment of one minibatch are one Gaussian query.
Proof: their sensitivity is that of the pair, in the norm that both noises define.
Held by: test_gradient_and_second_moment_of_one_minibatch_are_one_subsampled_gaussian,
test_one_record_moves_the_released_pair_by_at_most_what_is_charged,
test_the_charge_covers_the_norm_of_the_whitened_pair_in_float32, "second moment not charged",
"two queries of one batch composed as independent"
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.errors import InputError
from dpmcmc.storage.arrays import read_array
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.files import open_regular
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    from jaxtyping import Float
from dpmcmc.privacy.query.matrix_forms import DENSE

#: A matrix with a larger condition number counts as singular in float32.
_WORST_CONDITION = 1e6


class PublicMatrix:
    """A public matrix over raveled parameters, as an operator; hashable, so that plans can be cached.

    A number or d numbers make a :class:`PublicDiagonal`.

    Args:
        value: number, array, nested list, another PublicMatrix, or the path of a ``.npy`` file.
        name: what to call it in errors.

    Raises:
        ValueError: not finite, not square, or a file that cannot be read.
    """

    array: np.ndarray

    def __new__(cls, value: MatrixLike, name: str = "matrix") -> PublicMatrix:
        """The operator of the value's shape."""
        array = _read(value, name)
        self = object.__new__(PublicMatrix if array.ndim == 2 else PublicDiagonal)
        self.array = array
        self.array.setflags(write=False)
        return self

    def __getnewargs__(self) -> tuple[np.ndarray]:
        return (self.array,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicMatrix) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((self.array.shape, self.array.tobytes()))

    def __repr__(self) -> str:
        return f"PublicMatrix({self.array if self.array.ndim == 0 else f'shape {self.array.shape}'})"

    def check_invertible(self, name: str) -> None:
        """Raise ValueError where whitening by this matrix would divide by nothing."""
        values = self.singular_values()
        if values.max() > 0 and not 1e-9 <= values.max() <= 1e9:
            raise InputError(
                f"{name} must have its largest singular value in [1e-9, 1e9], got {values.max():.3g}",
                name,
            )
        if not values.min() > values.max() / _WORST_CONDITION:
            raise InputError(
                f"{name} is singular (its singular values go from {values.min():.3g} to {values.max():.3g}): clipping "
                "in its norm needs an invertible matrix",
                name,
            )

    def check_positive(self, name: str, definite: bool) -> None:
        """Raise ValueError unless symmetric and positive semidefinite (or definite)."""
        if not np.allclose(self.array, self.array.T):
            raise InputError(f"{name} must be symmetric", name)
        values = self.eigenvalues()
        slack = 1e-9 * max(float(np.abs(values).max()), 1e-300)
        if values.min() < -slack:
            raise InputError(
                f"{name} must be positive semidefinite, and its smallest eigenvalue is {values.min():.3g}",
                name,
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
            raise InputError(
                f"{name} is for {self.array.shape[0]} parameters, and the target has {parameters}",
                name,
            )

    def stretch(self) -> float:
        """Smallest singular value: the least by which F stretches a vector."""
        return float(self.singular_values().min())

    def smallest(self) -> float:
        """Smallest eigenvalue of a symmetric matrix."""
        return float(self.eigenvalues().min())

    @on_one_blas_thread
    def eigenvalues(self) -> np.ndarray:
        """Eigenvalues of a symmetric matrix."""
        return np.linalg.eigvalsh(self.array)

    @on_one_blas_thread
    def singular_values(self) -> np.ndarray:
        """Singular values."""
        return np.linalg.svd(self.array, compute_uv=False)

    def operator(self, parameters: int) -> jax.Array:
        """A symmetric matrix as an operator on this many parameters."""
        return jnp.asarray(self.array, jnp.float32)

    def times(self, vector: Float[jax.Array, " d"]) -> Float[jax.Array, " d"]:
        """F v for a flat vector (d,)."""
        return jnp.asarray(self.array, jnp.float32) @ vector

    @on_one_blas_thread
    def whiten(self, vector: Float[jax.Array, " d"], transpose: bool = False) -> Float[jax.Array, " d"]:
        """F⁻¹v (or F⁻ᵀv) for a flat vector (d,), by an inverse that the host computes in float64."""
        inverse = np.linalg.inv(self.array.T if transpose else self.array)
        return jnp.asarray(inverse, jnp.float32) @ vector

    def whitened(self, matrix: jax.Array) -> jax.Array:
        """F⁻¹MF⁻ᵀ of a symmetric M, (d, d) or its diagonal (d,)."""
        rows = jax.vmap(self.whiten, in_axes=1, out_axes=1)
        return rows(rows(DENSE.of(matrix)).T).T


class PublicDiagonal(PublicMatrix):
    """A number, or the diagonal (d,) of a matrix."""

    def eigenvalues(self) -> np.ndarray:
        """The entries."""
        return np.ravel(self.array)

    def singular_values(self) -> np.ndarray:
        """Sizes of the entries."""
        return np.abs(np.ravel(self.array))

    def operator(self, parameters: int) -> jax.Array:
        """The diagonal; a number is repeated."""
        return jnp.broadcast_to(jnp.asarray(self.array, jnp.float32), (parameters,))

    def times(self, vector: Float[jax.Array, " d"]) -> Float[jax.Array, " d"]:
        """f ∘ v."""
        return jnp.asarray(self.array, jnp.float32) * vector

    def whiten(self, vector: Float[jax.Array, " d"], transpose: bool = False) -> Float[jax.Array, " d"]:
        """v / f."""
        return vector / jnp.asarray(self.array, jnp.float32)

    def whitened(self, matrix: jax.Array) -> jax.Array:
        """F⁻¹MF⁻ᵀ, which is diagonal where M is."""
        return self.whiten(self.whiten(matrix)) if matrix.ndim == 1 else super().whitened(matrix)


#: Values that make a PublicMatrix.
MatrixLike = float | Sequence[object] | str | np.ndarray | PublicMatrix


def _read(value: MatrixLike, name: str) -> np.ndarray:
    """A copy of the numbers of a value, float64."""
    if isinstance(value, PublicMatrix):
        return np.array(value.array)
    if isinstance(value, (str, Path)):
        try:
            with open_regular(os.path.expanduser(value)) as stream:
                value = read_array(stream, os.fstat(stream.fileno()).st_size)
        except Exception as error:  # a file that is no array makes NumPy raise anything
            reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            raise InputError(
                f"{name} {value} cannot be read as a .npy array of numbers ({reason})",
                name,
            ) from None
    try:
        array = np.array(value, np.float64)  # a copy: nobody else may change it
    except (TypeError, ValueError):
        raise InputError(
            f"{name} must be a number, d numbers, d rows of d numbers, or a .npy file",
            name,
        ) from None
    if array.ndim > 2 or (array.ndim == 2 and array.shape[0] != array.shape[1]):
        raise InputError(f"{name} must have shape (), (d,) or (d, d), got {array.shape}", name)
    if not (array.size and np.all(np.isfinite(array))):
        raise InputError(f"{name} must hold finite numbers", name)
    return array


def flat(tree: PyTree) -> tuple[jax.Array, Callable[[jax.Array], PyTree]]:
    """(raveled vector, function back to the pytree)."""
    return ravel_pytree(tree)
