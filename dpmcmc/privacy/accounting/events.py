"""Events that a private run is charged for: a run-length list of noisy queries and one-shot releases.

Every accountant reads only this list, so ε can be recomputed from a saved file. Mechanisms:

* ``gaussian``            every record takes part (rate 1);
* ``poisson_gaussian``    each record takes part independently with probability ``rate``;
* ``fixed_size_gaussian`` a uniform subset of exactly ``rate * num_records`` records takes part;
* ``noisy_descent``       the last of ``steps`` full-batch noisy descent steps (``last_iterate.py``);
* ``posterior_draw``      one exact draw from a strongly log-concave posterior (``one_sample.py``);
* ``objective_perturbation``  the minimiser of a noisy logistic objective (``objective.py``);
* ``clipped_objective_perturbation``  the same of logistic losses with clipped residuals;
* ``pure``                anything that is ``epsilon``-DP, under the guarantee's own adjacency;
* ``batch_overflow``      not a query: with probability ``rate`` a step truncated its batch;
* ``approximate_draw``    not a query: a draw is within total variation ``rate`` of the one that is charged.

``deviations.py`` says what the last two cost.

``noise_multiplier`` is always (std of the noise on the clipped gradient SUM) / (clip norm C). Whether a
neighbour moves that sum by C or 2C is the adjacency's business, never hidden in z.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.errors import UnsupportedCombination as UnsupportedCombination  # ``dpmcmc.privacy`` gives it from here

#: Noisy queries of a sampler's step.
QUERIES = ("gaussian", "poisson_gaussian", "fixed_size_gaussian")
#: Minimisers of noisy objectives.
OBJECTIVES = ("objective_perturbation", "clipped_objective_perturbation")
MECHANISMS = (
    "gaussian",
    "poisson_gaussian",
    "fixed_size_gaussian",
    "noisy_descent",
    "posterior_draw",
    *OBJECTIVES,
    "pure",
    "batch_overflow",
    "approximate_draw",
)
#: Mechanisms that every record takes part in.
_WHOLE = ("gaussian", "noisy_descent", "posterior_draw", *OBJECTIVES, "pure")
#: Not queries: with probability ``rate`` a step, or a draw, was not the one that is charged.
DEVIATIONS = ("batch_overflow", "approximate_draw")
#: Kinds of noisy query that are composed one by one; more are charged in groups.
MOST_KINDS = 64
#: Kinds that a run is charged as, and that accountant pld reads: it blends them (``pld.py``).
MOST_BLENDED = 512


@dataclass(frozen=True)
class Event:
    """``count`` repetitions of one mechanism.

    Args:
        mechanism: one of ``MECHANISMS``.
        noise_multiplier: charged noise std / clip norm (for one-shot releases: such that a neighbour moves the
            equivalent Gaussian by 1/z, or 2/z under replace_one); 0 where there is none.
        rate: charged inclusion probability; a probability for ``batch_overflow`` and ``approximate_draw``.
        count: how many times.
        num_records: N, needed by ``fixed_size_gaussian`` alone.
        epsilon: loss beside the Gaussian one: all of it for ``pure``, log(1 + curvature / regularisation) for
            a noisy objective.
        steps: of ``noisy_descent``; only the last leaves.
        contraction: c of ``noisy_descent``, by which a step without noise brings two chains together.
        per_data_set: of ``approximate_draw``: True where each data set has an ideal law of its own, so that a group
            pays ``rate`` once; left out, the ideal law may be one of a pair of neighbours (``deviations.py``).

    Example:
        >>> from dpmcmc.privacy import Event, Guarantee
        >>> event = Event("gaussian", noise_multiplier=10.0, rate=1.0, count=4)
        >>> law = {"adjacency": "replace_one", "accountant": "pld", "release": "trace"}
        >>> guarantee = Guarantee.from_events((event,), delta=1e-5, **law)
        >>> round(guarantee.epsilon, 3)
        1.555
    """

    mechanism: str
    noise_multiplier: float
    rate: float
    count: int
    num_records: int | None = None
    epsilon: float | None = None
    steps: int | None = None
    contraction: float | None = None
    per_data_set: bool | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise InputError(f"unknown mechanism {self.mechanism!r}; known: {', '.join(MECHANISMS)}")
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise InputError(f"noise_multiplier must be finite and >= 0, got {self.noise_multiplier}")
        if not 0 <= self.rate <= 1:
            raise InputError(f"rate must lie in [0, 1], got {self.rate}")
        if self.count != int(self.count) or self.count < 0:
            raise InputError(f"count must be a whole number >= 0, got {self.count}")
        if self.mechanism in _WHOLE and self.rate != 1:
            raise InputError(f"{self.mechanism} reads every record: rate must be 1, got {self.rate}")
        if self.mechanism == "fixed_size_gaussian" and not self.num_records:
            raise InputError("fixed_size_gaussian needs num_records")
        if self.mechanism in ("pure", *OBJECTIVES) and not (
            self.epsilon is not None and math.isfinite(self.epsilon) and self.epsilon >= 0
        ):
            raise InputError(f"{self.mechanism} needs epsilon >= 0, got {self.epsilon}")
        if self.mechanism == "noisy_descent" and not (
            self.steps is not None and self.steps >= 1 and self.contraction is not None and 0 <= self.contraction < 1
        ):
            raise InputError("noisy_descent needs steps >= 1 and a contraction in [0, 1)")
        if self.per_data_set is not None and (self.per_data_set is not True or self.mechanism != "approximate_draw"):
            raise InputError("per_data_set is true, of an approximate_draw, or left out")

    def to_json(self) -> dict[str, Any]:
        """Return what the event says as a plain dict, without what it leaves open; the inverse is ``Event(**d)``."""
        return {name: value for name, value in vars(self).items() if value is not None}


def overflow_probability(events: Iterable[Event]) -> float:
    """Union bound β on the probability that any step, or draw, was not the one that is charged."""
    return min(1.0, math.fsum(e.rate * e.count for e in events if e.mechanism in DEVIATIONS))


def run_length(events: Iterable[Event]) -> tuple[Event, ...]:
    """Merge events that differ in their count alone, keeping first-seen order."""
    merged: dict[tuple, Event] = {}
    for e in events:
        kind = tuple(value for name, value in vars(e).items() if name != "count")
        one = merged.get(kind)
        merged[kind] = e if one is None else dataclasses.replace(one, count=one.count + e.count)
    return tuple(merged.values())


def bucket_down(
    noise_multipliers: np.ndarray,
    counts: np.ndarray,
    waste: float = 2e-2,
    exact_below: int = 24,
    most: int = MOST_KINDS,
) -> tuple[np.ndarray, np.ndarray]:
    """Group per-step noise multipliers, rounding each DOWN to its group's smallest.

    A schedule can hold a million distinct z. Rounding z down adds less noise on paper than in the run, so
    the composed ε is an upper bound. Weighing a step by w(z) = expm1(1/z²), groups are as long as an equal
    surplus Σ(w(z_low) − w(z)) each allows, and the whole surplus stays below ``waste`` of Σw(z) where ``most`` groups
    are enough for that.

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
        surplus = 0.0
        start = 0
        while start < len(values) and len(starts) < most:
            low = start + 1
            high = len(values)
            while low < high:  # the surplus grows with the group
                middle = (low + high + 1) // 2
                grows = (steps[middle] - steps[start]) * weight[start] - (spent[middle] - spent[start])
                low, high = (middle, high) if grows <= limit else (low, middle - 1)
            starts.append(start)
            surplus += (steps[low] - steps[start]) * weight[start] - (spent[low] - spent[start])
            start = low
        return starts, surplus if start == len(values) else math.inf

    allowed = waste * spent[-1]
    low = 1e-6 * allowed
    high = allowed
    starts, least = group(high)
    while math.isinf(least):
        low = high
        high = 2 * high
        starts, least = group(high)
    if least > allowed:
        for _ in range(12):
            middle = math.sqrt(low * high)
            trial, surplus = group(middle)
            if surplus <= allowed:
                low = middle
                starts = trial
                least = 0.0
            elif math.isinf(surplus):
                low = middle
            else:
                high = middle
                if surplus < least:
                    starts = trial
                    least = surplus
    return values[starts], np.add.reduceat(totals, starts)


#: Share of the cost of a schedule of more kinds than ``MOST_BLENDED`` that rounding them to fewer may add.
_LEAST_WASTE = 2e-3


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
    values, counts = bucket_down(
        z,
        np.ones_like(z),
        exact_below=MOST_BLENDED,
        most=MOST_BLENDED,
        waste=_LEAST_WASTE,
    )
    n = num_records if mechanism == "fixed_size_gaussian" else None
    return tuple(
        Event(mechanism, float(v), float(rate), int(c) * repeats, n) for v, c in zip(values, counts, strict=True)
    )


#: Proved relative excess of a clipped vector's norm over C, and of the noise scale (``query/exact_sums.py``).
KAPPA = 2.0**-15
