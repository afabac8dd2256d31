"""Levels of a column whose records hardly ever have some label, as released numbers tell it.

The coefficient of such a level rests on few records, and on none where one label never occurs: the likelihood then
rises without end (separation; Albert and Anderson 1984). A normal posterior has no law for that. It covered none of the
tables where a level of a third of 5,000 records had one label alone, at ε from 1 to 15, though the release seemed to
know the coefficient to .3 to .7.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit, softmax

from dpmcmc.data.structure import RowStructure
from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.count_score import Counts
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.normal_law import Gaussian
from dpmcmc.inference.predicted_width import variances
from dpmcmc.inference.softmax_score import Softmax

#: Share of a level's records with a label, or their mean count, below which it is rare there; fewest such records; and
#: largest standard deviation of the level's predictor, which tells them from none.
RARE_SHARE, FEWEST_RECORDS, LARGEST_STD = 0.05, 100.0, 0.25


def rare_levels(
    score: BoundedScore,
    structure: RowStructure | None,
    gram: np.ndarray,
    num_rows: int,
    posterior: Gaussian,
) -> np.ndarray:
    """Return which encoded coefficients are of a level where some label is too rare, (d·K,) bool.

    Args:
        score: of the family; a real label has no rare ones.
        structure: declared of the rows; without levels there are none.
        gram: estimate of Σ x xᵀ, (d, d).
        num_rows: N.
        posterior: of the coefficients, (d·K,).
    """
    found = np.zeros((len(gram), score.size), bool)
    if structure is None or not isinstance(score, Logistic | Softmax | Counts):
        return found.ravel()
    each = np.eye(score.size) - (1 / score.size if score.size > 1 else 0.0)
    for block in structure.blocks:
        # Every row has one level of the block, and in its column the same number c.
        sizes = np.maximum(np.diag(gram)[list(block)], 1e-300)
        square = float(np.sum(sizes)) / num_rows
        for column, size in zip(block, sizes, strict=True):
            row = gram[column] * np.sqrt(square) / size
            weights = np.kron(row, each)
            stds = np.sqrt(variances(posterior.covariance, weights))
            chances = _chances(score, weights @ posterior.mean)
            few = (chances * size / square < FEWEST_RECORDS) | (stds > LARGEST_STD)
            found[column] = (chances < RARE_SHARE) & few
    return found.ravel()


def _chances(score: BoundedScore, predictors: np.ndarray) -> np.ndarray:
    """Return how often each label occurs at predictors (K,): the rarer of two, each of more, or a mean count."""
    if isinstance(score, Counts):
        return np.exp(predictors)
    if isinstance(score, Softmax):
        return np.asarray(softmax(predictors))
    return np.asarray(expit(-np.abs(predictors)))
