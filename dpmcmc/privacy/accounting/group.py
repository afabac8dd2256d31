r"""A guarantee for k records at once: those of one household, or all that one person contributed.

    guarantee.for_group(5)                     # GroupGuarantee: two data sets that are 5 neighbours apart
    guarantee.for_group(5, one_sided=True)     # add_remove, zero_out: a data set with and without 5 records

By default any k steps of the adjacency may lie between the two data sets, some records leaving and others joining. All
on one side is less, and what a household asks for that is there or is not.

The result is the smallest of the bounds that are proved for what was charged:

* Gaussian releases, posterior draws and noisy descents: a μ-GDP release is kμ-GDP for k records (Dong, Roth and Su
  2022, Theorem 2.14), which is attained: z becomes z/k. A pure release costs kε.
* Poisson-sampled steps, ``one_sided`` alone and by accountant pld: how many of the k take part is binomial
  (``accounting/mixture.py``). Its proof needs one side without any of them: with records on both, both laws are
  mixtures, and nothing is proved.
* Everything, by conversion of the curve δ(ε) of one record. Along a path of k neighbours

      P_0 <= d_1 + e^{ε_1} P_1 <= d_1 + e^{ε_1}(d_2 + e^{ε_2} P_2) <= …,     d_i = δ(ε_i), or 1 − e^{−ε}(1 − δ(ε)) at −ε

  so k records have ε = Σ ε_i and δ = Σ d_i e^{ε_1 + … + ε_{i−1}}. ANY choice of the ε_i is a proof; equal ones give
  the textbook's kε and δ(e^{kε} − 1)/(e^ε − 1), and the best ones Theorem 2.14's composition of trade-off functions.

A deviation (batch overflow, approximate draw: total variation β) from a law that every data set has of its own concerns
only the two ends of the path, and adds (1 + e^ε)β once. Where the ideal law is one of a pair of neighbours, every step
pays: d_i = δ(ε_i) + (1 + e^{ε_i})β, and only the conversion is proved. ``deviations.py`` says which is which, and why.
For more than a few people, a person as the unit of clipping is far better: ``docs/user_level.md``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting import (
    DEVIATIONS,
    Event,
    accountant_for,
    base_delta,
    base_epsilon,
    mixture,
    overflow_probability,
    pure,
)
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.deviations import check_delta, of_pairs, with_deviations
from dpmcmc.privacy.accounting.effort import spend
from dpmcmc.privacy.accounting.grouping import grouped
from dpmcmc.privacy.accounting.queries import gaussian_parameter, queries
from dpmcmc.privacy.accounting.rounding import round_up
from dpmcmc.privacy.accounting.search import smallest

if TYPE_CHECKING:
    from dpmcmc.privacy.accounting.guarantee import Guarantee

#: Mechanisms that are exact for a group when z is divided, and ε multiplied, by its size.
_SCALED = ("gaussian", "posterior_draw", "noisy_descent", "pure")
#: Points of the one-record curve that a path may use, and starting points of paths.
_POINTS = 128
_PATHS = 1024
#: One step of all paths, in points of ``effort.py``.
_STEP_WORK = 30_000
#: Beyond it e^ε overflows.
_MOST_EPSILON = 700.0
#: Against float64 rounding of sums of at most so many products.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class GroupGuarantee:
    """(ε, δ)-differential privacy between data sets that are ``size`` neighbours apart.

    Attributes:
        size: k.
        epsilon: at ``delta``; infinite where nothing finite can be proved.
        delta: total.
        adjacency: of one record; a group's is k steps of it.
        of: the guarantee for one record.
        assumptions: as there.
        one_sided: whether it is only between a data set and the one without k of its records.
    """

    size: int
    epsilon: float
    delta: float
    adjacency: Adjacency
    of: Guarantee
    assumptions: tuple[str, ...]
    one_sided: bool = False

    def __str__(self) -> str:
        return self.about("record")

    def about(self, unit: str) -> str:
        """Return the guarantee as text, with what a record is (``record``, ``owner``)."""
        who = f"for any {self.size} {unit}s" if self.size > 1 else f"for any {unit}"
        if self.one_sided and self.size > 1:
            who = f"with or without {self.size} {unit}s (all on one side)"
        text = f"({round_up(self.epsilon)}, {self.delta:.6g})-DP {who}, {self.adjacency}, "
        text += f"{self.of.release} release, by {self.of.accountant}"
        if math.isinf(self.epsilon):
            text += "; nothing finite is proved at this delta: ask at a larger one, or for fewer records"
        if self.assumptions:
            text += "; assuming: " + " ".join(self.assumptions)
        return text


def for_group(
    guarantee: Guarantee, size: int, delta: float | None = None, *, one_sided: bool = False
) -> GroupGuarantee:
    """The guarantee between data sets that are ``size`` neighbours apart.

    Args:
        guarantee: for one record.
        size: k >= 1.
        delta: total δ of the result; by default that of ``guarantee``.
        one_sided: only between a data set and the one without k of its records (add_remove, zero_out).

    Raises:
        ValueError: size not a whole number >= 1, delta outside (0, 1) where a release is not pure, or one_sided under
            replace_one.
    """
    if one_sided and guarantee.adjacency == Adjacency.REPLACE_ONE:
        raise InputError("one_sided: a record that is replaced is on both sides, under replace_one; leave it out")
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise InputError(f"size must be a whole number of records >= 1, got {size!r}")
    delta = guarantee.delta if delta is None else delta
    check_delta(guarantee.events, delta)
    size = int(size)
    epsilon = guarantee.epsilon_at(delta) if size == 1 else _epsilon(guarantee, size, delta, one_sided)
    return GroupGuarantee(size, epsilon, delta, guarantee.adjacency, guarantee, guarantee.assumptions, one_sided)


def _epsilon(guarantee: Guarantee, size: int, delta: float, one_sided: bool) -> float:
    """Smallest proved ε at total δ for ``size`` >= 2 records."""
    if delta == 0:  # every release is pure
        return size * guarantee.epsilon_at(0.0)
    pairs = of_pairs(guarantee.events)
    beta = overflow_probability(e for e in guarantee.events if not of_pairs([e]))
    lines = _lines(guarantee, delta)
    by_conversion = with_deviations(functools.partial(converted_epsilon, lines, size), beta, delta)
    exact = None if pairs else _exact_epsilon(guarantee, size, by_conversion, one_sided)
    if exact is None:
        return by_conversion
    return min(by_conversion, with_deviations(exact, beta, delta))


def converted_epsilon(lines: tuple[np.ndarray, np.ndarray], size: int, delta: float) -> float:
    """Smallest ε at δ that a path of ``size`` neighbours proves, deviations that the lines leave out left out.

    Args:
        lines: (ε_i, d_i), each (n,), with P <= d_i + e^{ε_i} P' for neighbours.
        size: k.
        delta: δ.
    """
    slopes, intercepts = lines
    if not slopes.size:
        return math.inf
    # Where the last data set's probability stands; each step takes the line that is lowest there.
    at = np.concatenate([np.logspace(-300, -16, 64), np.logspace(-16, 0, _PATHS)[1:]])
    epsilon, spent = np.zeros_like(at), np.zeros_like(at)
    for _ in range(size):
        spend(_STEP_WORK)
        with np.errstate(over="ignore"):
            reached = intercepts + np.exp(slopes) * at[:, None]
        best = np.argmin(reached, axis=1)
        at = reached[np.arange(len(at)), best]
        epsilon = epsilon + slopes[best]
        with np.errstate(over="ignore"):
            spent = intercepts[best] + np.exp(slopes[best]) * spent
        alive = at < 1
        at, epsilon, spent = at[alive], epsilon[alive], spent[alive]
        if not at.size:
            return math.inf
    epsilon, spent = epsilon + _ROUNDING * size * np.abs(slopes).max(), spent * (1 + _ROUNDING * size)
    return _mixed_paths(np.maximum(epsilon, 0.0), spent, delta)


def _mixed_paths(epsilon: np.ndarray, spent: np.ndarray, delta: float) -> float:
    """Smallest ε at δ from inequalities (ε_i, δ_i), and from what averages of two of them are."""
    meets = spent <= delta
    if not meets.any():
        return math.inf
    best = float(epsilon[meets].min())
    last = int(np.flatnonzero(meets)[np.argmin(epsilon[meets])])
    beyond = ~meets & (epsilon < best)
    if best == 0 or not beyond.any():
        return best
    # λ(e^{ε_1}, δ_1) + (1 − λ)(e^{ε_2}, δ_2), with λ such that δ is met exactly.
    share = (spent[beyond] - delta) / (spent[beyond] - spent[last])
    mixed = best + np.log(share + (1 - share) * np.exp(epsilon[beyond] - best))
    return min(best, float(mixed.min()) * (1 + _ROUNDING) + _ROUNDING)


@functools.lru_cache(maxsize=8)
def _lines(guarantee: Guarantee, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """(ε_i, d_i) with P <= d_i + e^{ε_i} P' for neighbours, ε_i of either sign; empty where nothing is proved.

    P and P' are ideal laws of their data sets; deviations of pairs are within d_i.
    """
    base = functools.partial(base_delta, guarantee.accountant, guarantee.events, guarantee.adjacency)
    largest = base_epsilon(guarantee.accountant, guarantee.events, guarantee.adjacency, delta * 1e-12)
    if not math.isfinite(largest):
        largest = base_epsilon(guarantee.accountant, guarantee.events, guarantee.adjacency, delta)
    if not math.isfinite(largest):
        return np.zeros(0), np.zeros(0)
    positive = np.linspace(0.0, largest, _POINTS)
    charged = np.array([base(float(e)) for e in positive])
    if pairs := of_pairs(guarantee.events):
        with np.errstate(over="ignore"):
            charged = np.minimum(1.0, (charged + (1 + np.exp(positive)) * pairs) * (1 + _ROUNDING))
    mirrored = -np.expm1(-positive) + np.exp(-positive) * charged
    return np.concatenate([positive, -positive]), np.concatenate([charged, mirrored])


def _exact_epsilon(guarantee: Guarantee, size: int, guess: float, one_sided: bool) -> Callable[[float], float] | None:
    """δ -> ε from the events of a group, deviations left out; None where they are not all known."""
    name, adjacency = guarantee.accountant, guarantee.adjacency
    kept = [e for e in guarantee.events if e.count and e.mechanism not in DEVIATIONS]
    scaled = [_scaled(e, size) for e in kept if e.mechanism in _SCALED or (e.rate == 1 and _sampled(e))]
    steps = [e for e in kept if e.mechanism == "poisson_gaussian" and 0 < e.rate < 1]
    if len(scaled) + len(steps) < sum(e.rate > 0 for e in kept):
        return None
    accountant_for(name, scaled, adjacency)
    if not steps:
        return functools.partial(base_epsilon, name, scaled, adjacency)
    if not one_sided or name != "pld" or size > mixture.MOST or any(not e.noise_multiplier for e in steps):
        return None
    releases, rest = pure.split(scaled)
    mu = gaussian_parameter(queries(rest), adjacency)
    if math.isinf(mu):
        return None
    kinds = [(e.noise_multiplier, e.rate, e.count) for e in grouped(queries(steps))]
    # The cost of pure releases is known apart; the grid is for the rest.
    rough = guess if math.isfinite(guess) else size * guarantee.epsilon

    def epsilon(delta: float) -> float:
        curve = mixture.composed_delta(kinds, mu, size, rough, delta)
        if curve is None:
            return math.inf

        def meets(e: float) -> bool:
            return pure.mixed(releases, curve, e) <= delta

        return smallest(meets, 0.0, _MOST_EPSILON, 1e-6) if meets(_MOST_EPSILON) else math.inf

    return epsilon


def _sampled(e: Event) -> bool:
    return e.mechanism in ("poisson_gaussian", "fixed_size_gaussian")


def _scaled(e: Event, size: int) -> Event:
    """A release of which a group is charged as one record of k times the sensitivity."""
    if e.mechanism == "pure":
        assert e.epsilon is not None
        return dataclasses.replace(e, epsilon=size * e.epsilon)
    if _sampled(e):
        e = Event("gaussian", e.noise_multiplier, 1.0, e.count)
    return dataclasses.replace(e, noise_multiplier=e.noise_multiplier / size)
