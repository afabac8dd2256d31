r"""Stochastic-gradient Nosé–Hoover thermostat (Ding et al. 2014; DP-SGNHT: Wang, thesis (3.5)).

    v' = (1 − α) v − η_t (∇U(θ) + s_t Z),   θ' = θ + v',   α' = α + (1 − α/2) v'·v'/d − η_t T,     s_t = √(2aT/η_t)

The thermostat α is one number for all d parameters. It converges to the friction at which the actual noise keeps
temperature T, a* = η_t s_t²/(2T). So noise beyond the dynamics' own makes the chain slower, not hotter. In this order
of updates a friction α keeps the kinetic form (1 − α/2)v'·v'/d at η T; the printed v·v/d gives variance .95, .82 and
NaN at a = .1, .3, .6 where 1 is right.

α settles a little above a*: for a single curvature w where (α − a*)(2 − α) = αηw/2. Plans with a* > 1 are refused.

Validity. α carries the unit of θ²: it fluctuates by about √(ηT/d) and relaxes in about α/(ηT) steps. Few parameters
with a large ηT fail (d = 1, w = 1, η = .1: variance 8 % low at a = .05, NaN at a = .3). Where ηT is small, as under
much noise, the thermostat is slow. A start far from the posterior raises α, and until α has relaxed, thousands of steps
later, the chain is colder than T (4000 records, 20,000 steps from the prior mean: variance .92). A start near the
posterior avoids this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.samplers import langevin
from dpmcmc.samplers.base import Langevin, tree_norm
from dpmcmc.samplers.langevin import Friction, thermal_velocity
from dpmcmc.samplers.schedules import PerStep
from dpmcmc.storage.pytree import PyTree, is_zero


class SGNHTState(NamedTuple):
    """Position, momentum in units of a step, and the thermostat α, ()."""

    position: PyTree
    velocity: PyTree
    thermostat: jax.Array


class SGNHTInfo(NamedTuple):
    """Values at each step: ``gradient_norm``, ``thermostat`` α and ``kinetic_temperature`` (1 − α/2)v·v/(dη)."""

    gradient_norm: jax.Array
    thermostat: jax.Array
    kinetic_temperature: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SGNHT(Langevin):
    """Stochastic-gradient Nosé–Hoover thermostat, temperature > 0; see :class:`SteppedSampler` for the rest.

    Args:
        friction: a in (0, 1], the friction whose noise the dynamics injects of its own.

    Raises:
        ValueError: outside these.

    Example:
        >>> import dpmcmc
        >>> sampler = dpmcmc.SGNHT(step_size=4.0, friction=0.1).bind(num_records=1000)
        >>> round(float(sampler.noise_std(0)), 2)  # √(2·0.1·1000/4)
        7.07
    """

    friction: Friction = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_zero(self.temperature):
            raise InputError(
                "SGNHT needs temperature > 0: a thermostat at 0 has nothing to hold",
                "temperature",
            )

    @property
    def damping(self) -> float:
        """a, whose noise the dynamics injects of its own."""
        return self.friction

    def settled_friction(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """a* = η_t s²/(2T), where the thermostat settles for small ηw."""
        return langevin.friction_needed(noise_std**2, self.eta(t), self.temperature)

    def check(self, noise_std: PerStep, t: PerStep) -> None:
        """Raise ValueError where the thermostat would have to settle beyond 1."""
        super().check(noise_std, t)
        worst = float(np.max(self.settled_friction(noise_std, t)))
        if worst > 1:
            assert self.num_records is not None
            largest = self.num_records * langevin.step_allowed(float(np.max(noise_std)) ** 2, self.temperature)
            raise InputError(
                f"friction: the thermostat would settle at {worst:.3g}, beyond 1, under the noise privacy needs: take "
                f"step_size at most {largest:.3g}, or step_size auto with friction 0.5, half of that",
                "step_size",
            )

    def stability_limit(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """Largest η·curvature at which the thermostat can settle if all directions have it: 2(√2 − √a*)²."""
        # α² − (2 + a* − ηw/2)α + 2a* = 0 must have a real root.
        return 2 * (2**0.5 - self.settled_friction(noise_std, t) ** 0.5) ** 2

    def temperature_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """T, whatever the noise."""
        return self.temperature + 0.0 * self.eta(t)

    def time_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """η_t/a* = 2T/s²."""
        return langevin.langevin_time(self.eta(t), self.settled_friction(noise_std, t))

    def init(self, key: jax.Array, position: PyTree) -> SGNHTState:
        """State at ``position`` with a velocity of variance ηT; the first step sets the thermostat."""
        velocity = thermal_velocity(key, position, self.eta(0) * self.temperature)
        return SGNHTState(position, velocity, jnp.float32(self.friction))

    def step(
        self, key: jax.Array, state: SGNHTState, gradient: PrivateGradient, t: jax.Array
    ) -> tuple[SGNHTState, SGNHTInfo]:
        """v' = (1 − α)v − η_t g̃, θ' = θ + v', α' = α + (1 − α/2)v'·v'/d − η_t T."""
        eta = self.eta(t)
        # The noise is public, so the thermostat may start at a*.
        start = self.settled_friction(gradient.noise_std, t)
        alpha = jnp.where(t == 0, start, state.thermostat)
        velocity = jax.tree.map(lambda v, g: (1 - alpha) * v - eta * g, state.velocity, gradient.value)
        position = jax.tree.map(jnp.add, state.position, velocity)
        leaves = jax.tree.leaves(velocity)
        mean_square = sum(jnp.sum(jnp.square(v)) for v in leaves) / sum(v.size for v in leaves)
        kinetic = (1 - alpha / 2) * mean_square
        following = SGNHTState(position, velocity, alpha + kinetic - eta * self.temperature)
        return following, SGNHTInfo(tree_norm(gradient.value), alpha, kinetic / eta)
