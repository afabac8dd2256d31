r"""The most that anyone loses by a ridge regression's draw or noisy estimate: over all data, and by joining these data.

    python -m experiments.sources.worst_case [--quick] --out DIR

The two releases are one posterior draw, density ∝ exp(−(γ/2)(‖y − Xθ‖² + λ‖θ‖²)), and the estimate plus N(0, σ²I).
Rows have ‖x‖ <= 1 and targets |y| <= 1. The curve of the draw (``dpmcmc/diagnostics/per_instance.py``) grows with the
leverage μ at fixed c²/(1+μ), c = √γ|r|, and with c at fixed μ, which both parts need:

* Up to an affine map its pair is N(κ, 1+μ) against N(0, 1), κ² = μ·c²/(1+μ). Adding independent N(0, τ) to both is
  post-processing, and gives the pair of μ/(1+τ) and the same c²/(1+μ).
* At fixed μ, δ = sup_S P(S) − e^ε Q(S). By the envelope theorem its derivative in κ is that of the best S held fixed.
  In U the best S is |U| > T or |U| < T'; with P held in place, more κ moves Q's mean towards 0, the middle of the
  interval: e^ε Q(|U| > T) falls, and Q(|U| < T') rises.

**Differential privacy** (Proposition 5.17; no record is read). λ > 0, and n records at most beside the one that joins
or leaves (public, the same for both neighbours). With H and θ̂ of the n records, μ = xᵀH⁻¹x, q = ‖H⁻¹x‖²:

    |xᵀθ̂| = |(XH⁻¹x)ᵀy| <= √n √(xᵀH⁻¹XᵀXH⁻¹x) = √n √(μ − λq),   μ² <= q,   μ <= 1/λ.

* One posterior draw: |r| <= 1 + √n√(μ − λμ²), so ε is at most the largest exact one over μ in [0, 1/λ], found on
  intervals. n rows of one direction and length, all of target 1, attain it for μ >= 1/(λ + n).
* Estimate plus noise: Δ <= u(1 + √n v)/(1 + λu² + v²), u² = q, v² = μ − λq, u <= 1/λ, and v² <= u − λu² from μ² <= q:
  the best v is known, and u is cut into intervals.

**For all who could join** fixed data. In the eigenbasis of H, w_i = 1/h_i, s_i = x_i², t the estimate:

    μ = Σ w_i s_i,   Σ s_i <= 1,   |r| <= A + 1,  A = |xᵀθ̂| <= Σ |t_i|√s_i,

and both are attained (signs of x and y are free). By Cauchy-Schwarz with weights w_i + τ or τ − w_i, every τ proves a
bound for all μ in [μ₀, μ₁] (the dual of a concave program, whose best τ is tight):

    A² <= (μ₁ + τ) Σ t_i²/(w_i + τ)   for τ >= 0,      A² <= (τ − μ₀) Σ t_i²/(τ − w_i)   for τ > max w,

and A <= ‖θ̂‖. The largest ε over intervals of μ is a proved upper bound. ``attained`` is the exact ε of a record, best
of the dual's own: x_i ∝ t_i/(w_i + τ), t_i/(τ − w_i), and the eigenvectors. For the estimate plus noise,
Δ = |r|√q/(1+μ), q = Σ w_i² s_i: the same with w_i² in place of w_i, and μ >= q·min h. This bound is not tight.

The table has differential privacy of both releases beside what rows of one direction attain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dpmcmc.diagnostics.per_instance import ridge_ops_epsilon
from experiments.sources.per_instance import noisy_estimate_epsilon
from experiments.sources.script import script

#: Intervals of leverage in all data, and a factor above the rounding of a dozen float64 operations.
INTERVALS = 20_000
WIDER = 1 + 1e-12
#: Intervals of leverage in these data, whose ends differ by 1 %, and their width over an eigendecomposition's rounding.
RECORD_INTERVALS = 2000
RECORD_WIDER = 1 + 1e-6
#: Dual points τ over the largest w, from below and from above.
RISING, FALLING = np.geomspace(1e-6, 1e6, 400), 1 + np.geomspace(1e-9, 1e6, 400)


def draw_epsilon(num_records: int, ridge: float, gamma: float, delta: float) -> float:
    """Return ε at which one posterior draw is (ε, δ)-DP when records are added or removed."""
    lower, ends, highest = _intervals(ridge, 1e-8)
    residual = 1 + np.sqrt(num_records * highest)
    return float(ridge_ops_epsilon(ends, residual * np.sqrt((1 + ends) / (1 + lower)) * WIDER, gamma, delta).max())


def estimate_sensitivity(num_records: int, ridge: float) -> float:
    """Return the furthest that one record moves a ridge estimate, ‖θ̂(Z) − θ̂([Z, z])‖ over all data and records."""
    lower, ends, highest = _intervals(ridge, 1e-6)
    # (1 + √n v)/(1 + λu² + v²) rises in v up to a root and falls beyond: its largest value on [0, √highest].
    base = 1 + ridge * lower**2
    root = np.sqrt(num_records)
    v = np.minimum(np.sqrt(highest), (np.sqrt(1 + root**2 * base) - 1) / root)
    return float((ends * (1 + root * v) / (base + v * v)).max()) * WIDER


def _intervals(ridge: float, smallest: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut [0, 1/λ] into intervals: lower ends, upper ends, and the largest u − λu² on each."""
    ends = np.geomspace(smallest, 1.0, INTERVALS) / ridge
    lower = np.concatenate([[0.0], ends[:-1]])
    # It rises up to 1/(2λ).
    at = np.clip(0.5 / ridge, lower, ends)
    return lower, ends, np.maximum(at - ridge * at * at, 0.0)


