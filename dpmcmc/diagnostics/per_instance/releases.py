r"""One draw from the posterior of a ridge regression: exactly what it costs a record.

The release is θ ~ N(θ̂, H⁻¹/γ), H = XᵀX + λI, θ̂ = H⁻¹Xᵀy: density ∝ exp(−(γ/2)(‖y − Xθ‖² + λ‖θ‖²)), with λ and γ
the same for both neighbours and chosen without the data. For a record (x, y) outside of X, with leverage μ = xᵀH⁻¹x
and residual r = y − xᵀθ̂, both out of sample, the ratio of the densities without and with it depends on θ through
U = √γ(y − xᵀθ) alone:

    log p/q = −½log(1+μ) + ½(U² − c²/(1+μ)),   c = √γ|r|,
    without the record U ~ P = N(c, μ),        with it U ~ Q = N(c/(1+μ), μ/(1+μ)).

So the curve δ(ε) is that of this pair, and {log p/q > ε} is |U| > T, {log q/p > ε} is |U| < T', with
T², T'² = c²/(1+μ) + log(1+μ) ± 2ε (cf. Wang, thesis, Theorem 5.15; the bounds (5.5) and (5.6) printed there are too
small: a missing 2 under the root, one direction for both, and a sign; ``tests/test_per_instance.py`` holds points).

The curve grows with μ at fixed c²/(1+μ), and with c at fixed μ, which ``for_all`` and ``worst_case`` rely on:

* Up to an affine map the pair is N(κ, 1+μ) against N(0, 1), κ² = μ·c²/(1+μ). Adding independent N(0, τ) to both is
  post-processing, and gives the pair of μ/(1+τ) and the same c²/(1+μ).
* At fixed μ, δ = sup_S P(S) − e^ε Q(S) over all S. By the envelope theorem its derivative in κ is that of the best S
  held fixed. In U the best S is |U| > T or, in the other direction, |U| < T'; with P held in place, more κ moves Q's
  mean towards 0, the middle of the interval: e^ε Q(|U| > T) falls, and Q(|U| < T') rises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import qr, solve_triangular
from scipy.special import log_ndtr

from dpmcmc.errors import InputError
from dpmcmc.storage.blas import on_one_blas_thread

# ----------------------------------------------------------------------------------------------------
# Leverage, residual and influence of every record of a ridge regression, relative to the fit without it.
#
# CONFIDENTIAL: reads every record; never in the released folder.
#
# With QR = [X; √λ I], row q_i of Q for record i, h = ‖q_i‖² its leverage in the full fit, e its residual there,
#
#     out of sample:   μ = h/(1−h),   r = e/(1−h),   θ̂ − θ̂₋ᵢ = R⁻¹q_i · r,   so ‖·‖ = ‖R⁻¹q_i‖·|r|
#
# (Sherman-Morrison). One factorisation, O(nd²); not squaring X keeps the error at the rounding of a condition number.

#: Where 1 − h is below this, rounding could make it up: the leverage is infinite, as it is without a ridge for a record
#: whose direction no other one has.
_CERTAIN = 1e-9


@dataclass(frozen=True)
class LeaveOneOut:
    """Leverage and residual of each record against all the others. CONFIDENTIAL: never in the released folder.

    Attributes:
        leverage: μ_i = x_iᵀ(X₋ᵢᵀX₋ᵢ + λI)⁻¹x_i, (n,); infinite where the fit without the record is not determined.
        residual: r_i = y_i − x_iᵀθ̂₋ᵢ, (n,); infinite there too.
        shift: ‖θ̂ − θ̂₋ᵢ‖, (n,): the per-instance sensitivity of the estimate; infinite there too.
        estimate: θ̂ of all records, (d,).

    Example:
        >>> import numpy as np
        >>> from dpmcmc.diagnostics.per_instance import leave_one_out
        >>> found = leave_one_out(np.array([[1.0], [1.0], [2.0]]), np.array([1.0, 1.0, 2.0]), ridge=1.0)
        >>> found.leverage.round(3)
        array([0.167, 0.167, 1.333])
    """

    leverage: np.ndarray
    residual: np.ndarray
    shift: np.ndarray
    estimate: np.ndarray


@on_one_blas_thread
def leave_one_out(x: ArrayLike, y: ArrayLike, ridge: float) -> LeaveOneOut:
    """Return the out-of-sample leverage and residual of every record, and how far it moves the estimate.

    CONFIDENTIAL: reads every record; never in the released folder.

    Args:
        x: rows, (n, d).
        y: targets, (n,).
        ridge: λ >= 0 of ‖y − Xθ‖² + λ‖θ‖², chosen without the data.

    Returns:
        Float64, to the accuracy of a QR factorisation of [X; √λ I].

    Raises:
        ValueError: shapes that do not fit, values that are not finite, or a fit that is not determined.
    """
    x, y = checked(x, y, ridge)
    n, d = x.shape
    stacked = np.concatenate([x, np.sqrt(ridge) * np.eye(d)]) if ridge > 0 else x
    if len(stacked) < d:
        raise InputError(f"ridge: is 0 with {n} records in {d} dimensions; take ridge > 0, or more records.")
    q, r = qr(stacked, mode="economic", check_finite=False)
    diagonal = np.abs(np.diag(r))
    if diagonal.min() <= d * np.finfo(float).eps * diagonal.max():
        raise InputError("ridge: X'X + ridge·I is singular in float64; take a larger ridge.")
    q = q[:n]
    projected = y @ q
    inverse = solve_triangular(r, np.eye(d), check_finite=False)
    left = 1.0 - np.einsum("ij,ij->i", q, q)
    known = left > _CERTAIN
    left = np.where(known, left, 1.0)
    residual = (y - q @ projected) / left
    directions = np.linalg.norm(q @ inverse.T, axis=1)
    return LeaveOneOut(
        leverage=np.where(known, (1.0 - left) / left, np.inf),
        residual=np.where(known, residual, np.inf),
        shift=np.where(known, directions * np.abs(residual), np.inf),
        estimate=inverse @ projected,
    )


def checked(x: ArrayLike, y: ArrayLike, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the records in float64.

    Raises:
        ValueError: shapes that do not fit, values that are not finite, or a negative ridge.
    """
    x = np.asarray(x, np.float64)
    y = np.asarray(y, np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1] or x.shape[1] == 0:
        raise InputError(f"x, y: must be (n, d) and (n,), got {x.shape} and {y.shape}.")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("x, y: hold a value that is not finite; clip or drop such records first.")
    if not 0 <= ridge < np.inf:
        raise InputError(f"ridge: must be finite and >= 0, got {ridge}.")
    return x, y


