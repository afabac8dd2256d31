r"""The discrete Laplace law, drawn exactly: the noise of the scripts that answer questions one after another.

    P(X = x) = (1 − e^{−1/s})/(1 + e^{−1/s}) · e^{−|x|/s},   x a whole number, s > 0 rational

Canonne, Kamath and Steinke (2020), Algorithms 1 and 2: only whole numbers from the operating system's entropy are
compared, and no logarithm is taken, so the law is this one to the last bit. A shift of an integer by K costs a ratio of
at most e^{K/s}, as for the continuous law.
"""

from __future__ import annotations

import math
from fractions import Fraction
from secrets import randbelow

import numpy as np


def sample(scale: Fraction) -> int:
    """Return one draw; ``scale`` is s."""
    t, s = scale.numerator, scale.denominator
    while True:
        # Geometric with ratio e^{−1/t}: the remainder by rejection, then whole multiples of t.
        remainder = randbelow(t)
        if not bernoulli_exp(remainder, t):
            continue
        multiples = 0
        while bernoulli_exp(1, 1):
            multiples += 1
        size = (remainder + t * multiples) // s
        negative = randbelow(2) == 1
        if not (negative and size == 0):  # zero must not count twice
            return -size if negative else size


def bernoulli_exp(numerator: int, denominator: int) -> bool:
    """Return True with probability e^{−γ}, γ = numerator/denominator in [0, 1].

    A run of Bernoulli(γ/k), k = 1, 2, …, has length at least k with probability γ^k/k!; so it ends at an odd k with
    probability 1 − γ + γ²/2 − … .
    """
    k = 1
    while randbelow(denominator * k) < numerator:
        k += 1
    return k % 2 == 1


def log_law(x: np.ndarray, scale: float) -> np.ndarray:
    """Return log P(X = x)."""
    return math.log(math.tanh(1 / (2 * scale))) - np.abs(x) / scale


def log_tails(x: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return log P(X <= x) and log P(X > x)."""
    low = np.minimum(x, -1) / scale - math.log1p(math.exp(-1 / scale))  # log P(X <= x) for x < 0
    high = -(np.maximum(x, 0) + 1) / scale - math.log1p(math.exp(-1 / scale))  # log P(X > x) for x >= 0
    return np.where(x < 0, low, np.log1p(-np.exp(high))), np.where(x < 0, np.log1p(-np.exp(low)), high)
