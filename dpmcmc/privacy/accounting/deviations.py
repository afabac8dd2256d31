"""The total δ of a guarantee, and the part of it that overflow and approximate draws take, whatever the accountant."""

from __future__ import annotations

import math
from collections.abc import Callable

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.events import Event


def with_deviations(base: Callable[[float], float], beta: float, delta: float) -> float:
    """Smallest ε with δ_base(ε) + (1 + e^ε)β <= delta, approached from below, so it ends on the private side.

    Args:
        base: δ -> ε without deviations.
        beta: probability of one.
        delta: total.
    """
    epsilon = base(delta)
    if beta == 0 or math.isinf(epsilon):
        return epsilon
    for _ in range(100):
        if epsilon > 700:
            return math.inf
        left = delta - (1 + math.exp(epsilon)) * beta
        if left <= 0:
            return math.inf
        following = base(left)
        if following <= epsilon * (1 + 1e-12):
            return max(epsilon, following)
        epsilon = following
    return math.inf


def check_delta(events: tuple[Event, ...], delta: float) -> None:
    """Refuse a δ at which these events have no finite ε whatever their noise: 0 is for pure releases alone."""
    if delta == 0 and events and all(e.mechanism == "pure" for e in events):
        return
    if not 0 < delta < 1:
        raise InputError(f"delta must lie strictly between 0 and 1, got {delta}")
