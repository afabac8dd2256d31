"""Pure ε-DP releases beside others, for any accountant.

An ε₁-DP release is dominated by randomised response (Kairouz, Oh and Viswanath 2015): its loss is ε₁ with
probability p = e^{ε₁}/(1 + e^{ε₁}) and −ε₁ otherwise, in both orders. Beside releases of profile δ(·) it gives

    δ_total(ε) = p·δ(ε − ε₁) + (1 − p)·δ(ε + ε₁),       δ(−e) = 1 − e^{−e}(1 − δ(e)),

exactly for that pair, and as an upper bound where δ(·) is the larger of two orders. Several pure releases are the sum
of their losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import scipy

from dpmcmc.privacy.accounting.bisection import smallest
from dpmcmc.privacy.accounting.events import Event

#: Beyond so many different sums of losses, the plain sum of the ε is charged.
_MOST_ATOMS = 4096


def split(events: Iterable[Event]) -> tuple[list[Event], list[Event]]:
    """(pure releases, everything else)."""
    events = list(events)
    pure = [e for e in events if e.mechanism == "pure" and e.count and e.epsilon]
    return pure, [e for e in events if e.mechanism != "pure"]


def total(pure: Iterable[Event]) -> float:
    """Σ ε, what pure releases cost at δ = 0."""
    return math.fsum((e.epsilon or 0.0) * e.count for e in pure)


def mixed(pure: list[Event], rest: Callable[[float], float], epsilon: float) -> float:
    """δ at ε >= 0 of pure releases beside others.

    Args:
        pure: from :func:`split`.
        rest: δ(ε) of the others for ε >= 0, the larger of both orders.
        epsilon: ε.
    """
    losses, weights = _losses(pure)
    value = 0.0
    for loss, weight in zip(losses, weights, strict=True):
        e = epsilon - loss
        value += weight * (rest(e) if e >= 0 else -math.expm1(e) + math.exp(e) * rest(-e))
    return min(1.0, value)


def pure_epsilon(pure: list[Event], rest: Callable[[float], float], rest_epsilon: float, delta: float) -> float:
    """Smallest ε at δ, to 1e-6 of it and on the private side.

    Args:
        pure: from :func:`split`.
        rest: as for :func:`mixed`.
        rest_epsilon: ε of the others at δ.
        delta: δ.
    """
    most = total(pure) + rest_epsilon
    if math.isinf(most) or delta <= 0:
        return most
    return smallest(lambda e: mixed(pure, rest, e) <= delta, 0.0, most, 1e-6)


def _losses(pure: list[Event]) -> tuple[np.ndarray, np.ndarray]:
    """Sums of losses of randomised responses, and their probabilities under the first of the pair."""
    losses = np.zeros(1)
    weights = np.ones(1)
    for e in pure:
        assert e.epsilon is not None
        if len(losses) * (e.count + 1) > _MOST_ATOMS:
            return np.array([total(pure)]), np.ones(1)
        ups = np.arange(e.count + 1)
        each = (2 * ups - e.count) * e.epsilon
        chance = scipy.stats.binom.pmf(ups, e.count, 1 / (1 + math.exp(-e.epsilon)))
        losses = (losses[:, None] + each).ravel()
        weights = (weights[:, None] * chance).ravel()
    return losses, weights
