r"""One-shot releases (``accountant: one_sample``): posterior draws and private estimates.

* ``posterior_draw``. One exact draw from exp(−F), F = ρΣℓ_i + (m/2)‖θ‖² with convex ℓ_i whose gradients are bounded
  by L: for neighbours F − F' is G-Lipschitz, G = ΔρL, and the draw is μ-GDP with μ = G/√m (Gopi, Lee and Liu 2022,
  Theorem 4; first with another constant by Minami et al. 2016). Also on a convex domain. It is the limit of
  ``last_iterate.py`` for small steps, and is attained by a linear perturbation of a Gaussian. z = √m/(ρL).
* ``objective_perturbation``: see ``objective.py``.
* Gaussian releases compose to μ = √(Σ μ_i²). An objective perturbation beside Gaussians is composed by
  δ(ε) <= δ_objective(ε − ε₂) + δ_Gaussian(ε₂), the least over ε₂ (basic composition).

Pure releases are added by the Guarantee itself, for every accountant (``one_sample.py``).

Claim: An exact draw from a strongly log-concave posterior is ΔρL/√m-GDP.
Proof: Gopi, Lee and Liu 2022, Theorem 4.
Held by: test_hockey_stick_of_neighbours_is_within_gdp, test_draws_compose_as_gaussians,
test_dp_accounting_agrees_with_what_a_run_states

Claim: A pure release beside others costs what randomised response would.
Proof: Kairouz, Oh and Viswanath 2015.
Held by: test_several_against_an_independent_accountant, test_beside_a_gaussian_against_an_independent_accountant,
test_negative_epsilon_of_the_rest_is_used
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting import objective
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import OBJECTIVES, Event
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter, queries


def check(events: Iterable[Event], adjacency: Adjacency) -> None:
    """Raise UnsupportedCombination for minibatch queries, and for more than one objective perturbation."""
    parts = queries(events)
    for e in parts:
        if e.mechanism in ("poisson_gaussian", "fixed_size_gaussian"):
            raise UnsupportedCombination(
                "accountant one_sample does not cover minibatch queries; use accountant pld.",
                "accountant",
            )
    if sum(e.count for e in parts if e.mechanism in OBJECTIVES) > 1:
        raise UnsupportedCombination(
            "accountant one_sample composes one objective perturbation, not several.",
            "accountant",
        )


def epsilon(events: Iterable[Event], adjacency: Adjacency, delta: float) -> float:
    """Smallest certified ε at δ."""
    objectives, mu = _parts(events, adjacency)
    if not objectives:
        return gaussian_epsilon(mu, delta)
    if delta <= 0:
        return math.inf
    if mu == 0:
        return objective.epsilon(objectives[0], adjacency, delta)
    return min(
        objective.epsilon(objectives[0], adjacency, delta * (1 - share)) + gaussian_epsilon(mu, delta * share)
        for share in _SHARES
    )


def delta(events: Iterable[Event], adjacency: Adjacency, epsilon: float) -> float:
    """Smallest certified δ at ε >= 0."""
    objectives, mu = _parts(events, adjacency)
    if not objectives:
        return gaussian_delta(mu, epsilon)
    if mu == 0:
        return objective.delta(objectives[0], adjacency, epsilon)
    beside = [min(epsilon, gaussian_epsilon(mu, d)) for d in np.logspace(-15, -2, 27)]
    return min(
        1.0,
        *(objective.delta(objectives[0], adjacency, epsilon - e) + gaussian_delta(mu, e) for e in beside),
    )


#: Shares of δ given to the Gaussian beside an objective perturbation.
_SHARES = (1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.5)


def _parts(events: Iterable[Event], adjacency: Adjacency) -> tuple[list[Event], float]:
    """(objective perturbations, μ of everything else)."""
    parts = queries(events)
    check(parts, adjacency)
    return [e for e in parts if e.mechanism in OBJECTIVES], gaussian_parameter(parts, adjacency)
