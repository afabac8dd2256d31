r"""The discrete Laplace distribution, drawn exactly.

    P(X = x) = (1 − e^{−1/s})/(1 + e^{−1/s}) · e^{−|x|/s},   x a whole number, s > 0 rational

Canonne, Kamath and Steinke (2020), Algorithms 1 and 2: only whole numbers from the operating system's entropy are
compared, and no logarithm is taken, so the law is this one to the last bit, tails included. A shift of an integer by K
costs a ratio of at most e^{K/s}, as for the continuous law. Running time depends on what is drawn.
"""

from __future__ import annotations

from fractions import Fraction
from secrets import randbelow

from dpmcmc.errors import InputError


def sample(scale: Fraction) -> int:
    """Return one draw; ``scale`` is s.

    Raises:
        ValueError: scale not positive.
    """
    if not scale > 0:
        raise InputError(f"scale must be > 0, got {scale}")
    t, s = scale.numerator, scale.denominator
    while True:
        # Geometric with ratio e^{−1/t}: the remainder by rejection, then whole multiples of t.
        remainder = randbelow(t)
        if not _bernoulli_exp(remainder, t):
            continue
        multiples = 0
        while _bernoulli_exp(1, 1):
            multiples += 1
        size = (remainder + t * multiples) // s
        negative = randbelow(2) == 1
        if negative and size == 0:  # zero must not count twice
            continue
        return -size if negative else size


def _bernoulli_exp(numerator: int, denominator: int) -> bool:
    """Return True with probability e^{−γ}, γ = numerator/denominator in [0, 1].

    A run of Bernoulli(γ/k), k = 1, 2, …, has length at least k with probability γ^k/k!; so it ends at an odd k with
    probability 1 − γ + γ²/2 − … .
    """
    k = 1
    while randbelow(denominator * k) < numerator:
        k += 1
    return k % 2 == 1
