"""What a sampler is: dynamics driven by one noisy gradient a step.

A sampler never sees a record. It says how much Gaussian noise its own dynamics wants, in gradient units
(``noise_std``); the query adds the larger of that and what privacy needs; ``step`` receives the sum.
``State`` holds only what the next step needs; what a person wants to watch goes to ``Info``. Both are
functions of privatised gradients and of public constants alone.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from dpmcmc.privacy.query import PrivateGradient

GRADIENT = "gradient"


@runtime_checkable
class Sampler(Protocol):
    """A frozen dataclass of hyper-parameters with these methods."""

    @property
    def queries(self) -> tuple[str, ...]:
        """What is asked of the data each step; ``("gradient",)`` here."""

    def bind(self, num_records: int) -> Sampler:
        """The sampler for N records: step sizes are given for the MEAN loss, and η = step_size / N."""

    def noise_std(self, t: Any) -> Any:
        """Std of the noise the dynamics injects at step t, in units of the full potential's gradient.

        A function of the step alone, never of data. Works on NumPy float64 arrays and on traced integers.
        """

    def init(self, key: jax.Array, position: Any) -> Any:
        """State at a starting point; ``position`` of the state is the draw."""

    def step(self, key: jax.Array, state: Any, gradient: PrivateGradient, t: jax.Array) -> tuple[Any, Any]:
        """(next State, Info). ``key`` is for dynamics beyond the query, never for noise that privacy counts."""

    def temperature_at(self, noise_std: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Temperature the dynamics keeps when the gradient carries noise of std ``noise_std``."""
