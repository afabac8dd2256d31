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

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.errors import UnsupportedCombination as UnsupportedCombination
from dpmcmc.privacy.accounting import noisy_descent

# ----------------------------------------------------------------------------------------------------
# Adjacency: which two data sets count as neighbours.


class Adjacency(StrEnum):
    """Relation between neighbouring data sets; ``Adjacency("replace_one")`` parses a name.

    * ``replace_one``: one record has another value. N is public.
    * ``add_remove``: one record is there, or is absent. The number of record slots is public.
    * ``zero_out``: one record contributes, or contributes zero. N is public.
    * ``one_label``: one record has another label. N and all features are public, and nothing of them is protected. It
      is of randomised labels alone, and no promise about whole records.

    An absent record adds exactly zero to every sum (``targets/checks.py``).

    Raises:
        UnsupportedCombination: an unknown name.

    Example:
        >>> from dpmcmc.privacy import Adjacency
        >>> Adjacency("replace_one") is Adjacency.REPLACE_ONE
        True
    """

    REPLACE_ONE = "replace_one"
    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    ONE_LABEL = "one_label"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise UnsupportedCombination(f"unknown adjacency {value!r}; known: {', '.join(cls)}.", "adjacency")

    @property
    def sensitivity(self) -> float:
        """How far a neighbour moves a sum of vectors of norm at most 1.

        Under ``replace_one`` and ``one_label`` one such vector leaves the sum and another enters; otherwise one leaves
        or enters.
        """
        one_side = self in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
        return 1.0 if one_side else 2.0

    __repr__ = str.__repr__


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


# ----------------------------------------------------------------------------------------------------
# Queries of events, in the terms that accountants compose: Gaussian releases, sampled or not.


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


# ----------------------------------------------------------------------------------------------------
# Many kinds of noisy query charged as a few: each group at its least noise and its largest rate.
#
# An accountant's time grows with the number of different (noise multiplier, rate). A query with less noise, or of more
# records, reveals at least as much: the pair of z dominates that of a larger z (added noise is post-processing), and an
# upper bound of the rate may be charged (``rdp.py``). So the composed ε is an upper bound of the exact one.
#
# Claim: Queries that are charged in groups cost at least what they cost one by one.
# Proof: less noise and a larger rate reveal at least as much.
# Held by: test_groups_cost_at_least_what_their_members_do,
# test_bucketing_never_undercuts_and_wastes_less_than_one_percent, test_an_upper_bound_of_the_rate_may_be_charged,
# "groups charged at their most noise"

#: Different rates that are kept where there are more kinds than that.
_MOST_RATES = 4


def grouped(parts: Sequence[Event], most: int = MOST_KINDS) -> list[Event]:
    """``parts`` (from ``events.queries``) with at most about ``most`` kinds of sampled query.

    Unchanged where there are no more. Fixed-size queries of different N are never grouped with each other.
    """
    sampled = [e for e in parts if _sampled(e)]
    if len(sampled) <= most:
        return list(parts)
    families: dict[tuple[str, int | None], list[Event]] = {}
    for e in sampled:
        families.setdefault((e.mechanism, e.num_records), []).append(e)
    groups = [group for family in families.values() for group in _by_rate(family)]
    share = max(1, most // len(groups))
    out = [e for e in parts if not _sampled(e)]
    for group in groups:
        rate = max(e.rate for e in group)
        z = np.array([e.noise_multiplier for e in group])
        values, counts = bucket_down(z, np.array([e.count for e in group]), exact_below=share, most=share)
        out += [
            dataclasses.replace(group[0], noise_multiplier=float(v), rate=rate, count=int(c))
            for v, c in zip(values, counts, strict=True)
        ]
    return out


def _sampled(e: Event) -> bool:
    return e.mechanism in ("poisson_gaussian", "fixed_size_gaussian")


def _by_rate(family: list[Event]) -> list[list[Event]]:
    """Events of a mechanism, those of near-equal rate together, in at most ``_MOST_RATES`` groups."""
    rates = sorted({e.rate for e in family})
    bounds = [float(part[-1]) for part in np.array_split(rates, min(_MOST_RATES, len(rates)))]
    found: dict[float, list[Event]] = {}
    for e in family:
        found.setdefault(min(b for b in bounds if e.rate <= b), []).append(e)
    return list(found.values())


# ----------------------------------------------------------------------------------------------------
# How much work an accountant may do: the events of a stranger's file can ask for any amount. A cap on their number is
# not enough, because eleven pure releases beside one sampled query already take many minutes.
#
# Work is counted in points: one entry of a spectrum that is raised to a power, some 0.1 µs. It is counted and not
# timed, so that an answer does not depend on the machine.


class TooMuchWork(InputError):
    """The events ask for more work than was allowed."""


#: Points that are left; unlimited outside of :func:`at_most`.
_left: contextvars.ContextVar[float] = contextvars.ContextVar("points of work left", default=math.inf)


@contextlib.contextmanager
def at_most(points: float) -> Iterator[None]:
    """Limit the work inside: accountants raise TooMuchWork before they go beyond so many points."""
    token = _left.set(points)
    try:
        yield
    finally:
        _left.reset(token)


def spend(points: float) -> None:
    """Count work before it is done.

    Raises:
        TooMuchWork: it is more than is left.
    """
    left = _left.get() - points
    if left < 0:
        raise TooMuchWork("the events need more work than is allowed")
    _left.set(left)


# ----------------------------------------------------------------------------------------------------
# How a number about privacy is shown: never rounded toward less of it.


def round_up(value: float, digits: int = 4) -> str:
    """``value`` to so many significant digits, never below it: a printed ε must cover the computed one."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.{digits}g}"


def round_down(value: float, digits: int = 4) -> float:
    """``value`` to so many significant digits, never above it; 0 where it is negative."""
    if value <= 0 or math.isinf(value):
        return max(0.0, value)
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{math.floor(value / unit * (1 + 1e-12)) * unit:.{digits}g}")


def three_digits(value: float) -> str:
    """Return a number to three significant digits, for a sentence: 2,720 and not 2.72e+03."""
    return f"{float(f'{value:.3g}'):,.15g}"


# ----------------------------------------------------------------------------------------------------
# The smallest or the largest number that meets a condition, by bisection; what is returned meets it.


def smallest(meets: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """Smallest number in (low, high] that meets a condition, up to a share ``tolerance`` of it above.

    Args:
        meets: false below some number and true above it.
        low: a lower bound, not tried.
        high: an upper bound, taken to meet the condition without being tried.
        tolerance: relative, above 1e-15.
    """
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def largest(meets: Callable[[float], bool], low: float, high: float) -> float:
    """Largest number in [low, high) that meets a condition: no float lies between it and one that does not.

    Args:
        meets: true below some number and false above it.
        low: a lower bound, taken to meet the condition without being tried.
        high: an upper bound, not tried.
    """
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


# ----------------------------------------------------------------------------------------------------
# Largest excess of float32 clipping, as the accounting charges it; derived in ``query/exact_sums.py``.

#: Proved relative excess of a clipped vector's norm over C, and of the noise scale's rounding.
KAPPA = 2.0**-15
