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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Le
from jax.flatten_util import ravel_pytree

from dpmcmc.errors import InputError, UnsupportedCombination, check_fields
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query import exact_sums, outer_products
from dpmcmc.privacy.query.exact_sums import Clip, FixedPoint, float32
from dpmcmc.storage.arrays import read_array
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.files import open_regular
from dpmcmc.storage.pytree import PyTree, size_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


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


# ------------------------------------------------------------------------------------
# A second query beside the gradient: the sum of clipped outer products, for samplers that precondition.
#
#     V = (N/b) · ( Σ_{i in batch} c_i c_iᵀ + W ),     c_i = clip_C(g_i),   std(W) = z_V C²
#
# W is the symmetric Gaussian of that scale: std z_V C² on the diagonal and z_V C²/√2 off it, which is N(0, (z_V C²)²
# I) in an orthonormal basis of symmetric matrices under the Frobenius norm. The diagonal form releases Σ c_i ∘ c_i
# alone.
#
# **What it costs.** ‖c cᵀ‖_F = ‖c‖² <= C² (and ‖c ∘ c‖ <= ‖c‖²). Gradient and second moment of ONE minibatch, each
# divided by its noise, are one Gaussian query of the vector (c/(z_g C), c cᵀ/(z_V C²)), whose norm is at most (z_g⁻² +
# z_V⁻²)^½. So the step is ONE subsampled Gaussian with z⁻² = z_g⁻² + z_V⁻², under every adjacency: a record that comes
# or goes moves it by 1/z, one that is replaced by 2/z, as any query. Composing the two as if their minibatches were
# independent says 2.96 where 5.29 is right (rate .01, z = 1 each, 1000 steps, add_remove, δ = 1e-6). Two minibatches
# (``own_batch``) are two events.
#
# It may be asked in one step of ``every`` only, the steps 0, every, 2·every, … The other steps release the gradient
# alone, and are charged for that alone: which steps ask is public, so the run is the composition of two kinds of step.
#
# A replaced record moves Σ c cᵀ by at most √2 C² rather than 2C², but only where every record takes part, and only
# before rounding to the grid; that factor is not used. Under Poisson it says 0.95 where 4.29 is charged and 4.24 is
# needed (V alone at rate .001, z = .5, 1000 steps, δ = 1e-6).
#
# *Centred forms* (Algorithm 5 of the thesis subtracts the batch mean) are refused: the mean moves every term of the
# sum, and dividing by the number of selected records makes the sensitivity depend on the batch.


# ----------------------------------------------------------------------------------------------------
# Symmetric p×p matrices in one of two forms: a second moment as it is released, and as samplers compute with it.
#
# A matrix is an array, (p, p) in the dense form and (p,) in the diagonal one. Its form knows what to do with it, so
# that no formula asks which of the two it has; :func:`form_of` chooses the form once.

#: Up to this many parameters the form is dense, beyond it diagonal (``structure="auto"``).
DENSE_PARAMETERS = 256


class Factors(NamedTuple):
    """A positive semidefinite matrix as an operator: Q diag(values) Qᵀ, so that it can be shifted at no cost.

    Attributes:
        values: (p,), at least 0.
        vectors: Q, (p, p); None where the matrix is diagonal, and Q the identity.
    """

    values: jax.Array
    vectors: jax.Array | None = None

    def solve(self, shift: jax.Array | float, vector: Float[jax.Array, " p"]) -> Float[jax.Array, " p"]:
        """x of (A + shift·I) x = v."""
        if self.vectors is None:
            return vector / (self.values + shift)
        return self.vectors @ ((vector @ self.vectors) / (self.values + shift))

    def matrix(self) -> jax.Array:
        """The matrix, in its form."""
        return self.values if self.vectors is None else (self.vectors * self.values) @ self.vectors.T


