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
from collections.abc import Callable, Iterable

import numpy as np
import scipy

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting import objective
from dpmcmc.privacy.accounting.events import (
    OBJECTIVES,
    Adjacency,
    Event,
    gaussian_parameter,
    queries,
    smallest,
)
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon

# ----------------------------------------------------------------------------------------------------
# Pure ε-DP releases beside others, for any accountant.
#
# An ε₁-DP release is dominated by randomised response (Kairouz, Oh and Viswanath 2015): its loss is ε₁ with
# probability p = e^{ε₁}/(1 + e^{ε₁}) and −ε₁ otherwise, in both orders. Beside releases of profile δ(·) it gives
#
#     δ_total(ε) = p·δ(ε − ε₁) + (1 − p)·δ(ε + ε₁),       δ(−e) = 1 − e^{−e}(1 − δ(e)),
#
# exactly for that pair, and as an upper bound where δ(·) is the larger of two orders. Several pure releases are the sum
# of their losses.

#: Beyond so many different sums of losses, the plain sum of the ε is charged.
_MOST_ATOMS = 4096


def split(events: Iterable[Event]) -> tuple[list[Event], list[Event]]:
    """(pure releases, everything else)."""
    events = list(events)
    pure = [e for e in events if e.mechanism == "pure" and e.count and e.epsilon]
    return pure, [e for e in events if e.mechanism != "pure"]


def total(pure: Iterable[Event]) -> float:
    """Σ ε, what pure releases cost at δ = 0."""
    return math.fsum((e.epsilon or 0.0) * e.count for e in pure)


def mixed(pure: list[Event], rest: Callable[[float], float], epsilon: float) -> float:
    """δ at ε >= 0 of pure releases beside others.

    Args:
        pure: from :func:`split`.
        rest: δ(ε) of the others for ε >= 0, the larger of both orders.
        epsilon: ε.
    """
    losses, weights = _losses(pure)
    value = 0.0
    for loss, weight in zip(losses, weights, strict=True):
        e = epsilon - loss
        value += weight * (rest(e) if e >= 0 else -math.expm1(e) + math.exp(e) * rest(-e))
    return min(1.0, value)


def pure_epsilon(pure: list[Event], rest: Callable[[float], float], rest_epsilon: float, delta: float) -> float:
    """Smallest ε at δ, to 1e-6 of it and on the private side.

    Args:
        pure: from :func:`split`.
        rest: as for :func:`mixed`.
        rest_epsilon: ε of the others at δ.
        delta: δ.
    """
    most = total(pure) + rest_epsilon
    if math.isinf(most) or delta <= 0:
        return most
    return smallest(lambda e: mixed(pure, rest, e) <= delta, 0.0, most, 1e-6)


def _losses(pure: list[Event]) -> tuple[np.ndarray, np.ndarray]:
    """Sums of losses of randomised responses, and their probabilities under the first of the pair."""
    losses = np.zeros(1)
    weights = np.ones(1)
    for e in pure:
        assert e.epsilon is not None
        if len(losses) * (e.count + 1) > _MOST_ATOMS:
            return np.array([total(pure)]), np.ones(1)
        ups = np.arange(e.count + 1)
        each = (2 * ups - e.count) * e.epsilon
        chance = scipy.stats.binom.pmf(ups, e.count, 1 / (1 + math.exp(-e.epsilon)))
        losses = (losses[:, None] + each).ravel()
        weights = (weights[:, None] * chance).ravel()
    return losses, weights


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
