r"""Scores of softmax regression, y in 0..K−1, p = softmax(η): ψ = w (p − e_y), w = min(1, limit/max_y ‖p − e_y‖).

‖ψ‖ <= limit for every label. The weight sees no label, so E[ψ | η] = w (p − E[e_y]) = 0. With the score's own variance
D = diag p − ppᵀ, Λ = w D and V = w² D. The largest residual is the least likely label's: ‖p − e_y‖² = ‖p‖² + 1 − 2p_y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import softmax

from dpmcmc.inference.scores.base import Law
from dpmcmc.privacy.query.label_blind import label_blind_weight


@dataclass(frozen=True)
class Softmax:
    """The score of softmax regression.

    Attributes:
        size: K, number of classes.
    """

    size: int
    predictors: ClassVar[str] = "logits"
    needs_mean_row: ClassVar[bool] = False
    #: Below 1 the weights shrink most scores, and less noise is needed.
    clip: ClassVar[float] = 0.5
    strongest: ClassVar[float] = 2.0
    strongest_intercept: ClassVar[float] = 4.0

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

    def rounding(self, margin: float, limit: float) -> float:
        """Return the most that ‖ψ‖/limit moves; see :class:`BoundedScore`.

        D <= 1/2, so p moves by half of η in norm, and r = max_y ‖p − e_y‖ by no more than p. Where w = limit/r, ψ/limit
        = (p − e_y)/r moves by 2‖dp‖/r at most, elsewhere by less; r² >= 1 − 1/K >= 1/2. So it moves by √2 times η.
        To take the largest predictor off rounds η by another (1 + √K)·margin. The arithmetic of p is off by
        (K + 10)·2^-53 in norm, and so is that of weight and residual; a limit that is off by a part moves
        ψ by that part.
        """
        return math.sqrt(2) * (2 + math.sqrt(self.size)) * margin + 8 * (self.size + 10) * 2.0**-53 + limit


def _weight(p: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
    """Return w, (n,)."""
    return label_blind_weight(np.sqrt(np.sum(np.square(p), axis=1) + 1 - 2 * p.min(axis=1)), limit)
