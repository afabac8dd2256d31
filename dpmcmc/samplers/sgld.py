r"""Stochastic-gradient Langevin dynamics (Welling and Teh 2011; DP-SGLD: Wang, thesis Algorithm 3).

    θ' = θ − η_t (∇U(θ) + s_t Z),     Z ~ N(0, I),     s_t = √(2T/η_t),     η_t = step_size_t / N

The pair (drift η, noise variance 2Tη) keeps exp(−U/T). The thesis prints noise variance η, which is temperature 1/2.
Exact on a quadratic of curvature w with exact gradients: Var = (T/w) / (1 − ηw/2), stable for ηw < 2.

The noise is part of the query. Where privacy needs s_t > √(2T/η_t), the chain runs at temperature η_t s_t²/2 instead,
and the plan says so. The law of the noise is ``langevin.py`` at friction 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax

from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.samplers.base import Langevin, tree_norm
from dpmcmc.samplers.schedules import PerStep
from dpmcmc.storage.pytree import PyTree


class SGLDState(NamedTuple):
    """The position alone."""

    position: PyTree


class SGLDInfo(NamedTuple):
    """Values at each step: ``gradient_norm`` of the noisy gradient, and the ``temperature`` that its noise keeps."""

    gradient_norm: jax.Array
    temperature: PerStep


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SGLD(Langevin):
    """Stochastic-gradient Langevin dynamics; see :class:`SteppedSampler` for its arguments.

    T = 0 without privacy is SGD.

    Example:
        >>> import dpmcmc
        >>> sampler = dpmcmc.SGLD(step_size=4.0).bind(num_records=1000)
        >>> round(float(sampler.noise_std(0)), 2)  # √(2·1000/4)
        22.36
    """

    def init(self, key: jax.Array, position: PyTree) -> SGLDState:
        """State at ``position``."""
        return SGLDState(position)

    def step(
        self, key: jax.Array, state: SGLDState, gradient: PrivateGradient, t: jax.Array
    ) -> tuple[SGLDState, SGLDInfo]:
        """θ' = θ − η_t g̃."""
        eta = self.eta(t)
        position = jax.tree.map(lambda p, g: p - eta * g, state.position, gradient.value)
        return SGLDState(position), SGLDInfo(tree_norm(gradient.value), self.temperature_at(gradient.noise_std, t))
