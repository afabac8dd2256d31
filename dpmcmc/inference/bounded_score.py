"""The protocol of a bounded score, and scores that are weighted blindly to labels (``scores.py`` has the families)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from dpmcmc.privacy.query.label_blind import label_blind_weight


class Law(NamedTuple):
    """Moments of a score given its predictors, (n,) each, or (n, K, K).

    Attributes:
        curvature: Λ = E[ψ sᵀ].
        variance: V = E[ψ ψᵀ].
    """

    curvature: np.ndarray
    variance: np.ndarray


class BoundedScore(Protocol):
    """A bounded, Fisher-consistent score of one record (``inference/scores.py``), and what most families share.

    Attributes:
        predictors: their name in a sentence.
        needs_mean_row: whether Λ differs so much between η and −η that a curvature rests on the mean row.
        step: root mean square by which predictors may change from one position to the next.
        size: number of predictors of a record, K.
    """

    predictors: ClassVar[str]
    needs_mean_row: ClassVar[bool] = False
    step: ClassVar[float]
    size: ClassVar[int]

    @property
    def clip(self) -> float:
        """κ, the clip norm C in units of a typical whitened row."""

    @property
    def limit(self) -> float:
        """Limit of a typical record's score: κ, where scores are no longer than 1 in the units of rows."""
        return self.clip

    def residual(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return ψ of each record, of norm at most its limit up to rounding.

        Args:
            eta: (n,) or (n, K).
            y: labels, (n,).
            limit: (n,).
        """

    def law(self, eta: np.ndarray, limit: np.ndarray | float) -> Law:
        """Return Λ and V at predictors η; infinite limits give those of the model's own score."""

    def slope(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return what a record adds to the curvature, of mean Λ: (n,), or (n, K, K), and never negative.

        It is Λ itself for a family whose weights see no label.
        """
        return self.law(eta, limit).curvature

    def leverage(self, clip: float, longest: float) -> float:
        """Return the largest v·tr(slope)·‖z‖² of a row ‖z‖ <= ``longest`` whose score v‖ψ‖‖z‖ is within ``clip``.

        It is infinite where the family has no such bound; a record's weight v then ensures one.
        """
        return math.inf


@dataclass(frozen=True)
class LabelBlind(BoundedScore):
    r"""Scores ψ = w(η)(μ(η) − y)/φ, w = min(1, limit/longest), of a mean μ and a weight that does not see the label.

    E[ψ | η] = w(η)(μ(η) − E[y])/φ = 0, Λ = w μ'/φ and V = w² μ'/φ, since Var y = φ μ' in an exponential family with its
    canonical link (McCullagh and Nelder 1989).

    Attributes:
        dispersion: φ.
    """

    size: ClassVar[int] = 1
    dispersion: float = 1.0

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Return μ, the mean label."""
        raise NotImplementedError

    def mean_slope(self, eta: np.ndarray) -> np.ndarray:
        """Return μ'."""
        raise NotImplementedError

    def longest(self, eta: np.ndarray) -> np.ndarray:
        """Return the largest |μ − y|/φ over labels."""
        raise NotImplementedError

    def weight(self, eta: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
        """Return w."""
        return label_blind_weight(self.longest(eta), limit)

    def residual(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return ψ; see :class:`BoundedScore`."""
        return self.weight(eta, limit) * (self.mean(eta) - y) / self.dispersion

    def law(self, eta: np.ndarray, limit: np.ndarray | float) -> Law:
        """Return Λ and V; see :class:`BoundedScore`."""
        weight = self.weight(eta, limit)
        curvature = weight * self.mean_slope(eta) / self.dispersion
        return Law(curvature, weight * curvature)
