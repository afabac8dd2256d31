"""Accountant ``last_iterate``: the last of many noisy descent steps, by the theorem in ``noisy_descent.py``."""

from __future__ import annotations

from collections.abc import Iterable

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter, queries


def check(events: Iterable[Event], adjacency: Adjacency) -> None:
    """Raise UnsupportedCombination for anything but full-batch descent and Gaussian releases beside it."""
    for e in events:
        if e.mechanism in ("poisson_gaussian", "fixed_size_gaussian") and 0 < e.rate < 1:
            raise UnsupportedCombination(
                "accountant last_iterate needs full batches (sampling full): no theorem here covers the last iterate "
                "of minibatch steps.",
                "accountant",
            )


def epsilon(events: Iterable[Event], adjacency: Adjacency, delta: float) -> float:
    """Smallest ε at δ: exact for the Gaussians that the releases are worth."""
    return gaussian_epsilon(_mu(events, adjacency), delta)


def delta(events: Iterable[Event], adjacency: Adjacency, epsilon: float) -> float:
    """Smallest δ at ε >= 0."""
    return gaussian_delta(_mu(events, adjacency), epsilon)


def _mu(events: Iterable[Event], adjacency: Adjacency) -> float:
    parts = queries(events)
    check(parts, adjacency)
    return gaussian_parameter(parts, adjacency)
