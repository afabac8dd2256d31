r"""On-average KL privacy: the divergence from replacing one record, averaged over data and record.

    ε = E_{Z ~ Dⁿ, z ~ D} KL( A(Z) ‖ A([Z₋₁, z]) )

(Wang, Lei and Fienberg 2016; thesis, chapter 4). For an exact draw from p(h|Z) ∝ exp(−γ Σ ℓ(z_i, h) − r(h)), r free of
the data and the normaliser finite, it is γ times the generalisation gap of the same loss,

    ε = γ·( E ℓ(z, A(Z)) − E (1/n) Σ ℓ(z_i, A(Z)) ),   z fresh (Theorem 3),

so two estimators must agree: :func:`from_divergences` of closed forms, and :func:`from_risks` of losses on records that
were trained on and fresh ones. It is an average over the distribution of data: it protects no person, is not
differential privacy, and does not compose over the steps of a chain.

CONFIDENTIAL where data or losses are those of records: never in the released folder. On generated data it is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from dpmcmc.errors import InputError, UnsupportedCombination


@dataclass(frozen=True)
class OnAverageKL:
    """An estimate, in nats. It bounds no one's privacy loss and does not compose.

    Attributes:
        value: On-average KL.
        standard_error: of the Monte Carlo; 0 for a closed form.
        method: how it was found.

    Example:
        >>> from dpmcmc.diagnostics import on_average_kl
        >>> estimate = on_average_kl.from_divergences([0.1, 0.2, 0.3])
        >>> round(estimate.value, 3)
        0.2
    """

    value: float
    standard_error: float
    method: str

    def compose(self, *_: object) -> NoReturn:
        """Refuse to compose.

        Raises:
            UnsupportedCombination: always.
        """
        raise UnsupportedCombination(
            "On-average KL does not compose over iterations: a step starts from an iterate that already depends on the "
            "data, and an average over data says nothing of the data given that iterate; compose a guarantee (rdp, "
            "pld), or take one exact draw."
        )

    def __add__(self, other: object) -> NoReturn:
        """Refuse to add: see :meth:`compose`."""
        self.compose(other)

    __radd__ = __mul__ = __rmul__ = __add__


def from_divergences(divergences: ArrayLike, method: str = "closed form of each pair") -> OnAverageKL:
    """Return the mean of KL(A(Z) ‖ A([Z₋₁, z])) over independent pairs, (repeats,), with its standard error.

    Raises:
        ValueError: fewer than two, or one that is not finite.
    """
    return _mean(np.asarray(divergences, np.float64), method)


def from_risks(train: ArrayLike, fresh: ArrayLike, gamma: float) -> OnAverageKL:
    """Return γ times the mean gap between losses on fresh and on training records, with its standard error.

    CONFIDENTIAL where the losses are those of records. Valid for exact draws of exp(−γ Σ ℓ − r) with this loss and γ.

    Args:
        train: mean loss of one draw on the data it was drawn from, (repeats,), each with data of its own.
        fresh: mean loss of the same draw on records from the same law that it has not seen, (repeats,).
        gamma: γ.

    Raises:
        ValueError: shapes that differ, fewer than two, or a loss that is not finite.
    """
    train = np.asarray(train, np.float64)
    fresh = np.asarray(fresh, np.float64)
    if train.shape != fresh.shape:
        raise InputError(f"train, fresh: must be of one shape, got {train.shape} and {fresh.shape}.")
    return _mean(gamma * (fresh - train), "risk gap, fresh and training records")


def disagreement(first: OnAverageKL, second: OnAverageKL) -> float:
    """Return the distance of two independent estimates of one number, in its standard errors."""
    spread = float(np.hypot(first.standard_error, second.standard_error))
    if spread == 0:
        return 0.0 if first.value == second.value else np.inf
    return abs(first.value - second.value) / spread


def agree(first: OnAverageKL, second: OnAverageKL, level: float = 1e-3) -> bool:
    """Return whether a two-sided test at ``level`` accepts that two independent estimates are of one number.

    It detects fresh records that were trained on, and a γ or a prior that differs between risks and sampler. It detects
    a wrong temperature at small γ, where a draw's own noise is a good part of the gap, and hardly at large γ.
    """
    return bool(2 * ndtr(-disagreement(first, second)) >= level)


def _mean(values: np.ndarray, method: str) -> OnAverageKL:
    if values.ndim != 1 or len(values) < 2:
        raise InputError(f"repeats: needs at least two values in one dimension, got shape {values.shape}.")
    if not np.isfinite(values).all():
        raise InputError("repeats: a value is not finite; the mean would be of no use.")
    return OnAverageKL(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), method)
