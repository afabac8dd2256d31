"""The smallest number that meets a condition, by bisection; what is returned meets it."""

from __future__ import annotations

from collections.abc import Callable


def smallest(meets: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """Smallest number in (low, high] that meets a condition, up to a share ``tolerance`` of it above.

    Args:
        meets: false below some number and true above it.
        low: a lower bound, not tried.
        high: an upper bound, taken to meet the condition without being tried.
        tolerance: relative, above 1e-15.
    """
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high
