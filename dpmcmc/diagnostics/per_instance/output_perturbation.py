r"""An estimate with Gaussian noise: exactly what it costs a record.

The release is f(Z) + N(0, σ²A⁻¹), A and σ the same for both neighbours and chosen without the data. With the
per-instance sensitivity Δ = ‖f(Z) − f([Z, z])‖_A, ‖v‖_A² = vᵀAv, and s = Δ/σ, both directions have the curve

    δ(ε) = Φ(s/2 − ε/s) − e^ε Φ(−s/2 − ε/s)

(Balle and Wang 2018, Theorem 8: the pair is N(0, 1) against N(s, 1)). In the thesis's Lemma 5.4 the covariance is
A⁻¹/γ, so σ = 1/√γ; its ε = γΔ√(log(1.25/δ)) has γ for √γ, lacks a 2 under the root, and is false.

For ridge regression and A = I, Δ = |r|·‖H⁻¹x‖/(1+μ), with the residual r, the leverage μ and H = XᵀX + λI of the
data without the record: ``leave_one_out(...).shift``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dpmcmc.diagnostics.per_instance.smallest_epsilon import smallest_epsilon, tail_excess
from dpmcmc.errors import InputError


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
    s, target, shape = _arguments(sensitivity, noise_std, delta, "delta", below=1.0)
    hopeless = (s > 0) & ((target == 0) | np.isinf(s))
    inside = (s > 0) & ~hopeless
    out = np.where(hopeless, np.inf, 0.0)
    if inside.any():
        m, d = s[inside], target[inside]
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
    s, epsilon, shape = _arguments(sensitivity, noise_std, epsilon, "epsilon", below=np.inf)
    inside = (s > 0) & np.isfinite(s)
    out = np.where(s > 0, 1.0, 0.0)
    out[inside] = np.minimum(_excess(s[inside], epsilon[inside]), 1.0)
    return out.reshape(shape)


def _excess(s: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    offset = epsilon / s
    return tail_excess(offset - s / 2, offset + s / 2, epsilon, offset + s / 2)


def _arguments(
    sensitivity: ArrayLike, noise_std: ArrayLike, level: ArrayLike, name: str, below: float
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
