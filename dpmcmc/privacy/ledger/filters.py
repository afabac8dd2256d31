r"""Filters: when the next run may still be admitted, if runs are chosen by earlier results.

Adding the ε of all runs wastes most of a budget. Composing the runs that were made as if they had been planned (by
PLD, or at the best Rényi order in hindsight) is wrong: an analyst who chooses the next mechanism by an earlier result
can exceed an ε that every single path meets (``tests/test_ledger_filter.py`` has an exact example). A filter fixes one
additive quantity and its budget in advance:

* ``renyi``: Rényi divergence at ONE order α adds along every path (Feldman and Zrnic 2021, Theorem 3.1: with
  L the loss and ρ_t the divergence of step t given the history, exp((α−1)(L_t − Σρ)) is a supermartingale).
  At r, ε = r + log(1 − 1/α) − (log δ' + log α)/(α − 1) (Canonne, Kamath and Steinke 2020, Proposition 12).
* ``zcdp``: ρ adds. It is the filter above at every order at once, with budgets αρ, so ε is the least over orders.
* ``gdp``: μ² adds (Smith and Thakurta 2022, Theorem 1), and the whole is exactly one Gaussian release of μ.

Costs are conditional on the history, step by step, so runs may overlap in time: their steps are one sequence.

**Deviations.** A step that truncates its batch, or an approximate draw, is within total variation β_i of what is
charged, on any data set and after any history h. Σβ_i <= β holds on every path, as a second budget. Let P, Q be the
laws of all releases on neighbouring data, P⁰, Q⁰ those with the charged steps in place of the true ones and the SAME
rule of the history for what is run next, filter included. Couple P with P⁰ step by step, each step optimally given the
common history: they part with probability at most E Σβ_i(h) <= β, so TV(P, P⁰) <= β, and likewise for Q. The filter's
budgets hold on every path, those of P⁰ among them, so P⁰(S) <= e^ε Q⁰(S) + δ', and

    P(S) <= P⁰(S) + β <= e^ε Q⁰(S) + δ' + β <= e^ε Q(S) + δ' + (1 + e^ε)β.

β is fixed such that (1 + e^ε)β is a share of δ, and δ' is the rest.

Claim: Runs that are chosen by earlier results stay within a ledger's budget.
Proof: one additive quantity with a budget that is fixed in advance (Feldman and Zrnic 2021; Smith and Thakurta 2022).
Held by: test_no_path_of_an_adaptive_analyst_spends_more_than_the_budget,
test_what_a_filter_admits_is_within_the_promise_when_the_choice_is_adaptive,
test_a_step_that_reveals_all_with_the_allowed_probability_stays_within_the_promise,
"ledger charges the best order in hindsight"
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtri_exp

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting import (
    joined,
    objective,
    overflow_probability,
    rdp,
    run_length,
)
from dpmcmc.privacy.accounting.charging import OVERFLOW_SHARE
from dpmcmc.privacy.accounting.events import (
    OBJECTIVES,
    QUERIES,
    Adjacency,
    Event,
    gaussian_parameter,
    queries,
    round_down,
    round_up,
)
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon, gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger.chain import LedgerError

# ----------------------------------------------------------------------------------------------------
# Cost of one event in the unit of a filter: a bound that holds whatever was released before it.
#
# * Gaussian releases, and what is exactly worth one (a posterior draw, the last step of a descent), have μ = Δ/z:
#   D_α = αμ²/2, ρ = μ²/2, and μ itself.
# * A sampled query has the Rényi divergence of ``accounting/rdp.py``. In zCDP and GDP it is charged as the query of
#   every record: hockey-stick divergences are jointly convex, so revealing whom the step selected gives an upper bound,
#   and that is (1 − q)·0 + q·H <= H.
# * A pure ε-release is dominated by randomised response (Kairouz, Oh and Viswanath 2015), so its Rényi divergence is at
#   most that of Bernoulli(e^ε/(1 + e^ε)) from its complement; ρ = ε²/2 (Bun and Steinke 2016, Proposition 1.4). In GDP
#   μ = 2Φ⁻¹(e^ε/(1 + e^ε)): the trade-off function of randomised response is two chords, from (0, 1) and (1, 0) to its
#   kink (x, x), x = 1/(1 + e^ε); that of a μ-Gaussian is convex and passes through all three points, so it is below.
# * An objective perturbation has a profile δ(t) (``accounting/objective.py``) for both orders of the pair. Expanding
#   γ^α in hinges, for P and Q with H_γ(P‖Q), H_γ(Q‖P) <= δ(log γ),
#
#       E_Q (P/Q)^α = 1 + α(α−1) ∫₁^∞ γ^{α−2} H_γ(P‖Q) + γ^{−α−1} H_γ(Q‖P) dγ
#                  <= 1 + α(α−1) ∫₀^∞ (e^{(α−1)t} + e^{−αt}) δ(t) dt.
#
#   The true profile never rises, so over a cell of t it is below the bound at the cell's left end. Beyond the last
#   cell, T >= c + ν²/2, that file's M <= c + max(0, m) gives δ(t) <= P(c + L > t), L ~ N(ν²/2, ν²), ν = Δμ, and the
#   rest of the integral is at most 2/(α−1) · e^{(α−1)c + α(α−1)ν²/2} · Φ(−(T − c − ν²/2 − (α−1)ν²)/ν).

#: Relative room for the rounding of sums and special functions, on the private side.
_COST_ROUNDING = 1e-9
#: Cells of the objective perturbation's integral per unit of α·t, and their limits: about a percent of its cost.
_CELLS_PER_UNIT = 20
_FEWEST_CELLS = 400
_MOST_CELLS = 3000


def total(events: Iterable[Event], adjacency: Adjacency, one: Callable[[Event], float]) -> float:
    """Σ count · one(event) over what ``events`` release, rounded up; infinite where a release has no noise.

    Raises:
        UnsupportedCombination: an event without a derivation under this adjacency.
    """
    parts = queries(events)
    rdp.check(parts, adjacency)
    value = math.fsum(e.count * one(e) for e in parts) * (1 + _COST_ROUNDING)
    return math.inf if math.isnan(value) else value


def renyi(event: Event, adjacency: Adjacency, order: int) -> float:
    """Rényi divergence of one repetition at an integer order >= 2, the larger of both directions."""
    if event.mechanism == "pure":
        assert event.epsilon is not None
        return randomised_response(event.epsilon, order)
    if event.mechanism in OBJECTIVES:
        return _objective_perturbation(event, adjacency, order)
    _check_query(event, "renyi")
    if event.noise_multiplier == 0:
        return math.inf
    return float(rdp.one_step(event, adjacency, (float(order),))[0])


def zcdp(event: Event, adjacency: Adjacency) -> float:
    """ρ of one repetition.

    Raises:
        UnsupportedCombination: an objective perturbation.
    """
    if event.mechanism == "pure":
        assert event.epsilon is not None
        return event.epsilon**2 / 2
    return _mu(event, adjacency, "zcdp") ** 2 / 2


def gdp(event: Event, adjacency: Adjacency) -> float:
    """μ² of one repetition.

    Raises:
        UnsupportedCombination: an objective perturbation.
    """
    if event.mechanism == "pure":
        assert event.epsilon is not None
        # log of 1/(1 + e^ε); near 1/2 its quantile has an absolute error of a few 1e-16.
        return (-2 * float(ndtri_exp(-np.logaddexp(0.0, event.epsilon))) + 1e-15) ** 2 if event.epsilon else 0.0
    return _mu(event, adjacency, "gdp") ** 2


def randomised_response(epsilon: float, order: float) -> float:
    """D_α of randomised response at ε: log[cosh((α − ½)ε)/cosh(ε/2)]/(α − 1)."""
    a = order * epsilon / 2
    b = (order - 1) * epsilon / 2
    if a > 300:
        value = np.logaddexp(order * epsilon, (1 - order) * epsilon) - np.logaddexp(0.0, epsilon)
    else:  # 2 sinh a sinh b is the difference of the two cosh, without their cancellation
        value = math.log1p(2 * math.sinh(a) * math.sinh(b) / math.cosh(epsilon / 2))
    return min(epsilon, float(value) / (order - 1) * (1 + _COST_ROUNDING))


def _check_query(event: Event, name: str) -> None:
    """Refuse what a later version may charge for, rather than take it for a Gaussian query."""
    if event.mechanism not in QUERIES:
        raise UnsupportedCombination(f"filter {name} has no derivation for {event.mechanism}.")


def _mu(event: Event, adjacency: Adjacency, name: str) -> float:
    """μ of one repetition, sampled or not."""
    if event.mechanism in OBJECTIVES:
        raise UnsupportedCombination(
            f"filter {name} does not cover objective perturbation; use a ledger with filter renyi."
        )
    _check_query(event, name)
    return gaussian_parameter([Event("gaussian", event.noise_multiplier, 1.0, 1)], adjacency)


def _objective_perturbation(event: Event, adjacency: Adjacency, order: int) -> float:
    """Rényi divergence of an objective perturbation at an order, by the integral of the module's docstring."""
    if event.noise_multiplier == 0:
        return math.inf
    assert event.epsilon is not None
    alpha = float(order)
    c = event.epsilon
    nu = adjacency.sensitivity / event.noise_multiplier
    middle = c + nu**2 / 2 + (alpha - 1) * nu**2
    last = middle + 12 * nu
    count = int(np.clip(_CELLS_PER_UNIT * alpha * last, _FEWEST_CELLS, _MOST_CELLS))
    t = np.linspace(0.0, last, count + 1)
    width = last / count
    with np.errstate(divide="ignore"):
        profile = np.log([objective.delta(event, adjacency, float(e)) for e in t[:-1]])
    # ∫ of e^{(α−1)t} and of e^{−αt} over each cell.
    up = (alpha - 1) * t[:-1] + math.log(math.expm1((alpha - 1) * width) / (alpha - 1))
    down = -alpha * t[:-1] + math.log(-math.expm1(-alpha * width) / alpha)
    tail = math.log(2 / (alpha - 1)) + (alpha - 1) * c + alpha * (alpha - 1) * nu**2 / 2 + float(log_ndtr(-12.0))
    excess = math.log(alpha * (alpha - 1)) + float(logsumexp([*(profile + np.logaddexp(up, down)), tail]))
    return float(np.logaddexp(0.0, excess)) / (alpha - 1) * (1 + _COST_ROUNDING)