class Form(NamedTuple):
    """Functions of matrices of one form.

    Attributes:
        shape: p -> shape of the array.
        of: matrix of either form -> that matrix in this form; a diagonal keeps no other entries.
        outer: vector (p,) -> v vᵀ.
        shifted: (A, number) -> A plus that multiple of the identity.
        factors: A -> :class:`Factors` of the nearest positive semidefinite matrix.
        trace: A -> sum of the diagonal entries, ().
        exact: (rows (n, p) of norm at most 1, bits) -> exact sum of the entries of v vᵀ that are released, (entries,).
        summed: rows (n, p) -> sum of their products in float32, (entries,): never of private rows before noise.
        noise_scale: p -> std of each released entry relative to a diagonal one, (entries,) float32, rounded up.
        from_entries: (released entries, p) -> A.
    """

    shape: Callable[[int], tuple[int, ...]]
    of: Callable[[jax.Array], jax.Array]
    outer: Callable[[jax.Array], jax.Array]
    shifted: Callable[[jax.Array, jax.Array | float], jax.Array]
    factors: Callable[[jax.Array], Factors]
    trace: Callable[[jax.Array], jax.Array]
    exact: Callable[[jax.Array, int], FixedPoint]
    summed: Callable[[jax.Array], jax.Array]
    noise_scale: Callable[[int], np.ndarray]
    from_entries: Callable[[jax.Array, int], jax.Array]


def form_of(structure: str, size: int) -> Form:
    """The form of ``dense``, ``diagonal`` or ``auto``, which is dense up to ``DENSE_PARAMETERS`` parameters."""
    return DENSE if structure == "dense" or (structure == "auto" and size <= DENSE_PARAMETERS) else DIAGONAL


