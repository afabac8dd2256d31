"""Logistic regression whose residuals are clipped: the Huberised logistic loss.

Clipping a record's gradient clips its residual r = σ(x·θ) − y, where rows have one norm. The clipped residual is still
increasing in the margin x·θ, so it is the derivative of a convex loss, which is linear where ``|r| > c``:

    ℓ_c'(m) = clip(σ(m) − y, −c, c)

Its Lipschitz constant is c, in place of 1. Its curvature is σ(1 − σ) where ``|r| < c`` and 0 beyond, hence at most
c(1 − c) for c <= 1/2 and 1/4 otherwise. Both are times the row bound, or its square.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpmcmc.targets.logistic import LogisticRegression


@dataclass(frozen=True, repr=False)
class HuberisedLogistic(LogisticRegression):
    """Logistic regression with residuals clipped to ``clip``.

    Args:
        clip: c in (0, 1].
    """

    clip: float = dataclasses.field(default=1.0, kw_only=True)

    @classmethod
    def of(cls, target: LogisticRegression, clip: float) -> HuberisedLogistic:
        """Return the model of a logistic regression with its residuals clipped."""
        return cls(
            target.prior_scale,
            num_features=target.num_features,
            row_bound=target.row_bound,
            clip=clip,
        )

    @property
    def residual_bound(self) -> float:  # type: ignore[override]
        """Lipschitz constant in the margin, c."""
        return self.clip

    @property
    def curvature_bound(self) -> float:  # type: ignore[override]
        """Largest curvature in the margin: that of σ(1 − σ) on σ <= c."""
        return min(self.clip, 0.5) * (1 - min(self.clip, 0.5))

    def log_density(self, margin: jax.Array, y: jax.Array) -> jax.Array:
        """Minus the loss: that of the logistic up to where its residual is c, and linear beyond; ().

        Gradients that JAX takes of it are the clipped ones too.
        """
        kink = math.log(self.clip / (1 - self.clip)) if self.clip < 1 else math.inf
        wrong = (1 - 2 * y) * margin  # the residual is ±σ of it
        return -(jax.nn.softplus(jnp.minimum(wrong, kink)) + self.clip * jnp.maximum(wrong - kink, 0.0))

    def residual(self, margin: jax.Array, y: jax.Array) -> jax.Array:
        """clip(σ(m) − y, −c, c)."""
        return jnp.clip(super().residual(margin, y), -self.clip, self.clip)
