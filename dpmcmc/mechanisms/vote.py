r"""Exponential mechanism on a finite public set: a private choice by bounded losses (McSherry and Talwar 2007).

    P(h) ∝ exp(−c·Σ_i ℓ(h, z_i)),      c = ε/(2B) (replace_one),  ε/B (zero_out),      0 <= ℓ <= B

A neighbour changes Σℓ by D(h), and the log probability by −cD(h) − log E[e^{−cD}], which is within c·(sup D − inf D).
For ``replace_one`` D = ℓ_z − ℓ_z' varies by at most 2B; where a record is zeroed D = ±ℓ_z varies by at most B. So the
choice is ε-DP with no δ.

Losses are clipped to [0, B] and rounded to whole levels, 2^-20 of the bound, so that sums are exact in any order. The
choice is made by whole numbers, whose weights are e^{−c·sum} up to a relative 2^-36, which is charged. Nothing is
assumed. Draws from a ball are those of ``ops`` (form ``range``), and not made here.

Claim: A vote is ε-DP at δ = 0.
Proof: a neighbour changes the log probability by at most c times the range of its change of the sum.
Held by: test_no_choice_s_probability_moves_by_more_than_epsilon,
test_epsilon_is_attained_where_two_records_disagree_everywhere, test_weights_are_as_exact_as_is_charged
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.mechanisms.sums_in_blocks import Loss, float64, in_float64
from dpmcmc.storage.pytree import PyTree, length_of

#: A loss in whole numbers, as a share of its bound.
LEVELS = 1 << 20
#: Weights are whole numbers with so many bits after the point of the largest, 1; smaller ones count as one.
_BITS = 4096
#: Relative error of a weight: its exponent is at most 4096 bits, with an error of a few 2^-53 of that.
_WEIGHT_ERROR = 2.0**-36


def coefficient_of(epsilon: float, loss_bound: float, moved: float) -> float:
    """Return c.

    Args:
        epsilon: of the choice.
        loss_bound: B.
        moved: records whose losses a neighbour changes: 2 for replace_one, 1 otherwise.

    Raises:
        InputError: an ε within what rounding costs.
    """
    rounding = 4 * _WEIGHT_ERROR
    if epsilon <= rounding:
        raise InputError(
            f"epsilon: {epsilon:g} is within what rounding costs, {rounding:.3g}; raise it",
            "epsilon",
        )
    # A hair below, so that rounding ends on the private side.
    return (epsilon - rounding) / (moved * loss_bound) * (1 - 1e-12)


def weights_of_losses(
    loss: Loss, hypotheses: PyTree, records: PyTree, loss_bound: float, coefficient: float
) -> list[int]:
    """Return whole numbers proportional to the probability of each hypothesis; not private.

    Args:
        loss: (params, record) -> scalar.
        hypotheses: pytree, leaves (M, ...).
        records: pytree, leaves (N, ...).
        loss_bound: B.
        coefficient: c.
    """
    sums = level_sums(loss, hypotheses, records, loss_bound)
    return weights_of(-coefficient * loss_bound / LEVELS * (sums - np.min(sums)))


def level_sums(loss: Loss, hypotheses: PyTree, records: PyTree, bound: float) -> np.ndarray:
    """Return Σ over records of their losses in whole levels of bound/2^20, (M,) int64: exact, and in any order.

    One record at a time, so that what a record adds does not depend on the others, nor on where it stands. A loss that
    is not a number counts as the bound.

    Args:
        loss: (params, record) -> scalar.
        hypotheses: pytree, leaves (M, ...).
        records: pytree, leaves (N, ...).
        bound: losses are clipped to [0, bound].
    """
    with float64():
        return np.asarray(_level_sums(loss, in_float64(hypotheses), in_float64(records), jnp.float64(bound)))


@functools.partial(jax.jit, static_argnums=0)
def _level_sums(loss: Loss, hypotheses: PyTree, records: PyTree, bound: jax.Array) -> jax.Array:
    def add(total: jax.Array, record: PyTree) -> tuple[jax.Array, None]:
        losses = jax.vmap(lambda params: loss(params, record))(hypotheses)
        share = jnp.where(jnp.isnan(losses), 1.0, jnp.clip(losses / bound, 0.0, 1.0))
        return total + jnp.floor(share * LEVELS).astype(jnp.int64), None

    start = jnp.zeros(length_of(hypotheses), jnp.int64)
    return jax.lax.scan(add, start, records)[0]


def weights_of(scores: np.ndarray) -> list[int]:
    """Return whole numbers proportional to e^{score}, up to a relative 2^-36.

    Weights below 2^-4096 of the largest count as that: raising scores to a floor below their maximum moves none of
    them by more than the scores moved, so the range of their differences between neighbours, on which privacy rests,
    does not grow.

    Args:
        scores: (M,) float64, finite.
    """
    bits = np.maximum((scores - np.max(scores)) / math.log(2), -float(_BITS))
    whole = np.floor(bits)
    mantissas = np.floor(np.exp2(bits - whole) * 2.0**52).astype(np.int64)
    return [int(m) << (_BITS + int(w)) for m, w in zip(mantissas, whole, strict=True)]


def choice(weights: list[int], key: jax.Array) -> int:
    """Return an index with probability exactly proportional to its weight.

    Args:
        weights: whole numbers >= 0, not all 0.
        key: secret JAX key, used for nothing else.
    """
    point = _below(sum(weights), key)
    index = 0
    while point >= weights[index]:
        point = point - weights[index]
        index = index + 1
    return index


def _below(limit: int, key: jax.Array) -> int:
    """Return a whole number uniform on [0, limit), by rejection: fewer than 2 tries on average."""
    size = limit.bit_length()
    tries = 0
    while True:
        words = np.asarray(jax.random.bits(jax.random.fold_in(key, tries), (-(-size // 32),), np.uint32))
        value = int.from_bytes(words.tobytes(), "little") >> (-size % 32)
        if value < limit:
            return value
        tries += 1
