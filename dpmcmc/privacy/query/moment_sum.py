"""The exact sum behind a second moment, its noise and its release; ``second_moment.py`` has its cost and proof."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy.query import exact_sums
from dpmcmc.privacy.query.exact_sums import Clip, FixedPoint, float32
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
from dpmcmc.privacy.query.matrix_forms import Form, form_of
from dpmcmc.privacy.query.second_moment import PrivateSecondMoment, SecondMoment


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
