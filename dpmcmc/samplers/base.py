"""Sampler protocol: dynamics driven by one noisy gradient a step.

A sampler never sees a record. It states the std of the Gaussian noise that its own dynamics injects, in gradient units
(``noise_std``). The query adds the larger of that and what privacy needs, and ``step`` receives the noisy gradient.
``State`` holds only what the next step needs, and ``Info`` the quantities to monitor. Both are functions of privatised
gradients and public constants alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    Self,
    runtime_checkable,
)

import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt

from dpmcmc.errors import InputError, check_fields
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.second_moment import GRADIENT, SecondMoment
from dpmcmc.samplers.langevin import langevin_time, noise_variance, step_allowed, temperature_kept
from dpmcmc.samplers.schedules import PerStep, Schedule, check_every_step, evaluate
from dpmcmc.storage.completed import completed
from dpmcmc.storage.pytree import STATIC, PyTree, rebuilt

if TYPE_CHECKING:
    from jaxtyping import Float


#: Queries that a step asks of the data.
Queries = tuple[str | SecondMoment, ...]
#: Methods and fields that a sampler must have.
PROTOCOL = (
    "queries",
    "temperature",
    "bind",
    "noise_std",
    "init",
    "step",
    "temperature_at",
    "time_at",
)


@runtime_checkable
class Sampler(Protocol):
    """A frozen, hashable dataclass of hyper-parameters with these methods.

    If the class is registered with ``jax.tree_util.register_dataclass``, its numbers are arguments of the compiled
    program, except for fields with the metadata ``{"static": True}``. If it is not, a sampler with other numbers is
    compiled anew.

    :class:`SamplerOffers` has the optional methods and facts.

    Example:
        >>> import dpmcmc
        >>> isinstance(dpmcmc.SGLD(step_size=1.0), dpmcmc.samplers.Sampler)
        True
    """

    @property
    def queries(self) -> Queries:
        """Queries of the data in each step, ``("gradient",)``, or with a ``SecondMoment`` beside it."""

    @property
    def temperature(self) -> float:
        """T, the temperature that the dynamics is meant to keep."""

    def bind(self, num_records: int) -> Sampler:
        """The sampler for N records: step sizes are given for the MEAN loss, and η = step_size / N."""

    def noise_std(self, t: PerStep) -> PerStep:
        """Std of the noise the dynamics injects at step t, in units of the full potential's gradient.

        A function of the step alone, never of data. Works on NumPy float64 arrays and on traced integers.
        """

    def init(self, key: jax.Array, position: PyTree) -> PyTree:
        """Return the state at a starting point; its ``position`` is the draw."""

    def step(self, key: jax.Array, state: PyTree, gradient: PrivateGradient, t: jax.Array) -> tuple[PyTree, PyTree]:
        """Return (next State, Info). ``key`` is for randomness beyond the query, never for noise that privacy
        counts."""

    def temperature_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """Temperature the dynamics keeps when the gradient carries noise of std ``noise_std``."""

    def time_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """Langevin time of a step: η for SGLD, η over the friction for momentum samplers."""


class SamplerOffers:
    """Optional methods and facts of a sampler; None is not offered.

    A sampler may inherit these defaults; :func:`sampler_offers` adds them to one that does not.
    """

    #: noise_std -> the sampler with its open setting (``auto``, ``matched``) solved for the noise that privacy needs.
    with_noise: Callable[[float], Any] | None = None
    #: rate b/N -> the sampler that allows for the noise of minibatches.
    with_rate: Callable[[float], Any] | None = None
    #: (noise_std, t) -> None; raises ValueError on noise that the dynamics cannot take.
    check: Callable[[PerStep, PerStep], None] | None = None
    #: (noise_std, t) -> the largest stable η·curvature.
    stability_limit: Callable[[PerStep, PerStep], PerStep] | None = None
    #: t -> η, the step on the full potential.
    eta: Callable[[PerStep], PerStep] | None = None
    #: Whether it is an optimiser, which has neither a temperature nor a Langevin time, and draws no posterior.
    optimises: bool = False
    #: Public estimate of the variance that minibatches add to a gradient.
    minibatch_variance: float = 0.0

    @property
    def metric(self) -> Any:
        """A ``PublicMatrix`` F in which gradients are clipped, ‖F⁻¹g‖, and noised, s·F·Z; None is the identity."""
        return None

    @property
    def unresolved(self) -> bool:
        """Whether a setting (``auto``, ``matched``) is open until the noise that privacy needs is known."""
        return False

    @property
    def damping(self) -> float:
        """a, the fraction of momentum lost per step; 1 loses all of it."""
        return 1.0


def sampler_offers(sampler: object) -> SamplerOffers:
    """Return a sampler, with the defaults for everything that it does not offer."""
    return completed(sampler, SamplerOffers)


@dataclass(frozen=True)
class SteppedSampler(SamplerOffers):
    """Fields of every sampler here: a step size, a temperature, and the number of records.

    Args:
        step_size: learning rate on the MEAN loss (the step on the full potential is step_size / N): a number, a
            schedule, or auto, the largest constant step at which the private run keeps its temperature.
        temperature: T >= 0; 1 is the posterior's, of a chain that mixes.
        num_records: N, set by :meth:`bind`.

    Raises:
        ValueError: step_size <= 0 or temperature < 0.

    Example:
        >>> import dpmcmc
        >>> sampler = dpmcmc.SGLD(step_size=4.0).bind(num_records=1000)
        >>> sampler.eta(0)  # the step on the full potential
        0.004
    """

    step_size: Annotated[float, Gt(0)] | Literal["auto"] | Schedule
    temperature: Annotated[float, Ge(0)] = 1.0
    num_records: int | None = dataclasses.field(default=None, kw_only=True, metadata=STATIC)

    @property
    def queries(self) -> Queries:
        """One gradient."""
        return (GRADIENT,)

    def __post_init__(self) -> None:
        if rebuilt(self):
            return
        check_fields(self)
        if self.step_size == "auto" and self.temperature == 0:
            raise InputError(
                "step_size auto needs temperature > 0: it solves noise(step_size) = required noise",
                "temperature",
            )

    def bind(self, num_records: int) -> Self:
        """The sampler for N records."""
        return dataclasses.replace(self, num_records=num_records)

    @property
    def unresolved(self) -> bool:
        """Whether a setting (``auto``, ``matched``) is open until the noise that privacy needs is known."""
        return isinstance(self.step_size, str)

    def eta(self, t: PerStep) -> PerStep:
        """Step on the full potential, step_size_t / N."""
        if self.num_records is None or isinstance(self.step_size, str):
            raise InputError("the sampler is not bound yet: plan it, or call bind(num_records)")
        return evaluate(self.step_size, t) / self.num_records

    def check(self, noise_std: PerStep, t: PerStep) -> None:
        """Refuse a schedule that is not positive and finite at every step.

        Raises:
            InputError: about the step size.
        """
        if callable(self.step_size):
            check_every_step("step_size", self.step_size, t)

    def with_eta(self, eta: float) -> Self:
        """The sampler with a constant step ``eta`` on the full potential."""
        assert self.num_records is not None
        return dataclasses.replace(self, step_size=self.num_records * eta)


def missing_of(sampler: object) -> list[str]:
    """Return what an object lacks of the :class:`Sampler` protocol."""
    return [name for name in PROTOCOL if not hasattr(sampler, name)]


def tree_norm(tree: PyTree) -> Float[jax.Array, ""]:
    """l2 norm of a whole pytree, ()."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


