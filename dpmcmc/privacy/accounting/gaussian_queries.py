"""Queries of events, in the terms that accountants compose: Gaussian releases, sampled or not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from dpmcmc.privacy.accounting import noisy_descent
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import DEVIATIONS, Event, run_length


def queries(events: Iterable[Event]) -> list[Event]:
    """Return the queries of ``events``, equal ones merged, empty ones dropped."""
    parts = []
    for e in events:
        if e.mechanism in DEVIATIONS or e.count == 0 or e.rate == 0:
            continue
        e = _gaussian_equivalent(e)
        # Rate 1 selects everybody under either scheme: the query is then an unsampled Gaussian.
        if e.mechanism in ("poisson_gaussian", "fixed_size_gaussian") and e.rate == 1:
            e = dataclasses.replace(e, mechanism="gaussian", num_records=None)
        parts.append(e)
    return list(run_length(parts))


def _gaussian_equivalent(e: Event) -> Event:
    """The Gaussian release that a posterior draw, or the last step of a descent, is exactly worth."""
    if e.mechanism == "posterior_draw":
        return Event("gaussian", e.noise_multiplier, 1.0, e.count)
    if e.mechanism == "noisy_descent":
        assert e.contraction is not None
        assert e.steps is not None
        z = noisy_descent.equivalent_multiplier(e.noise_multiplier, e.contraction, e.steps)
        return Event("gaussian", z, 1.0, e.count)
    return e


def gaussian_parameter(parts: Iterable[Event], adjacency: Adjacency) -> float:
    """μ of all full-batch Gaussian releases together, √(Σ Δ²/z²); infinite where one has no noise."""
    parts = [e for e in parts if e.mechanism == "gaussian"]
    if any(e.noise_multiplier == 0 for e in parts):
        return math.inf
    return adjacency.sensitivity * math.sqrt(math.fsum(e.count / e.noise_multiplier**2 for e in parts))
