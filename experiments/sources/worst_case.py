r"""Differential privacy of the same two releases: the largest ε over data and record. Reads no record.

Rows ‖x‖ <= B, targets |y| <= Y, ridge λ > 0, and n records at most beside the one that joins or leaves (a public bound,
the same for both neighbours). With H and θ̂ of the n records, μ = xᵀH⁻¹x, q = ‖H⁻¹x‖²:

    |xᵀθ̂| = |(XH⁻¹x)ᵀy| <= √n Y √(xᵀH⁻¹XᵀXH⁻¹x) = √n Y √(μ − λq),   μ² <= qB²,   μ <= B²/λ.

* One posterior draw: |r| <= Y(1 + √n√(μ − λμ²/B²)), so ε is at most the largest exact one over μ in [0, B²/λ], found on
  intervals as in ``for_all``. n rows of one direction and length, all of target Y, attain it for μ >= B²/(λ + nB²).
* Estimate plus noise, with rows in units of B (so λ/B² for λ): Δ <= (Y/B)·u(1 + √n v)/(1 + λu² + v²), u² = q,
  v² = μ − λq, u <= 1/λ, and v² <= u − λu² from μ² <= q: the best v is known, and u is cut into intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh

from dpmcmc.diagnostics.per_instance.releases import (
    checked,
    output_perturbation_epsilon,
    ridge_ops_epsilon,
)
from dpmcmc.errors import InputError
from dpmcmc.storage.blas import on_one_blas_thread

_INTERVALS = 20_000
#: Factor above the rounding of a dozen float64 operations.
_WIDER = 1 + 1e-12


@on_one_blas_thread
def ridge_ops_worst_case(
    *,
    num_records: int,
    ridge: float,
    gamma: float,
    delta: float,
    row_bound: float = 1.0,
    target_bound: float = 1.0,
) -> float:
    """Return ε at which one ridge posterior draw is (ε, δ)-DP when records are added or removed.

    Args:
        num_records: n, a public bound on the records beside the one that joins or leaves.
        ridge: λ > 0, public.
        gamma: γ of the density exp(−(γ/2)(‖y − Xθ‖² + λ‖θ‖²)), public.
        delta: δ in (0, 1).
        row_bound: B.
        target_bound: Y.

    Raises:
        ValueError: an argument outside these.
    """
    scaled = _scaled(num_records, ridge, row_bound, target_bound)
    lower, ends, highest = _intervals(scaled, 1e-8)
    residual = target_bound * (1 + np.sqrt(num_records * highest))
    return float(ridge_ops_epsilon(ends, residual * np.sqrt((1 + ends) / (1 + lower)) * _WIDER, gamma, delta).max())


@on_one_blas_thread
def output_perturbation_sensitivity(
    *, num_records: int, ridge: float, row_bound: float = 1.0, target_bound: float = 1.0
) -> float:
    """Return the furthest that one record moves a ridge estimate, ‖θ̂(Z) − θ̂([Z, z])‖ over all data and records.

    For ``output_perturbation_epsilon``, whose ε is then that of differential privacy.

    Args:
        num_records: n, a public bound on the records beside the one that joins or leaves.
        ridge: λ > 0, public.
        row_bound: B.
        target_bound: Y.

    Raises:
        ValueError: an argument outside these.
    """
    scaled = _scaled(num_records, ridge, row_bound, target_bound)
    lower, ends, highest = _intervals(scaled, 1e-6)
    furthest = np.sqrt(highest)
    # (1 + √n v)/(1 + λu² + v²) rises in v up to a root and falls beyond: its largest value on [0, furthest].
    base = 1 + scaled * lower**2
    root = np.sqrt(num_records)
    peak = (np.sqrt(1 + root**2 * base) - 1) / root if num_records > 0 else np.zeros_like(base)
    v = np.minimum(furthest, peak)
    moved = ends * (1 + root * v) / (base + v * v)
    return float(moved.max()) * target_bound / row_bound * _WIDER


def _intervals(scaled: float, smallest: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut [0, 1/λ] into intervals: lower ends, upper ends, and the largest u − λu² on each."""
    ends = np.geomspace(smallest, 1.0, _INTERVALS) / scaled
    lower = np.concatenate([[0.0], ends[:-1]])
    # It rises up to 1/(2λ).
    at = np.clip(0.5 / scaled, lower, ends)
    return lower, ends, np.maximum(at - scaled * at * at, 0.0)


def _scaled(num_records: int, ridge: float, row_bound: float, target_bound: float) -> float:
    """Return λ in units of the rows: λ/B²."""
    if num_records < 0:
        raise InputError(f"num_records: must be >= 0, got {num_records}.")
    if not 0 < ridge < np.inf:
        raise InputError(f"ridge: must be positive, got {ridge}; without it one record can move the estimate anywhere.")
    if not (0 < row_bound < np.inf and 0 < target_bound < np.inf):
        raise InputError("row_bound, target_bound: must be positive and finite.")
    return ridge / row_bound**2


