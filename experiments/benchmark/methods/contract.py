"""The contract of a method: what it is given, and what it returns."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from experiments.benchmark.problem import Problem

#: Kinds of labels.
ALL = ("binary", "classes", "count", "real")
#: Standard deviation of real labels on [-1, 1] for a method that learns none: half of the largest residual's bound.
PUBLIC_NOISE = 0.5


class Refused(Exception):
    """A method's own sentence on why it does not fit this problem."""


class Outcome(NamedTuple):
    """A method's release.

    Attributes:
        draws: encoded coefficients, (k, d), or (k, d, K) of classes; k = 1 of a point estimate.
        claims: whether the method says that intervals may be read off its draws.
        guarantee: promise of this run.
        predicted: width of intervals over that without privacy, as predicted without the records; NaN: no prediction.
        dispersion: standard deviation of real labels, or α of counts, as it was learnt; None: not learnt.
    """

    draws: np.ndarray
    claims: bool
    guarantee: str
    predicted: float = math.nan
    dispersion: float | None = None

    def of_labels(self, kind: str) -> float:
        """Return the dispersion that labels are predicted with."""
        if self.dispersion is not None:
            return self.dispersion
        return PUBLIC_NOISE if kind == "real" else 0.0


@dataclass(frozen=True)
class Method:
    """A method of the benchmark.

    Attributes:
        name: of the command line and of the tables.
        family: ``ours``, ``rival``, or ``limit``, which is not private.
        kinds: labels that it takes.
        promise: kind of guarantee and neighbours.
        settings: where its settings come from; they are functions of public facts alone.
        run: (problem, ε) -> its release.
        package: that it needs; empty: none beyond the library's.
        intervals: whether it ever says that intervals may be read off its draws.
    """

    name: str
    family: Literal["ours", "rival", "limit"]
    kinds: tuple[str, ...]
    promise: str
    settings: str
    run: Callable[[Problem, float], Outcome]
    package: str = ""
    intervals: bool = False

    @property
    def missing(self) -> str:
        """Package that is not installed; empty: none."""
        there = not self.package or importlib.util.find_spec(self.package) is not None
        return "" if there else self.package


def system_rng() -> np.random.Generator:
    """Return a generator seeded by the system, for noise of privacy."""
    return np.random.default_rng()


def normal_draws(mean: np.ndarray, covariance: np.ndarray, rng: np.random.Generator, count: int = 1000) -> np.ndarray:
    """Return draws (count, d) of a normal law whose covariance may be singular."""
    value, vector = np.linalg.eigh((covariance + covariance.T) / 2)
    root = vector * np.sqrt(np.maximum(value, 0))
    return mean + rng.normal(size=(count, len(mean))) @ root.T