#: Budgets are rounded down by this much, costs up (``filters.py``).
_ROUNDING = 1e-12
#: Orders at which zCDP is converted.
_ORDERS = 1 + np.geomspace(1e-2, 1e9, 4000)


class Filter(Protocol):
    """A quantity that adds along every path."""

    @property
    def unit(self) -> str:
        """Name of the quantity, for people."""

    def cost(self, events: Iterable[Event], adjacency: Adjacency) -> float:
        """Return the spending of a run, rounded up; infinite without noise."""

    def budget(self, epsilon: float, delta: float) -> float:
        """The most that may be spent for (ε, δ), rounded down; <= 0 where nothing may."""

    def epsilon(self, spent: float, delta: float) -> float:
        """ε of a budget of so much."""

    def gaussian(self, amount: float) -> float:
        """μ of the one Gaussian release that costs so much."""


@dataclass(frozen=True)
class Renyi:
    """Rényi divergence at one integer order >= 2 (fixed-size sampling has a theorem at integers only)."""

    order: int

    @property
    def unit(self) -> str:
        """Name of the quantity, for people."""
        return f"Rényi divergence at order {self.order}"

    def cost(self, events: Iterable[Event], adjacency: Adjacency) -> float:
        """Σ D_α over the events."""
        return total(events, adjacency, lambda e: renyi(e, adjacency, self.order))

    def budget(self, epsilon: float, delta: float) -> float:
        """Largest r whose conversion, in the module's docstring, gives ε at δ."""
        return _down(float(_renyi_budget(np.array([self.order]), epsilon, delta)[0]))

    def epsilon(self, spent: float, delta: float) -> float:
        """ε of a divergence of so much, by the same conversion."""
        return _epsilon_of(np.array([self.order]), spent * np.ones(1), delta) if spent > 0 else 0.0

    def gaussian(self, amount: float) -> float:
        """μ of the Gaussian release whose divergence αμ²/2 is so much."""
        return math.sqrt(max(0.0, 2 * amount / self.order))


