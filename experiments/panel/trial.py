"""One run of one method: what goes in, what comes out, and the records it reads."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from dpmcmc.privacy import Guarantee
from dpmcmc.targets import LogisticRegression
from experiments.panel.config import Panel, Settings


@dataclass(frozen=True)
class Trial:
    """A run to be made.

    Attributes:
        epsilon: what the method is asked for, or what its source claims.
        repeat: number of the run.
        settings: of the method.
        seed: of the run.
    """

    epsilon: float
    repeat: int
    settings: Settings
    seed: int

    @property
    def key(self) -> jax.Array:
        """JAX key of the run; not secret."""
        return jax.random.key(self.seed)


@dataclass(frozen=True)
class Outcome:
    """A run that was made.

    Attributes:
        draws: (draws, d) float32; None where the settings make no run, or the chain diverged.
        guarantee: its plan's, which a run under a secret key carries; None where there is none.
        seconds: its share of the wall time.
        problem: why there are no draws, in words.
    """

    draws: np.ndarray | None
    guarantee: Guarantee | None
    seconds: float
    problem: str = ""


@dataclass(frozen=True, eq=False)
class Site:
    """Records that trials run on, and the public facts about them.

    Attributes:
        records: ``{"x": (N, d), "y": (N,)}``.
        row_bound: of the rows of x.
        delta, adjacency: of every guarantee.
        prior_scale: of the panel's model.
        transitions: of NUTS before a one-sample draw.
        printed_passes: of the printed samplers.
    """

    records: dict[str, np.ndarray]
    row_bound: float
    delta: float
    adjacency: str
    prior_scale: float
    transitions: int
    printed_passes: float
    _targets: dict[float, LogisticRegression] = field(default_factory=dict)

    @classmethod
    def of(cls, panel: Panel, records: dict[str, np.ndarray], row_bound: float) -> Site:
        """The site of a panel's records."""
        passes = math.sqrt(len(records["y"])) if panel.printed_passes is None else panel.printed_passes
        return cls(records, row_bound, panel.delta, panel.adjacency, panel.prior_scale, panel.transitions, passes)

    @property
    def num_records(self) -> int:
        """N."""
        return len(self.records["y"])

    def target(self, prior_scale: float | None = None) -> LogisticRegression:
        """The model, bound to its public facts; the same object for the same prior."""
        scale = self.prior_scale if prior_scale is None else prior_scale
        if scale not in self._targets:
            size = self.records["x"].shape[1]
            self._targets[scale] = LogisticRegression(scale, num_features=size, row_bound=self.row_bound)
        return self._targets[scale]

    @functools.cached_property
    def in_double(self) -> dict[str, np.ndarray]:
        """The records with float64 rows."""
        return {**self.records, "x": np.asarray(self.records["x"], np.float64)}


def seed_of(*words: Any) -> int:
    """A seed below 2^31 that depends on every word, the same in every session."""
    digest = hashlib.sha256(repr(words).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def clock() -> Callable[[], float]:
    """Seconds since now."""
    started = time.perf_counter()
    return lambda: time.perf_counter() - started
