"""Largest ε that a refused run could ask for: the same run with all its noise scaled up by one factor.

Pure releases take ε over the factor, and so does the curvature term of an objective perturbation. The answer is on
the side that fits: the factor is half a percent beyond the smallest, ε is rounded down, and a plan that chooses its
batch slots anew may let them overflow as often as its smallest ε allows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from dpmcmc.privacy.accounting.charging import OVERFLOW_SHARE
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_down

#: A calibration that lands a little below the noise it was read from still fits.
_MARGIN = 1.005
_LARGEST_FACTOR = 2.0**60


def find_largest_epsilon(
    guarantee: Guarantee,
    fits: Callable[[tuple[Event, ...]], bool],
    planned_against: float,
) -> float | None:
    """ε at the guarantee's own δ and accountant; None where no factor is enough.

    Args:
        guarantee: of the run.
        fits: whether events are admitted; never turns false as noise grows.
        planned_against: ε of the ledger. A plan made for it has room for batches at that ε, which no smaller ε of the
            run changes.
    """
    if fits(guarantee.events):
        return guarantee.epsilon
    overflow = _overflow(guarantee, planned_against)
    low = 1.0
    high = 2.0
    while not fits(scale_noise(guarantee.events, high, overflow)):
        low = high
        high = 2 * high
        if high > _LARGEST_FACTOR:
            return None
    while high > low * 1.0005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(scale_noise(guarantee.events, middle, overflow)) else (middle, high)
    found = Guarantee.from_events(
        scale_noise(guarantee.events, high * _MARGIN, overflow),
        delta=guarantee.delta,
        adjacency=guarantee.adjacency,
        accountant=guarantee.accountant,
        release=guarantee.release,
    ).epsilon
    return round_down(found, 3) if found > 0 else None


def scale_noise(events: tuple[Event, ...], factor: float, overflow: float = 1.0) -> tuple[Event, ...]:
    """Events with ``factor`` times the noise, and ``overflow`` times the probability of a truncated batch."""
    out = []
    for e in events:
        if e.mechanism == "batch_overflow":
            out.append(dataclasses.replace(e, rate=min(1.0, e.rate * overflow)))
        else:
            loss = None if e.epsilon is None else e.epsilon / factor
            out.append(dataclasses.replace(e, noise_multiplier=e.noise_multiplier * factor, epsilon=loss))
    return tuple(out)


def _overflow(guarantee: Guarantee, planned_against: float) -> float:
    """How much likelier truncation may become when the run is planned again with a smaller ε."""
    truncated = math.fsum(e.rate * e.count for e in guarantee.events if e.mechanism == "batch_overflow")
    share = OVERFLOW_SHARE * guarantee.delta
    if truncated <= share * math.exp(-math.log1p(math.exp(min(700.0, max(planned_against, guarantee.epsilon))))):
        return 1.0
    return max(1.0, share / 2 / truncated)
