r"""Stochastic-gradient Langevin dynamics (Welling and Teh 2011; DP-SGLD: Wang, thesis Algorithm 3).

    θ' = θ − η_t (∇U(θ) + s_t Z),     Z ~ N(0, I),     s_t = √(2T/η_t),     η_t = step_size_t / N

The pair (drift η, noise variance 2Tη) keeps exp(−U/T). The thesis prints noise variance η, which is
temperature 1/2. Exact on a quadratic of curvature w with exact gradients: Var = (T/w) / (1 − ηw/2).

The noise is part of the query: where privacy asks for s_t > √(2T/η_t) the chain runs at temperature
η_t s_t²/2 instead, and the plan says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.samplers.base import SteppedSampler, tree_norm


class SGLDState(NamedTuple):
    """The position alone."""

    position: Any


class SGLDInfo(NamedTuple):
    """Per step: ``gradient_norm`` of the noisy gradient and the ``temperature`` its noise keeps."""

    gradient_norm: jax.Array
    temperature: jax.Array


@jax.tree_util.register_static
@dataclass(frozen=True)
class SGLD(SteppedSampler):
    """Stochastic-gradient Langevin dynamics; see :class:`SteppedSampler` for its arguments.

    T = 0 without privacy is SGD.
    """

    def noise_std(self, t: Any) -> Any:
        """s_t = √(2T/η_t), in gradient units."""
        return (2 * self.temperature / self.eta(t)) ** 0.5

    def stability_limit(self, noise_std: Any, t: Any) -> Any:
        """Largest stable η·curvature: 2."""
        return 2.0 + 0.0 * self.eta(t)

    def with_noise(self, noise_std: float) -> SGLD:
        """``step_size: auto`` resolved: the largest constant step whose own noise is at least ``noise_std``."""
        return self.with_eta(2 * self.temperature / noise_std**2)

    def temperature_at(self, noise_std: Any, t: Any) -> Any:
        """η_t s²/2."""
        return self.eta(t) * noise_std**2 / 2

    def time_at(self, noise_std: Any, t: Any) -> Any:
        """η_t."""
        return self.eta(t)

    def init(self, key: jax.Array, position: Any) -> SGLDState:
        """State at ``position``."""
        return SGLDState(position)

    def step(
        self, key: jax.Array, state: SGLDState, gradient: PrivateGradient, t: jax.Array
    ) -> tuple[SGLDState, SGLDInfo]:
        """θ' = θ − η_t g̃."""
        eta = self.eta(t)
        position = jax.tree.map(lambda p, g: p - eta * g, state.position, gradient.value)
        return SGLDState(position), SGLDInfo(tree_norm(gradient.value), self.temperature_at(gradient.noise_std, t))
