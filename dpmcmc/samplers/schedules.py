"""Step sizes as functions of the step. Plain callables, so any optax schedule serves as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Polynomial:
    r"""a (b + t)^{−γ}, t = 0, 1, … (Welling and Teh 2011; γ in (0.5, 1] there).

    Args:
        a: scale, > 0.
        b: offset, > 0.
        gamma: decay, >= 0.
    """

    a: float
    b: float = 1.0
    gamma: float = 0.55

    def __post_init__(self) -> None:
        if not (self.a > 0 and self.b > 0 and self.gamma >= 0):
            raise ValueError(f"a polynomial schedule needs a > 0, b > 0, gamma >= 0, got {self}")

    def __call__(self, t: Any) -> Any:
        """Step size at step t."""
        return self.a * (self.b + t) ** (-self.gamma)


SCHEDULES = {"polynomial": Polynomial}
StepSize = float | Callable[[Any], Any]


def evaluate(step_size: StepSize, t: Any) -> Any:
    """Step size at step t; a NumPy argument of a schedule written in JAX gives a NumPy float64 result."""
    if not callable(step_size):
        return step_size
    value = step_size(t)
    return np.asarray(value, np.float64) if isinstance(t, np.ndarray) else value
