"""Cost of one event in the unit of a filter: a bound that holds whatever was released before it.

* Gaussian releases, and what is exactly worth one (a posterior draw, the last step of a descent), have μ = Δ/z:
  D_α = αμ²/2, ρ = μ²/2, and μ itself.
* A sampled query has the Rényi divergence of ``accounting/rdp.py``. In zCDP and GDP it is charged as the query of
  every record: hockey-stick divergences are jointly convex, so revealing whom the step selected gives an upper bound,
  and that is (1 − q)·0 + q·H <= H.
* A pure ε-release is dominated by randomised response (Kairouz, Oh and Viswanath 2015), so its Rényi divergence is at
  most that of Bernoulli(e^ε/(1 + e^ε)) from its complement; ρ = ε²/2 (Bun and Steinke 2016, Proposition 1.4). In GDP
  μ = 2Φ⁻¹(e^ε/(1 + e^ε)): the trade-off function of randomised response is two chords, from (0, 1) and (1, 0) to its
  kink (x, x), x = 1/(1 + e^ε); that of a μ-Gaussian is convex and passes through all three points, so it is below.
* An objective perturbation has a profile δ(t) (``accounting/objective.py``) for both orders of the pair. Expanding
  γ^α in hinges, for P and Q with H_γ(P‖Q), H_γ(Q‖P) <= δ(log γ),

      E_Q (P/Q)^α = 1 + α(α−1) ∫₁^∞ γ^{α−2} H_γ(P‖Q) + γ^{−α−1} H_γ(Q‖P) dγ
                 <= 1 + α(α−1) ∫₀^∞ (e^{(α−1)t} + e^{−αt}) δ(t) dt.

  The true profile never rises, so over a cell of t it is below the bound at the cell's left end. Beyond the last
  cell, T >= c + ν²/2, that file's M <= c + max(0, m) gives δ(t) <= P(c + L > t), L ~ N(ν²/2, ν²), ν = Δμ, and the
  rest of the integral is at most 2/(α−1) · e^{(α−1)c + α(α−1)ν²/2} · Φ(−(T − c − ν²/2 − (α−1)ν²)/ν).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtri_exp

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting import (
    objective,
    rdp,
)
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import OBJECTIVES, QUERIES, Event
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter, queries

#: Relative room for the rounding of sums and special functions, on the private side.
_COST_ROUNDING = 1e-9
#: Cells of the objective perturbation's integral per unit of α·t, and their limits: about a percent of its cost.
_PIECES_PER_UNIT = 20
_FEWEST_PIECES = 400
_MOST_PIECES = 3000


def sum_costs(events: Iterable[Event], adjacency: Adjacency, one: Callable[[Event], float]) -> float:
    """Σ count · one(event) over what ``events`` release, rounded up; infinite where a release has no noise.

    Raises:
        UnsupportedCombination: an event without a derivation under this adjacency.
    """
    parts = queries(events)
    rdp.check(parts, adjacency)
    value = math.fsum(e.count * one(e) for e in parts) * (1 + _COST_ROUNDING)
    return math.inf if math.isnan(value) else value


def renyi_cost(event: Event, adjacency: Adjacency, order: int) -> float:
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


def zcdp_cost(event: Event, adjacency: Adjacency) -> float:
    """ρ of one repetition.

    Raises:
        UnsupportedCombination: an objective perturbation.
    """
    if event.mechanism == "pure":
        assert event.epsilon is not None
        return event.epsilon**2 / 2
    return _mu(event, adjacency, "zcdp") ** 2 / 2


def gdp_cost(event: Event, adjacency: Adjacency) -> float:
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
    count = int(np.clip(_PIECES_PER_UNIT * alpha * last, _FEWEST_PIECES, _MOST_PIECES))
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
