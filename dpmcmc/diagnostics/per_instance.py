r"""One draw from the posterior of a ridge regression: exactly what it costs a record (per-instance DP, Wang 2017).

CONFIDENTIAL: leverage and residual of a record, and every ε computed from them, depend on all records. They belong in
no released folder, and never set noise.

The release is θ ~ N(θ̂, H⁻¹/γ), H = XᵀX + λI, θ̂ = H⁻¹Xᵀy: density ∝ exp(−(γ/2)(‖y − Xθ‖² + λ‖θ‖²)), with λ and γ
the same for both neighbours and chosen without the data. (ε, δ) is of one record and the data without it, and bounds
both directions, adding the record and removing it. For a record (x, y) outside of X, with leverage μ = xᵀH⁻¹x
and residual r = y − xᵀθ̂, both out of sample, the ratio of the densities without and with it depends on θ through
U = √γ(y − xᵀθ) alone:

    log p/q = −½log(1+μ) + ½(U² − c²/(1+μ)),   c = √γ|r|,
    without the record U ~ P = N(c, μ),        with it U ~ Q = N(c/(1+μ), μ/(1+μ)).

So the curve δ(ε) is that of this pair, and {log p/q > ε} is |U| > T, {log q/p > ε} is |U| < T', with
T², T'² = c²/(1+μ) + log(1+μ) ± 2ε (cf. Wang, thesis, Theorem 5.15; the bounds (5.5) and (5.6) printed there are too
small: a missing 2 under the root, one direction for both, and a sign; ``test_per_instance.py`` holds points).

The largest ε over records that could join, and over data, are in ``experiments/sources``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import qr
from scipy.special import log_ndtr

from dpmcmc.errors import InputError
from dpmcmc.storage.blas import on_one_blas_thread

__all__ = ["LeaveOneOut", "leave_one_out", "ridge_ops_epsilon"]

#: Half an ulp of float64, relative.
UNIT = 2.0**-53
#: Where 1 − h is below this, rounding could make it up: the leverage is infinite, as it is without a ridge for a record
#: whose direction no other one has.
_CERTAIN = 1e-9
#: Bisections; the bracket shrinks by 2**-44, below 1e-13 of its first end.
_HALVINGS = 44
#: Doublings of an end that does not meet δ.
_DOUBLINGS = 60

#: An edge in standard deviations of a law, and the sum of the magnitudes that were added up to make it.
_Edge = tuple[np.ndarray, np.ndarray]


class LeaveOneOut(NamedTuple):
    """Leverage and residual of each record against all the others. CONFIDENTIAL: never in the released folder.

    Attributes:
        leverage: μ_i = x_iᵀ(X₋ᵢᵀX₋ᵢ + λI)⁻¹x_i, (n,); infinite where the fit without the record is not determined.
        residual: r_i = y_i − x_iᵀθ̂₋ᵢ, (n,); infinite there too.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.diagnostics.per_instance import leave_one_out
        >>> found = leave_one_out(np.array([[1.0], [1.0], [2.0]]), np.array([1.0, 1.0, 2.0]), ridge=1.0)
        >>> found.leverage.round(3)
        array([0.167, 0.167, 1.333])
    """

    leverage: np.ndarray
    residual: np.ndarray


@on_one_blas_thread
def leave_one_out(x: ArrayLike, y: ArrayLike, ridge: float) -> LeaveOneOut:
    """Return the out-of-sample leverage and residual of every record.

    With QR = [X; √λ I], h = ‖q_i‖² the leverage in the full fit and e the residual there, out of sample μ = h/(1−h) and
    r = e/(1−h) (Sherman-Morrison). Not squaring X keeps the error at the rounding of a condition number.

    CONFIDENTIAL: reads every record; never in the released folder.

    Args:
        x: rows, (n, d).
        y: targets, (n,).
        ridge: λ >= 0 of ‖y − Xθ‖² + λ‖θ‖², chosen without the data.

    Raises:
        ValueError: shapes that do not fit, values that are not finite, or a fit that is not determined.
    """
    x = np.asarray(x, np.float64)
    y = np.asarray(y, np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1] or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError(f"x, y: must be finite, (n, d) and (n,), got {x.shape} and {y.shape}.")
    if not 0 <= ridge < np.inf:
        raise InputError(f"ridge: must be finite and >= 0, got {ridge}.")
    n, d = x.shape
    q, r = qr(np.concatenate([x, np.sqrt(ridge) * np.eye(d)]), mode="economic", check_finite=False)
    diagonal = np.abs(np.diag(r))
    if not diagonal.min() > d * np.finfo(float).eps * diagonal.max():
        raise InputError(f"ridge: X'X + {ridge}·I is singular in float64; take a larger ridge.")
    q = q[:n]
    left = 1.0 - np.einsum("ij,ij->i", q, q)
    known = left > _CERTAIN
    left = np.where(known, left, 1.0)
    residual = (y - q @ (y @ q)) / left
    return LeaveOneOut(np.where(known, (1.0 - left) / left, np.inf), np.where(known, residual, np.inf))


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
    mu, r, g, target = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (leverage, residual, gamma, delta)))
    if not ((mu >= 0) & ~np.isnan(r) & (g > 0) & np.isfinite(g) & (target >= 0) & (target < 1)).all():
        raise InputError(
            "leverage, residual, gamma, delta: must be >= 0, a number, positive and finite, and in [0, 1); the first "
            "two are those of the record against a fit without it."
        )
    # A record with x = 0 moves nothing. Without a density, or at δ = 0, no finite ε holds.
    hopeless = (mu > 0) & ((target == 0) | np.isinf(mu) | np.isinf(r))
    inside = (mu > 0) & ~hopeless
    out = np.where(hopeless, np.inf, 0.0)
    m = mu[inside]
    c = (np.sqrt(g) * np.abs(r))[inside]
    d = target[inside]
    # ε at T = c + √μ t, t = √(2 log 1/δ): P(|U| > T) <= 2Φ(−t) <= δ. Removing the record is rarely the worse.
    t = np.sqrt(2 * np.log(1 / d))
    upper = 0.5 * np.maximum(c * c * m / (1 + m) + 2 * c * np.sqrt(m) * t + m * t * t - np.log1p(m), 0.0)
    out[inside] = smallest_epsilon(lambda e: np.maximum(excess_without(m, c, e), excess_with(m, c, e)), upper, d)
    return out


def smallest_epsilon(delta_at: Callable[[np.ndarray], np.ndarray], upper: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Return upper ends of brackets around the roots of δ(ε) = delta.

    Args:
        delta_at: ε (n,) -> δ (n,), not increasing in ε, rounded up.
        upper: an ε for each that about meets δ, (n,).
        delta: what is asked for, (n,).

    Returns:
        (n,): ε >= 0 at which ``delta_at`` was evaluated and found at most ``delta``; infinite where none was found.
    """
    high = np.maximum(upper, 1e-300)
    for _ in range(_DOUBLINGS):
        short = delta_at(high) > delta
        if not short.any():
            break
        high = np.where(short, 2 * high, high)
    high = np.where(short, np.inf, high)
    # Below delta already at 0: nothing to search for.
    low = np.zeros_like(high)
    high = np.where(delta_at(low) <= delta, 0.0, high)
    for _ in range(_HALVINGS):
        middle = low + (high - low) / 2
        enough = delta_at(middle) <= delta
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    return high