@dataclass(frozen=True)
class Langevin(SteppedSampler):
    """A sampler with friction ``damping`` that obeys the law of ``langevin.py``. A subclass adds ``init`` and ``step``.

    A subclass with friction below 1, or with noise beyond the query's, overrides the methods that this changes.

    Example:
        >>> import dpmcmc
        >>> sampler = dpmcmc.SGLD(step_size=4.0).bind(num_records=1000)
        >>> own = sampler.noise_std(0)
        >>> round(float(sampler.temperature_at(noise_std=2 * own, t=0)), 2)  # twice the noise, four times as hot
        4.0
    """

    def noise_std(self, t: PerStep) -> PerStep:
        """s_t = √(2aT/η_t), in gradient units."""
        return noise_variance(self.eta(t), self.temperature, self.damping) ** 0.5

    def with_noise(self, noise_std: float) -> Self:
        """The sampler with ``step_size: auto`` resolved: the largest constant step whose own noise is ``noise_std``."""
        return self.with_eta(float(step_allowed(noise_std**2, self.temperature, self.damping)))

    def stability_limit(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """Largest stable η·curvature: 4 − 2a, from λ² − (2 − a − ηw)λ + (1 − a) = 0."""
        return 4 - 2 * self.damping + 0.0 * self.eta(t)

    def temperature_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """η_t s²/(2a)."""
        return temperature_kept(noise_std**2, self.eta(t), self.damping)

    def time_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """η_t/a."""
        return langevin_time(self.eta(t), self.damping)
