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
    theta = posterior.mean.reshape(len(gram), -1) @ each
    squares = variances(gram / num_rows, theta.T)
    for block in structure.blocks:
        # Every row has one level of the block, and in its column the same number c.
        columns = list(block)
        sizes = np.maximum(np.diag(gram)[columns], 1e-300)
        square = float(np.sum(sizes)) / num_rows
        rows = gram[columns] * (np.sqrt(square) / sizes)[:, None]
        means = rows @ theta
        # Variances of predictors among rows of one level: of all rows, less that of the levels' means.
        spreads = np.maximum(squares - sizes / np.sum(sizes) @ means**2, 0.0)
        # The mean chance of normal logits is that of one logit, about as much nearer to 0 as if it were a probit.
        averaging = np.ones_like(spreads) if isinstance(score, Counts) else np.sqrt(1 + np.pi / 8 * spreads)
        for column, row, mean, size in zip(block, rows, means, sizes, strict=True):
            stds = np.sqrt(variances(posterior.covariance, np.kron(row, each))) / averaging
            chances = _chances(score, mean / averaging, spreads)
            few = (chances * size / square < FEWEST_RECORDS) | (stds > LARGEST_STD)
            found[column] = (chances < RARE_SHARE) & few
    return found.ravel()


def _chances(score: BoundedScore, means: np.ndarray, spreads: np.ndarray) -> np.ndarray:
    """Return how often each label occurs: the rarer of two, each of more, or a mean count.

    Args:
        score: of the family.
        means: of the rows' predictors, (K,); of logits, such whose chances are the mean ones.
        spreads: variances of the rows' predictors, (K,).
    """
    if isinstance(score, Counts):
        return np.exp(means + spreads / 2)
    if isinstance(score, Softmax):
        return np.asarray(softmax(means))
    return np.asarray(expit(-np.abs(means)))
