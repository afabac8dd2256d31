"""The search for a root on the private side."""

from __future__ import annotations

from collections.abc import Callable


def bisected(private: Callable[[float], bool], good: float, bad: float, precision: float = 0.0) -> float:
    """Return the private end of a bracket that was halved until it is no wider than ``precision`` of its upper end.

    Args:
        private: whether a value keeps the promise; monotone.
        good: an end at which it does.
        bad: the other end, above or below, at which it does not.
        precision: relative; 0 goes on until no float lies between the ends.
    """
    while abs(good - bad) > precision * max(good, bad):
        middle = (good + bad) / 2
        if middle in (good, bad):
            break
        good, bad = (middle, bad) if private(middle) else (good, middle)
    return good
