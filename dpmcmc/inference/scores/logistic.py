r"""Scores of logistic regression, y in {0, 1}, p = σ(η): ψ = w (p − y), w = min(1, limit/max(p, 1 − p)).

|ψ| <= w max(p, 1 − p) <= limit for both labels. For a binary label every score with mean zero at the truth has this
form, a function of η times p − y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from dpmcmc.inference.scores.base import LabelBlind


@dataclass(frozen=True)
class Logistic(LabelBlind):
    """The score of logistic regression."""

    predictors: ClassVar[str] = "logits"
    needs_mean_row: ClassVar[bool] = False
    #: Below 1 the weights shrink most scores, and less noise is needed.
    clip: ClassVar[float] = 0.5
    strongest: ClassVar[float] = 2.0
    strongest_intercept: ClassVar[float] = 4.0

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Return p."""
        return expit(eta)

    def slope(self, eta: np.ndarray) -> np.ndarray:
        """Return p(1 − p)."""
        return expit(eta) * expit(-eta)

    def longest(self, eta: np.ndarray) -> np.ndarray:
        """Return max(p, 1 − p)."""
        return expit(np.abs(eta))

    def rounding(self, margin: float, limit: float) -> float:
        """Return the most that ψ/limit moves; see :class:`BoundedScore`.

        p moves by a quarter of η, and ψ by at most 4·limit for a p that moves by 1, since w and p − y both change. The
        arithmetic of weight and residual is off by 32·2^-53, and a limit that is off by a part moves ψ by that part.
        """
        return margin + 32 * 2.0**-53 + limit
