"""Scores of softmax regression, y in 0..K−1, p = softmax(η): ψ = w (p − e_y), w = min(1, limit/max_y ‖p − e_y‖).

‖ψ‖ <= limit for every label. The weight sees no label, so E[ψ | η] = w (p − E[e_y]) = 0. With the score's own
variance D = diag p − ppᵀ, Λ = w D and V = w² D. The largest residual is the least likely label's: ‖p − e_y‖² = ‖p‖² +
1 − 2p_y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import softmax

from dpmcmc.inference.bounded_score import BoundedScore, Law
from dpmcmc.privacy.query.label_blind import label_blind_weight


@dataclass(frozen=True)
class Softmax(BoundedScore):
    """The score of softmax regression.

    Attributes:
        size: K, number of classes.
    """

    size: int  # type: ignore[misc]  # of each target its own
    predictors: ClassVar[str] = "logits"
    step: ClassVar[float] = 1.5
    #: Below 1 the weights shrink most scores, and less noise is needed.
    clip: float = 0.5

    def residual(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return ψ, (n, K); see :class:`BoundedScore`."""
        p = softmax(eta, axis=1)
        return _weight(p, limit)[:, None] * (p - (np.arange(self.size) == y[:, None]))

    def law(self, eta: np.ndarray, limit: np.ndarray | float) -> Law:
        """Return Λ and V, (n, K, K); see :class:`BoundedScore`."""
        p = softmax(eta, axis=1)
        weight = _weight(p, limit)[:, None, None]
        curvature = weight * (p[:, :, None] * np.eye(self.size) - p[:, :, None] * p[:, None, :])
        return Law(curvature, weight * curvature)

    def leverage(self, clip: float, longest: float) -> float:
        """Return the bound; see :class:`BoundedScore`.

        tr D = 1 − ‖p‖² <= 1 − 1/K. With r the largest ‖p − e_y‖, w‖z‖r <= C gives C‖z‖ tr D/r, where
        tr D/r <= √(1 − 1/K): with s = ‖p‖² >= 1/K and min p <= 1/K it is at most (1 − s)/√(1 + s − 2/K), which falls
        as s grows.
        """
        most = 1 - 1 / self.size
        return min(most * longest**2, math.sqrt(most) * clip * longest)


def _weight(p: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
    """Return w, (n,)."""
    return label_blind_weight(np.sqrt(np.sum(np.square(p), axis=1) + 1 - 2 * p.min(axis=1)), limit)