class ForAll(NamedTuple):
    """The worst record for these data. CONFIDENTIAL, unless they are public.

    Attributes:
        epsilon: no record in the domain has more: a proved upper bound.
        attained: the exact ε of the record (x, y): what the bound cannot be lowered beyond.
        x: (d,).
        y: its target.
    """

    epsilon: float
    attained: float
    x: np.ndarray
    y: float


def draw_for_all(x: np.ndarray, y: np.ndarray, *, ridge: float, gamma: float, delta: float) -> ForAll:
    """Return the largest ε of one posterior draw over records that could join these data."""
    basis, t, w = _basis(x, y, ridge)
    lower, upper = _record_intervals(w.max())
    most = _reach(t, w, lower, upper) + 1
    epsilon = ridge_ops_epsilon(upper, most * np.sqrt((1 + upper) / (1 + lower)) * RECORD_WIDER, gamma, delta).max()
    candidates = _candidates(t, w)
    found = ridge_ops_epsilon(candidates**2 @ w, np.abs(candidates @ t) + 1, gamma, delta)
    return _best(float(epsilon), found, candidates, basis, t)


def estimate_for_all(x: np.ndarray, y: np.ndarray, *, ridge: float, noise_std: float, delta: float) -> ForAll:
    """Return the largest ε of the estimate plus N(0, σ²I) over records that could join these data."""
    basis, t, w = _basis(x, y, ridge)
    lower, upper = _record_intervals(w.max() ** 2)
    most = _reach(t, w**2, lower, upper) + 1
    moved = (most * np.sqrt(upper) / (1 + lower / w.max())).max() * RECORD_WIDER
    candidates = np.concatenate([_candidates(t, w**2), _candidates(t, w)])
    shifts = (np.abs(candidates @ t) + 1) * np.linalg.norm(candidates * w, axis=1) / (1 + candidates**2 @ w)
    found = noisy_estimate_epsilon(shifts, noise_std, delta)
    return _best(float(noisy_estimate_epsilon(moved, noise_std, delta)), found, candidates, basis, t)


