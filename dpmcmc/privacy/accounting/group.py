"""A guarantee for k records at once: those of one household, or all that one person contributed.

    guarantee.for_group(5)       # GroupGuarantee: two data sets that are 5 neighbours apart

Any k steps of the adjacency may lie between the two data sets, some records leaving and others joining. One of two
rules is used:

* **Noise divided by k**, where every release is a Gaussian without subsampling, a posterior draw, a noisy descent, or
  pure. A μ-GDP release is kμ-GDP for k records (Dong, Roth and Su 2022, Theorem 2.14), which is attained: z becomes
  z/k. A pure release costs kε.
* **k times ε**, elsewhere. If one record costs (ε, δ), k records cost (kε, δ(1 + e^ε + … + e^{(k−1)ε})) (Dwork and Roth
  2014). For a total δ, ε is that of one record at δ/(1 + e^ε + …), found from below.

A deviation (batch overflow, approximate draw: total variation β) from a law that every data set has of its own
concerns the two ends of the path alone, so dividing noise by k leaves it as it is. Where the ideal law is one of a pair
of neighbours every step pays, and k times ε is used, whose (ε, δ) of one record contains β. ``deviations.py`` says
which is which. For more than a few people, a person as the unit of clipping is far better
(``docs/how-to/choosing_a_guarantee.md``).

Claim: k records have the guarantee that ``for_group`` says.
Proof: exact for Gaussian and pure releases; elsewhere a path of k neighbours, each step of which costs (ε, δ).
Held by: test_gaussian_releases_are_exact, test_a_posterior_draw_and_a_descent_are_exact,
test_k_epsilon_covers_brute_force_on_discrete_mechanisms, "a group charged kε at the same δ"
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.deviations import of_pairs
from dpmcmc.privacy.accounting.events import DEVIATIONS, Event
from dpmcmc.privacy.accounting.shown_numbers import round_up

#: A ``Guarantee`` for one record; its file imports this one.
Guarantee: TypeAlias = Any
#: Releases of which k records are charged as one record of k times the sensitivity.
_SCALED = ("gaussian", "posterior_draw", "noisy_descent", "pure")
#: Beyond it e^ε overflows.
_MOST_EPSILON = 700.0
#: Relative step at which the search for ε ends, which the share of δ allows for.
_TOLERANCE = 1e-12


@dataclass(frozen=True)
class GroupGuarantee:
    """(ε, δ)-differential privacy between data sets that are ``size`` neighbours apart.

    Attributes:
        size: k.
        epsilon: at ``delta``; infinite where nothing finite can be proved.
        delta: total.
        of: the guarantee for one record, with its adjacency and assumptions.
        rule: how ε follows from it, in words.
    """

    size: int
    epsilon: float
    delta: float
    of: Guarantee
    rule: str

    def __str__(self) -> str:
        return self.about("record")

    def about(self, unit: str) -> str:
        """Return the guarantee as text, with what a record is (``record``, ``owner``)."""
        who = f"for any {self.size} {unit}s" if self.size > 1 else f"for any {unit}"
        text = f"({round_up(self.epsilon)}, {self.delta:.6g})-DP {who}, {self.of.adjacency}, "
        text += f"{self.of.release} release, by {self.of.accountant} ({self.rule})"
        if math.isinf(self.epsilon):
            text += "; nothing finite is proved at this delta: ask at a larger one, or for fewer records"
        if self.of.assumptions:
            text += "; assuming: " + " ".join(self.of.assumptions)
        return text


def for_group(guarantee: Guarantee, size: int, delta: float) -> GroupGuarantee:
    """The guarantee between data sets that are ``size`` neighbours apart.

    Args:
        guarantee: for one record.
        size: k >= 1.
        delta: total δ of the result.

    Raises:
        ValueError: size is not a whole number >= 1.
    """
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise InputError(f"size must be a whole number of records >= 1, got {size!r}")
    size = int(size)
    released = {e.mechanism for e in guarantee.events if e.count}
    if size == 1 or (released <= {*_SCALED, *DEVIATIONS} and not of_pairs(guarantee.events)):
        events = tuple(_scaled(e, size) for e in guarantee.events)
        epsilon = dataclasses.replace(guarantee, events=events).epsilon_at(delta)
        return GroupGuarantee(size, epsilon, delta, guarantee, f"noise divided by {size}")
    one, share = _share(guarantee.epsilon_at, size, delta)
    return GroupGuarantee(size, size * one, delta, guarantee, f"{size} times epsilon at delta {share:.3g}")


def _scaled(e: Event, size: int) -> Event:
    """Return a release as one record of k times the sensitivity is charged for it."""
    if e.epsilon is not None:
        return dataclasses.replace(e, epsilon=size * e.epsilon)
    return dataclasses.replace(e, noise_multiplier=e.noise_multiplier / size)


def _share(epsilon_at: Callable[[float], float], size: int, delta: float) -> tuple[float, float]:
    """Return the smallest ε with epsilon_at(δ') <= ε and δ'(1 + e^ε + … + e^{(k−1)ε}) = delta, and that δ'."""
    epsilon, share = epsilon_at(delta), delta
    for _ in range(200):
        if size * epsilon > _MOST_EPSILON:
            break
        # Rounded up, so that an ε a little above this one is allowed for.
        largest = epsilon * (1 + _TOLERANCE)
        steps = math.expm1(size * largest) / math.expm1(largest) if largest > 0 else float(size)
        share = delta / (steps * (1 + _TOLERANCE))
        following = epsilon_at(share)
        if following <= largest:
            return max(epsilon, following), share
        epsilon = following
    return math.inf, share
