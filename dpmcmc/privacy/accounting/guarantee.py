"""A Guarantee: ε, δ and everything needed to recompute them.

It is computed from its ``events`` and from nothing else, so a saved guarantee can be checked
(``dpmcmc verify privacy.json``) and composed with another one.

Claim: Guarantees compose from their events, and not under different adjacencies.
Proof: the union of the events is accounted as one run.
Held by: test_composition_goes_through_events, test_different_adjacency_is_refused,
test_chains_and_compositions_are_the_run_of_all_their_steps, "adjacencies mixed in a composition"
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.privacy.accounting import (
    TRACE_ACCOUNTANTS,
    accountant_for,
    base_delta,
    base_epsilon,
    conversions,
    group,
    joined,
    lower_bound,
    own,
    run_length,
)
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.conversions import (
    Bracket,
    ConcentratedDP,
    GaussianDP,
    RenyiDP,
)
from dpmcmc.privacy.accounting.deviations import with_deviations
from dpmcmc.privacy.accounting.events import Event, overflow_probability
from dpmcmc.privacy.accounting.shown_numbers import round_up


def check_delta(events: tuple[Event, ...], delta: float) -> None:
    """Refuse a δ at which these events have no finite ε whatever their noise: 0 is for pure releases alone."""
    if delta == 0 and events and all(e.mechanism == "pure" for e in events):
        return
    if not 0 < delta < 1:
        raise InputError(f"delta must lie strictly between 0 and 1, got {delta}")


@dataclass(frozen=True, repr=False)
class Guarantee:
    """(ε, δ)-differential privacy of everything a run releases.

    Attributes:
        epsilon: at ``delta``; infinite where nothing finite can be proved.
        delta: total, batch overflow included; 0 for pure releases alone, where the caller asks for it.
        adjacency: which data sets it is about.
        release: what may be published: ``trace`` (every iterate) | ``last_iterate`` | ``one_sample`` | ``estimate``
            | ``labels`` (randomised labels, and whatever follows from them and the features); of composed releases,
            theirs joined by " + ".
        accountant: ``advanced`` | ``rdp`` | ``pld`` | ``last_iterate`` | ``one_sample``, or ``module:attribute``.
        assumptions: plain sentences; empty when the guarantee is unconditional.
        events: what was charged, run-length encoded.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import account
        >>> guarantee = account(10.0, steps=4, sampling=Full(), num_records=1000, delta=1e-5)
        >>> round(guarantee.epsilon, 3)
        1.555
        >>> twice = guarantee.compose(guarantee)
        >>> round(twice.epsilon, 3)
        2.288
        >>> guarantee.delta_at(guarantee.epsilon) <= 1e-5
        True
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    release: str
    accountant: str
    events: tuple[Event, ...]
    assumptions: tuple[str, ...] = field(default=())

    @classmethod
    def from_events(
        cls,
        events: tuple[Event, ...],
        *,
        delta: float,
        adjacency: str,
        accountant: str,
        release: str = "trace",
        assumptions: tuple[str, ...] = (),
    ) -> Guarantee:
        """Compute ε at ``delta`` from events.

        Raises:
            UnsupportedCombination: no derivation for this combination.
            ValueError: delta outside (0, 1), except 0 where every release is pure.
        """
        events = run_length(events)
        adjacency = Adjacency(adjacency)
        check_delta(events, delta)
        accountant_for(accountant, events, adjacency, release)
        epsilon = _epsilon(events, adjacency, accountant, delta)
        made = cls(epsilon, delta, adjacency, release, accountant, events, assumptions)
        own_word = own.is_ones_own(accountant)
        return made.assuming(own.assumption(accountant)) if own_word else made

    def assuming(self, *sentences: str) -> Guarantee:
        """Return the same guarantee with these assumptions too."""
        return dataclasses.replace(self, assumptions=tuple(dict.fromkeys((*self.assumptions, *sentences))))

    def epsilon_at(self, delta: float) -> float:
        """Smallest ε the same events give at another total δ."""
        return _epsilon(self.events, self.adjacency, self.accountant, delta)

    def bracket(self, delta: float | None = None) -> Bracket:
        """Lower and upper bound on ε at a total δ, by default the guarantee's own.

        The upper one is :meth:`epsilon_at`. The lower one is attained by two data sets, by the noisy queries alone
        (``lower_bound.py``); it is 0 where none is known.
        """
        delta = self.delta if delta is None else delta
        upper = self.epsilon if delta == self.delta else self.epsilon_at(delta)
        return Bracket(_lowest(self.events, self.adjacency, delta), upper)

    def gdp(self, slack: float | None = None) -> GaussianDP:
        """Gaussian trade-off below that of the events; see ``conversions.gdp``."""
        return conversions.gdp(self.accountant, self.events, self.adjacency, self.delta, slack)

    def zcdp(self) -> ConcentratedDP:
        """Zero-concentrated differential privacy of the events; see ``conversions.zcdp``."""
        return conversions.zcdp(self.events, self.adjacency)

    def renyi(self, orders: Sequence[float]) -> RenyiDP:
        """Rényi divergences of the events at these orders; see ``conversions.renyi``."""
        return conversions.renyi(self.events, self.adjacency, orders)

    def delta_at(self, epsilon: float) -> float:
        """Smallest total δ the same events give at ``epsilon`` >= 0.

        A step that truncates its batch (probability β in all) is another mechanism within total variation β,
        which costs (1 + e^ε)β: δ(ε) = min over ε' <= ε of δ_base(ε') + (1 + e^ε')β.
        """
        if epsilon < 0:
            raise InputError(f"epsilon must be >= 0, got {epsilon}")
        beta = overflow_probability(self.events)
        if beta == 0:
            return base_delta(self.accountant, self.events, self.adjacency, epsilon)

        def total(e: float) -> float:
            if e > 700:
                return math.inf
            return base_delta(self.accountant, self.events, self.adjacency, e) + (1 + math.exp(e)) * beta

        # Both terms are convex in e^ε: if the sum still falls at ε, ε is the best; else search below it.
        epsilon = min(epsilon, 700.0)
        best = total(epsilon)
        if epsilon == 0 or total(0.95 * epsilon) >= best:
            return min(1.0, best)
        low = 0.0
        high = epsilon
        for _ in range(24):
            left = low + 0.382 * (high - low)
            right = low + 0.618 * (high - low)
            at_left = total(left)
            at_right = total(right)
            best = min(best, at_left, at_right)
            low, high = (low, right) if at_left <= at_right else (left, high)
        return min(1.0, best)

    def for_group(self, size: int, delta: float | None = None) -> group.GroupGuarantee:
        """The guarantee between data sets that are ``size`` neighbours apart (``group.py``).

        Args:
            size: k >= 1.
            delta: total δ of the result; by default that of this guarantee.

        Raises:
            ValueError: size is not a whole number >= 1, or delta is outside (0, 1) where a release is not pure.
        """
        delta = self.delta if delta is None else delta
        check_delta(self.events, delta)
        return group.for_group(self, size, delta)

    def compose(self, other: Guarantee, delta: float | None = None) -> Guarantee:
        """Both releases together, recomputed from the union of their events.

        Args:
            other: must have the same adjacency.
            delta: of the result; by default the larger of the two.

        Raises:
            UnsupportedCombination: different adjacency, or no accountant covers both.
        """
        return composed((self, other), delta)

    def cross_check(self) -> dict[str, float | None]:
        """ε at the same δ by every general accountant; None where a pair has no derivation."""
        out: dict[str, float | None] = {}
        for name in TRACE_ACCOUNTANTS:
            try:
                accountant_for(name, self.events, self.adjacency, self.release)
            except UnsupportedCombination:
                out[name] = None
                continue
            value = _epsilon(self.events, self.adjacency, name, self.delta)
            out[name] = value if math.isfinite(value) else None
        return out

    def to_json(self) -> dict[str, Any]:
        """Plain dict; :meth:`from_json` inverts it. Infinite ε is written as null."""
        return {
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "epsilon_lower": self.bracket().lower or None,
            "delta": self.delta,
            "adjacency": self.adjacency,
            "release": self.release,
            "accountant": self.accountant,
            "assumptions": list(self.assumptions),
            "events": [e.to_json() for e in self.events],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Guarantee:
        """Rebuild from :meth:`to_json`; ε is RECOMPUTED from the events, not read.

        Raises:
            KeyError, TypeError, ValueError: they are not what that returns.
        """
        for words in (data["accountant"], data["release"], *data.get("assumptions", ())):
            if not isinstance(words, str) or not words.isprintable():
                raise InputError(
                    f"accountant, release and assumptions of a guarantee are texts of a line, got {words!r}"
                )
        return cls.from_events(
            tuple(Event(**e) for e in data["events"]),
            delta=float(data["delta"]),
            adjacency=data["adjacency"],
            accountant=data["accountant"],
            release=data["release"],
            assumptions=tuple(data.get("assumptions", ())),
        )

    def __repr__(self) -> str:
        many = f"{len(self.events)} kind{'s' * (len(self.events) != 1)} of event"
        return f"Guarantee(epsilon={round_up(self.epsilon)}, delta={self.delta:.6g}, {self.adjacency}, {many})"

    def __str__(self) -> str:
        text = f"({round_up(self.epsilon)}, {self.delta:.6g})-DP, {self.adjacency}, {self.release} release, "
        text += f"by {self.accountant}"
        if self.assumptions:
            text += "; assuming: " + " ".join(self.assumptions)
        return text


def composed(guarantees: Sequence[Guarantee], delta: float | None = None) -> Guarantee:
    """Return all releases together, recomputed once from the union of their events.

    Every release is fixed before the first, or each is charged given those before it, so their losses add: the
    composition is that of the dominating pairs of all events, as within one run.

    Args:
        guarantees: at least one, all of one adjacency.
        delta: of the result; by default the largest of theirs.

    Raises:
        UnsupportedCombination: different adjacency, or no accountant covers all.
    """
    first = guarantees[0]
    for other in guarantees[1:]:
        if other.adjacency != first.adjacency:
            raise UnsupportedCombination(
                f"cannot compose a guarantee under {first.adjacency} with one under {other.adjacency}: they "
                "promise different things; recompute one of them under the other's adjacency."
            )
    events = run_length([event for each in guarantees for event in each.events])
    failures = []
    for name in dict.fromkeys(each.accountant for each in guarantees):
        try:
            return Guarantee.from_events(
                events,
                delta=max(each.delta for each in guarantees) if delta is None else delta,
                adjacency=first.adjacency,
                accountant=name,
                release=joined(*(each.release for each in guarantees)),
                assumptions=tuple(dict.fromkeys(said for each in guarantees for said in each.assumptions)),
            )
        except UnsupportedCombination as error:
            failures.append(str(error))
    raise UnsupportedCombination(" ".join(failures))


def _epsilon(events: tuple[Event, ...], adjacency: Adjacency, accountant: str, delta: float) -> float:
    """Smallest ε of events at total δ.

    Raises:
        UnsupportedCombination: an accountant of the user's own says less than a lower bound.
    """
    epsilon = with_deviations(
        lambda left: base_epsilon(accountant, events, adjacency, left),
        overflow_probability(events),
        delta,
    )
    if own.is_ones_own(accountant):
        own.refuse_below(_lowest(events, adjacency, delta), epsilon, accountant, delta)
    return epsilon


@functools.lru_cache(maxsize=256)
def _lowest(events: tuple[Event, ...], adjacency: Adjacency, delta: float) -> float:
    """ε of the noisy queries at ``delta``, from below; 0 where none is known, as at a δ of 0."""
    return lower_bound.epsilon(events, adjacency, delta) if 0 < delta < 1 else 0.0