@dataclass(frozen=True)
class ZeroConcentrated:
    """ρ of zero-concentrated differential privacy; sampled queries are charged as unsampled ones."""

    unit = "ρ"

    def cost(self, events: Iterable[Event], adjacency: Adjacency) -> float:
        """Σ ρ over the events."""
        return total(events, adjacency, lambda e: zcdp(e, adjacency))

    def budget(self, epsilon: float, delta: float) -> float:
        """The largest ρ that one of the orders certifies."""
        return _down(float(np.max(_renyi_budget(_ORDERS, epsilon, delta) / _ORDERS)))

    def epsilon(self, spent: float, delta: float) -> float:
        """The least ε over all orders, each of which is a proof."""
        return _epsilon_of(_ORDERS, spent * _ORDERS, delta) if spent > 0 else 0.0

    def gaussian(self, amount: float) -> float:
        """μ of the Gaussian release whose ρ = μ²/2 is so much."""
        return math.sqrt(max(0.0, 2 * amount))


@dataclass(frozen=True)
class GaussianFilter:
    """μ² of Gaussian differential privacy; sampled queries are charged as unsampled ones."""

    unit = "μ²"

    def cost(self, events: Iterable[Event], adjacency: Adjacency) -> float:
        """Σ μ² over the events."""
        return total(events, adjacency, lambda e: gdp(e, adjacency))

    def budget(self, epsilon: float, delta: float) -> float:
        """Return μ² of the Gaussian that is exactly (ε, δ)."""
        return _down(gaussian_mu(epsilon, delta) ** 2)

    def epsilon(self, spent: float, delta: float) -> float:
        """ε of one Gaussian release with this μ², exactly."""
        return gaussian_epsilon(math.sqrt(spent), delta)

    def gaussian(self, amount: float) -> float:
        """μ, the root of μ²."""
        return math.sqrt(max(0.0, amount))