# ----------------------------------------------------------------------------------------------------
# The smallest ε whose δ is small enough, for many records at once, on the private side of the root.

#: Half an ulp of float64, relative.
UNIT = 2.0**-53
#: Bisections; the bracket shrinks by 2**-44, below 1e-13 of its first end.
_HALVINGS = 44
#: Doublings of an end that rounding put a little too low.
_DOUBLINGS = 60


def smallest_epsilon(
    delta_at: Callable[[np.ndarray], np.ndarray],
    upper: np.ndarray,
    delta: np.ndarray | float,
) -> np.ndarray:
    """Return upper ends of brackets around the roots of δ(ε) = delta.

    Args:
        delta_at: ε (n,) -> δ (n,), not increasing in ε, rounded up.
        upper: an ε for each that meets δ, (n,).
        delta: what is asked for, (n,) or one number.

    Returns:
        (n,): ε >= 0 at which ``delta_at`` was evaluated and found at most ``delta``; infinite where none was found.
    """
    high = np.maximum(upper, 1e-300)
    for _ in range(_DOUBLINGS):
        short = delta_at(high) > delta
        if not short.any():
            break
        high = np.where(short, 2 * high, high)
    else:
        high = np.where(delta_at(high) > delta, np.inf, high)
    # Below delta already at 0: nothing to search for.
    low = np.zeros_like(high)
    high = np.where(delta_at(low) <= delta, 0.0, high)
    for _ in range(_HALVINGS):
        middle = low + (high - low) / 2
        enough = delta_at(middle) <= delta
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    return high


