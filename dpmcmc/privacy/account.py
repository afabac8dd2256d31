"""``account``: what a run of noisy queries costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpmcmc.privacy.charging import charged_guarantee
from dpmcmc.privacy.guarantee import Guarantee
from dpmcmc.privacy.subsampling import Sampling


def account(
    noise_multiplier: float | Sequence[float] | np.ndarray,
    *,
    steps: int,
    sampling: Sampling,
    num_records: int,
    delta: float,
    chains: int = 1,
    adjacency: str = "replace_one",
    accountant: str = "pld",
    release: str = "trace",
) -> Guarantee:
    """The guarantee of ``steps`` noisy gradient queries per chain.

    Charges what the library's own query and generator would be charged (``charging.py``), so the result is
    that of a plan with these settings.

    Args:
        noise_multiplier: std of the noise on the clipped sum / clip norm, for every adjacency; a number, or one
            per step.
        steps: per chain.
        sampling: ``Poisson(b)``, ``FixedSize(b)`` or ``Full()``.
        num_records: N, public.
        delta: total δ in (0, 1).
        chains: independent chains on the same data; each is charged.
        adjacency: ``replace_one`` | ``add_remove`` | ``zero_out``.
        accountant: ``pld`` | ``rdp`` | ``advanced``.
        release: ``trace``.

    Returns:
        Guarantee; ε is infinite for a step without noise.

    Raises:
        UnsupportedCombination: no derivation for the combination.
        ValueError: wrong lengths or ranges.
    """
    z = per_step(noise_multiplier, steps, "noise_multiplier")
    check_run(steps, chains, delta)
    sampling.validate(num_records)
    return charged_guarantee(
        z,
        sampling,
        num_records,
        chains,
        delta=delta,
        adjacency=adjacency,
        accountant=accountant,
        release=release,
    )[0]


def per_step(values: float | Sequence[float] | np.ndarray, steps: int, name: str) -> np.ndarray:
    """(steps,) float64 from a number or an array of that length.

    Raises:
        ValueError: another length, negative or not finite.
    """
    array = np.asarray(values, np.float64)
    if array.ndim == 0:
        array = np.full(steps, float(array))
    if array.shape != (steps,):
        raise ValueError(f"{name} must be a number or have one entry per step ({steps}), got {array.shape}")
    if not np.all(np.isfinite(array)) or np.any(array < 0):
        raise ValueError(f"{name} must be finite and >= 0")
    return array


def check_run(steps: int, chains: int, delta: float) -> None:
    """Raise ValueError unless steps >= 1, chains >= 1 and 0 < delta < 1."""
    if steps < 1 or chains < 1:
        raise ValueError(f"steps and chains must be at least 1, got {steps} and {chains}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta}")
