r"""Private gradients of a logistic regression, weighted so that clipping does not bias them.

    g̃ = F( Σ F⁻¹ w (p − y) x + zC·N(0, I) ),   w = min(1, C/(max(p, 1 − p)·‖F⁻¹x‖)),   p = σ(x·θ)

F is a public metric (here: made of a released Gram matrix) and θ a public position.

Sensitivity. |w (p − y)|·‖F⁻¹x‖ <= w max(p, 1 − p) ‖F⁻¹x‖ <= C for y in {0, 1}, so a replaced record moves the whitened
sum by 2C at most, and an added or removed one by C. A hard clip stands behind the weights, so that rounding or a label
beyond {0, 1} changes nothing of it.

Unbiased: :func:`~dpmcmc.privacy.query.label_blind.label_blind_weight`. For a binary label every score with mean zero at
the truth has this form: w(x, θ)(p − y).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from scipy.special import expit

from dpmcmc.privacy.query.gaussian_release import gaussian_release
from dpmcmc.privacy.query.gram_release import summing, weighted_sum
from dpmcmc.privacy.query.label_blind import label_blind_weight

#: C in units of a typical whitened row; below 1 the weights shrink most scores, and less noise is needed.
CLIP = 0.5
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

    def rounding(self) -> float:
        """Return how far float64 may move a whitened sum on one of two neighbours, over C.

        F² >= (b²/d) I gives ‖F⁻¹‖ <= √d/b, and C >= CLIP·_SHORTEST = c. A product with F⁻¹ is off by d·e·‖|F⁻¹|‖ <=
        d·√d·‖F⁻¹‖·e times its vector's norm, with e = 2^-53. Relative to C:

        * Σ r x is off by summing·Σ|r|‖x‖, so F⁻¹ Σ r x by √d·N·summing/c, and by N·d²·e/c more from the product;
        * an unchanged record's margin is off by d·e·b·R, and its probability by a quarter of that. Its contribution
          moves by at most 4C for a probability that moves by 1, since w and p − y both change. It is off by 32e for
          the arithmetic of weight and residual, and by d²·e/c where its norm is.
        """
        d, e, c = self.size, 2.0**-53, CLIP * _SHORTEST
        sums = math.sqrt(d) * summing(self.num_records) / c + d**2 * e / c
        records = d * e * self.row_bound * self.radius + 32 * e + d**2 * e / c
        return self.num_records * (sums + records)


@dataclass(frozen=True)
class LabelBlindGradient:
    """The access to records: private gradients in the metric of a released Gram matrix.

    Attributes:
        design: public facts.
        x, y: the records.
        row_norms: at least ‖F⁻¹x‖ of each row, (N,).
        root, inverse: F and F⁻¹, (d, d).
        norm: a typical ‖F⁻¹x‖.
    """

    design: Design
    x: np.ndarray
    y: np.ndarray
    row_norms: np.ndarray
    root: np.ndarray
    inverse: np.ndarray
    norm: float

    @classmethod
    def of(cls, gram: np.ndarray, design: Design, x: np.ndarray, y: np.ndarray) -> LabelBlindGradient:
        """Make the metric of a released Gram matrix, and the records' norms in it."""
        values, vectors = np.linalg.eigh(design.metric(gram))
        values = np.maximum(values, design.row_bound**2 / design.size)
        root, inverse = (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T
        parts = (np.linalg.norm(x[i : i + _ROWS] @ inverse, axis=1) for i in range(0, len(x), _ROWS))
        # Rounding makes no norm too small.
        norms = np.concatenate(list(parts)) + design.size**2 * 2.0**-52
        return cls(design, x, y, norms, root, inverse, design.whitened_norm(gram))

    @property
    def clip(self) -> float:
        """C, public."""
        return CLIP * self.norm

    def sum(self, position: np.ndarray) -> np.ndarray:
        """Return Σ F⁻¹ w (p − y) x / C, (d,). Private: it must not leave."""
        p = expit(self.x @ position)
        weight = label_blind_weight(np.maximum(p, 1 - p) * self.row_norms, self.clip)
        most = self.clip / self.row_norms
        residual = np.clip(weight * (p - self.y), -most, most)
        return self.inverse @ weighted_sum(self.x, residual) / self.clip

    def release(self, position: np.ndarray, noise_multiplier: float, key: jax.Array) -> np.ndarray:
        """Return g̃, (d,), at a public position within the radius."""
        return self.clip * self.root @ gaussian_release(self.sum(position), noise_multiplier, key)
