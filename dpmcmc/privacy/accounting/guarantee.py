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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.privacy.accounting import (
    DEVIATIONS,
    TRACE_ACCOUNTANTS,
    accountant_for,
    base_delta,
    base_epsilon,
    conversions,
    joined,
    lower_bound,
    one_sample,
    own,
    pld,
    run_length,
)
from dpmcmc.privacy.accounting.conversions import (
    Bracket,
    ConcentratedDP,
    GaussianDP,
    RenyiDP,
)
from dpmcmc.privacy.accounting.deviations import of_pairs, with_deviations
from dpmcmc.privacy.accounting.events import (
    Adjacency,
    Event,
    gaussian_parameter,
    grouped,
    overflow_probability,
    queries,
    round_up,
    smallest,
    spend,
)


def check_delta(events: tuple[Event, ...], delta: float) -> None:
    """Refuse a δ at which these events have no finite ε whatever their noise: 0 is for pure releases alone."""
    if delta == 0 and events and all(e.mechanism == "pure" for e in events):
        return
    if not 0 < delta < 1:
        raise InputError(f"delta must lie strictly between 0 and 1, got {delta}")


# ----------------------------------------------------------------------------------------------------
# A guarantee for k records at once: those of one household, or all that one person contributed.
#
#     guarantee.for_group(5)                     # GroupGuarantee: two data sets that are 5 neighbours apart
#     guarantee.for_group(5, one_sided=True)     # add_remove, zero_out: a data set with and without 5 records
#
# By default any k steps of the adjacency may lie between the two data sets, some records leaving and others joining.
# All on one side is less, and what a household asks for that is there or is not.
#
# The result is the smallest of the bounds that are proved for what was charged:
#
# * Gaussian releases, posterior draws and noisy descents: a μ-GDP release is kμ-GDP for k records (Dong, Roth and Su
#   2022, Theorem 2.14), which is attained: z becomes z/k. A pure release costs kε.
# * Poisson-sampled steps, ``one_sided`` alone and by accountant pld: how many of the k take part is binomial
#   (``accounting/pld.py``). Its proof needs one side without any of them: with records on both, both laws are
#   mixtures, and nothing is proved.
# * Everything, by conversion of the curve δ(ε) of one record. Along a path of k neighbours
#
#       P_0 <= d_1 + e^{ε_1} P_1 <= d_1 + e^{ε_1}(d_2 + e^{ε_2} P_2) <= …,     d_i = δ(ε_i), or 1 − e^{−ε}(1 − δ(ε)) at
#       −ε
#
#   so k records have ε = Σ ε_i and δ = Σ d_i e^{ε_1 + … + ε_{i−1}}. ANY choice of the ε_i is a proof; equal ones give
#   the textbook's kε and δ(e^{kε} − 1)/(e^ε − 1), and the best ones Theorem 2.14's composition of trade-off functions.
#
# A deviation (batch overflow, approximate draw: total variation β) from a law that every data set has of its own
# concerns only the two ends of the path, and adds (1 + e^ε)β once. Where the ideal law is one of a pair of neighbours,
# every step pays: d_i = δ(ε_i) + (1 + e^{ε_i})β, and only the conversion is proved. ``deviations.py`` says which is
# which, and why. For more than a few people, a person as the unit of clipping is far better
# (``docs/how-to/choosing_a_guarantee.md``).
#
# Claim: k records have the guarantee that ``for_group`` says.
# Proof: exact releases, or a path of k neighbours on the curve δ(ε).
# Held by: test_gaussian_releases_are_exact, test_a_posterior_draw_and_a_descent_are_exact,
# test_conversion_covers_brute_force_on_discrete_mechanisms, "a group charged kε at the same δ"

#: Mechanisms that are exact for a group when z is divided, and ε multiplied, by its size.
_SCALED = ("gaussian", "posterior_draw", "noisy_descent", "pure")
#: Points of the one-record curve that a path may use, and starting points of paths.
_POINTS = 128
_PATHS = 1024
#: One step of all paths, in points of ``events.py``.
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
    guarantee: Guarantee,
    size: int,
    delta: float | None = None,
    *,
    one_sided: bool = False,
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
    if one_sided and guarantee.adjacency.sensitivity > 1:
        raise InputError(
            "one_sided: a record that is replaced, or whose label is, is on both sides, under "
            f"{guarantee.adjacency}; leave it out"
        )
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise InputError(f"size must be a whole number of records >= 1, got {size!r}")
    delta = guarantee.delta if delta is None else delta
    check_delta(guarantee.events, delta)
    size = int(size)
    epsilon = guarantee.epsilon_at(delta) if size == 1 else _epsilon_of_group(guarantee, size, delta, one_sided)
    if own.is_ones_own(guarantee.accountant):
        # A group costs no less than one of its records, and at rate 1 what a record of its size does.
        whole = tuple(_scaled(e, size) for e in guarantee.events if e.mechanism == "gaussian")
        lowest = max(_lowest(events, guarantee.adjacency, delta) for events in (guarantee.events, whole))
        own.refuse_below(lowest, epsilon, guarantee.accountant, delta)
    return GroupGuarantee(
        size,
        epsilon,
        delta,
        guarantee.adjacency,
        guarantee,
        guarantee.assumptions,
        one_sided,
    )


def _epsilon_of_group(guarantee: Guarantee, size: int, delta: float, one_sided: bool) -> float:
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
    epsilon = np.zeros_like(at)
    spent = np.zeros_like(at)
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
        at = at[alive]
        epsilon = epsilon[alive]
        spent = spent[alive]
        if not at.size:
            return math.inf
    epsilon = epsilon + _ROUNDING * size * np.abs(slopes).max()
    spent = spent * (1 + _ROUNDING * size)
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
    name = guarantee.accountant
    adjacency = guarantee.adjacency
    kept = [e for e in guarantee.events if e.count and e.mechanism not in DEVIATIONS]
    scaled = [_scaled(e, size) for e in kept if e.mechanism in _SCALED or (e.rate == 1 and _sampled(e))]
    steps = [e for e in kept if e.mechanism == "poisson_gaussian" and 0 < e.rate < 1]
    if len(scaled) + len(steps) < sum(e.rate > 0 for e in kept):
        return None
    accountant_for(name, scaled, adjacency)
    if not steps:
        return functools.partial(base_epsilon, name, scaled, adjacency)
    if not one_sided or name != "pld" or size > pld.MOST or any(not e.noise_multiplier for e in steps):
        return None
    releases, rest = one_sample.split(scaled)
    mu = gaussian_parameter(queries(rest), adjacency)
    if math.isinf(mu):
        return None
    kinds = [(e.noise_multiplier, e.rate, e.count) for e in grouped(queries(steps))]
    # The cost of pure releases is known apart; the grid is for the rest.
    rough = guess if math.isfinite(guess) else size * guarantee.epsilon

    def epsilon(delta: float) -> float:
        curve = pld.composed_delta(kinds, mu, size, rough, delta)
        if curve is None:
            return math.inf

        def meets(e: float) -> bool:
            return one_sample.mixed(releases, curve, e) <= delta

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

    def for_group(self, size: int, delta: float | None = None, *, one_sided: bool = False) -> GroupGuarantee:
        """The guarantee between data sets that are ``size`` neighbours apart; see ``guarantee.py``.

        With ``one_sided``, only between a data set and the one without ``size`` of its records.
        """

        return for_group(self, size, delta, one_sided=one_sided)

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
