"""Predicted width of intervals, before a record is read.

The width is that of an interval of the posterior under privacy over that of the posterior without: of the same rows,
under the same prior. Rows that stand in for the real ones give both: those of ``usual_spectrum``, or those that a
schema makes possible (``estimators/outlook.py``). A chain, a mechanism and a suggestion all predict by ``predicted``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmcmc.data.structure import RowStructure
from dpmcmc.inference.normal_law import Local, conjugate_update

#: Iterations of equation (2) of a predicted covariance.
NUM_ROUNDS = 8


class Predicted(NamedTuple):
    """Predicted covariances of a posterior.

    Attributes:
        private: S, with the noise of privacy, (d, d); or (d, 1, 1) of independent directions.
        alone: S₀, without it, of the same shape.
    """

    private: np.ndarray
    alone: np.ndarray

    def width(self, directions: np.ndarray | None = None) -> float:
        """Return the mean over directions of an interval's width over that without privacy.

        Args:
            directions: (k, d); None: coordinates.
        """
        ratios = variances(self.private, directions) / variances(self.alone, directions)
        return float(np.mean(np.sqrt(ratios)))


def variances(covariance: np.ndarray, directions: np.ndarray | None = None) -> np.ndarray:
    """Return the variance in each of k directions (k, d); None: in each coordinate."""
    if directions is None:
        return np.diagonal(covariance, axis1=-2, axis2=-1)
    return np.einsum("kd,de,ke->k", directions, covariance, directions)


def elasticity(covariance: np.ndarray, precision: np.ndarray, directions: np.ndarray | None = None) -> np.ndarray:
    """Return by how much variances change with the prior's, (k,): (S P S)_jj/S_jj of a posterior's S.

    It is 1 where the prior alone makes a variance, ½ where prior and records say as much, and 0 where the records do.

    Args:
        covariance: S, (d, d).
        precision: P of the prior N(0, P⁻¹), (d, d).
        directions: (k, d); None: coordinates.
    """
    moved = covariance @ precision @ covariance
    return variances(moved, directions) / variances(covariance, directions)


def predicted(local: Local, noise: np.ndarray, precision: np.ndarray, alone: np.ndarray) -> Predicted:
    """Return the predicted covariances of a posterior whose gradients are released near it.

    Args:
        local: model of the gradient.
        noise: V of the release, (d, d), or (d, 1, 1) of independent directions, as all others are then.
        precision: P of the prior N(0, P⁻¹).
        alone: S₀.
    """
    private = alone
    for _ in range(NUM_ROUNDS):
        total = local.spread + noise + local.curvature_error(private)
        _, private = conjugate_update(local.curvature, total, precision)
    return Predicted(private, alone)


def usual_spectrum(size: int, trace: float) -> np.ndarray:
    """Return eigenvalues ∝ 1/j² with a sum of ``trace``, (size,): those of rows that stand in for the real ones."""
    spectrum = np.arange(1.0, size + 1) ** -2
    return spectrum * (trace / spectrum.sum())


def noise_left(std: float, structure: RowStructure | None) -> float:
    """Return the noise of a Gram matrix that a projection leaves: half of it contradicts declared blocks."""
    return std / 2 if structure is not None and structure.blocks else std
