"""Scores of a Normal with location and log scale as predictors.

With η = (m, log σ) and r = (y − m)/σ the family's own score is s = (−r/σ, 1 − r²), and the bounded one

    ψ = (−clip(r, ±a)/σ,  β(c) − min(r², c²)),    β(c) = E min(r², c²) = 1 − 2Φ(−c) − 2cφ(c) + 2c²Φ(−c).

The first part is Huber's (1964), odd in r, and the second that of his Proposal 2 less its mean: E[ψ] = 0. Each part
has a limit ℓ of its own: a = ℓ₁σ, and c² = ℓ₂ + β(√ℓ₂) where ℓ₂ >= 1, else c² = ℓ₂. As β <= min(1, c²) and β grows
with c,
|ψ₂| <= max(β(c), c² − β(c)) <= ℓ₂. Odd and even functions of r are uncorrelated, so

    Λ = diag((1 − 2Φ(−a))/σ²,  E[min(r², c²) r²] − β(c)),    V = diag(β(a)/σ²,  E[min(r², c²)²] − β(c)²),

    E[r⁴; |r| < c] = 3(1 − 2Φ(−c)) − 2φ(c)(c³ + 3c),    E[r²; |r| > c] = 2Φ(−c) + 2cφ(c).

No label needs a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtr

from dpmcmc.inference.bounded_score import Law

#: Beyond this many standard deviations nothing is left of a Normal in float64.
FARTHEST_IN_STD = 40.0


@dataclass(frozen=True)
class Normal:
    """The score of a Normal's location and log scale."""

    size: ClassVar[int] = 2

    def sizes(self, eta: np.ndarray) -> np.ndarray:
        """Return the standard deviation of each part of s, (n, 2)."""
        return np.stack([np.exp(-eta[:, 1]), np.full(len(eta), math.sqrt(2))], axis=1)

    def residual(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return ψ, (n, 2), each part within its limit (n, 2)."""
        a, c, sigma = _cuts(eta, limit)
        r = (y - eta[:, 0]) / sigma
        return np.stack([-np.clip(r, -a, a) / sigma, censored(c) - np.minimum(r**2, c**2)], axis=1)

    def law(self, eta: np.ndarray, limit: np.ndarray) -> Law:
        """Return Λ and V, (n, 2, 2)."""
        a, c, sigma = _cuts(eta, limit)
        tail, density = _tail_and_density(c)
        inner = 3 * (1 - 2 * tail) - 2 * density * (c**3 + 3 * c)
        beta = censored(c)
        location = (1 - 2 * ndtr(-a)) / sigma**2, censored(a) / sigma**2
        scale = (
            inner + 2 * c**2 * (tail + c * density) - beta,
            inner + 2 * c**4 * tail - beta**2,
        )
        parts = (np.stack(pair, axis=1)[:, :, None] * np.eye(2) for pair in zip(location, scale, strict=True))
        return Law(*parts)


def _cuts(eta: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (a, c, σ), (n,) each."""
    sigma = np.exp(eta[:, 1])
    most = np.minimum(limit[:, 1], FARTHEST_IN_STD**2)
    square = np.where(most >= 1, most + censored(np.sqrt(most)), most)
    return np.minimum(limit[:, 0] * sigma, FARTHEST_IN_STD), np.sqrt(square), sigma


def _tail_and_density(c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Φ(−c) and φ(c)."""
    return ndtr(-c), np.exp(-(c**2) / 2) / math.sqrt(2 * math.pi)


def censored(c: np.ndarray) -> np.ndarray:
    """Return β(c) = E min(r², c²)."""
    tail, density = _tail_and_density(c)
    return 1 - 2 * tail - 2 * c * density + 2 * c**2 * tail
