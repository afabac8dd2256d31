"""Logistic regression whose batch sum is a float32 matrix product: for choosing settings alone.

The exact sum of the library is what a guarantee rests on, and it cannot use a matrix product. Runs on public records
that only rank settings need no guarantee; they have the same law up to rounding, several times faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.targets import LogisticRegression


@dataclass(frozen=True)
class Rehearsal(LogisticRegression):
    """The model without its exact sums; see :class:`LogisticRegression` for its arguments."""

    def clipped_gradient_sum(
        self, params: jax.Array, batch: Any, mask: jax.Array, clip: Any, bits: int = 21
    ) -> FixedPoint:
        """Σ clip(−∇ log-likelihood) over unmasked rows, in float32."""
        x = batch["x"]
        residual = jax.nn.sigmoid(x @ params) - batch["y"]
        norm = jnp.abs(residual) * jnp.sqrt(jnp.sum(jnp.square(x), axis=1))
        weight = jnp.where(mask, residual / jnp.maximum(norm, clip), 0.0)
        grid = (weight @ x) * np.float32(2.0**bits)
        high = jnp.floor(grid * np.float32(2.0**-16))
        return FixedPoint(high.astype(jnp.int32), jnp.round(grid - high * 65536).astype(jnp.int32))
