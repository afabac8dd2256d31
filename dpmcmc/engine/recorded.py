"""A sampler that also averages, from one kept draw to the next, the points and gradients that its steps release.

Under a model whose gradient is linear, means with weights 1/s_t² lose nothing of what a path says
(``inference/from_trace.py``). They are functions of what the sampler is given, so they are as private as its draws.
Only runs that a posterior may be concluded from are recorded (``planning/path.py``), and no other program changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmcmc.engine.template import Number, Template
from dpmcmc.planning.path import recorded_blocks
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.samplers.base import Sampler
from dpmcmc.storage.pytree import PyTree


class Means(NamedTuple):
    """Means of a block of steps, weighted by 1/s_t².

    Attributes:
        positions: of the points at which gradients were released.
        gradients: of the gradients.
    """

    positions: PyTree
    gradients: PyTree


class RecordedState(NamedTuple):
    """A sampler's state, the means of its block so far, and their weight, ()."""

    state: PyTree
    means: Means
    weight: jax.Array

    @property
    def position(self) -> PyTree:
        """The sampler's."""
        return self.state.position


class RecordedInfo(NamedTuple):
    """A sampler's Info, and the means of its block up to this step."""

    info: PyTree
    means: Means


@dataclass(frozen=True)
class Recorded:
    """A sampler whose blocks of ``thin`` steps, from ``burn_in`` on, are averaged."""

    sampler: Sampler
    burn_in: int
    thin: int

    @property
    def metric(self) -> object:
        """The sampler's."""
        return getattr(self.sampler, "metric", None)

    def init(self, key: jax.Array, position: PyTree) -> RecordedState:
        """State at a starting point."""
        zeros = jax.tree.map(jnp.zeros_like, position)
        return RecordedState(self.sampler.init(key, position), Means(zeros, zeros), jnp.zeros((), jnp.float32))

    def step(
        self, key: jax.Array, state: RecordedState, gradient: PrivateGradient, t: jax.Array
    ) -> tuple[RecordedState, RecordedInfo]:
        """The sampler's step; a block starts from nothing."""
        following, info = self.sampler.step(key, state.state, gradient, t)
        more = gradient.noise_std.astype(jnp.float32) ** -2
        weight = more + jnp.where((t - self.burn_in) % self.thin == 0, 0.0, state.weight)
        share, now = more / weight, Means(state.position, gradient.value)
        means = jax.tree.map(lambda mean, new: mean + share * (new - mean), state.means, now)
        return RecordedState(following, means, weight), RecordedInfo(info, means)


@dataclass(frozen=True)
class RecordedTemplate(Template):
    """A template of a sampler that is recorded where it is filled.

    Attributes:
        blocks: (burn-in, thinning).
    """

    blocks: tuple[int, int] = (0, 1)

    def fill(self, numbers: Mapping[str, Number]) -> Recorded:
        """The recorded sampler with these numbers, which may be traced."""
        return Recorded(super().fill(numbers), *self.blocks)


def recorded(plan: Plan, sampler: Template) -> Template:
    """Return the template of a plan's sampler, recorded where a posterior may be concluded from the path."""
    blocks = recorded_blocks(plan)
    if blocks is None:
        return sampler
    return RecordedTemplate(sampler.kind, sampler.settings, sampler.names, sampler.whole, blocks)