#: Filters that ``init`` may choose; ``programme`` is its own (``filters.py``).
FILTERS = ("renyi", "zcdp", "gdp", "programme")


def make(name: str, order: int | None) -> Filter:
    """The additive filter of that name."""
    if name == "renyi":
        assert order is not None
        return Renyi(order)
    return ZeroConcentrated() if name == "zcdp" else GaussianFilter()


def best_order(
    epsilon: float,
    delta: float,
    typical: Iterable[Event] = (),
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> int:
    """The integer order >= 2 that admits the most runs like a typical one.

    Minibatch runs want lower orders: beyond some order, sampling saves them little.

    Args:
        epsilon: of the whole.
        delta: δ' of the whole.
        typical: events of a run, public; empty for full-batch Gaussian releases.
        adjacency: of the run.
    """
    last = max(8 * (2 - math.log(delta)) / epsilon + 16, 1025)
    typical = tuple(typical)
    fine, points = (64, 48) if typical else (1024, 4096)
    orders = np.unique(np.concatenate([np.arange(2, fine + 1), np.round(np.geomspace(fine, last, points))]))
    cost = np.array([Renyi(int(a)).cost(typical, adjacency) for a in orders]) if typical else orders
    return int(orders[np.argmax(_renyi_budget(orders, epsilon, delta) / cost)])


def split_delta(epsilon: float, delta: float, share: float) -> tuple[float, float]:
    """(δ' left to the charged steps, β left to deviations): (1 + e^ε)β is ``share`` of δ."""
    beta = share * delta * math.exp(-float(np.logaddexp(0.0, epsilon)))
    return delta * (1 - share) * (1 - _ROUNDING), beta * (1 - _ROUNDING)


def _epsilon_of(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """Least ε at δ that Rényi divergences at ``orders`` certify, all holding at once, rounded up."""
    return max(0.0, rdp.epsilon_of(orders, divergences, delta) * (1 + _ROUNDING))


def _renyi_budget(orders: np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """r at each order, from the conversion solved for it."""
    return epsilon - np.log1p(-1 / orders) + (math.log(delta) + np.log(orders)) / (orders - 1)


def _down(value: float) -> float:
    return value * (1 - _ROUNDING) - 1e-15 if value > 0 else value


# ----------------------------------------------------------------------------------------------------
# A programme: runs fixed before the first release, composed tightly, admitted in any order.
#
# A programme's content is fixed at ``init``; only whether, when and in which order its items run may depend on results.
# Then their joint ε by PLD holds. Proof: fix neighbouring data sets and the direction. Each step of each item has a
# dominating pair (A_j, B_j) that no history changes (that is what the accountants compose), so by Blackwell's theorem
# its output given any history h is K_{j,h}(x_j), a randomised function of a draw x_j from A_j, or from B_j. Draw all
# the x_j first, independently. The transcript of the analyst is then a function of (x_1, ..., x_k) and of independent
# coins: which step comes next is a function of what was released, each x_j is looked at at most once, and one never
# looked at changes nothing. So the pair of transcripts is post-processing of (ΠA_j, ΠB_j), whose ε(δ) the accountant
# bounds from above. Rényi composition at every order holds too: each order's sum is at most the programme's on every
# path (``filters.py``), as does basic composition of fixed parts. Deviations add up to the programme's β on every path,
# and cost (1 + e^ε)β by the argument of ``filters.py``.
#
# Nothing here covers an item whose events were changed by a result: it must be exactly one of the programme's.
#
# Claim: A programme of fixed runs costs their joint ε, in any order.
# Proof: all draws of the dominating pairs may be taken before the first choice.
# Held by: test_a_programme_admits_each_of_its_runs_once_in_any_order, test_a_programme_beyond_its_promise_is_refused

#: Accountants whose bound is one of the product of the pairs, or of fixed sums; the tightest first.
_ACCOUNTANTS = ("pld", "rdp", "one_sample")


def item(events: Iterable[Event]) -> str:
    """Events as a text that is equal exactly for equal lists, whatever their order."""
    return json.dumps(sorted(json.dumps(e.to_json(), sort_keys=True) for e in run_length(events)))


def joint_epsilon(guarantees: Sequence[Guarantee], adjacency: Adjacency, delta: float) -> float:
    """ε of all of them together at total δ, by the first accountant that covers them.

    Raises:
        UnsupportedCombination: no accountant covers them all.
    """
    events = tuple(e for g in guarantees for e in g.events)
    release = joined(*(g.release for g in guarantees))
    reasons = []
    for name in _ACCOUNTANTS:
        try:
            return Guarantee.from_events(
                events, delta=delta, adjacency=adjacency, accountant=name, release=release
            ).epsilon
        except UnsupportedCombination as error:
            reasons.append(str(error))
    raise UnsupportedCombination(" ".join(dict.fromkeys(reasons)))


# ----------------------------------------------------------------------------------------------------
# Terms that ``init`` fixes for good: the promise, the filter, and the budget that follows from them.

#: Share of δ kept for deviations (batch overflow, approximate draws); costs about a percent of a Rényi budget.
BUDGET_OVERFLOW_SHARE = 0.1
#: Beyond these float64 loses the budget.
_LARGEST_ORDER = 1_000_000
_SMALLEST_DELTA = 1e-250


@dataclass(frozen=True)
class Promise:
    """Bound that all runs on a data set together stay within.

    Attributes:
        name: of the data set.
        num_records: N, or None where it was not declared.
        adjacency: of every run.
        epsilon, delta: for all runs together.
        filter: one of ``filters.FILTERS``.
        order: of filter renyi; None for the best one, and for every other filter.
    """

    name: str
    num_records: int | None
    adjacency: Adjacency
    epsilon: float
    delta: float
    filter: str
    order: int | None

    def check(self) -> None:
        """Raise LedgerError for numbers that make no promise."""
        epsilon = self.epsilon
        delta = self.delta
        records = self.num_records
        order = self.order
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise LedgerError(f"epsilon must be a finite number > 0, got {epsilon}.")
        if not _SMALLEST_DELTA <= delta < 1:
            raise LedgerError(f"delta must be at least {_SMALLEST_DELTA:g} and below 1, got {delta}.")
        if records is not None and records < 1:
            raise LedgerError(f"num_records must be at least 1, got {records}.")
        if records is not None and delta >= 1 / records:
            raise LedgerError(
                f"delta {delta:g} is not below 1/N = {1 / records:.3g}, so publishing a random record outright would "
                "meet it; use a smaller delta."
            )
        if self.filter not in FILTERS:
            raise LedgerError(f"filter must be one of {', '.join(FILTERS)}, got {self.filter!r}.")
        if order is not None and (self.filter != "renyi" or not 2 <= order <= _LARGEST_ORDER or order != int(order)):
            raise LedgerError(
                f"order must be a whole number from 2 to {_LARGEST_ORDER}, of filter renyi alone; got {order} with "
                f"{self.filter}."
            )


@dataclass(frozen=True)
class Terms(Promise):
    """Terms fixed at ``init``: the promise, and the budget that follows from it.

    Attributes:
        budget: in the filter's unit; of a programme, its number of runs.
        overflow: budget of the probability that a step or a draw was not the one that is charged.
        items: of a programme, see ``programme.item``.
        joint_epsilon: of a programme.

    Example:
        >>> from dpmcmc.privacy import Ledger
        >>> terms = {"num_records": 1000, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-5}
        >>> ledger = Ledger.init("terms.ledger", name="people", **terms)
        >>> ledger.terms.epsilon, ledger.terms.filter
        (1.0, 'renyi')
    """

    budget: float
    overflow: float
    items: tuple[str, ...] = ()
    joint_epsilon: float | None = None

    @property
    def unit(self) -> str:
        """Unit of ``budget``, for people."""
        return "runs of the programme" if self.filter == "programme" else self.additive.unit

    @property
    def additive(self) -> Filter:
        """The filter, of all but a programme."""
        return make(self.filter, self.order)

    @property
    def charged_delta(self) -> float:
        """δ' left to the charged steps; the rest is for deviations."""
        return self.delta - self.overflow * (1 + math.exp(min(self.epsilon, 700.0)))


def fixed(promise: Promise, items: Sequence[Guarantee], typical: Sequence[Event], share: float) -> Terms:
    """Return the terms that keep a promise, with their budget.

    Args:
        promise: for all runs together.
        items: guarantees of the runs of a programme, and of that filter alone.
        typical: events of a run, for the default order.
        share: of δ that is kept for deviations.

    Raises:
        LedgerError: numbers that make no budget.
        UnsupportedCombination: a programme that no accountant covers.
    """
    promise.check()
    if (promise.filter == "programme") != bool(items):
        raise LedgerError("filter programme needs the guarantees of its runs, and no other filter takes them.")
    if not 0 <= share < 1:
        raise LedgerError(f"overflow_share must lie in [0, 1), got {share}.")
    return _programme(promise, items) if items else _additive(promise, typical, share)


def _programme(promise: Promise, items: Sequence[Guarantee]) -> Terms:
    """Terms of runs that are all fixed in advance."""
    adjacency = promise.adjacency
    epsilon = promise.epsilon
    delta = promise.delta
    if any(g.adjacency != adjacency for g in items):
        raise LedgerError(f"every run of the programme must promise adjacency {adjacency}.")
    joint = joint_epsilon(items, adjacency, delta)
    if not joint <= epsilon:
        raise LedgerError(
            f"the programme's {len(items)} runs cost epsilon {round_up(joint)} together at delta {delta:g}, more "
            f"than {epsilon:g}; lower the epsilon of its runs or raise the ledger's."
        )
    beta = math.fsum(overflow_probability(g.events) for g in items)
    names = tuple(item(g.events) for g in items)
    return Terms(
        **promise.__dict__,
        budget=float(len(items)),
        overflow=beta,
        items=names,
        joint_epsilon=joint,
    )


def _additive(promise: Promise, typical: Sequence[Event], share: float) -> Terms:
    """Terms of runs that may be chosen by earlier results."""
    epsilon = promise.epsilon
    delta = promise.delta
    order = promise.order
    charged, beta = split_delta(epsilon, delta, share)
    if promise.filter == "renyi" and order is None:
        order = best_order(epsilon, charged, typical, promise.adjacency)
    budget = make(promise.filter, order).budget(epsilon, charged)
    if not budget > 0:
        raise LedgerError(
            f"epsilon {epsilon:g} at delta {delta:g} leaves nothing to spend at order {order}; choose a larger order."
        )
    return Terms(**(promise.__dict__ | {"order": order}), budget=budget, overflow=beta)


# ----------------------------------------------------------------------------------------------------
# Largest ε that a refused run could ask for: the same run with all its noise scaled up by one factor.
#
# Pure releases take ε over the factor, and so does the curvature term of an objective perturbation. The answer is on
# the side that fits: the factor is half a percent beyond the smallest, ε is rounded down, and a plan that chooses its
# batch slots anew may let them overflow as often as its smallest ε allows.

#: A calibration that lands a little below the noise it was read from still fits.
_MARGIN = 1.005
_LARGEST_FACTOR = 2.0**60


def epsilon(
    guarantee: Guarantee,
    fits: Callable[[tuple[Event, ...]], bool],
    planned_against: float,
) -> float | None:
    """ε at the guarantee's own δ and accountant; None where no factor is enough.

    Args:
        guarantee: of the run.
        fits: whether events are admitted; never turns false as noise grows.
        planned_against: ε of the ledger. A plan made for it has room for batches at that ε, which no smaller ε of the
            run changes.
    """
    if fits(guarantee.events):
        return guarantee.epsilon
    overflow = _overflow(guarantee, planned_against)
    low = 1.0
    high = 2.0
    while not fits(scaled(guarantee.events, high, overflow)):
        low = high
        high = 2 * high
        if high > _LARGEST_FACTOR:
            return None
    while high > low * 1.0005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(scaled(guarantee.events, middle, overflow)) else (middle, high)
    found = Guarantee.from_events(
        scaled(guarantee.events, high * _MARGIN, overflow),
        delta=guarantee.delta,
        adjacency=guarantee.adjacency,
        accountant=guarantee.accountant,
        release=guarantee.release,
    ).epsilon
    return round_down(found, 3) if found > 0 else None


def scaled(events: tuple[Event, ...], factor: float, overflow: float = 1.0) -> tuple[Event, ...]:
    """Events with ``factor`` times the noise, and ``overflow`` times the probability of a truncated batch."""
    out = []
    for e in events:
        if e.mechanism == "batch_overflow":
            out.append(dataclasses.replace(e, rate=min(1.0, e.rate * overflow)))
        else:
            loss = None if e.epsilon is None else e.epsilon / factor
            out.append(dataclasses.replace(e, noise_multiplier=e.noise_multiplier * factor, epsilon=loss))
    return tuple(out)


def _overflow(guarantee: Guarantee, planned_against: float) -> float:
    """How much likelier truncation may become when the run is planned again with a smaller ε."""
    truncated = math.fsum(e.rate * e.count for e in guarantee.events if e.mechanism == "batch_overflow")
    share = OVERFLOW_SHARE * guarantee.delta
    if truncated <= share * math.exp(-math.log1p(math.exp(min(700.0, max(planned_against, guarantee.epsilon))))):
        return 1.0
    return max(1.0, share / 2 / truncated)
