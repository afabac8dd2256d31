"""From individual Rényi losses to ε: the orders that are kept, and the ε at δ that they give."""

from __future__ import annotations

import math

import numpy as np

from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting import overflow_probability, rdp

#: Every so many of the accountant's orders, from that of the worst case to so many times it.
_EVERY_ORDER, _REACH = 5, {"replace_one": 8.0, "add_remove": 1000.0, "zero_out": 1000.0}


def kept_orders(plan: Plan, worst: float) -> np.ndarray:
    """The worst case's own order and, thinned out, those above it, where smaller losses have theirs."""
    assert plan.guarantee is not None
    composed = rdp.compose(plan.guarantee.events, plan.guarantee.adjacency)
    assert composed is not None
    orders, loss = composed
    left = plan.guarantee.delta - (1 + math.exp(min(worst, 700))) * overflow_probability(plan.guarantee.events)
    best = int(np.argmin(_converted(orders, loss[None], np.array([max(left, 0.0)]))[0]))
    end = np.searchsorted(orders, _REACH[plan.guarantee.adjacency] * orders[best])
    return orders[best : max(end, best + 1) : _EVERY_ORDER]


def epsilon_of(orders: np.ndarray, renyi: np.ndarray, delta: float, beta: float) -> np.ndarray:
    """Smallest ε of each record with δ_base(ε) + (1 + e^ε)β <= δ, from below, as ``guarantee.with_deviations``."""
    epsilon = _converted(orders, renyi, np.full(len(renyi), delta)).min(axis=1)
    for _ in range(100 if beta > 0 else 0):
        left = delta - (1 + np.exp(np.minimum(epsilon, 700))) * beta
        following = _converted(orders, renyi, np.maximum(left, 0.0)).min(axis=1)
        if np.all(following <= epsilon * (1 + 1e-12)):
            return np.maximum(epsilon, following)
        epsilon = np.maximum(epsilon, following)
    return epsilon if beta == 0 else np.full(len(renyi), math.inf)


def _converted(orders: np.ndarray, renyi: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """ε at δ that each order gives, (n, K): Canonne, Kamath and Steinke 2020, Proposition 12; 0 by Pinsker's bound.

    Args:
        orders: (K,).
        renyi: (n, K).
        delta: (n,); 0 gives infinity.
    """
    with np.errstate(divide="ignore"):
        log_delta = np.log(delta)[:, None]
    value = np.where(
        orders > 1.01, renyi + np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1), math.inf
    )
    return np.where(delta[:, None] ** 2 + np.expm1(-renyi) > 0, 0.0, np.maximum(value, 0.0))
