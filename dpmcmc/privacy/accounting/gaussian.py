"""The exact trade-off of the Gaussian mechanism (Balle and Wang 2018, Theorem 8).

For μ = sensitivity / noise std,  δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), and k adaptive Gaussian queries
compose exactly to μ = √(Σ μ_i²) (Dong, Roth and Su 2019, Corollary 3.3).
"""

from __future__ import annotations

import math

import scipy
from scipy.special import log_ndtr


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ of a μ-GDP Gaussian mechanism at ε >= 0."""
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    lower = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    if lower >= upper:
        return 0.0
    return math.exp(upper) * -math.expm1(lower - upper)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest ε >= 0 with δ(ε) <= delta, rounded up to the private side of the root."""
    if mu <= 0 or delta >= 1:
        return 0.0
    if delta <= 0 or math.isinf(mu):
        return math.inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    log_delta = math.log(delta)

    def excess(epsilon: float) -> float:
        value = gaussian_delta(mu, epsilon)
        return (math.log(value) if value > 0 else -1e4) - log_delta

    # The Chernoff bound ε = μ²/2 + μ√(2 log 1/δ) always meets delta.
    high = mu * mu / 2 + mu * math.sqrt(2 * max(-log_delta, 0.0)) + 1e-300
    epsilon = float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-14 * high, rtol=1e-13))
    # Near 0 the excess is all rounding, which steps of one size would not leave behind.
    step = 1e-13 * epsilon + 1e-300
    while excess(epsilon) > 0:
        epsilon, step = epsilon + step, 2 * step
    return epsilon


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest μ whose Gaussian mechanism is (ε, δ)-DP; 0 where δ is 0."""
    if delta <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        low, high = high, 2 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if gaussian_delta(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle
        if high - low <= 1e-14 * high:
            break
    return low
