r"""A target whose likelihood is raised to a power.

    log p(x|θ)  →  temper · log p(x|θ),     log π(θ)  →  prior_temper · log π(θ)

One record's gradient is multiplied by ``temper``, and so is everything that bounds it. clip_C(ρg) = ρ clip_{C/ρ}(g), so
an exact clipped sum of the target at clip C/ρ, in units of its grid (C/ρ)·2^-p, is the tempered one in units of C·2^-p:
the same integers.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.query.fixed_point import FixedPoint
from dpmcmc.storage.pytree import PyTree, rebuilt
from dpmcmc.targets.base import Target, bind
from dpmcmc.targets.glm import LinearRegression

#: Attributes that are the same at any temper, where the target has them.
_PASSED = (
    "predict",
    "check_records",
    "prepared",
    "constrain",
    "num_classes",
    "log_concave",
    "linear_predictor",
    "bounded_labels",
    "longest_labels",
    "predictor",
    "row_bound",
    "label_bound",
)


@dataclass(frozen=True, init=False)
class Tempered:
    """A target at a temper, with its own prior or another one.

    Args:
        target: the model.
        temper: ρ > 0, the power of each record's likelihood.
        prior_temper: > 0, the power of the prior.
        prior_precision: m > 0: the prior is N(0, I/m), before its power is taken, in place of the target's own.

    Raises:
        ValueError: a number that is not finite and positive.
    """

    target: Any
    temper: float
    prior_temper: float
    new_prior_precision: float | None

    def __init__(
        self, target: Any, temper: float, prior_temper: float = 1.0, prior_precision: float | None = None
    ) -> None:
        numbers = {"temper": temper, "prior_temper": prior_temper, "prior_precision": prior_precision}
        if not rebuilt(numbers):
            for name, value in numbers.items():
                if value is not None and not (value > 0 and math.isfinite(value)):
                    raise InputError(f"{name}: must be a finite number > 0, got {value}")
            numbers = {name: None if value is None else float(value) for name, value in numbers.items()}
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "temper", numbers["temper"])
        object.__setattr__(self, "prior_temper", numbers["prior_temper"])
        object.__setattr__(self, "new_prior_precision", numbers["prior_precision"])

    def __getattr__(self, name: str) -> Any:
        if name in _PASSED:
            return getattr(self.target, name)
        if name == "clipped_gradient_sum" and hasattr(self.target, name):
            return self._clipped_gradient_sum
        raise AttributeError(f"{type(self).__name__} has no {name}, or its target has none")

    def bind(self, record_shapes: PyTree) -> Tempered:
        """The same around the bound target."""
        return Tempered(bind(self.target, record_shapes), self.temper, self.prior_temper, self.new_prior_precision)

    @property
    def gradient_bound(self) -> float | None:
        """temper · L."""
        return self._scaled(getattr(self.target, "gradient_bound", None))

    def gradient_bound_within(self, radius: float) -> float | None:
        """temper · L on ‖θ‖ <= radius."""
        return self._scaled(self.target.gradient_bound_within(radius))

    @property
    def smoothness(self) -> float | None:
        """temper · the largest curvature of one record's loss."""
        return self._scaled(getattr(self.target, "smoothness", None))

    def loss_bounds(self, radius: float) -> tuple[float, float]:
        """temper · the target's."""
        largest, difference = self.target.loss_bounds(radius)
        return self.temper * largest, self.temper * difference

    @property
    def prior_precision(self) -> float | None:
        """Curvature the prior gives every direction; None where the target's prior states none."""
        own = self.new_prior_precision
        precision = getattr(self.target, "prior_precision", None) if own is None else own
        return None if precision is None else self.prior_temper * precision

    def init(self, key: jax.Array) -> PyTree:
        """The target's starting point."""
        return self.target.init(key)

    def log_prior(self, params: PyTree) -> jax.Array:
        """prior_temper · (the target's own, or −m‖θ‖²/2), up to a constant."""
        if self.new_prior_precision is None:
            return self.prior_temper * self.target.log_prior(params)
        squares = sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)), jnp.float32(0))
        return -0.5 * self.prior_temper * self.new_prior_precision * squares

    def log_likelihood(self, params: PyTree, record: PyTree) -> jax.Array:
        """temper · log p(x|θ)."""
        return self.temper * self.target.log_likelihood(params, record)

    def posterior(self, records: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance, exact, float64, of a tempered :class:`LinearRegression`: N(y; x·θ, σ²)^ρ ∝ N(σ²/ρ).

        Reads every record WITHOUT privacy.

        Raises:
            ValueError: another target.
        """
        if not isinstance(self.target, LinearRegression):
            raise InputError(f"target: {type(self.target).__name__} has no posterior in closed form")
        assert self.prior_precision is not None
        return dataclasses.replace(
            self.target,
            prior_scale=self.prior_precision**-0.5,
            noise_scale=self.target.noise_scale * self.temper**-0.5,
        ).posterior(records)

    def _clipped_gradient_sum(
        self, params: PyTree, batch: PyTree, mask: jax.Array, clip: float, bits: int = 21, **how: bool
    ) -> FixedPoint:
        return self.target.clipped_gradient_sum(params, batch, mask, clip / self.temper, bits, **how)

    def _scaled(self, value: float | None) -> float | None:
        return None if value is None else self.temper * value


jax.tree_util.register_pytree_node(
    Tempered,
    lambda tempered: (
        (tempered.target, tempered.temper, tempered.prior_temper, tempered.new_prior_precision),
        None,
    ),
    lambda _, children: Tempered(*children),
)


def untempered(target: Target) -> Target:
    """Return the model inside any number of tempers."""
    while isinstance(target, Tempered):
        target = target.target
    return target
