"""Scores of logistic regression, y in {0, 1}, p = σ(η): ψ = w (p − y), w = min(1, limit/max(p, 1 − p)).

|ψ| <= w max(p, 1 − p) <= limit for both labels. For a binary label every score with mean zero at the truth has this
form, a function of η times p − y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from dpmcmc.inference.bounded_score import LabelBlind


@dataclass(frozen=True)
class Logistic(LabelBlind):
    """The score of logistic regression."""

    predictors: ClassVar[str] = "logits"
    step: ClassVar[float] = 1.5
    #: Below 1 the weights shrink most scores, and less noise is needed.
    clip: float = 0.5

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Return p."""
        return expit(eta)

    def mean_slope(self, eta: np.ndarray) -> np.ndarray:
        """Return p(1 − p)."""
        return expit(eta) * expit(-eta)

    def longest(self, eta: np.ndarray) -> np.ndarray:
        """Return max(p, 1 − p)."""
        return expit(np.abs(eta))

    def leverage(self, clip: float, longest: float) -> float:
        """Return the bound; see :class:`BoundedScore`.

        w p(1 − p) <= ¼. As w‖z‖max(p, 1 − p) <= C it is at most C‖z‖min(p, 1 − p), too, and min(p, 1 − p) <= ½.
        """
        return min(longest**2 / 4, clip * longest / 2)