# ----------------------------------------------------------------------------------------------------
# The largest ε over every record that could join fixed data: a proved upper bound, and a lower bound that is attained.
#
# CONFIDENTIAL: reads every record; never in the released folder.
#
# The record (x, y) ranges over ‖x‖ <= B, |y| <= Y, public bounds. In the eigenbasis of H, w_i = 1/h_i, s_i = x_i²:
#
#     μ = Σ w_i s_i,   Σ s_i <= B²,   |r| <= A + Y,  A = |xᵀθ̂| <= Σ |t_i|√s_i,
#
# and both are attained (signs of x and y are free). By Cauchy-Schwarz with weights w_i + τ or τ − w_i, every τ proves a
# bound for all μ in [μ₀, μ₁] (the dual of a concave program, whose best τ is tight):
#
#     A² <= (μ₁ + τB²) Σ t_i²/(w_i + τ)   for τ >= 0,      A² <= (τB² − μ₀) Σ t_i²/(τ − w_i)   for τ > max w,
#
# and A <= B‖θ̂‖. ``epsilon`` cuts [0, B²·max w] into intervals and takes the largest ε of (μ₁,
# √(1+μ₁)·√γ(A+Y)/√(1+μ₀)), which bounds an interval because δ(ε) grows with μ at fixed c²/(1+μ), and with c
# (``ridge_ops``). ``attained`` is the exact ε of a record, best of the dual's own: x_i ∝ t_i/(w_i + τ), t_i/(τ − w_i),
# and the eigenvectors.
#
# For output perturbation, Δ = |r|√q/(1+μ), q = Σ w_i² s_i: the same with w_i² in place of w_i, and μ >= q·min h. This
# bound is not tight; ``attained`` says how far it can be off.

#: Intervals of leverage, and dual points; the ends of an interval differ by 1 %.
_RECORD_INTERVALS = 2000
_DUAL = 400
#: The smallest interval begins at 0 and ends at this share of the largest leverage.
_SMALLEST = 1e-7
#: Relative, over the rounding of an eigendecomposition whose condition number ``_basis`` has checked.
_RECORD_WIDER = 1 + 1e-6


@dataclass(frozen=True)
class ForAll:
    """The worst record for these data. CONFIDENTIAL: never in the released folder.

    Attributes:
        epsilon: no record in the domain has more: a proved upper bound.
        attained: the exact ε of the record (x, y): what the bound cannot be lowered beyond.
        x: (d,).
        y: its target.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.diagnostics.per_instance import ridge_ops_for_all
        >>> x, y = np.array([[0.6], [0.8], [1.0]]), np.array([0.5, 1.0, 1.0])
        >>> worst = ridge_ops_for_all(x, y, ridge=1.0, gamma=1.0, delta=1e-3, row_bound=1.0, target_bound=1.0)
        >>> bool(worst.attained <= worst.epsilon)
        True
    """

    epsilon: float
    attained: float
    x: np.ndarray
    y: float


@on_one_blas_thread
def ridge_ops_for_all(
    x: ArrayLike,
    y: ArrayLike,
    *,
    ridge: float,
    gamma: float,
    delta: float,
    row_bound: float,
    target_bound: float,
) -> ForAll:
    """Return the largest per-instance ε of one ridge posterior draw over records that could join these data.

    CONFIDENTIAL: reads every record; never in the released folder.

    Args:
        x: rows, (n, d).
        y: targets, (n,).
        ridge: λ.
        gamma: γ of the density exp(−(γ/2)(‖y − Xθ‖² + λ‖θ‖²)).
        delta: δ in (0, 1).
        row_bound: B: the record has ‖x‖ <= B; public. The data themselves may exceed it.
        target_bound: Y, the public bound: ``|y| <= Y``.

    Raises:
        ValueError: an argument outside these, or H singular in float64.
    """
    basis, t, w = _basis(x, y, ridge, row_bound, target_bound)
    lower, upper = _record_intervals(row_bound**2 * w.max())
    most = _reach(t, w, row_bound, lower, upper) + target_bound
    epsilon = ridge_ops_epsilon(upper, most * np.sqrt((1 + upper) / (1 + lower)) * _RECORD_WIDER, gamma, delta).max()
    candidates = _candidates(t, w, row_bound)
    found = ridge_ops_epsilon(candidates**2 @ w, np.abs(candidates @ t) + target_bound, gamma, delta)
    return _answer(epsilon, found, candidates, basis, t, target_bound)


