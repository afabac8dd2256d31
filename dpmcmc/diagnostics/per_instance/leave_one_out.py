r"""Leverage, residual and influence of every record of a ridge regression, as if it were not in the fit.

CONFIDENTIAL: reads every record; never in the released folder.

With QR = [X; √λ I], row q_i of Q for record i, h = ‖q_i‖² its leverage in the full fit, e its residual there,

    out of sample:   μ = h/(1−h),   r = e/(1−h),   θ̂ − θ̂₋ᵢ = R⁻¹q_i · r,   so ‖·‖ = ‖R⁻¹q_i‖·|r|

(Sherman-Morrison). One factorisation, O(nd²); not squaring X keeps the error at the rounding of a condition number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import qr, solve_triangular

from dpmcmc.errors import InputError

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
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 2 or y.shape != x.shape[:1] or x.shape[1] == 0:
        raise InputError(f"x, y: must be (n, d) and (n,), got {x.shape} and {y.shape}.")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("x, y: hold a value that is not finite; clip or drop such records first.")
    if not 0 <= ridge < np.inf:
        raise InputError(f"ridge: must be finite and >= 0, got {ridge}.")
    return x, y
