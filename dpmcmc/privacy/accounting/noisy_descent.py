r"""Only the last of many noisy descent steps leaves (``accountant: last_iterate``).

    θ_{k+1} = Π(θ_k − η(∇F(θ_k) + N(0, s² I))),   k < t,   full batches, θ_0 and the projection Π free of data

Let F be m-strongly convex and M-smooth, so that a step brings two points together by c = max(|1−ηm|, |1−ηM|), and let
a neighbour change ∇F by at most G = Δ·L, where L bounds a record's gradient and Δ is 2 for replace_one and 1
otherwise. Then θ_t is exactly as private as one Gaussian release of

    μ_t = (G/s) · √( (1 − cᵗ)/(1 + cᵗ) · (1 + c)/(1 − c) )        (Bok, Su and Altschuler 2024, Theorem 4.2)

Derived again, because the float computation must be covered. Let φ, φ' be the steps without noise on neighbours, as
COMPUTED, with ‖φ(x) − φ'(y)‖ <= c‖x − y‖ + ηG; rounding errors are bounded and enter G (the caller's ``1 + κ``).
Run X̃ beside X' with the same noise from the same start: X̃_{k+1} = φ(X̃_k) + a_{k+1}·u + noise, where the unit vector
u points at φ'(X'_k) and a_{k+1} is at most the distance to it. The distance z of X̃ from X' obeys
z_{k+1} = c z_k + ηG − a_{k+1}. X and X̃ apply the same φ. A shift of at most a_{k+1} under noise ηs costs a Gaussian
of a_{k+1}/(ηs), whatever the shift depends on: for a fixed test, the error of a mixture is the mean of its parts'
errors. So X_t against X̃_t is a Gaussian of μ² = Σ a_k²/(ηs)². With z_t = 0, X̃_t = X'_t. The constraint is
Σ c^{t−k} a_k = ηG(1 − cᵗ)/(1 − c), and by Cauchy–Schwarz the least Σ a_k² has a_k ∝ c^{t−k}, which gives μ_t. A
projection onto a convex set is a contraction and changes nothing.

Limits: μ_t → (G/s)√t for few steps; for many, at temperature T (s² = 2T/η) and η <= 2/(m+M),
μ_t → G√((1 − ηm/2)/(mT)), which tends to the price of an exact posterior draw, G/√m (``one_sample.py``), as η → 0.

Claim: The last of many noisy descent steps costs one Gaussian release of μ_t.
Proof: shifted interpolation (Bok, Su and Altschuler 2024, Theorem 4.2), derived again for steps as they are computed.
Held by: test_exact_on_the_quadratic_that_attains_it, test_last_iterate.py::test_replay_on_worst_case_neighbours,
test_records_beyond_the_public_bounds_are_refused, "public row bound not enforced"
"""

from __future__ import annotations

import math

from dpmcmc.errors import InputError


def contraction(eta: float, strong_convexity: float, smoothness: float) -> float:
    """c = max(|1 − ηm|, |1 − ηM|) of a gradient step, rounded up.

    Args:
        eta: step on the potential F.
        strong_convexity: m > 0 of F.
        smoothness: M >= m of F.

    Raises:
        ValueError: m <= 0, M < m, or a step that does not contract.
    """
    if not (strong_convexity > 0 and math.isfinite(strong_convexity)):
        raise InputError(f"strong_convexity must be a finite number > 0, got {strong_convexity}")
    if not (smoothness >= strong_convexity and math.isfinite(smoothness)):
        raise InputError(f"smoothness must be a finite number >= strong_convexity, got {smoothness}")
    c = max(abs(1 - eta * strong_convexity), abs(1 - eta * smoothness)) * (1 + 1e-12)
    if not c < 1:
        raise InputError(
            f"step_size: a step of {eta:.4g} on the potential does not contract; it must lie below 2/smoothness = "
            f"{2 / smoothness:.4g}"
        )
    return c


def equivalent_multiplier(noise_multiplier: float, contraction: float, steps: int) -> float:
    """z of the one Gaussian release that the last of ``steps`` steps of multiplier z is worth, rounded down.

    Args:
        noise_multiplier: noise std on the gradient sum / bound on a record's gradient, of every step.
        contraction: c in [0, 1).
        steps: t >= 1.
    """
    # c^t without losing 1 − c^t where c is close to 1.
    log_power = steps * math.log(contraction) if contraction > 0 else -math.inf
    share = -math.expm1(log_power) / (1 + math.exp(log_power))
    factor = math.sqrt(share * (1 + contraction) / (1 - contraction))
    # Never more than composing every step.
    return noise_multiplier / min(factor, math.sqrt(steps)) * (1 - 1e-9)
