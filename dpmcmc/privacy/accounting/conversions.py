r"""A run's events as a Gaussian trade-off, as zCDP, and as a Rényi curve, each proved from the same events.

**Deviations.** A batch may be truncated, and noise in integers is near a Gaussian's (``deviations.py``). So a run is
within total variation β of an ideal one, and no such run is μ-GDP, zCDP or Rényi-private by itself: these promise that
every outcome is possible on both sides. Each result here is of the ideal run and states β beside it; (ε, δ) of the
ideal run is (ε, δ + (1 + e^ε)β) of the real one.

**Gaussian trade-off** (Dong, Roth and Su 2022). A run is μ-GDP where δ(ε) <= δ_μ(ε) for all ε, δ_μ that of N(0, 1) and
N(μ, 1) (their Corollary 2.13; ε < 0 follows from ε > 0, since neighbours are symmetric). Gaussian releases compose to
one μ exactly. Sampled steps are μ-GDP for no μ below that of the same steps without sampling: with probability q^k a
record is in all k of them, so that δ(ε)/δ_μ(ε) grows without bound for every smaller μ. Therefore a ``slack`` s is
allowed, and μ is the least found with

    δ(ε) <= δ_μ(ε) + s      for every ε >= 0.

A pure release at δ = 0 is μ-GDP for μ = 2Φ⁻¹(e^ε/(1 + e^ε)), with no slack: its trade-off has two straight pieces,
which meet on that of this Gaussian.

At points ε_0 = 0 < ε_1 < … it is enough that δ(ε_i) <= δ_μ(ε_{i+1}) + s, since both sides fall with ε; and δ <= s at
the last point. The least μ is found by bisection.

**zCDP** (Bun and Steinke 2016): D_α <= ρα for all α > 1. A Gaussian release has ρ = μ²/2, and a sampled step has at
most that of its Gaussian, since D_α is jointly quasi-convex. Under add_remove and zero_out D_α/α tends to it as α
grows, so there is no smaller one: amplification shows in the Rényi curve alone. Under replace_one a Poisson step of
c = 1/z has

    D_α <= αc²/2 − log(1−q),

for P₋ >= (1−q)N(0) in E_{P₋}(P₊/P₋)^α, and quasi-convexity again; ρ is then the largest D_α/α. D_α rises with α, so
between two orders D_α/α is at most D at the larger over the smaller. A pure release has ρ = ε²/2 (their Proposition
1.4).

**Rényi curve**: D_α of each event as accountant rdp charges it, added up (Mironov 2017, Proposition 1). A pure release
is dominated by randomised response (Kairouz, Oh and Viswanath 2015), with
D_α = log((e^{αε} + e^{(1−α)ε})/(1 + e^ε))/(α − 1).

Claim: A run is μ-GDP, zCDP or Rényi-private as stated, beside its deviations.
Proof: from the same events, for each sampling and adjacency.
Held by: test_gaussian_releases_are_exactly_gaussian,
test_sampled_steps_lie_below_their_gaussian_trade_off_and_close_to_it, test_rho_bounds_the_renyi_curve_at_every_order,
test_the_renyi_curve_is_dp_accounting_s, test_a_pure_guarantee_has_a_gaussian_trade_off_below_it,
test_deviations_are_stated_beside_every_term
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit, ndtri

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.privacy.accounting import base_delta, base_epsilon, pld, pure, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.bisection import smallest
from dpmcmc.privacy.accounting.events import OBJECTIVES, Event, overflow_probability
from dpmcmc.privacy.accounting.gaussian import gaussian_delta
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter, queries
from dpmcmc.privacy.accounting.grouping import grouped

#: Share of a guarantee's δ that a Gaussian trade-off may leave out, unless another is asked for.
_SLACK_SHARE = 0.01
#: Points at which two curves are compared.
_POINTS = 512
#: Relative rounding of sums of a few products.
_ROUNDING = 1e-12


class Bracket(NamedTuple):
    """Bounds on ε: no accountant that is right says less than ``lower``, and ``upper`` is proved.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import account
        >>> guarantee = account(8.0, steps=4, sampling=Full(), num_records=1000, delta=1e-6)
        >>> lower, upper = guarantee.bracket()
        >>> lower <= guarantee.epsilon == upper <= 1.001 * lower
        True
    """

    lower: float
    upper: float


class GaussianDP(NamedTuple):
    """The ideal run has δ(ε) <= δ_μ(ε) + ``slack`` for every ε >= 0, and the real one is within ``deviation`` of it.

    Attributes:
        mu: μ; infinite where nothing finite is proved.
        slack: s; 0 where the run is μ-GDP.
        deviation: β, in total variation.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import account
        >>> guarantee = account(8.0, steps=4, sampling=Full(), num_records=1000, delta=1e-6)
        >>> round(guarantee.gdp().mu, 3)
        0.5
        >>> guarantee.gdp().delta(guarantee.epsilon) <= 1.001e-6
        True
    """

    mu: float
    slack: float
    deviation: float

    def delta(self, epsilon: float) -> float:
        """Total δ at ε >= 0 that this proves."""
        total = gaussian_delta(self.mu, epsilon) + self.slack
        if self.deviation:
            # Beyond, e^ε is no float.
            total += (1 + math.exp(epsilon)) * self.deviation if epsilon < 700 else 1.0
        return min(1.0, total)


class ConcentratedDP(NamedTuple):
    """The ideal run is ρ-zCDP, and the real one is within ``deviation`` of it in total variation.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import account
        >>> guarantee = account(8.0, steps=4, sampling=Full(), num_records=1000, delta=1e-6)
        >>> round(guarantee.zcdp().rho, 3)
        0.125
    """

    rho: float
    deviation: float


class RenyiDP(NamedTuple):
    """The ideal run has these Rényi divergences, and the real one is within ``deviation`` of it in total variation.

    Attributes:
        orders: α > 1, (n,).
        divergences: D_α, (n,), of the larger order of the two data sets; infinite where nothing is proved.
        deviation: β.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import account
        >>> guarantee = account(8.0, steps=4, sampling=Full(), num_records=1000, delta=1e-6)
        >>> guarantee.renyi([2, 8]).divergences.round(3).tolist()
        [0.25, 1.0]
    """

    orders: np.ndarray
    divergences: np.ndarray
    deviation: float


def gdp(
    name: str,
    events: Sequence[Event],
    adjacency: Adjacency,
    delta: float,
    slack: float | None = None,
) -> GaussianDP:
    """Least Gaussian trade-off that is found above the δ(ε) of an accountant.

    Args:
        name: of the accountant.
        events: of a guarantee.
        adjacency, delta: of the guarantee.
        slack: s >= 0; by default 0 where every event is a Gaussian release or δ is 0, else a hundredth of δ.

    Raises:
        InputError: a slack that is negative, or 0 where there are pure releases or none is proved without.
    """
    deviation = overflow_probability(events)
    releases, rest = pure.split(events)
    parts = queries(rest)
    if not releases and all(e.mechanism == "gaussian" for e in parts):
        mu = gaussian_parameter(parts, adjacency) * (1 + 1e-14)
        return GaussianDP(mu, slack or 0.0, deviation)
    if slack is None and delta == 0:
        # All releases are pure, and the trade-off of ε-DP touches this Gaussian's where its two pieces meet.
        most = 2 * ndtri(expit(pure.total(releases))) * (1 + 1e-12)
        return GaussianDP(float(most), 0.0, deviation)
    if slack is None:
        slack = _SLACK_SHARE * delta
    if not 0 < slack < 1:
        raise InputError(
            f"slack must lie strictly between 0 and 1 where records are sampled or a release is pure, got {slack}"
        )
    last = base_epsilon(name, events, adjacency, slack)
    if not math.isfinite(last):
        return GaussianDP(math.inf, slack, deviation)
    # The last point is where δ is known to be at most the slack.
    epsilons = np.append(np.linspace(0.0, last, _POINTS, endpoint=False), last)
    read: Callable[[float], float] | None = None
    if name == "pld" and not releases:
        read = pld.near(rest, adjacency, last, slack)
    if read is None:
        read = functools.partial(base_delta, name, events, adjacency)
    charged = np.array([read(float(e)) for e in epsilons])
    charged[-1] = min(charged[-1], slack)
    missing = charged[:-1] * (1 + _ROUNDING) - slack

    def above(mu: float) -> bool:
        return all(
            gaussian_delta(mu, float(epsilon)) * (1 - _ROUNDING) >= need
            for epsilon, need in zip(epsilons[1:], missing, strict=True)
            if need > 0
        )

    high = 1.0
    while not above(high):
        high *= 2
        if high > 1e6:
            return GaussianDP(math.inf, slack, deviation)
    return GaussianDP(smallest(above, 0.0, high, 1e-6), slack, deviation)


def zcdp(events: Iterable[Event], adjacency: Adjacency) -> ConcentratedDP:
    """Least ρ that is proved of these events.

    Raises:
        UnsupportedCombination: a noisy objective, whose privacy loss has no concentrated bound here.
    """
    events = list(events)
    _refuse_objectives(events, "zCDP")
    parts = queries(pure.split(events)[1])
    rdp.check(parts, adjacency)
    # A sampled step costs at most what it costs with every record in it.
    whole = [Event("gaussian", e.noise_multiplier, 1.0, e.count) for e in parts]
    rho = gaussian_parameter(whole, adjacency) ** 2 / 2
    if math.isfinite(rho) and adjacency == Adjacency.REPLACE_ONE:
        rho = min(rho, _largest_ratio(parts, adjacency))
    rho += math.fsum(e.count * (e.epsilon or 0.0) ** 2 / 2 for e in _pure(events))
    return ConcentratedDP(rho * (1 + _ROUNDING), overflow_probability(events))


def _largest_ratio(parts: Sequence[Event], adjacency: Adjacency) -> float:
    """Upper bound on D_α/α over all α > 1, of queries whose noise is not 0."""
    orders = 1 + np.geomspace(1e-3, 1e4, 400)
    fixed = any(e.mechanism == "fixed_size_gaussian" for e in parts)
    if fixed:
        return math.inf
    total = np.zeros(len(orders))
    slope = 0.0
    offset = 0.0
    for e in grouped(parts):
        total += e.count * _divergences(e, adjacency, orders)
        reach = 1.0 if e.mechanism == "poisson_gaussian" else adjacency.sensitivity
        slope += e.count * (reach / e.noise_multiplier) ** 2 / 2
        if e.mechanism == "poisson_gaussian":
            offset -= e.count * math.log1p(-e.rate)
    # Beyond the last order the cost is at most slope·α + offset.
    last = slope + offset / orders[-1]
    return float(max(total[0], np.max(total[1:] / orders[:-1]), last))


def _divergences(e: Event, adjacency: Adjacency, orders: np.ndarray) -> np.ndarray:
    """D_α of one repetition of a query at each order."""
    found = rdp.one_step(e, adjacency, tuple(orders))
    if e.mechanism != "poisson_gaussian" or adjacency != Adjacency.REPLACE_ONE:
        return found
    with np.errstate(divide="ignore"):
        half = np.square(np.divide(1.0, e.noise_multiplier)) / 2
    return np.minimum(found, orders * half - math.log1p(-e.rate))


def renyi(events: Iterable[Event], adjacency: Adjacency, orders: Sequence[float]) -> RenyiDP:
    """Rényi divergences of these events.

    Args:
        events: of a guarantee.
        adjacency: of the guarantee.
        orders: α > 1; whole numbers where batches have a fixed size.

    Raises:
        UnsupportedCombination: no derivation for the sampling under this adjacency, or a noisy objective.
        InputError: an order that is at most 1, or not whole with fixed-size batches.
    """
    events = list(events)
    _refuse_objectives(events, "Rényi divergence")
    alpha = np.asarray(orders, np.float64)
    if alpha.ndim != 1 or not np.all(np.isfinite(alpha) & (alpha > 1)):
        raise InputError(f"orders must be numbers above 1, got {orders!r}")
    parts = queries(pure.split(events)[1])
    rdp.check(parts, adjacency)
    fixed = any(e.mechanism == "fixed_size_gaussian" for e in parts)
    if fixed and np.any(alpha != np.round(alpha)):
        raise InputError(
            "orders must be whole numbers from 2 on: the theorem for batches of a fixed size has no others"
        )
    total = np.zeros(len(alpha))
    for e in parts:
        total += e.count * _divergences(e, adjacency, alpha)
    for e in _pure(events):
        epsilon = e.epsilon or 0.0
        log_moment = np.logaddexp(alpha * epsilon, (1 - alpha) * epsilon)
        total += e.count * (log_moment - np.logaddexp(0.0, epsilon)) / (alpha - 1)
    return RenyiDP(alpha, total * (1 + _ROUNDING), overflow_probability(events))


def _pure(events: Iterable[Event]) -> list[Event]:
    return [e for e in events if e.mechanism == "pure"]


def _refuse_objectives(events: Iterable[Event], what: str) -> None:
    for e in events:
        if e.mechanism in OBJECTIVES:
            raise UnsupportedCombination(
                f"{what} of {e.mechanism} is not derived here; ask for epsilon at a delta instead."
            )
