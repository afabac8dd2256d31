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

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from dpmcmc.diagnostics.per_instance.smallest_epsilon import UNIT, smallest_epsilon, tail_excess
from dpmcmc.errors import InputError


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
    # A record with x = 0 moves nothing. Without a density to compare, or without δ, nothing finite holds.
    hopeless = (mu > 0) & ((target == 0) | np.isinf(mu) | np.isinf(c))
    inside = (mu > 0) & ~hopeless
    out = np.where(hopeless, np.inf, 0.0)
    if inside.any():
        m, b, d = mu[inside], c[inside], target[inside]
        added = smallest_epsilon(lambda e: excess_without(m, b, e), _bound_without(m, b, d), d)
        # Removing is rarely the worse: its root is looked for where ``added`` does not cover it.
        more = excess_with(m, b, added) > d
        if more.any():
            m, b, d = m[more], b[more], d[more]
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
    m, b, e = mu[inside], c[inside], epsilon[inside]
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
    below, below_other = (edge + c) / np.sqrt(mu), (edge + middle) / np.sqrt(ratio)
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
    leverage: ArrayLike, residual: ArrayLike, gamma: ArrayLike, level: ArrayLike, name: str, below: float
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