def _basis(x: np.ndarray, y: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return eigenvectors of H (columns), the estimate in them, (d,), and 1/h, (d,)."""
    h, basis = np.linalg.eigh(x.T @ x + ridge * np.eye(x.shape[1]))
    # Below this the relative error of the smallest eigenvalue could reach RECORD_WIDER.
    assert h[0] > 1e-8 * h[-1]
    return basis, basis.T @ (x.T @ y) / h, 1 / h


def _record_intervals(largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Cut [0, largest] into intervals: lower and upper ends."""
    ends = np.geomspace(1e-7 * largest, largest * RECORD_WIDER, RECORD_INTERVALS)
    return np.concatenate([[0.0], ends[:-1]]), ends


def _reach(t: np.ndarray, w: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Return bounds of Σ|t_i|√s_i over s >= 0, Σ s_i <= 1, lower <= Σ w_i s_i <= upper, for each interval."""
    rising, falling = w.max() * RISING, w.max() * FALLING
    # Sums of terms of one sign; τ − lower is positive because τ > max w and lower <= max w.
    rise = (t**2 / (w + rising[:, None])).sum(axis=1)
    fall = (t**2 / (falling[:, None] - w)).sum(axis=1)
    bounds = (
        np.full(len(lower), t @ t),
        ((upper[:, None] + rising) * rise).min(axis=1),
        upper * (t**2 / w).sum(),
        ((falling - lower[:, None]) * fall).min(axis=1),
    )
    return np.sqrt(np.min(bounds, axis=0))


def _candidates(t: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return unit records, (k, d), in the eigenbasis: primal points of the dual ones, and eigenvectors."""
    rising = w.max() * np.concatenate([[0.0], RISING])
    falling = w.max() * FALLING
    rows = np.concatenate([t / (w + rising[:, None]), t / (falling[:, None] - w), np.eye(len(t))])
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    # θ̂ = 0 leaves the eigenvectors alone.
    return rows[norms[:, 0] > 0] / norms[norms[:, 0] > 0]


def _best(epsilon: float, found: np.ndarray, candidates: np.ndarray, basis: np.ndarray, t: np.ndarray) -> ForAll:
    best = int(np.argmax(found))
    sign = -1.0 if candidates[best] @ t > 0 else 1.0
    return ForAll(epsilon, float(found[best]), basis @ candidates[best], sign)


def attained(num_records: int, gamma: float, delta: float, points: int) -> tuple[float, float]:
    """Return (ε of the draw, shift of the estimate) that n rows of one direction and length attain, λ = 1."""
    square = np.linspace(0, num_records, points)
    leverage, estimate = 1 / (square + 1), np.sqrt(num_records * square) / (square + 1)
    shift = (1 + estimate) * leverage / (1 + leverage)
    return float(ridge_ops_epsilon(leverage, 1 + estimate, gamma, delta).max()), float(shift.max())


def rows(points: int) -> list[dict[str, Any]]:
    """Return the rows of results.csv."""
    delta = 1e-6
    out = []
    for num_records in (50, 1000):
        for gamma in (0.1, 1.0, 10.0):
            draw, moved = attained(num_records, gamma, delta, points)
            out.append({
                "num_records": num_records,
                "gamma": gamma,
                "delta": delta,
                "draw": draw_epsilon(num_records, 1.0, gamma, delta),
                "draw_attained": draw,
                "sensitivity": estimate_sensitivity(num_records, 1.0),
                "sensitivity_attained": moved,
            })  # fmt: skip
    return out


SAID = (
    "n = {num_records:,}, γ = {gamma:g}: ε = {draw:.4g}, attained {draw_attained:.4g}; the estimate moves by "
    "{sensitivity:.4g}, attained {sensitivity_attained:.4g}"
)
main = script(
    "worst_case",
    "Differential privacy of a ridge regression, and what attains it.",
    lambda quick: rows(2_001 if quick else 20_001),
    SAID,
)

if __name__ == "__main__":
    raise SystemExit(main())