def _edges(mu: np.ndarray, c: np.ndarray, signed: np.ndarray) -> tuple[np.ndarray, list[_Edge], list[_Edge]]:
    """Return (T², the edges in P, in Q) of log p/q > ``signed``: ε, or −ε where the record is removed.

    T² is negative where no U has so small a ratio. T − m is a quotient, since T² − m² has terms that do not cancel.
    """
    ratio = mu / (1 + mu)
    surplus = np.log1p(mu) + 2 * signed
    square = surplus + c * c / (1 + mu)
    edge = np.sqrt(np.maximum(square, 0.0))
    sums = np.log1p(mu) + 2 * np.abs(signed) + c * c * ratio
    laws = (c, mu, surplus - c * c * ratio), (c / (1 + mu), ratio, surplus + (c / (1 + mu)) ** 2 * mu)
    found = []
    for mean, variance, difference in laws:
        below = (edge + mean) / np.sqrt(variance)
        across = below * variance
        found.append([(difference / across, sums / across), (below, below)])
    return square, *found


@np.errstate(invalid="ignore", over="ignore", under="ignore")
def excess_without(mu: np.ndarray, c: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Return sup_S P(S) − e^ε Q(S), P the law without the record: both tails |U| > T, each rounded up."""
    _, p, q = _edges(mu, c, epsilon)
    above, below = (_tail(*first, other, epsilon) for first, (other, _) in zip(p, q, strict=True))
    return above + below


def _tail(z: np.ndarray, uncertain: np.ndarray, other: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Return Φ(−z) − e^ε Φ(−other) on a tail where it is not negative, rounded up.

    The allowance for rounding: 16 units on the terms of z, whose magnitudes add up to ``uncertain``, through the
    density φ(z) <= (1 + z⁺)Φ(−z), and on both logarithms, whose size is about z²/2.
    """
    log_first = log_ndtr(-z)
    first = np.exp(log_first)
    value = first * -np.expm1(np.minimum(epsilon + log_ndtr(-other) - log_first, 0.0))
    slack = (1 + np.maximum(z, 0)) * uncertain + 2 + z * z + other * other + epsilon
    # Where the tail is empty in float64 (z infinite) the excess is 0.
    return np.where(first > 0, value + 16 * UNIT * first * slack, 0.0)


@np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore")
def excess_with(mu: np.ndarray, c: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Return sup_S Q(S) − e^ε P(S), Q the law with the record: the interval |U| < T', rounded up; 0 if empty."""
    square, p, q = _edges(mu, c, -epsilon)
    without, loose = _mass(p, epsilon)
    with_record, more = _mass(q, np.zeros_like(epsilon))
    return np.where(square > 0, np.maximum(with_record - without, 0.0) + loose + more, 0.0)


def _mass(edges: list[_Edge], epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return e^ε P(|U| < T) and an allowance for its rounding, by the rule of ``_tail``."""
    (upper, uncertain), (lower, _) = edges
    log_upper = log_ndtr(upper)
    whole = np.exp(epsilon + log_upper)
    slack = (1 + np.maximum(-upper, 0)) * uncertain + 2 + upper * upper + epsilon
    return whole * -np.expm1(np.minimum(log_ndtr(-lower) - log_upper, 0.0)), 16 * UNIT * whole * slack
