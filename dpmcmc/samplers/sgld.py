r"""Stochastic-gradient Langevin dynamics (Welling and Teh 2011; DP-SGLD: Wang, thesis Algorithm 3).

    θ' = θ − η_t (∇U(θ) + s_t Z),     Z ~ N(0, I),     s_t = √(2T/η_t),     η_t = step_size_t / N

The pair (drift η, noise variance 2Tη) keeps exp(−U/T). The thesis prints noise variance η, which is
temperature 1/2. Exact on a quadratic of curvature w with exact gradients: Var = (T/w) / (1 − ηw/2).

The noise is part of the query: where privacy asks for s_t > √(2T/η_t) the chain runs at temperature
η_t s_t²/2 instead, and the plan says so.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy.query import PrivateGradient
from dpmcmc.samplers.base import GRADIENT
from dpmcmc.samplers.schedules import StepSize, evaluate


class SGLDState(NamedTuple):
    """The position alone."""

    position: Any


class SGLDInfo(NamedTuple):
    """Per step: ``gradient_norm`` of the noisy gradient and the ``temperature`` its noise keeps."""

    gradient_norm: jax.Array
    temperature: jax.Array


@dataclass(frozen=True)
class SGLD:
    """SGLD.

    Args:
        step_size: learning rate on the MEAN loss: a number, a schedule ``t -> value``, or ``"auto"`` (the largest
            constant step at which the plan's noise keeps ``temperature``).
        temperature: T >= 0. T = 0 without privacy is SGD.
        num_records: N, set by :meth:`bind`.

    Raises:
        ValueError: step_size <= 0 or temperature < 0.
    """

    step_size: StepSize | str = 1.0
    temperature: float = 1.0
    num_records: int | None = None

    queries = (GRADIENT,)

    def __post_init__(self) -> None:
        if isinstance(self.step_size, str):
            if self.step_size != "auto":
                raise ValueError(f'step_size must be a number, a schedule or "auto", got {self.step_size!r}')
        elif not callable(self.step_size) and not (self.step_size > 0 and np.isfinite(self.step_size)):
            raise ValueError(f"step_size must be a finite number > 0, got {self.step_size}")
        if not (self.temperature >= 0 and np.isfinite(self.temperature)):
            raise ValueError(f"temperature must be a finite number >= 0, got {self.temperature}")

    def bind(self, num_records: int) -> SGLD:
        """The sampler for N records."""
        return dataclasses.replace(self, num_records=num_records)

    def eta(self, t: Any) -> Any:
        """Step on the full potential, step_size_t / N."""
        if self.num_records is None or isinstance(self.step_size, str):
            raise ValueError("the sampler is not bound yet: plan it, or call bind(num_records)")
        return evaluate(self.step_size, t) / self.num_records

    def noise_std(self, t: Any) -> Any:
        """s_t = √(2T/η_t), in gradient units."""
        return (2 * self.temperature / self.eta(t)) ** 0.5

    def with_noise(self, noise_std: float) -> SGLD:
        """``step_size: auto`` resolved: the largest constant step whose own noise is at least ``noise_std``."""
        assert self.num_records is not None
        if self.temperature == 0:
            raise ValueError("step_size auto needs temperature > 0: it solves noise(step_size) = required noise")
        return dataclasses.replace(self, step_size=self.num_records * 2 * self.temperature / noise_std**2)

    def temperature_at(self, noise_std: Any, t: Any) -> Any:
        """η_t s²/2."""
        return self.eta(t) * noise_std**2 / 2

    def init(self, key: jax.Array, position: Any) -> SGLDState:
        """State at ``position``."""
        return SGLDState(position)

    def step(
        self, key: jax.Array, state: SGLDState, gradient: PrivateGradient, t: jax.Array
    ) -> tuple[SGLDState, SGLDInfo]:
        """θ' = θ − η_t g̃."""
        eta = self.eta(t)
        position = jax.tree.map(lambda p, g: p - eta * g, state.position, gradient.value)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradient.value)))
        return SGLDState(position), SGLDInfo(norm, self.temperature_at(gradient.noise_std, t))
