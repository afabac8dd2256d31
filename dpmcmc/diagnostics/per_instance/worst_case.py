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

import numpy as np

from dpmcmc.diagnostics.per_instance.ridge_ops import ridge_ops_epsilon
from dpmcmc.errors import InputError

_INTERVALS = 20_000
#: Over the rounding of a dozen float64 operations.
_WIDER = 1 + 1e-12


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
    base, root = 1 + scaled * lower**2, np.sqrt(num_records)
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