def tail_excess(z: np.ndarray, other: np.ndarray, epsilon: np.ndarray, uncertain: np.ndarray) -> np.ndarray:
    """Return Φ(−z) − e^ε Φ(−other) on a tail where it is not negative, rounded up.

    Args:
        z: (n,), the tail under the first law, in its standard deviations.
        other: (n,), under the second.
        epsilon: (n,).
        uncertain: (n,), sum of the magnitudes that were added up to make z.

    The allowance for rounding: 16 units on the terms of z, through the density φ(z) <= (1 + z⁺)Φ(−z), and on both
    logarithms, whose size is about z²/2.
    """
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        log_first = log_ndtr(-z)
        log_second = epsilon + log_ndtr(-other)
        first = np.exp(log_first)
        value = first * -np.expm1(np.minimum(log_second - log_first, 0.0))
        slack = (1 + np.maximum(z, 0)) * uncertain + 2 + z * z + other * other + epsilon
        out = value + 16 * UNIT * first * slack
    # Where the tail is empty in float64 (z infinite) the excess is 0.
    return np.where(first > 0, out, 0.0)


# ----------------------------------------------------------------------------------------------------
# An estimate with Gaussian noise: exactly what it costs a record.
#
# The release is f(Z) + N(0, σ²A⁻¹), A and σ the same for both neighbours and chosen without the data. With the
# per-instance sensitivity Δ = ‖f(Z) − f([Z, z])‖_A, ‖v‖_A² = vᵀAv, and s = Δ/σ, both directions have the curve
#
#     δ(ε) = Φ(s/2 − ε/s) − e^ε Φ(−s/2 − ε/s)
#
# (Balle and Wang 2018, Theorem 8: the pair is N(0, 1) against N(s, 1)). In the thesis's Lemma 5.4 the covariance is
# A⁻¹/γ, so σ = 1/√γ; its ε = γΔ√(log(1.25/δ)) has γ for √γ, lacks a 2 under the root, and is false.
#
# For ridge regression and A = I, Δ = |r|·‖H⁻¹x‖/(1+μ), with the residual r, the leverage μ and H = XᵀX + λI of the
# data without the record: ``leave_one_out(...).shift``.


def output_perturbation_epsilon(sensitivity: ArrayLike, noise_std: ArrayLike, delta: ArrayLike) -> np.ndarray:
    """Return the per-instance ε of Gaussian output perturbation; adding and removing the record cost the same.

    CONFIDENTIAL where the sensitivity is computed from records: never in the released folder.

    Args:
        sensitivity: how far the record moves the estimate, Δ = ‖f(Z) − f([Z, z])‖, in the norm in which the noise has
            standard deviation ``noise_std`` in every direction; any shape, >= 0.
        noise_std: σ > 0.
        delta: δ in [0, 1).

    Returns:
        Array of the arguments' common shape: the upper end of a bracket around the root, 0 where δ alone is enough,
        infinite where the sensitivity is, or where δ = 0 and the sensitivity is not 0.

    Raises:
        ValueError: an argument outside these.
    """
    s, target, shape = _perturbation_arguments(sensitivity, noise_std, delta, "delta", below=1.0)
    hopeless = (s > 0) & ((target == 0) | np.isinf(s))
    inside = (s > 0) & ~hopeless
    out = np.where(hopeless, np.inf, 0.0)
    if inside.any():
        m = s[inside]
        d = target[inside]
        # Chernoff: always enough.
        upper = m * m / 2 + m * np.sqrt(2 * np.log(1 / d))
        out[inside] = smallest_epsilon(lambda e: _excess(m, e), upper, d)
    return out.reshape(shape)


def output_perturbation_delta(sensitivity: ArrayLike, noise_std: ArrayLike, epsilon: ArrayLike) -> np.ndarray:
    """Return the per-instance δ of Gaussian output perturbation at ε, rounded up; arguments as for the ε.

    CONFIDENTIAL where the sensitivity is computed from records.

    Raises:
        ValueError: an argument outside these.
    """
    s, epsilon, shape = _perturbation_arguments(sensitivity, noise_std, epsilon, "epsilon", below=np.inf)
    inside = (s > 0) & np.isfinite(s)
    out = np.where(s > 0, 1.0, 0.0)
    out[inside] = np.minimum(_excess(s[inside], epsilon[inside]), 1.0)
    return out.reshape(shape)


