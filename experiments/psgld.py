r"""A sampler that adapts: SGLD preconditioned by its past noisy gradients (``docs/extending.md``).

    G = 1/√(1 + V),   θ' = θ − η G g + √(2Tη(G − G²)) Z,   V' = αV + (1 − α)(g/s)²

s is the std of the noise in g. A step from g alone has noise √(2Tη) G; the second term makes it √(2TηG), the law of the
metric 1/G (pSGLD of Li, Chen, Carlson and Carin 2016). G sees past gradients alone, and changes slowly if α is near 1.
All of it is a function of released gradients, so it costs no privacy.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmcmc.privacy.query.metric import flat
from dpmcmc.samplers.base import Langevin


class State(NamedTuple):
    """The position, and the mean square of past gradients over their noise."""

    position: jax.Array
    mean_square: jax.Array


class Info(NamedTuple):
    """Per step: the smallest preconditioner."""

    smallest: jax.Array


@jax.tree_util.register_static
@dataclass(frozen=True)
class PSGLD(Langevin):
    """step_size and temperature of ``Langevin``; alpha: memory of past gradients, in [0, 1)."""

    alpha: float = 0.999

    def init(self, key, position):
        return State(position, jnp.ones_like(flat(position)[0]))

    def step(self, key, state, gradient, t):
        position, unflatten = flat(state.position)
        g = flat(gradient.value)[0]
        scale = 1 / jnp.sqrt(1 + state.mean_square)
        wanted = jnp.sqrt(2 * self.temperature * self.eta(t) * (scale - scale**2))
        noise = jax.random.normal(key, g.shape)  # one draw for the flat vector: a pytree's shape changes nothing
        moved = position - self.eta(t) * scale * g + wanted * noise
        mean_square = self.alpha * state.mean_square + (1 - self.alpha) * (g / gradient.noise_std) ** 2
        return State(unflatten(moved), mean_square), Info(scale.min())
