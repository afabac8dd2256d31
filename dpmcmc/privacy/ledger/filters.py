"""Filters: when the next run may still be admitted, if runs are chosen by earlier results.

Adding the ε of all runs wastes most of a budget. Composing the runs that were made as if they had been planned (by
PLD, or at the best Rényi order in hindsight) is wrong: an analyst who chooses the next mechanism by an earlier result
can exceed an ε that every single path meets (``test_ledger_filter.py`` has an exact example). A filter fixes one
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

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpmcmc.privacy.accounting import (
    rdp,
)
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon, gaussian_mu
from dpmcmc.privacy.ledger.event_cost import gdp_cost, renyi_cost, sum_costs, zcdp_cost

#: Budgets are rounded down by this much, costs up.
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
        return sum_costs(events, adjacency, lambda e: renyi_cost(e, adjacency, self.order))

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
        return sum_costs(events, adjacency, lambda e: zcdp_cost(e, adjacency))

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
        return sum_costs(events, adjacency, lambda e: gdp_cost(e, adjacency))

    def budget(self, epsilon: float, delta: float) -> float:
        """Return μ² of the Gaussian that is exactly (ε, δ)."""
        return _down(gaussian_mu(epsilon, delta) ** 2)

    def epsilon(self, spent: float, delta: float) -> float:
        """ε of one Gaussian release with this μ², exactly."""
        return gaussian_epsilon(math.sqrt(spent), delta)

    def gaussian(self, amount: float) -> float:
        """μ, the root of μ²."""
        return math.sqrt(max(0.0, amount))


#: Filters that ``init`` may choose; ``programme`` has none of these (``programme.py``).
FILTERS = ("renyi", "zcdp", "gdp", "programme")


def make_filter(name: str, order: int | None) -> Filter:
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
