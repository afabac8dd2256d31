r"""Step sizes as functions of the step, t = 0, 1, … They are plain callables, so any optax schedule works too.

A YAML names a schedule of :data:`SCHEDULES`, or one of optax as ``optax:NAME``.

Values are ``step_size``, the learning rate on the MEAN loss; the literature's η is the step on the full potential, and
step_size = N·η.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.errors import InputError, check_fields
from dpmcmc.storage.pytree import STATIC, rebuilt

Positive = Annotated[float, Gt(0)]
#: A step, or a value at a step: one number, an array over steps on the host, or a traced value.
PerStep = float | np.ndarray | jax.Array


class _Checked:
    """Base of schedules, whose fields are checked where a person makes one."""

    def __post_init__(self) -> None:
        if not rebuilt(self):
            check_fields(self)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Polynomial(_Checked):
    r"""step_size_t = a (b + t)^−gamma (Welling and Teh 2011; gamma in (0.5, 1] there).

    Args:
        a: scale, > 0.
        b: offset in steps, > 0.
        gamma: decay, >= 0.

    Example:
        >>> from dpmcmc.samplers import Polynomial
        >>> schedule = Polynomial(a=4.0, b=1.0, gamma=0.5)
        >>> [float(schedule(t)) for t in (0, 3, 15)]
        [4.0, 2.0, 1.0]
    """

    a: Positive
    b: Positive = 1.0
    gamma: Annotated[float, Ge(0)] = 0.55

    def __call__(self, t: PerStep) -> PerStep:
        """Step size at step t."""
        # Floats, since JAX raises no integer to a negative power.
        return self.a * (1.0 * self.b + t) ** (-1.0 * self.gamma)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Floor(_Checked):
    r"""step_size_t = max(a/(t + 1), floor) (Wang, thesis section 3.5: η_t = max(1/(t + 1), η₀), so a = N there).

    Args:
        a: scale, > 0.
        floor: smallest step size, > 0.

    Example:
        >>> from dpmcmc.samplers import Floor
        >>> schedule = Floor(a=100.0, floor=2.0)
        >>> [float(schedule(t)) for t in (0, 9, 99)]
        [100.0, 10.0, 2.0]
    """

    a: Positive
    floor: Positive

    def __call__(self, t: PerStep) -> PerStep:
        """Step size at step t."""
        return _namespace(t, self.a, self.floor).maximum(self.a / (t + 1), self.floor)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cyclical(_Checked):
    r"""step_size_t = (a/2)(1 + cos(π (t mod period)/period)), never below floor (Zhang et al. 2020).

    Args:
        a: step size at the start of a cycle, > 0.
        period: steps in a cycle, >= 1.
        floor: smallest step size, >= 0.

    Example:
        >>> from dpmcmc.samplers import Cyclical
        >>> schedule = Cyclical(a=4.0, period=10, floor=0.5)
        >>> [round(float(schedule(t)), 2) for t in (0, 5, 9, 10)]
        [4.0, 2.0, 0.5, 4.0]
    """

    a: Positive
    period: Annotated[int, Gt(0)] = dataclasses.field(metadata=STATIC)
    floor: Annotated[float, Ge(0)] = 0.0

    def __call__(self, t: PerStep) -> PerStep:
        """Step size at step t."""
        xp = _namespace(t, self.a, self.floor)
        return xp.maximum(
            0.5 * self.a * (1 + xp.cos(math.pi * (t % self.period) / self.period)),
            self.floor,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AlphaPhase(_Checked):
    r"""The thesis's α-phase: η_t = α ε²/(128 L² log(2.5k/δ) log(2/δ) t), t from 1 (Wang, section 3.4).

    From step αk on, the noise of plain SGLD at temperature 1, of variance 2η, is the noise that the formula requires.
    Privacy is free there, and draws are kept from then on. The corrected formula has 256 in place of 128, and SGLD's
    noise has the variance 2η in place of η, so 128 stays. The plan states how much is free under a modern accountant.

    Args:
        alpha: share of the run before privacy is free, in (0, 1].
        epsilon: ε, > 0.
        delta: δ in (0, 1).
        steps: k, all steps of the run.
        num_records: N.
        lipschitz: L, bound on a record's gradient norm: the clip norm.

    Example:
        >>> from dpmcmc.samplers import AlphaPhase
        >>> schedule = AlphaPhase(alpha=0.5, epsilon=1.0, delta=1e-5, steps=100, num_records=1000)
        >>> float(schedule(99) / schedule(9))  # as 1/t
        0.1
    """

    alpha: Annotated[float, Gt(0), Le(1)]
    epsilon: Positive
    delta: Annotated[float, Gt(0), Lt(1)] = dataclasses.field(metadata=STATIC)
    steps: Annotated[int, Gt(0)] = dataclasses.field(metadata=STATIC)
    num_records: Annotated[int, Gt(0)] = dataclasses.field(metadata=STATIC)
    lipschitz: Positive = 1.0

    def __call__(self, t: PerStep) -> PerStep:
        """Step size at step t."""
        logs = math.log(2.5 * self.steps / self.delta) * math.log(2 / self.delta)
        eta = self.alpha * self.epsilon**2 / (128 * self.lipschitz**2 * logs)
        return self.num_records * eta / (t + 1)


#: Names a YAML may use.
SCHEDULES = {
    "polynomial": Polynomial,
    "floor": Floor,
    "cyclical": Cyclical,
    "alpha_phase": AlphaPhase,
}
Schedule = Callable[[PerStep], PerStep]
StepSize = float | Schedule


def _namespace(*values: PerStep) -> ModuleType:
    """NumPy for the host's float64 schedule, JAX where a step or a number is traced."""
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def evaluate(step_size: StepSize, t: PerStep) -> PerStep:
    """Step size at step t; a NumPy argument of a schedule written in JAX gives a NumPy float64 result."""
    if not callable(step_size):
        return step_size
    value = step_size(t)
    return np.asarray(value, np.float64) if isinstance(t, np.ndarray) else value


def check_every_step(name: str, schedule: Schedule, t: PerStep) -> None:
    """Refuse a schedule that is not positive and finite at every step of a run, or not a function of the step alone.

    Args:
        name: of the argument that it is.
        schedule: of step sizes or learning rates.
        t: every step, (steps,) float64.

    Raises:
        InputError: about ``name``.
    """
    with np.errstate(all="ignore"):
        first, again = (np.broadcast_to(np.asarray(evaluate(schedule, t), np.float64), np.shape(t)) for _ in range(2))
    wrong = ~(np.isfinite(first) & (first > 0))
    if wrong.any():
        worst = int(np.argmax(wrong))
        raise InputError(
            f"{name}: the schedule is {first[worst]:g} at step {worst}; it must be positive and finite at every step "
            "of the run",
            name,
        )
    if not np.array_equal(first, again):
        raise InputError(
            f"{name}: the schedule gives one step two values; it must be a function of the step alone",
            name,
        )
