"""A Guarantee: ε, δ and everything needed to recompute them.

It is computed from its ``events`` and from nothing else, so a saved guarantee can be checked
(``dpmcmc verify privacy.json``) and composed with another one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.privacy.accounting import (
    TRACE_ACCOUNTANTS,
    Adjacency,
    Event,
    accountant_for,
    base_delta,
    base_epsilon,
    joined,
    overflow_probability,
    run_length,
)
from dpmcmc.privacy.accounting.deviations import check_delta, with_deviations
from dpmcmc.privacy.accounting.group import GroupGuarantee
from dpmcmc.privacy.accounting.rounding import round_up


@dataclass(frozen=True, repr=False)
class Guarantee:
    """(ε, δ)-differential privacy of everything a run releases.

    Attributes:
        epsilon: at ``delta``; infinite where nothing finite can be proved.
        delta: total, batch overflow included; 0 for pure releases alone, where the caller asks for it.
        adjacency: which data sets it is about.
        release: what may be published: ``trace`` (every iterate) | ``last_iterate`` | ``one_sample`` | ``estimate``;
            of composed releases, theirs joined by " + ".
        accountant: ``advanced`` | ``rdp`` | ``pld`` | ``last_iterate`` | ``one_sample``.
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
        events, adjacency = run_length(events), Adjacency(adjacency)
        check_delta(events, delta)
        accountant_for(accountant, events, adjacency, release)
        epsilon = _epsilon(events, adjacency, accountant, delta)
        return cls(epsilon, delta, adjacency, release, accountant, events, assumptions)

    def epsilon_at(self, delta: float) -> float:
        """Smallest ε the same events give at another total δ."""
        return _epsilon(self.events, self.adjacency, self.accountant, delta)

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
        low, high = 0.0, epsilon
        for _ in range(24):
            left, right = low + 0.382 * (high - low), low + 0.618 * (high - low)
            at_left, at_right = total(left), total(right)
            best = min(best, at_left, at_right)
            low, high = (low, right) if at_left <= at_right else (left, high)
        return min(1.0, best)

    def for_group(self, size: int, delta: float | None = None, *, one_sided: bool = False) -> GroupGuarantee:
        """The guarantee between data sets that are ``size`` neighbours apart; see ``group.py``.

        With ``one_sided``, only between a data set and the one without ``size`` of its records.
        """
        from dpmcmc.privacy.accounting.group import for_group

        return for_group(self, size, delta, one_sided=one_sided)

    def compose(self, other: Guarantee, delta: float | None = None) -> Guarantee:
        """Both releases together, recomputed from the union of their events.

        Args:
            other: must have the same adjacency.
            delta: of the result; by default the larger of the two.

        Raises:
            UnsupportedCombination: different adjacency, or no accountant covers both.
        """
        if other.adjacency != self.adjacency:
            raise UnsupportedCombination(
                f"cannot compose a guarantee under {self.adjacency} with one under {other.adjacency}: they "
                "promise different things; recompute one of them under the other's adjacency."
            )
        events = run_length((*self.events, *other.events))
        failures = []
        for name in dict.fromkeys((self.accountant, other.accountant)):
            try:
                return Guarantee.from_events(
                    events,
                    delta=max(self.delta, other.delta) if delta is None else delta,
                    adjacency=self.adjacency,
                    accountant=name,
                    release=joined(self.release, other.release),
                    assumptions=tuple(dict.fromkeys((*self.assumptions, *other.assumptions))),
                )
            except UnsupportedCombination as error:
                failures.append(str(error))
        raise UnsupportedCombination(" ".join(failures))

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
            if not isinstance(words, str):
                raise InputError(f"accountant, release and assumptions of a guarantee are texts, got {words!r}")
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


def _epsilon(events: tuple[Event, ...], adjacency: Adjacency, accountant: str, delta: float) -> float:
    """Smallest ε of events at total δ."""
    return with_deviations(
        lambda left: base_epsilon(accountant, events, adjacency, left), overflow_probability(events), delta
    )