@on_one_blas_thread
def output_perturbation_for_all(
    x: ArrayLike,
    y: ArrayLike,
    *,
    ridge: float,
    noise_std: float,
    delta: float,
    row_bound: float,
    target_bound: float,
) -> ForAll:
    """Return the largest per-instance ε of the ridge estimate plus N(0, σ² I) over records that could join these data.

    CONFIDENTIAL: reads every record; never in the released folder.

    Args:
        x: rows, (n, d).
        y: targets, (n,).
        ridge: λ.
        noise_std: σ.
        delta: δ in (0, 1).
        row_bound: B: the record has ‖x‖ <= B; public.
        target_bound: Y, the public bound: ``|y| <= Y``.

    Raises:
        ValueError: an argument outside these, or H singular in float64.
    """
    basis, t, w = _basis(x, y, ridge, row_bound, target_bound)
    lower, upper = _record_intervals(row_bound**2 * w.max() ** 2)
    most = _reach(t, w**2, row_bound, lower, upper) + target_bound
    moved = (most * np.sqrt(upper) / (1 + lower / w.max())).max() * _RECORD_WIDER
    epsilon = output_perturbation_epsilon(moved, noise_std, delta)
    candidates = np.concatenate([_candidates(t, w**2, row_bound), _candidates(t, w, row_bound)])
    shifts = (np.abs(candidates @ t) + target_bound) * np.linalg.norm(candidates * w, axis=1)
    found = output_perturbation_epsilon(shifts / (1 + candidates**2 @ w), noise_std, delta)
    return _answer(float(epsilon), found, candidates, basis, t, target_bound)


def _basis(
    x: ArrayLike, y: ArrayLike, ridge: float, row_bound: float, target_bound: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return eigenvectors of H (columns), the estimate in them, (d,), and 1/h, (d,)."""
    x, y = checked(x, y, ridge)
    if not (0 < row_bound < np.inf and 0 <= target_bound < np.inf):
        raise InputError("row_bound, target_bound: must be finite, the first > 0 and the second >= 0.")
    h, basis = eigh(x.T @ x + ridge * np.eye(x.shape[1]), check_finite=False)
    # Below this the relative error of the smallest eigenvalue could reach _WIDER.
    if h[0] <= 1e-8 * h[-1]:
        raise InputError("ridge: X'X + ridge·I is too near singular for the bound; take a larger ridge.")
    return basis, basis.T @ (x.T @ y) / h, 1 / h


def _record_intervals(largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Cut [0, largest] into intervals: lower and upper ends."""
    ends = np.geomspace(_SMALLEST * largest, largest * _RECORD_WIDER, _RECORD_INTERVALS)
    return np.concatenate([[0.0], ends[:-1]]), ends


def _reach(t: np.ndarray, w: np.ndarray, row_bound: float, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Return bounds of Σ|t_i|√s_i over s >= 0, Σ s_i <= B², lower <= Σ w_i s_i <= upper, for each interval."""
    square = row_bound**2
    rising = w.max() * np.geomspace(1e-6, 1e6, _DUAL)
    falling = w.max() * (1 + np.geomspace(1e-9, 1e6, _DUAL))
    out = np.full(len(lower), square * (t @ t))
    # Sums of terms of one sign; τB² − lower is positive because τ > max w and lower <= B² max w.
    rise = (t**2 / (w + rising[:, None])).sum(axis=1)
    fall = (t**2 / (falling[:, None] - w)).sum(axis=1)
    out = np.minimum(out, ((upper[:, None] + rising * square) * rise).min(axis=1))
    out = np.minimum(out, upper * (t**2 / w).sum())
    out = np.minimum(out, ((falling * square - lower[:, None]) * fall).min(axis=1))
    return np.sqrt(out)


def _candidates(t: np.ndarray, w: np.ndarray, row_bound: float) -> np.ndarray:
    """Return records at the bound, (k, d), in the eigenbasis: primal points of the dual ones, and eigenvectors."""
    rising = w.max() * np.concatenate([[0.0], np.geomspace(1e-6, 1e6, _DUAL)])
    falling = w.max() * (1 + np.geomspace(1e-9, 1e6, _DUAL))
    rows = np.concatenate([t / (w + rising[:, None]), t / (falling[:, None] - w), np.eye(len(t))])
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    # θ̂ = 0 leaves the eigenvectors alone.
    kept = norms[:, 0] > 0
    return row_bound * rows[kept] / norms[kept]


def _answer(
    epsilon: float,
    found: np.ndarray,
    candidates: np.ndarray,
    basis: np.ndarray,
    t: np.ndarray,
    target_bound: float,
) -> ForAll:
    best = int(np.argmax(found))
    sign = -1.0 if candidates[best] @ t > 0 else 1.0
    return ForAll(float(epsilon), float(found[best]), basis @ candidates[best], sign * target_bound)
