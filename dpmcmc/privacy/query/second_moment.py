"""A second query beside the gradient: the sum of clipped outer products, for samplers that precondition.

    V = (N/b) · ( Σ_{i in batch} c_i c_iᵀ + W ),     c_i = clip_C(g_i),   std(W) = z_V C²

W is the symmetric Gaussian of that scale: std z_V C² on the diagonal and z_V C²/√2 off it, which is N(0, (z_V C²)²
I) in an orthonormal basis of symmetric matrices under the Frobenius norm. The diagonal form releases Σ c_i ∘ c_i
alone.

**What it costs.** ‖c cᵀ‖_F = ‖c‖² <= C² (and ‖c ∘ c‖ <= ‖c‖²). Gradient and second moment of ONE minibatch, each
divided by its noise, are one Gaussian query of the vector (c/(z_g C), c cᵀ/(z_V C²)), whose norm is at most (z_g⁻² +
z_V⁻²)^½. So the step is ONE subsampled Gaussian with z⁻² = z_g⁻² + z_V⁻², under every adjacency: a record that comes
or goes moves it by 1/z, one that is replaced by 2/z, as any query. Composing the two as if their minibatches were
independent says 2.96 where 5.29 is right (rate .01, z = 1 each, 1000 steps, add_remove, δ = 1e-6). Two minibatches
(``own_batch``) are two events.

It may be asked in one step of ``every`` only, the steps 0, every, 2·every, … The other steps release the gradient
alone, and are charged for that alone: which steps ask is public, so the run is the composition of two kinds of step.

A replaced record moves Σ c cᵀ by at most √2 C² rather than 2C², but only where every record takes part, and only
before rounding to the grid; that factor is not used. Under Poisson it says 0.95 where 4.29 is charged and 4.24 is
needed (V alone at rate .001, z = .5, 1000 steps, δ = 1e-6).

*Centred forms* (Algorithm 5 of the thesis subtracts the batch mean) are refused: the mean moves every term of the
sum, and dividing by the number of selected records makes the sensitivity depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Le

from dpmcmc.errors import UnsupportedCombination, check_fields
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query.matrix_forms import form_of
from dpmcmc.storage.pytree import PyTree, size_of

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
