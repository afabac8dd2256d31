"""Scores of linear regression, (η − y)/φ with φ the variance of the noise.

The residual has no bound, so there is no score with a finite limit. A mechanism releases XᵀX and Xᵀy instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtr

from dpmcmc.errors import InputError
from dpmcmc.inference.bounded_score import BoundedScore, LabelBlind, Law
from dpmcmc.inference.normal_score import censored


@dataclass(frozen=True)
class Linear(LabelBlind):
    """The score of linear regression."""

    predictors: ClassVar[str] = "means"
    clip: ClassVar[float] = math.inf
    limit: ClassVar[float] = math.inf
    step: ClassVar[float] = math.inf

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Return η."""
        return eta

    def mean_slope(self, eta: np.ndarray) -> np.ndarray:
        """Return 1."""
        return np.ones_like(eta)

    def weight(self, eta: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
        """Return 1.

        Raises:
            InputError: a finite limit, which no weight keeps.
        """
        if np.isfinite(limit).any():
            raise InputError(
                "limit: the score of linear regression has no bound; give an infinite limit",
                "limit",
            )
        return np.ones_like(eta)


#: Lengths, in units of a row whose limit is the typical one, beyond which a row has a weight, so that its limit is no
#: smaller than the typical one over this.
FARTHEST_ROW = 8.0


@dataclass(frozen=True)
class Huber(BoundedScore):
    """Huber's score of a real label (1964): ψ = clip(η − y, ±c), with c learnt on the way.

    E[ψ | η] = 0 where errors are symmetric; other errors move the intercept alone if their law is the same in all rows,
    and the released histogram says by how much. A record's slope, the derivative of ψ in η, is 1 within 0.9c and falls
    to 0 at 1.1c; its mean is that of the indicator of |η − y| < c, about.

    Attributes:
        bound: c.
        std: standard deviation of residuals, were they normal; Λ and V are theirs.
    """

    bound: float
    std: float
    predictors: ClassVar[str] = "means"
    step: ClassVar[float] = math.inf
    size: ClassVar[int] = 1
    clip: ClassVar[float] = 1.0

    @classmethod
    def of(cls, std: float, deviations: float) -> Huber:
        """Return the score with a bound of so many standard deviations."""
        return cls(std * deviations, std)

    @property
    def limit(self) -> float:
        """c, which no typical record's own limit is below."""
        return self.bound

    def residual(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return ψ; see :class:`BoundedScore`."""
        most = np.minimum(self.bound, limit)
        return np.clip(eta - y, -most, most)

    def law(self, eta: np.ndarray, limit: np.ndarray | float) -> Law:
        """Return Λ and V; see :class:`BoundedScore`."""
        cut = np.minimum(self.bound, limit) / self.std * np.ones_like(eta)
        return Law(1 - 2 * ndtr(-cut), self.std**2 * censored(cut))

    @property
    def mean_beyond(self) -> float:
        """E[|r|; |r| > c] of normal residuals r."""
        cut = self.bound / self.std
        return self.std * math.sqrt(2 / math.pi) * math.exp(-(cut**2) / 2)

    def slope(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return the slope of each record; see :class:`BoundedScore`."""
        most = np.minimum(self.bound, limit)
        return np.clip((1.1 - np.abs(eta - y) / most) / 0.2, 0.0, 1.0)

    def shifted(self, eta: np.ndarray, limit: float) -> np.ndarray:
        """Return dE[ψ]/d(mean of residuals), (n,): a mean that all rows have in common is one more of the predictor."""
        return self.law(eta, limit).curvature

    def leverage(self, clip: float, longest: float) -> float:
        """Return ‖z‖², since slopes are at most 1; see :class:`BoundedScore`."""
        return longest**2
