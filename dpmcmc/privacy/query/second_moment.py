r"""A second query beside the gradient: the sum of clipped outer products, for samplers that precondition.

    V = (N/b) · ( Σ_{i in batch} c_i c_iᵀ + W ),     c_i = clip_C(g_i),   std(W) = z_V C²

W is the symmetric Gaussian of that scale: std z_V C² on the diagonal and z_V C²/√2 off it, which is N(0, (z_V C²)² I)
in an orthonormal basis of symmetric matrices under the Frobenius norm. The diagonal form releases Σ c_i ∘ c_i alone.

**What it costs.** ‖c cᵀ‖_F = ‖c‖² <= C² (and ‖c ∘ c‖ <= ‖c‖²). Gradient and second moment of ONE minibatch, each
divided by its noise, are one Gaussian query of the vector (c/(z_g C), c cᵀ/(z_V C²)), whose norm is at most
(z_g⁻² + z_V⁻²)^½. So the step is ONE subsampled Gaussian with z⁻² = z_g⁻² + z_V⁻², under every adjacency: a record that
comes or goes moves it by 1/z, one that is replaced by 2/z, as any query. Composing the two as if their minibatches
were independent says 2.96 where 5.29 is right (rate .01, z = 1 each, 1000 steps, add_remove, δ = 1e-6). Two minibatches
(``own_batch``) are two events.

A replaced record moves Σ c cᵀ by at most √2 C² rather than 2C², but only where every record takes part, and only
before rounding to the grid; that factor is not used. Under Poisson it says 0.95 where 4.29 is charged and 4.24 is
needed (V alone at rate .001, z = .5, 1000 steps, δ = 1e-6).

*Centred forms* (Algorithm 5 of the thesis subtracts the batch mean) are refused: the mean moves every term of the sum,
and dividing by the number of selected records makes the sensitivity depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Le

from dpmcmc.errors import UnsupportedCombination, check_fields
from dpmcmc.privacy.accounting.float_excess import KAPPA

GRADIENT = "gradient"
#: Noise multiplier of the second moment over that of the gradient.
NoiseRatio = Annotated[float, Ge(1e-3), Le(1e6)]
#: Up to this many parameters the matrix is dense, beyond it diagonal (``structure="auto"``).
DENSE_PARAMETERS = 256


@dataclass(frozen=True)
class SecondMoment:
    """Second moment that a sampler asks for beside its gradient.

    Args:
        ratio: z_V / z_g, how much noisier than the gradient; larger costs less.
        structure: ``dense`` | ``diagonal`` | ``auto`` (dense up to ``DENSE_PARAMETERS`` parameters).
        own_batch: drawn from a minibatch of its own, and then charged as an event of its own.
        centred: must be False.

    Raises:
        UnsupportedCombination: centred.
        ValueError: ratio not positive, or an unknown structure.
    """

    ratio: NoiseRatio = 3.0
    structure: Literal["auto", "dense", "diagonal"] = "auto"
    own_batch: bool = False
    centred: bool = False

    def __post_init__(self) -> None:
        if self.centred:
            raise UnsupportedCombination(
                "a centred second moment has no derivation under minibatch sampling, because the batch mean moves "
                "every term; ask for the uncentred sum"
            )
        check_fields(self)


class PrivateSecondMoment(NamedTuple):
    """V in units of the full potential: (p, p) symmetric or (p,), p raveled parameters; std of its diagonal noise."""

    value: jax.Array
    noise_std: jax.Array


def is_dense(structure: str, parameters: int) -> bool:
    """Whether this many parameters get a full matrix."""
    return structure == "dense" or (structure == "auto" and parameters <= DENSE_PARAMETERS)


def released_shape(second: SecondMoment, params: Any) -> PrivateSecondMoment:
    """Shapes of what is released for parameters of these shapes."""
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    shape = (size, size) if is_dense(second.structure, size) else (size,)
    number = jax.ShapeDtypeStruct((), jnp.float32)
    return PrivateSecondMoment(jax.ShapeDtypeStruct(shape, jnp.float32), number)  # type: ignore[arg-type]


def asked(queries: Sequence[Any]) -> SecondMoment | None:
    """The second moment among a sampler's queries, or None.

    Raises:
        UnsupportedCombination: queries other than one gradient and at most one second moment.
    """
    first, *rest = tuple(queries) or (None,)
    if first != GRADIENT or len(rest) > 1 or not all(isinstance(q, SecondMoment) for q in rest):
        raise UnsupportedCombination(
            f"a step asks for {tuple(queries)}; derived are ('gradient',) and ('gradient', SecondMoment(...))"
        )
    return rest[0] if rest else None


def multiples(second: SecondMoment | None) -> tuple[float, ...]:
    """Noise multiplier of each of a step's minibatches, as multiples of the gradient's z_g.

    Float32 lets a clipped vector exceed C by 1 + κ, and so its square C² by (1 + κ)²; one factor 1 + κ is charged to
    every event (``charging.py``), the other one here.
    """
    if second is None:
        return (1.0,)
    if second.own_batch:
        return (1.0, second.ratio / (1 + KAPPA))
    return ((1 + ((1 + KAPPA) / second.ratio) ** 2) ** -0.5,)


def pairs(parameters: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each entry on or above the diagonal."""
    return np.triu_indices(parameters)


def noise_scale(parameters: int, dense: bool) -> np.ndarray:
    """Std of each released entry relative to the diagonal's, (entries,) float32, rounded up."""
    if not dense:
        return np.ones(parameters, np.float32)
    row, column = pairs(parameters)
    off = np.nextafter(np.float32(0.5**0.5), np.float32(1))
    return np.where(row == column, np.float32(1), off)


def symmetric(entries: jax.Array, parameters: int) -> jax.Array:
    """(p, p) matrix from its entries on and above the diagonal."""
    row, column = pairs(parameters)
    upper = jnp.zeros((parameters, parameters), entries.dtype).at[row, column].set(entries)
    return upper + jnp.triu(upper, 1).T
