"""The prior that the built-in targets share: θ ~ N(0, prior_scale² I) over every parameter of a pytree."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import TargetOffers


class GaussianPrior(TargetOffers):
    """Density and curvature of the prior, for a target with a ``prior_scale``."""

    prior_scale: float

    @property
    def prior_precision(self) -> float:
        """Curvature the prior gives every direction."""
        return self.prior_scale**-2

    def log_prior(self, params: PyTree) -> jax.Array:
        """−‖θ‖²/(2·prior_scale²)."""
        squares = sum(
            (jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)),
            jnp.float32(0),
        )
        return -0.5 * squares / self.prior_scale**2
