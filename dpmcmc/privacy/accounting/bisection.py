"""The smallest or the largest number that meets a condition, by bisection; what is returned meets it."""

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


def largest(meets: Callable[[float], bool], low: float, high: float) -> float:
    """Largest number in [low, high) that meets a condition: no float lies between it and one that does not.

    Args:
        meets: true below some number and false above it.
        low: a lower bound, taken to meet the condition without being tried.
        high: an upper bound, not tried.
    """
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low
