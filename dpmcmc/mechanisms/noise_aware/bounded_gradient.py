r"""Private gradients of a regression, of scores that are bounded without bias.

    g̃ = F( Σ F⁻¹ x ψ + zC·N(0, I) ),   ‖ψ‖ <= C/‖F⁻¹x‖

F is a public metric (here: made of a released Gram matrix), θ a public position, and ψ the family's bounded score of a
record at its predictors x·θ (``inference/scores``), whose mean is zero at the parameter that made the labels.

Sensitivity. ‖F⁻¹x ψᵀ‖ = ‖F⁻¹x‖·‖ψ‖ <= C for every record, so a replaced record moves the whitened sum by 2C at most,
and an added or removed one by C. A hard clip stands behind the score: neither rounding nor a label that the model does
not know moves a record beyond C. An owner's k rows have C/k each (``owners.py``).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.inference.scores import BoundedScore
from dpmcmc.privacy.query.gaussian_release import gaussian_release
from dpmcmc.privacy.query.gram_release import summing, weighted_sum

#: A typical whitened row is taken for no shorter than this, whatever was released, so that rounding relative to C has a
#: public bound.
_SHORTEST = 0.1
_ROWS = 1 << 14


class Design(NamedTuple):
    """Public facts of the rows and of the positions at which gradients are released.

    Attributes:
        num_records: the larger N of two neighbours.
        size: d.
        row_bound: b, enforced on every row.
        radius: R, the farthest public position from 0.
    """

    num_records: int
    size: int
    row_bound: float
    radius: float

    @property
    def largest_trace(self) -> float:
        """Largest trace of the Gram matrix, N·b²."""
        return self.num_records * self.row_bound**2

    def metric(self, gram: np.ndarray) -> np.ndarray:
        """Return F² = G/N + (b²/d) I of a Gram matrix, (d, d)."""
        return gram / self.num_records + np.eye(self.size) * self.row_bound**2 / self.size

    def whitened_norm(self, gram: np.ndarray) -> float:
        """Return a typical ‖F⁻¹x‖, √(tr(F⁻²G)/N)."""
        return math.sqrt(max(np.trace(np.linalg.solve(self.metric(gram), gram)) / self.num_records, _SHORTEST**2))

    def rounding(self, score: BoundedScore) -> float:
        """Return how far float64 may move a whitened sum on one of two neighbours, over C.

        F² >= (b²/d) I gives ‖F⁻¹‖ <= √d/b, and C >= κ·_SHORTEST = c. A product with F⁻¹ is off by d·e·‖|F⁻¹|‖ <=
        d·√d·‖F⁻¹‖·e times its vector's norm, with e = 2^-53. Relative to C:

        * Σ x ψ is off by summing·Σ|ψ|‖x‖, so F⁻¹ Σ x ψ by √d·N·summing/c, and by N·d²·e/c more from the product;
        * an unchanged record's predictor is off by d·e·b·R, and its limit by d²·e/c of itself. The score says how far
          both move it.
        """
        d, e, c = self.size, 2.0**-53, score.clip * _SHORTEST
        sums = math.sqrt(d) * summing(self.num_records) / c + d**2 * e / c
        records = score.rounding(d * e * self.row_bound * self.radius, d**2 * e / c)
        return self.num_records * (sums + records)


@dataclass(frozen=True)
class BoundedGradient:
    """The access to records: private gradients in the metric of a released Gram matrix.

    Attributes:
        design: public facts.
        score: of the family.
        x, y: the records.
        row_norms: at least k‖F⁻¹x‖ of each row, (N,), k the number of rows that share C with it.
        root, inverse: F and F⁻¹, (d, d).
        norm: a typical k‖F⁻¹x‖.
    """

    design: Design
    score: BoundedScore
    x: np.ndarray
    y: np.ndarray
    row_norms: np.ndarray
    root: np.ndarray
    inverse: np.ndarray
    norm: float

    @classmethod
    def of(cls, gram: np.ndarray, design: Design, score: BoundedScore, x: np.ndarray, y: np.ndarray) -> BoundedGradient:
        """Make the metric of a released Gram matrix, and the records' norms in it."""
        values, vectors = np.linalg.eigh(design.metric(gram))
        values = np.maximum(values, design.row_bound**2 / design.size)
        root, inverse = (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T
        parts = (np.linalg.norm(x[i : i + _ROWS] @ inverse, axis=1) for i in range(0, len(x), _ROWS))
        # Rounding makes no norm too small.
        norms = np.concatenate(list(parts)) + design.size**2 * 2.0**-52
        return cls(design, score, x, y, norms, root, inverse, design.whitened_norm(gram))

    def shared(self, sharers: np.ndarray, typical: float) -> BoundedGradient:
        """Return the access to rows of owners.

        Args:
            sharers: number of rows of each row's owner, (N,).
            typical: public, at least 1.
        """
        return dataclasses.replace(self, row_norms=self.row_norms * sharers, norm=self.norm * typical)

    @property
    def clip(self) -> float:
        """C, public."""
        return self.score.clip * self.norm

    def sum(self, position: np.ndarray) -> np.ndarray:
        """Return Σ F⁻¹ x ψ / C, (d,), or (d·K,) for K predictors. Private: it must not leave."""
        limit = self.clip / self.row_norms
        residual = within_limit(self.score.residual(self.x @ self._columns(position), self.y, limit), limit)
        return (self.inverse @ weighted_sum(self.x, residual) / self.clip).ravel()

    def release(self, position: np.ndarray, noise_multiplier: float, key: jax.Array) -> np.ndarray:
        """Return g̃, (d,) or (d·K,), at a public position within the radius."""
        noisy = gaussian_release(self.sum(position), noise_multiplier, key)
        return (self.clip * self.root @ self._columns(noisy)).ravel()

    def _columns(self, vector: np.ndarray) -> np.ndarray:
        """Return (d,), or (d, K) for K predictors."""
        return vector if self.score.size == 1 else vector.reshape(self.design.size, -1)


def within_limit(scores: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return scores (N,) or (N, K) of norm at most ``limit`` (N,); one that is not finite becomes zero."""
    scores = np.where(np.isfinite(scores), scores, 0.0)
    if scores.ndim == 1:
        return np.clip(scores, -limit, limit)
    norms = np.linalg.norm(scores, axis=1)
    # The margin keeps rounding of norm and product below the limit.
    shrunk = np.where(norms > limit * (1 - 1e-13), limit * (1 - 1e-12) / np.maximum(norms, 1e-300), 1.0)
    return scores * shrunk[:, None]