def _factors(matrix: Float[jax.Array, "p p"]) -> Factors:
    """Eigenvalues, the negative ones put to zero, and eigenvectors."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return Factors(jnp.maximum(values, 0.0), vectors)


def _outer(vector: Float[jax.Array, " p"]) -> Float[jax.Array, "p p"]:
    """v vᵀ, of a v that is held: a compiler would compute a gradient again for every entry."""
    vector = exact_sums.materialised(vector)
    return jnp.outer(vector, vector)


def _dense_sum(rows: Float[jax.Array, "n p"], bits: int) -> FixedPoint:
    """Exact Σ v vᵀ on and above the diagonal, each v vᵀ clipped to norm 1 with room for its rounding."""
    every = jnp.ones(len(rows), bool)
    (high,), (low,) = outer_products.clipped_sum([outer_products.Outer(rows, rows)], every, 1.0, bits)
    upper = np.triu_indices(rows.shape[1])
    return FixedPoint(high[upper], low[upper])


def _diagonal_sum(rows: Float[jax.Array, "n p"], bits: int) -> FixedPoint:
    """Exact Σ v ∘ v, each product truncated, which only shortens it."""
    return exact_sums.sum_rows((rows * rows * np.float32(2.0**bits)).astype(jnp.int32))


def _noise_scale(size: int) -> np.ndarray:
    """1 on the diagonal and 1/√2 off it, where an entry stands for two."""
    row, column = np.triu_indices(size)
    return np.where(row == column, np.float32(1), np.nextafter(np.float32(0.5**0.5), np.float32(1)))


def _from_entries(entries: Float[jax.Array, " entries"], size: int) -> Float[jax.Array, "p p"]:
    """The matrix of its entries on and above the diagonal."""
    upper = jnp.zeros((size, size), entries.dtype).at[np.triu_indices(size)].set(entries)
    return upper + jnp.triu(upper, 1).T


DENSE = Form(
    shape=lambda size: (size, size),
    of=lambda matrix: matrix if matrix.ndim == 2 else jnp.diag(matrix),
    outer=_outer,
    shifted=lambda matrix, by: matrix + by * jnp.eye(len(matrix), dtype=matrix.dtype),
    factors=_factors,
    trace=jnp.trace,
    exact=_dense_sum,
    summed=lambda rows: (rows.T @ rows)[np.triu_indices(rows.shape[1])],
    noise_scale=_noise_scale,
    from_entries=_from_entries,
)
DIAGONAL = Form(
    shape=lambda size: (size,),
    of=lambda matrix: matrix if matrix.ndim == 1 else jnp.diagonal(matrix),
    outer=jnp.square,
    shifted=lambda matrix, by: matrix + by,
    factors=lambda matrix: Factors(jnp.maximum(matrix, 0.0)),
    trace=jnp.sum,
    exact=_diagonal_sum,
    summed=lambda rows: jnp.sum(jnp.square(rows), axis=0),
    noise_scale=lambda size: np.ones(size, np.float32),
    from_entries=lambda entries, size: entries,
)


GRADIENT = "gradient"
#: Number of a step, or several; traced, or on the host.
Step = jax.Array | np.ndarray
#: Noise multiplier of the second moment over that of the gradient.
NoiseRatio = Annotated[float, Ge(1e-3), Le(1e6)]


@dataclass(frozen=True)
class SecondMoment:
    """Second moment that a sampler asks for beside its gradient.

    Args:
        ratio: z_V / z_g, how much noisier than the gradient; larger costs less.
        structure: ``dense`` | ``diagonal`` | ``auto`` (dense up to ``DENSE_PARAMETERS`` parameters).
        own_batch: drawn from a minibatch of its own, and then charged as an event of its own.
        every: steps from one query to the next; the first is step 0.
        centred: must be False.

    Raises:
        UnsupportedCombination: centred.
        ValueError: ratio not positive, every below 1, or an unknown structure.
    """

    ratio: NoiseRatio = 3.0
    structure: Literal["auto", "dense", "diagonal"] = "auto"
    own_batch: bool = False
    centred: bool = False
    every: Annotated[int, Ge(1)] = 1

    def __post_init__(self) -> None:
        if self.centred:
            raise UnsupportedCombination(
                "a centred second moment has no derivation under minibatch sampling, because the batch mean moves "
                "every term; ask for the uncentred sum",
                "sampler",
            )
        check_fields(self)

    def asks(self, t: Step) -> Step:
        """Whether it is asked in step t; of public numbers alone."""
        return t % self.every == 0


class PrivateSecondMoment(NamedTuple):
    """V in units of the full potential: (p, p) symmetric or (p,), p raveled parameters; std of its diagonal noise.

    In a step that does not ask, V is 0 and the std infinite.
    """

    value: jax.Array
    noise_std: jax.Array


def released_shape(second: SecondMoment, params: PyTree) -> PrivateSecondMoment:
    """Shapes of what is released for parameters of these shapes."""
    size = size_of(params)
    shape = form_of(second.structure, size).shape(size)
    number = jax.ShapeDtypeStruct((), jnp.float32)
    return PrivateSecondMoment(jax.ShapeDtypeStruct(shape, jnp.float32), number)  # type: ignore[arg-type]


def asked(queries: Sequence[object]) -> SecondMoment | None:
    """The second moment among a sampler's queries, or None.

    Raises:
        UnsupportedCombination: queries other than one gradient and at most one second moment.
    """
    first, *rest = tuple(queries) or (None,)
    moments = [q for q in rest if isinstance(q, SecondMoment)]
    if first != GRADIENT or len(rest) > 1 or len(moments) < len(rest):
        raise UnsupportedCombination(
            f"a step asks for {tuple(queries)}; derived are ('gradient',) and ('gradient', SecondMoment(...))",
            "sampler",
        )
    return moments[0] if moments else None


def every_of(second: SecondMoment | None) -> int:
    """Steps from one step that asks for it to the next."""
    return 1 if second is None else second.every


def multiples(second: SecondMoment | None) -> tuple[float, ...]:
    """Noise multiplier of each minibatch of a step that asks for it, as multiples of the gradient's z_g.

    Float32 lets a clipped vector exceed C by 1 + κ, and so its square C² by (1 + κ)²; one factor 1 + κ is charged to
    every event (``charging.py``), the other one here.
    """
    if second is None:
        return (1.0,)
    if second.own_batch:
        return (1.0, second.ratio / (1 + KAPPA))
    return ((1 + ((1 + KAPPA) / second.ratio) ** 2) ** -0.5,)


# ----------------------------------------------------------------------------------------------------
# The exact sum behind a second moment, its noise and its release. Costs and proof are in ``metric.py``.


@dataclass(frozen=True)
class MomentSum:
    """The sum behind one second moment: exact, its noise, and its release.

    Args:
        second: what was asked for.
        size: p, parameters.
        clip: C; None in the query without privacy, which has no exact sum and no noise.
        bits: grid exponent.
        scale: N/b.
    """

    second: SecondMoment
    size: int
    clip: Clip | None
    bits: int
    scale: np.float32

    @property
    def form(self) -> Form:
        """Dense or diagonal."""
        return form_of(self.second.structure, self.size)

    @property
    def noise_scale(self) -> np.ndarray:
        """Std of each entry's noise relative to a diagonal entry's, (entries,)."""
        return self.form.noise_scale(self.size)

    @property
    def entries(self) -> jax.ShapeDtypeStruct:
        """Shape of what is summed and noised."""
        return jax.ShapeDtypeStruct(self.noise_scale.shape, jnp.float32)

    def noise_in_grid(self, noise_std: jax.Array) -> jax.Array:
        """Std of the noise in grid units: z_V C² = ratio·z_g·C², which is ratio·C·s_t in gradient units."""
        assert self.clip is not None
        return np.float32(self.second.ratio) * noise_std / (self.scale * float32(self.clip * 2.0**-self.bits))

    def exact(self, rows: PyTree, mask: Bool[jax.Array, " n"]) -> FixedPoint:
        """Σ of products of the clipped rows, leaves (n, ...), over unmasked rows; (entries,)."""
        assert self.clip is not None
        return clipped_sum(self.form, rows, mask, self.clip, self.bits)

    def released(self, total: FixedPoint, noise_std: jax.Array) -> PrivateSecondMoment:
        """V, from a sum that has its noise."""
        assert self.clip is not None
        std = np.float32(self.second.ratio) * float32(self.clip) * noise_std
        return self.plain(total.to_float(self.clip**2, self.bits))._replace(noise_std=std)

    def nothing(self) -> PrivateSecondMoment:
        """V of a step that does not ask for it."""
        return PrivateSecondMoment(jnp.zeros(self.form.shape(self.size)), jnp.full((), jnp.inf))

    def plain(self, entries: Float[jax.Array, " entries"]) -> PrivateSecondMoment:
        """V of the query without privacy."""
        value = self.form.from_entries(self.scale * entries, self.size)
        return PrivateSecondMoment(value, jnp.zeros((), jnp.float32))


def clipped_sum(form: Form, rows: PyTree, mask: jax.Array, clip: Clip, bits: int) -> FixedPoint:
    """Σ c cᵀ (on and above the diagonal, row by row) or Σ c ∘ c over unmasked rows, c the row clipped to ``clip``.

    Args:
        form: dense or diagonal.
        rows: pytree, leaves (n, ...).
        mask: (n,) bool.
        clip: C; ``result.to_float(clip**2, bits)`` has shape (p(p+1)/2,) or (p,).
        bits: grid exponent p.
    """
    rows = exact_sums.materialised(rows)
    factor = exact_sums.unit_factor(exact_sums.row_norms(rows), mask, clip)
    flat = jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(rows)], axis=1)
    unit = jnp.where((factor > 0)[:, None], flat * factor[:, None], 0.0)
    return form.exact(unit, bits)
