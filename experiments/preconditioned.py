r"""A sampler of one's own: SGLD with a public preconditioner M = FFᵀ (``docs/extending.md``).

    θ' = θ − η M⁻¹ (∇U(θ) + s F Z),     s = √(2T/η)

Gradients are clipped and noised in the metric F, so the noise of θ' is √(2Tη) F⁻ᵀZ: temperature T, whatever F is.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax

from dpmcmc.privacy.query.metric import MatrixLike, PublicMatrix, flat
from dpmcmc.samplers.base import SteppedSampler, tree_norm


class State(NamedTuple):
    """The position alone."""

    position: jax.Array


class Info(NamedTuple):
    """Per step: norm of the noisy gradient."""

    gradient_norm: jax.Array


@jax.tree_util.register_static
@dataclass(frozen=True)
class PreconditionedSGLD(SteppedSampler):
    """step_size and temperature of ``SteppedSampler``; metric: public F, a number, d numbers or a .npy file."""

    metric: MatrixLike = 1.0

    def __post_init__(self):
        super().__post_init__()
        metric = PublicMatrix(self.metric, "metric")
        metric.check_invertible("metric")
        object.__setattr__(self, "metric", metric)

    def noise_std(self, t):
        return (2 * self.temperature / self.eta(t)) ** 0.5

    def temperature_at(self, noise_std, t):
        return self.eta(t) * noise_std**2 / 2

    def time_at(self, noise_std, t):
        return self.eta(t)

    def init(self, key, position):
        self.metric.check_size(flat(position)[0].size, "metric")
        return State(position)

    def step(self, key, state, gradient, t):
        position, unflatten = flat(state.position)
        move = self.metric.whiten(self.metric.whiten(flat(gradient.value)[0]), transpose=True)
        return State(unflatten(position - self.eta(t) * move)), Info(tree_norm(gradient.value))
