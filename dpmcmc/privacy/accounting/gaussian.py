"""The exact trade-off of the Gaussian mechanism (Balle and Wang 2018, Theorem 8).

For μ = sensitivity / noise std,  δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), and k adaptive Gaussian queries
compose exactly to μ = √(Σ μ_i²) (Dong, Roth and Su 2019, Corollary 3.3).

Claim: k full-batch queries cost one Gaussian of μ = √(Σ Δ²/z²), exactly.
Proof: the trade-off of the Gaussian mechanism (Balle and Wang 2018), and its composition (Dong, Roth and Su 2019).
Held by: test_rate_one_is_the_exact_gaussian, test_gaussian_curve_and_its_inverses_agree,
test_full_batches_are_one_gaussian, test_dp_accounting_agrees_with_what_a_run_states,
"sensitivity C where 2C is right"
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr

from dpmcmc.privacy.accounting.bisection import smallest


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
    """Smallest ε >= 0 with δ(ε) <= delta, at most 1e-13 of it above the root."""
    if mu <= 0 or delta >= 1:
        return 0.0
    if delta <= 0 or math.isinf(mu):
        return math.inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # The Chernoff bound ε = μ²/2 + μ√(2 log 1/δ) always meets delta.
    high = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta)) + 1e-300
    return smallest(lambda epsilon: gaussian_delta(mu, epsilon) <= delta, 0.0, high, 1e-13)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest μ whose Gaussian mechanism is (ε, δ)-DP; 0 where δ is 0."""
    if delta <= 0:
        return 0.0
    low = 0.0
    high = 1.0
    while gaussian_delta(high, epsilon) <= delta:
        low = high
        high = 2 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if gaussian_delta(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle
        if high - low <= 1e-14 * high:
            break
    return low
