r"""Stochastic-gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin 2014; DP-SGHMC: Wang, thesis (3.4)).

    v' = (1 − a) v − η_t (∇U(θ) + s_t Z),   θ' = θ + v',     s_t = √(2(a − b̂)T/η_t),     b̂ = η_t V̂/(2T)

a in (0, 1] is the fraction of momentum lost per step; V̂ is a PUBLIC estimate of the variance that minibatching
adds to a coordinate of the gradient (never of noise that privacy counts, and never a reason for a smaller ε). The
position moves with the NEW momentum: with the old one, as the thesis prints it and common implementations do, the
variance is inflated by a/(a − ηw) and the chain diverges once ηw >= a.

Exact on a quadratic of curvature w (V̂ = 0), from the moment equations of the recursion:

    Var[θ] = (T/w) / (1 − ηw/(4 − 2a)),      (1 − a/2) E[v²]/η = w Var[θ].

With noise s_t the temperature is η_t(s_t² + V̂)/(2a). Where privacy needs more than the dynamics' own noise, the chain
runs hot, unless ``friction="matched"``: then a = η(s² + V̂)/(2T), and the noise that privacy needs keeps T.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge

from dpmcmc.errors import InputError
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.samplers import langevin
from dpmcmc.samplers.base import Langevin, tree_norm
from dpmcmc.samplers.langevin import Friction, thermal_velocity
from dpmcmc.samplers.schedules import PerStep
from dpmcmc.storage.pytree import PyTree, rebuilt


class SGHMCState(NamedTuple):
    """Position and momentum, in units of a step."""

    position: PyTree
    velocity: PyTree


class SGHMCInfo(NamedTuple):
    """Values at each step: ``gradient_norm`` of the noisy gradient, and the ``temperature`` that its noise keeps."""

    gradient_norm: jax.Array
    temperature: PerStep


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SGHMC(Langevin):
    """Stochastic-gradient Hamiltonian Monte Carlo; see :class:`SteppedSampler` for the rest.

    Args:
        friction: a in (0, 1], the fraction of momentum lost per step; matched: to the noise privacy needs, which then
            keeps the temperature.
        minibatch_variance: V̂ >= 0, PUBLIC estimate of the variance minibatching adds to a coordinate of the gradient
            of the full potential.

    Raises:
        ValueError: outside these, or matched friction with step_size auto.

    Example:
        >>> import dpmcmc
        >>> sampler = dpmcmc.SGHMC(step_size=4.0, friction=0.1).bind(num_records=1000)
        >>> round(float(sampler.noise_std(0)), 2)  # √(2·0.1·1000/4)
        7.07
    """

    friction: Friction | Literal["matched"] = 0.1
    minibatch_variance: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if rebuilt(self):
            return
        if self.friction == "matched" and (not isinstance(self.step_size, (int, float)) or self.temperature == 0):
            raise InputError(
                "friction matched needs a number for step_size and temperature > 0",
                "friction",
            )

    @property
    def unresolved(self) -> bool:
        """Whether a setting waits for the noise that privacy needs."""
        return super().unresolved or self.friction == "matched"

    @property
    def damping(self) -> float:
        """a, once ``matched`` is solved."""
        if isinstance(self.friction, str):
            raise InputError(
                "friction matched is solved from the privacy target: plan it with one",
                "friction",
            )
        return self.friction

    def with_noise(self, noise_std: float) -> SGHMC:
        """Solve ``step_size: auto`` (η = 2aT/(s² + V̂)) or ``friction: matched`` (a = η(s² + V̂)/(2T))."""
        variance = noise_std**2 + self.minibatch_variance
        if self.step_size == "auto":
            return self.with_eta(float(langevin.step_allowed(variance, self.temperature, self.damping)))
        friction = float(langevin.friction_needed(variance, self.eta(0), self.temperature))
        if friction > 1:
            assert self.num_records is not None
            largest = self.num_records * langevin.step_allowed(variance, self.temperature)
            raise InputError(
                f"friction matched to the noise privacy needs would be {friction:.3g}, beyond 1: "
                f"take step_size at most {largest:.3g}",
                "step_size",
            )
        return dataclasses.replace(self, friction=friction)

    def noise_std(self, t: PerStep) -> PerStep:
        """s_t = √(2(a − b̂)T/η_t), in gradient units; :meth:`check` refuses b̂ > a."""
        own = langevin.noise_variance(self.eta(t), self.temperature, self.damping) - self.minibatch_variance
        return (own * (own > 0)) ** 0.5

    def check(self, noise_std: PerStep, t: PerStep) -> None:
        """Raise ValueError where the public estimate of minibatch noise exceeds the friction."""
        super().check(noise_std, t)
        if self.temperature > 0:
            estimate = np.max(langevin.friction_needed(self.minibatch_variance, self.eta(t), self.temperature))
            if estimate > self.damping:
                raise InputError(
                    f"minibatch_variance amounts to b̂ = {estimate:.3g}, more than friction {self.damping:g}: raise the "
                    "friction or lower step_size",
                    "minibatch_variance",
                )

    def temperature_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """η_t(s² + V̂)/(2a)."""
        return langevin.temperature_kept(noise_std**2 + self.minibatch_variance, self.eta(t), self.damping)

    def init(self, key: jax.Array, position: PyTree) -> SGHMCState:
        """State at ``position`` with a velocity of variance ηT."""
        return SGHMCState(position, thermal_velocity(key, position, self.eta(0) * self.temperature))

    def step(
        self, key: jax.Array, state: SGHMCState, gradient: PrivateGradient, t: jax.Array
    ) -> tuple[SGHMCState, SGHMCInfo]:
        """v' = (1 − a)v − η_t g̃, θ' = θ + v'."""
        eta = self.eta(t)
        keep = 1 - self.damping
        velocity = jax.tree.map(lambda v, g: keep * v - eta * g, state.velocity, gradient.value)
        position = jax.tree.map(jnp.add, state.position, velocity)
        info = SGHMCInfo(tree_norm(gradient.value), self.temperature_at(gradient.noise_std, t))
        return SGHMCState(position, velocity), info
