"""What a private run is charged for: a run-length list of noisy queries.

Every accountant reads only this list, so ε can be recomputed from a saved file. Four mechanisms:

* ``gaussian``            every record takes part (rate 1);
* ``poisson_gaussian``    each record takes part independently with probability ``rate``;
* ``fixed_size_gaussian`` a uniform subset of exactly ``rate * num_records`` records takes part;
* ``batch_overflow``      not a query: with probability ``rate`` a step truncated its batch.

``noise_multiplier`` is always (std of the noise on the clipped gradient SUM) / (clip norm C). Whether a
neighbour moves that sum by C or 2C is the adjacency's business, never hidden in z.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ADJACENCIES = ("replace_one", "add_remove", "zero_out")
MECHANISMS = ("gaussian", "poisson_gaussian", "fixed_size_gaussian", "batch_overflow")


class UnsupportedCombination(ValueError):
    """A (sampling, adjacency, release, accountant) combination without a derivation."""


@dataclass(frozen=True)
class Event:
    """``count`` repetitions of one mechanism.

    Args:
        mechanism: one of ``MECHANISMS``.
        noise_multiplier: charged noise std / clip norm; 0 for ``batch_overflow``.
        rate: charged inclusion probability; for ``batch_overflow`` its probability in one step.
        count: how many times.
        num_records: N, needed by ``fixed_size_gaussian`` alone.
    """

    mechanism: str
    noise_multiplier: float
    rate: float
    count: int
    num_records: int | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"unknown mechanism {self.mechanism!r}; known: {', '.join(MECHANISMS)}")
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ValueError(f"noise_multiplier must be finite and >= 0, got {self.noise_multiplier}")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate must lie in [0, 1], got {self.rate}")
        if self.count < 0:
            raise ValueError(f"count must be >= 0, got {self.count}")
        if self.mechanism == "fixed_size_gaussian" and not self.num_records:
            raise ValueError("fixed_size_gaussian needs num_records")

    def to_json(self) -> dict[str, Any]:
        """A plain dict; the inverse is ``Event(**d)``."""
        out: dict[str, Any] = {
            "mechanism": self.mechanism,
            "noise_multiplier": self.noise_multiplier,
            "rate": self.rate,
            "count": self.count,
        }
        if self.num_records is not None:
            out["num_records"] = self.num_records
        return out


def queries(events: Iterable[Event]) -> list[Event]:
    """The noisy queries among ``events``, equal ones merged, empty ones dropped."""
    merged: dict[tuple, int] = {}
    for e in events:
        if e.mechanism == "batch_overflow" or e.count == 0 or e.rate == 0:
            continue
        # Rate 1 selects everybody under either scheme: the query is then an unsampled Gaussian.
        mechanism = "gaussian" if e.rate == 1 else e.mechanism
        num_records = e.num_records if mechanism == "fixed_size_gaussian" else None
        key = (mechanism, e.noise_multiplier, e.rate, num_records)
        merged[key] = merged.get(key, 0) + e.count
    return [Event(m, z, q, count, n) for (m, z, q, n), count in merged.items()]


def overflow_probability(events: Iterable[Event]) -> float:
    """Union bound β on the probability that any step of the run truncated its batch."""
    return min(1.0, math.fsum(e.rate * e.count for e in events if e.mechanism == "batch_overflow"))


def run_length(events: Iterable[Event]) -> tuple[Event, ...]:
    """Merge equal events, keeping first-seen order."""
    merged: dict[tuple, int] = {}
    for e in events:
        key = (e.mechanism, e.noise_multiplier, e.rate, e.num_records)
        merged[key] = merged.get(key, 0) + e.count
    return tuple(Event(m, z, q, c, n) for (m, z, q, n), c in merged.items())


def bucket_down(
    noise_multipliers: np.ndarray, counts: np.ndarray, waste: float = 2e-2, exact_below: int = 24
) -> tuple[np.ndarray, np.ndarray]:
    """Group per-step noise multipliers, rounding each DOWN to its group's smallest.

    A schedule can hold a million distinct z. Rounding z down adds less noise on paper than in the run, so
    the composed ε is an upper bound. Weighing a step by w(z) = expm1(1/z²), groups are as long as an equal
    surplus Σ(w(z_low) − w(z)) each allows, and the whole surplus stays below ``waste`` of Σw(z).

    Returns:
        (values, counts), values ascending. Exact when at most ``exact_below`` values are distinct.
    """
    values, inverse = np.unique(np.asarray(noise_multipliers, np.float64), return_inverse=True)
    totals = np.bincount(inverse.ravel(), weights=np.asarray(counts, np.float64)).astype(np.int64)
    if len(values) <= exact_below or values[0] <= 0:
        return values, totals
    # A step costs about 1/z² where z is large and e^{1/z²} where it is small; capped, since beyond that
    # nothing but the smallest z counts.
    weight = np.expm1(np.minimum(values**-2.0, 50.0))
    spent = np.concatenate([[0.0], np.cumsum(totals * weight)])
    steps = np.concatenate([[0], np.cumsum(totals)])

    def group(limit: float) -> tuple[list[int], float]:
        """Starts of the greedy groups of surplus <= limit each, and the whole surplus."""
        starts: list[int] = []
        surplus, start = 0.0, 0
        while start < len(values) and len(starts) < 4096:
            low, high = start + 1, len(values)
            while low < high:  # the surplus grows with the group
                middle = (low + high + 1) // 2
                grows = (steps[middle] - steps[start]) * weight[start] - (spent[middle] - spent[start])
                low, high = (middle, high) if grows <= limit else (low, middle - 1)
            starts.append(start)
            surplus += (steps[low] - steps[start]) * weight[start] - (spent[low] - spent[start])
            start = low
        return starts, surplus if start == len(values) else math.inf

    low, high = 1e-6 * waste * spent[-1], waste * spent[-1]
    starts, surplus = group(high)
    if surplus > waste * spent[-1]:
        for _ in range(12):
            middle = math.sqrt(low * high)
            trial, surplus = group(middle)
            if surplus <= waste * spent[-1]:
                low, starts = middle, trial
            elif math.isinf(surplus):
                low = middle
            else:
                high = middle
    return values[starts], np.add.reduceat(totals, starts)


def query_events(
    mechanism: str,
    noise_multipliers: Sequence[float] | np.ndarray,
    rate: float,
    *,
    repeats: int = 1,
    num_records: int | None = None,
) -> tuple[Event, ...]:
    """Events of one query per step with per-step noise multipliers, each step ``repeats`` times (chains)."""
    z = np.atleast_1d(np.asarray(noise_multipliers, np.float64))
    if z.size == 0:
        return ()
    values, counts = bucket_down(z, np.ones_like(z))
    n = num_records if mechanism == "fixed_size_gaussian" else None
    return tuple(
        Event(mechanism, float(v), float(rate), int(c) * repeats, n) for v, c in zip(values, counts, strict=True)
    )