def _excess(s: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    offset = epsilon / s
    return tail_excess(offset - s / 2, offset + s / 2, epsilon, offset + s / 2)


def _perturbation_arguments(
    sensitivity: ArrayLike,
    noise_std: ArrayLike,
    level: ArrayLike,
    name: str,
    below: float,
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Return s = Δ/σ and the level, flat and of one length, and their common shape."""
    moved, std, level = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (sensitivity, noise_std, level)))
    if not (moved >= 0).all():
        raise InputError("sensitivity: must be >= 0 and not NaN; it is how far the record moves the estimate.")
    if not ((std > 0) & np.isfinite(std)).all():
        raise InputError("noise_std: must be positive and finite.")
    if not ((level >= 0) & (level < below)).all():
        raise InputError(f"{name}: must be in [0, {below:g}).")
    return (moved / std).ravel(), level.ravel(), moved.shape


def ridge_ops_epsilon(leverage: ArrayLike, residual: ArrayLike, gamma: ArrayLike, delta: ArrayLike) -> np.ndarray:
    """Return the per-instance ε of one ridge posterior draw, the larger of adding and removing the record.

    CONFIDENTIAL where leverage or residual are computed from records: never in the released folder.

    Args:
        leverage: out of sample, μ = xᵀ(XᵀX + λI)⁻¹x with the record not in X; any shape, >= 0.
        residual: out of sample, r = y − xᵀθ̂ with the record not in the fit.
        gamma: γ > 0 of the density exp(−(γ/2)(‖y − Xθ‖² + λ‖θ‖²)); twice a γ that multiplies squares without the ½.
        delta: δ in [0, 1).

    Returns:
        Array of the arguments' common shape: the upper end of a bracket around the root, 0 where δ alone is enough,
        infinite where the leverage is, or where δ = 0 and the leverage is not 0.

    Raises:
        ValueError: an argument outside these.
    """
    mu, c, target, shape = _arguments(leverage, residual, gamma, delta, "delta", below=1.0)
    # A record with x = 0 moves nothing. Without a density, or at δ = 0, no finite ε holds.
    hopeless = (mu > 0) & ((target == 0) | np.isinf(mu) | np.isinf(c))
    inside = (mu > 0) & ~hopeless
    out = np.where(hopeless, np.inf, 0.0)
    if inside.any():
        m = mu[inside]
        b = c[inside]
        d = target[inside]
        added = smallest_epsilon(lambda e: excess_without(m, b, e), _bound_without(m, b, d), d)
        # Removing is rarely the worse: its root is looked for where ``added`` does not cover it.
        more = excess_with(m, b, added) > d
        if more.any():
            m = m[more]
            b = b[more]
            d = d[more]
            added[more] = smallest_epsilon(lambda e: excess_with(m, b, e), _bound_with(m, b), d)
        out[inside] = added
    return out.reshape(shape)


def ridge_ops_delta(leverage: ArrayLike, residual: ArrayLike, gamma: ArrayLike, epsilon: ArrayLike) -> np.ndarray:
    """Return the per-instance δ of one ridge posterior draw at ε, the larger of both directions, rounded up.

    CONFIDENTIAL where leverage or residual are computed from records. Arguments as :func:`ridge_ops_epsilon`.

    Raises:
        ValueError: an argument outside these.
    """
    mu, c, epsilon, shape = _arguments(leverage, residual, gamma, epsilon, "epsilon", below=np.inf)
    inside = (mu > 0) & np.isfinite(mu) & np.isfinite(c)
    out = np.where(mu > 0, 1.0, 0.0)
    m = mu[inside]
    b = c[inside]
    e = epsilon[inside]
    out[inside] = np.minimum(np.maximum(excess_without(m, b, e), excess_with(m, b, e)), 1.0)
    return out.reshape(shape)


def excess_without(mu: np.ndarray, c: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Return sup_S P(S) − e^ε Q(S), P the law without the record: both tails |U| > T, each rounded up."""
    ratio = mu / (1 + mu)
    middle = c / (1 + mu)
    surplus = 2 * epsilon + np.log1p(mu)
    edge = np.sqrt(surplus + c * middle)
    # T − c and T − c/(1+μ) as quotients: their squares differ by terms that do not cancel.
    above = (surplus - c * c * ratio) / (edge + c) / np.sqrt(mu)
    above_other = (surplus + c * middle * ratio) / (edge + middle) / np.sqrt(ratio)
    terms = (surplus + c * c * ratio) / (edge + c) / np.sqrt(mu)
    below = (edge + c) / np.sqrt(mu)
    below_other = (edge + middle) / np.sqrt(ratio)
    return tail_excess(above, above_other, epsilon, terms) + tail_excess(below, below_other, epsilon, below)


def excess_with(mu: np.ndarray, c: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Return sup_S Q(S) − e^ε P(S), Q the law with the record: the interval |U| < T', rounded up; 0 if empty."""
    ratio = mu / (1 + mu)
    middle = c / (1 + mu)
    surplus = np.log1p(mu) - 2 * epsilon
    square = surplus + c * middle
    edge = np.sqrt(np.maximum(square, 0.0))
    sums = np.log1p(mu) + 2 * epsilon + c * c * ratio
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        without, loose = _mass(
            (surplus - c * c * ratio) / (edge + c) / np.sqrt(mu),
            (edge + c) / np.sqrt(mu),
            sums / (edge + c) / np.sqrt(mu),
            epsilon,
        )
        with_record, more = _mass(
            (surplus + c * middle * ratio) / (edge + middle) / np.sqrt(ratio),
            (edge + middle) / np.sqrt(ratio),
            sums / (edge + middle) / np.sqrt(ratio),
            np.zeros_like(epsilon),
        )
        value = np.maximum(with_record - without, 0.0) + loose + more
    return np.where(square > 0, value, 0.0)


def _mass(
    upper: np.ndarray, lower: np.ndarray, uncertain: np.ndarray, epsilon: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return e^ε (Φ(upper) − Φ(−lower)) and an allowance for its rounding, by the rule of ``tail_excess``."""
    log_upper = log_ndtr(upper)
    whole = np.exp(epsilon + log_upper)
    slack = (1 + np.maximum(-upper, 0)) * uncertain + 2 + upper * upper + epsilon
    return whole * -np.expm1(np.minimum(log_ndtr(-lower) - log_upper, 0.0)), 16 * UNIT * whole * slack


def _bound_without(mu: np.ndarray, c: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Return ε at T = c + √μ t, t = √(2 log 1/δ): P(|U| > T) <= 2Φ(−t) <= δ."""
    t = np.sqrt(2 * np.log(1 / delta))
    return 0.5 * np.maximum(c * c * mu / (1 + mu) + 2 * c * np.sqrt(mu) * t + mu * t * t - np.log1p(mu), 0.0)


def _bound_with(mu: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return the largest value of log q/p, at U = 0."""
    return 0.5 * (np.log1p(mu) + c * c / (1 + mu))


def _arguments(
    leverage: ArrayLike,
    residual: ArrayLike,
    gamma: ArrayLike,
    level: ArrayLike,
    name: str,
    below: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, ...]]:
    """Return μ, c and the level, flat and of one length, and their common shape."""
    mu, r, g, level = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (leverage, residual, gamma, level)))
    if not (mu >= 0).all():
        raise InputError("leverage: must be >= 0 and not NaN; it is x'(X'X + λI)⁻¹x with the record not in X.")
    if np.isnan(r).any():
        raise InputError("residual: is NaN; it is y − x'θ̂ with the record not in the fit.")
    if not ((g > 0) & np.isfinite(g)).all():
        raise InputError("gamma: must be positive and finite.")
    if not ((level >= 0) & (level < below)).all():
        raise InputError(f"{name}: must be in [0, {below:g}).")
    return mu.ravel(), np.sqrt(g.ravel()) * np.abs(r.ravel()), level.ravel(), mu.shape
