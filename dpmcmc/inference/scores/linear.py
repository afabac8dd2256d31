"""Scores of linear regression, (η − y)/φ with φ the variance of the noise.

The residual has no bound, so none is offered below an infinite limit: a mechanism releases XᵀX and Xᵀy instead, and a
chain's path is concluded from where nothing is clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.inference.scores.base import LabelBlind


@dataclass(frozen=True)
class Linear(LabelBlind):
    """The score of linear regression."""

    predictors: ClassVar[str] = "means"
    needs_mean_row: ClassVar[bool] = False
    clip: ClassVar[float] = math.inf
    strongest: ClassVar[float] = math.inf
    strongest_intercept: ClassVar[float] = math.inf

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Return η."""
        return eta

    def slope(self, eta: np.ndarray) -> np.ndarray:
        """Return 1."""
        return np.ones_like(eta)

    def weight(self, eta: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
        """Return 1.

        Raises:
            InputError: a finite limit, which no weight keeps.
        """
        if np.isfinite(limit).any():
            raise InputError("limit: the score of linear regression has no bound; give an infinite limit", "limit")
        return np.ones_like(eta)

    def rounding(self, margin: float, limit: float) -> float:
        """Return infinity: no release rests on this score."""
        return math.inf
