"""A target whose likelihood is raised to a power.

    log p(x|θ)  →  temper · log p(x|θ),     log π(θ)  →  prior_temper · log π(θ)

One record's gradient is multiplied by ``temper``, and so is everything that bounds it. clip_C(ρg) = ρ clip_{C/ρ}(g),
so an exact clipped sum of the target at clip C/ρ, in units of its grid (C/ρ)·2^-p, is the tempered one in units of
C·2^-p: the same integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpmcmc.errors import check_fields
from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.storage.pytree import PyTree, rebuilt
from dpmcmc.targets.base import Positive, Target, TargetOffers, bind, target_offers
from dpmcmc.targets.of_inner import of_inner


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tempered(TargetOffers):
    """A target at a temper, with its own prior or another one.

    Args:
        target: the model.
        temper: ρ > 0, the power of each record's likelihood.
        prior_temper: > 0, the power of the prior.
        new_prior_precision: m > 0: the prior is N(0, I/m), before its power is taken, in place of the target's own.

    Raises:
        ValueError: a number that is not finite and positive.
    """

    target: Any
    temper: Positive
    prior_temper: Positive = 1.0
    new_prior_precision: Positive | None = None

    predict = of_inner()
    check_records = of_inner()
    prepared = of_inner()
    constrain = of_inner()
    num_classes = of_inner()
    log_concave = of_inner()
    linear_predictor = of_inner()
    bounded_labels = of_inner()
    longest_labels = of_inner()
    predictor = of_inner()
    row_bound = of_inner()
    label_bound = of_inner()
    offset_bound = of_inner()
    weight_scale = of_inner()
    takes_every_leaf = of_inner()

    def __post_init__(self) -> None:
        if not rebuilt(self):
            check_fields(self)

    def bind(self, record_shapes: PyTree) -> Tempered:
        """The same around the bound target."""
        return Tempered(
            bind(self.target, record_shapes),
            self.temper,
            self.prior_temper,
            self.new_prior_precision,
        )

    @property
    def gradient_bound(self) -> float | None:
        """temper · L."""
        return self._scaled(self._offers.gradient_bound)

    @property
    def gradient_bound_within(self) -> Callable[[float], float | None] | None:  # type: ignore[override]
        """radius -> temper · L on ‖θ‖ <= radius; None where the target has none."""
        within = self._offers.gradient_bound_within
        return None if within is None else lambda radius: self._scaled(within(radius))

    @property
    def smoothness(self) -> float | None:
        """temper · the largest curvature of one record's loss."""
        return self._scaled(self._offers.smoothness)

    @property
    def loss_bounds(self) -> Callable[[float], tuple[float, float]] | None:  # type: ignore[override]
        """radius -> temper · the target's; None where it has none."""
        bounds = self._offers.loss_bounds
        if bounds is None:
            return None

        def scaled(radius: float) -> tuple[float, float]:
            largest, difference = bounds(radius)
            return self.temper * largest, self.temper * difference

        return scaled

    @property
    def clipped_gradient_sum(self) -> Callable[..., FixedPoint] | None:
        """The target's at clip C/temper; None where it has none."""
        own_sum = self._offers.clipped_gradient_sum
        if own_sum is None:
            return None

        def total(
            params: PyTree,
            batch: PyTree,
            mask: jax.Array,
            clip: float,
            bits: int = 21,
            **how: bool,
        ) -> FixedPoint:
            return own_sum(params, batch, mask, clip / self.temper, bits, **how)

        return total

    @property
    def prior_precision(self) -> float | None:
        """Curvature the prior gives every direction; None where the target's prior states none."""
        own = self.new_prior_precision
        precision = self._offers.prior_precision if own is None else own
        return None if precision is None else self.prior_temper * precision

    def init(self, key: jax.Array) -> PyTree:
        """The target's starting point."""
        return self.target.init(key)

    def log_prior(self, params: PyTree) -> jax.Array:
        """prior_temper · (the target's own, or −m‖θ‖²/2), up to a constant."""
        if self.new_prior_precision is None:
            return self.prior_temper * self.target.log_prior(params)
        squares = sum(
            (jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)),
            jnp.float32(0),
        )
        return -0.5 * self.prior_temper * self.new_prior_precision * squares

    def log_likelihood(self, params: PyTree, record: PyTree) -> jax.Array:
        """temper · log p(x|θ)."""
        return self.temper * self.target.log_likelihood(params, record)

    @property
    def _offers(self) -> TargetOffers:
        return target_offers(self.target)

    def _scaled(self, value: float | None) -> float | None:
        return None if value is None else self.temper * value


def untempered(target: Target) -> Target:
    """Return the model inside any number of tempers."""
    while isinstance(target, Tempered):
        target = target.target
    return target
