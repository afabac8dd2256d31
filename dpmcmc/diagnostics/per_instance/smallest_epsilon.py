"""The smallest ε whose δ is small enough, for many records at once, on the private side of the root."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr

#: Half an ulp of float64, relative.
UNIT = 2.0**-53
#: Bisections; the bracket shrinks by 2**-44, below 1e-13 of its first end.
_HALVINGS = 44
#: Doublings of an end that rounding put a little too low.
_DOUBLINGS = 60


def smallest_epsilon(
    delta_at: Callable[[np.ndarray], np.ndarray], upper: np.ndarray, delta: np.ndarray | float
) -> np.ndarray:
    """Return upper ends of brackets around the roots of δ(ε) = delta.

    Args:
        delta_at: ε (n,) -> δ (n,), not increasing in ε, rounded up.
        upper: an ε for each that meets δ, (n,).
        delta: what is asked for, (n,) or one number.

    Returns:
        (n,): ε >= 0 at which ``delta_at`` was evaluated and found at most ``delta``; infinite where none was found.
    """
    high = np.maximum(upper, 1e-300)
    for _ in range(_DOUBLINGS):
        short = delta_at(high) > delta
        if not short.any():
            break
        high = np.where(short, 2 * high, high)
    else:
        high = np.where(delta_at(high) > delta, np.inf, high)
    # Below delta already at 0: nothing to search for.
    low = np.zeros_like(high)
    high = np.where(delta_at(low) <= delta, 0.0, high)
    for _ in range(_HALVINGS):
        middle = low + (high - low) / 2
        enough = delta_at(middle) <= delta
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    return high


def tail_excess(z: np.ndarray, other: np.ndarray, epsilon: np.ndarray, uncertain: np.ndarray) -> np.ndarray:
    """Return Φ(−z) − e^ε Φ(−other) on a tail where it is not negative, rounded up.

    Args:
        z: (n,), the tail under the first law, in its standard deviations.
        other: (n,), under the second.
        epsilon: (n,).
        uncertain: (n,), sum of the magnitudes that were added up to make z.

    The allowance for rounding: 16 units on the terms of z, through the density φ(z) <= (1 + z⁺)Φ(−z), and on both
    logarithms, whose size is about z²/2.
    """
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        log_first = log_ndtr(-z)
        log_second = epsilon + log_ndtr(-other)
        first = np.exp(log_first)
        value = first * -np.expm1(np.minimum(log_second - log_first, 0.0))
        slack = (1 + np.maximum(z, 0)) * uncertain + 2 + z * z + other * other + epsilon
        out = value + 16 * UNIT * first * slack
    # Where the tail is empty to the last float64 (z infinite) there is nothing to exceed.
    return np.where(first > 0, out, 0.0)
