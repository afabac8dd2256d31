"""One Gaussian release of a sum over records: what a plan says of it, and the noise that a run adds to it.

A plan is a list of releases. Its events, its settings and the noise stds that a predicted width needs follow from the
list. A run finds the noise std of each release in the settings, by the release's name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.mechanisms.noise_aware.strategy import Calibrated
from dpmcmc.mechanisms.one_shot import PrivacySpec
from dpmcmc.privacy.accounting import Adjacency, Event
from dpmcmc.privacy.query.gaussian_release import gaussian_release, mu_std
from dpmcmc.privacy.query.gram_release import GramRelease, NoisyGram, RowFacts, entries, symmetric
from dpmcmc.privacy.query.integer_rows import Exact, svec_of

#: Name of the noise multiplier of the first gradient in the settings; :func:`multipliers` gives those of the others.
FIRST_GRADIENT = "first_noise_multiplier"


class Release(NamedTuple):
    """A Gaussian release, or several of one kind, as a plan knows it.

    Attributes:
        name: of its noise std in the settings.
        sensitivity: largest l2 distance of two neighbours' sums.
        size: how many numbers are released.
        share: of the μ² of all releases of the run; 0 where the sum is declared, so that nothing is released.
        parts: parts of the μ² of several such releases, (k,); ``share`` and ``name`` are the first one's. None: there
            is one.
    """

    name: str
    sensitivity: float
    size: int
    share: float
    parts: np.ndarray | None = None

    def std(self, mu: float) -> float:
        """Return the noise std under a budget of ``mu``, of the first one."""
        return mu_std(self.sensitivity, self.size, mu * math.sqrt(self.share)) if self.share else 0.0

    def events(self, spec: PrivacySpec, std: float) -> tuple[Event, ...]:
        """Return what the release costs with this noise std of the first one."""
        stds = (std,) if self.parts is None else multipliers(std, self.parts)
        return tuple(spec.gaussian(each, self.sensitivity, self.size) for each in stds if each)


def below(mu: float) -> float:
    """Return the μ that releases share: rounding of their noise stds must not make them cost more than was asked."""
    return mu * (1 - 1e-9)


def shares(steps: int, growth: float) -> np.ndarray:
    """Return the part of all gradients' μ² that each one gets, (steps,), each ``growth`` times the one before it."""
    parts = growth ** np.arange(steps, dtype=np.float64)
    return parts / parts.sum()


def multipliers(first: float, parts: np.ndarray) -> np.ndarray:
    """Return noise multipliers of gradients with these shares, (steps,), given the first's; never less than asked."""
    return first * np.sqrt(parts[0] / parts) * (1 + 1e-12)


def moment(name: str, rows: RowFacts, adjacency: Adjacency, share: float) -> Release:
    """Return the release of a second moment of rows; see ``privacy/query/gram_release.py``."""
    return Release(name, rows.moved(adjacency)[0], entries(rows.size), share)


def trace(name: str, rows: RowFacts, adjacency: Adjacency, share: float) -> Release:
    """Return the release of the trace of a second moment of rows."""
    return Release(name, rows.moved(adjacency)[1], 1, share)


def calibrated(releases: Sequence[Release], mu: float, spec: PrivacySpec) -> Calibrated:
    """Return the events of releases that share ``mu``, in their order, and their noise stds by name."""
    events: list[Event] = []
    stds: dict[str, float] = {}
    for one in releases:
        stds[one.name] = one.std(mu)
        events += one.events(spec, stds[one.name])
    return tuple(events), stds


class Noise(NamedTuple):
    """Noise of a run's releases.

    Attributes:
        settings: of the plan.
        keys: secret, each of which is used for one release.
    """

    settings: dict[str, float]
    keys: Iterator[jax.Array]

    def added(self, exact: Exact, name: str) -> np.ndarray:
        """Return a sum with the noise of the release of this name."""
        return self.with_std(exact, self.settings[name])

    def with_std(self, exact: Exact, std: float) -> np.ndarray:
        """Return a sum with noise of this std."""
        return gaussian_release(exact, std, next(self.keys))

    def symmetric(self, exact: Exact, name: str) -> np.ndarray:
        """Return a second moment, (k, k), with the noise of the release of this name."""
        return symmetric(self.added(svec_of(exact), name), len(exact.steps))

    def gram(self, exact: Exact, rows: RowFacts, names: tuple[str, str]) -> NoisyGram:
        """Return a second moment of rows and its trace with the noise of the releases of these names."""
        std, trace_std = (self.settings[name] for name in names)
        return GramRelease(rows, std, trace_std).of_sum(exact, next(self.keys))
