"""A sampler that also averages, between two kept draws, the points and gradients that its steps release.

It also sums how far points are from the mean of their block, for kept draws may hide how hot a path is: steps that
overshoot alternate in sign, and every other one of them looks calm.

Under a model whose gradient is linear, means with weights 1/s_t² lose nothing of what a path says. They are functions
of what the sampler is given, so they are as private as its draws.
Only runs that a posterior may be concluded from are recorded (``planning/path.py``), and no other program changes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmcmc.planning.path import recorded_blocks
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.query import (
    PrivateGradient,
)
from dpmcmc.samplers.base import Sampler, SamplerOffers, sampler_offers
from dpmcmc.storage.pytree import (
    STATIC,
    PyTree,
)


class Means(NamedTuple):
    """Means of a block of steps, weighted by 1/s_t².

    Attributes:
        positions: of the points at which gradients were released.
        gradients: of the gradients.
        scatter: Σ (θ_t − mean of its block)(θ_t − mean of its block)ᵀ/s_t² over all steps of blocks that are done,
            (d, d); None where a block is one step.
    """

    positions: PyTree
    gradients: PyTree
    scatter: PyTree = None


class RecordedState(NamedTuple):
    """A sampler's state, and what is recorded.

    Attributes:
        state: the sampler's.
        means: of its block so far.
        weight: theirs, ().
        within: scatter of its block so far, (d, d) or None.
        scatter: of the blocks that are done, (d, d) or None.
    """

    state: PyTree
    means: Means
    weight: jax.Array
    within: PyTree
    scatter: PyTree

    @property
    def position(self) -> PyTree:
        """The sampler's."""
        return self.state.position


class RecordedInfo(NamedTuple):
    """A sampler's Info, and the means of its block up to this step."""

    info: PyTree
    means: Means


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recorded(SamplerOffers):
    """A sampler whose blocks of ``thin`` steps, from ``burn_in`` on, are averaged."""

    sampler: Sampler
    burn_in: int = dataclasses.field(metadata=STATIC)
    thin: int = dataclasses.field(metadata=STATIC)

    @property
    def metric(self) -> object:
        """The sampler's."""
        return sampler_offers(self.sampler).metric

    def init(self, key: jax.Array, position: PyTree) -> RecordedState:
        """State at a starting point."""
        zeros = jax.tree.map(jnp.zeros_like, position)
        size = jnp.size(position)
        none = None if self.thin == 1 else jnp.zeros((size, size), jnp.float32)
        weight = jnp.zeros((), jnp.float32)
        return RecordedState(self.sampler.init(key, position), Means(zeros, zeros), weight, none, none)

    def step(
        self,
        key: jax.Array,
        state: RecordedState,
        gradient: PrivateGradient,
        t: jax.Array,
    ) -> tuple[RecordedState, RecordedInfo]:
        """The sampler's step; a block starts from nothing."""
        following, info = self.sampler.step(key, state.state, gradient, t)
        more = gradient.noise_std.astype(jnp.float32) ** -2
        begins = (t - self.burn_in) % self.thin == 0
        before = jnp.where(begins, 0.0, state.weight)
        weight = more + before
        share = more / weight
        now = Means(state.position, gradient.value)
        means = jax.tree.map(lambda mean, new: mean + share * (new - mean), state.means, now)
        within = state.within
        scatter = state.scatter
        if within is not None:
            away = state.position - state.means.positions
            within = jnp.where(begins, 0.0, within) + before * share * jnp.outer(away, away)
            done = (t >= self.burn_in) & ((t + 1 - self.burn_in) % self.thin == 0)
            scatter = scatter + jnp.where(done, within, 0.0)
        return RecordedState(following, means, weight, within, scatter), RecordedInfo(info, means)


def recorded(plan: Plan) -> Sampler | Recorded:
    """Return a plan's sampler, recorded where a posterior may be concluded from the path."""
    blocks = recorded_blocks(plan)
    return plan.sampler if blocks is None else Recorded(plan.sampler, *blocks)


def going_on(goes: jax.Array, following: PyTree, state: PyTree) -> PyTree:
    """Return the state after a step; position and scatter, which are read at the end, stay where the chain is done.

    Other leaves, such as a sampler's matrices, would be copied in every step for nothing. A state that computes its
    position stays as a whole: steps that are not charged must not decide whether a chain has diverged.
    """
    read = (following.position, following.scatter) if isinstance(following, RecordedState) else following.position
    ends = {id(leaf) for leaf in jax.tree.leaves(read)}
    apart = ends <= {id(leaf) for leaf in jax.tree.leaves(following)}

    def of(new: jax.Array, old: jax.Array) -> jax.Array:
        return new if apart and id(new) not in ends else jnp.where(goes, new, old)

    return jax.tree.map(of, following, state)


def with_scatter(output: PyTree, states: PyTree) -> PyTree:
    """Return what is kept of a chunk, (positions, info), with the scatter in the states after it, (1, chains, d, d).

    The last chunk with a draw has the scatter of all blocks, for a block is done where a draw is kept.
    """
    if not isinstance(states, RecordedState) or states.scatter is None:
        return output
    positions, info = output
    return positions, info._replace(means=info.means._replace(scatter=states.scatter[None]))
