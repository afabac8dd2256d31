"""Public facts about strongly convex potentials."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.base import Target, target_offers


@dataclass(frozen=True)
class Bounds:
    """Public facts about a strongly convex potential Σ losses + (m/2)‖θ‖².

    Attributes:
        lipschitz: L, bound on the gradient of a record's loss.
        smoothness: largest curvature of a record's loss.
        prior_precision: m.
        size: number of parameters d.
    """

    lipschitz: float
    smoothness: float
    prior_precision: float
    size: int


def bounds_of(target: Target, mechanism: str, prior_precision: float | None = None) -> Bounds:
    """Return the bounds that a mechanism rests on.

    Args:
        target: bound to its number of features and to its row bound.
        mechanism: named in errors.
        prior_precision: in place of the target's own.

    Raises:
        UnsupportedCombination: the target lacks one; the message names it.
    """
    precision = strong_convexity(target, mechanism, prior_precision)
    offers = target_offers(target)
    unclipped = "clipped gradients are those of no convex function"
    lipschitz = _public(target, mechanism, "gradient_bound", offers.gradient_bound, unclipped)
    smoothness = _public(target, mechanism, "smoothness", offers.smoothness, "curvature must be bounded")
    size = size_of(jax.eval_shape(target.init, jax.random.key(0)))
    return Bounds(lipschitz, smoothness, precision, size)


def _public(target: Target, mechanism: str, fact: str, value: float | None, why: str) -> float:
    """Return a public fact about the losses of a target, or refuse the target for ``why``."""
    if value is None:
        raise UnsupportedCombination(
            f"{mechanism} needs a public {fact} of one record ({why}), and {type(target).__name__} has none; declare a "
            "bound on the rows (row_bound) if its losses have one.",
            "target",
        )
    return float(value)


def strong_convexity(target: Target, mechanism: str, prior_precision: float | None = None) -> float:
    """Return m, the curvature that the prior gives the potential in every direction.

    Args:
        target: with convex losses.
        mechanism: named in errors.
        prior_precision: in place of the target's own.

    Raises:
        UnsupportedCombination: losses that are not declared convex, or a prior that states no precision.
    """
    name = type(target).__name__
    if not target_offers(target).log_concave:
        raise UnsupportedCombination(
            f"{mechanism} needs convex losses, and {name} does not declare log_concave = True; mechanism ops takes "
            "others by its form range, where they have loss_bounds.",
            "target",
        )
    precision = target_offers(target).prior_precision if prior_precision is None else prior_precision
    if precision is None or not precision > 0:
        raise UnsupportedCombination(
            f"{mechanism} needs a strongly convex potential, and {name} states no prior_precision > 0; give "
            "the mechanism one, in place of the prior's own.",
            "target",
        )
    return float(precision)
