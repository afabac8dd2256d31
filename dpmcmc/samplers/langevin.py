"""The law of injected noise, which every sampler here obeys.

    v' = (1 − a) v − η (∇U(θ) + s Z),   θ' = θ + v',     Z ~ N(0, I),     s² = 2aT/η

Friction a in (0, 1] is the fraction of momentum lost per step, η the step on the full potential, T the temperature,
and s the std of the noise in gradient units. The noise replaces the energy that friction removes, so that exp(−U/T)
is kept (fluctuation–dissipation; Chen, Fox and Guestrin 2014, section 3.2). At a = 1 no momentum is left, and the
dynamics is Langevin's. Each function below solves the law for one of its four quantities.
"""

from __future__ import annotations

from typing import (
    Annotated,
)

import jax
import jax.numpy as jnp
from annotated_types import Gt, Le

from dpmcmc.privacy.query import randomness
from dpmcmc.samplers.schedules import PerStep
from dpmcmc.storage.pytree import PyTree

#: a, the fraction of momentum lost per step.
Friction = Annotated[float, Gt(0), Le(1)]


def noise_variance(eta: PerStep, temperature: float, friction: float = 1.0) -> PerStep:
    """s² = 2aT/η, in squared gradient units."""
    return 2 * friction * temperature / eta


def temperature_kept(variance: PerStep, eta: PerStep, friction: float = 1.0) -> PerStep:
    """T = ηs²/(2a), from the variance s² of all the noise in a gradient."""
    return eta * variance / (2 * friction)


def friction_needed(variance: PerStep, eta: PerStep, temperature: float) -> PerStep:
    """a = ηs²/(2T)."""
    return eta * variance / (2 * temperature)


def step_allowed(variance: PerStep, temperature: float, friction: float = 1.0) -> PerStep:
    """η = 2aT/s², the largest step whose injected noise has a variance of at least s²."""
    return 2 * friction * temperature / variance


def langevin_time(eta: PerStep, friction: PerStep = 1.0) -> PerStep:
    """η/a, the Langevin time of one step; a direction of curvature w relaxes in a time of 1/w."""
    return eta / friction


def thermal_velocity(key: jax.Array, like: PyTree, variance: PerStep) -> PyTree:
    """Return independent normals of this variance, shaped like a pytree. Momentum in units of a step has variance
    ηT."""
    std = jnp.sqrt(variance).astype(jnp.float32)
    return jax.tree.map(lambda z: std * z, randomness.tree_normal(key, like)[0])
