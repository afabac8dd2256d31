"""Whether predictions tell rows apart, from released numbers alone.

One number for all rows predicts about as well as the draws if two things hold:

* the release has no Bayes factor against the model with the intercept alone (``evidence.py``);
* the prediction of a row varies over the draws more than predictions vary from row to row. A release with a Gram matrix
  says about where rows lie: normal ones with that second moment stand in for them.

Each alone is wrong too often. A wide prior favours the intercept where many coefficients are small, and the normal rows
of a noisy Gram matrix lie where no real row does.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from dpmcmc.inference.curvature import mean_row
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.noise_aware import project
from dpmcmc.privacy.accounting.events import three_digits
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target
from dpmcmc.targets.linear_predictor import LinearPredictor

#: Rows that stand in for the real ones, and draws that predict them.
_ROWS, _DRAWS = 1000, 200


def objection(target: Target, evidence: Evidence, draws: PyTree) -> str | None:
    """Return why predictions are no better than one number for all rows; None where they may be, or it is not known.

    Args:
        target: of the run.
        evidence: of its release.
        draws: (draws, d) of a regression with one predictor.
    """
    structure = evidence.structure
    constant = None if structure is None else structure.constant
    if not isinstance(target, LinearPredictor) or evidence.gram is None or constant is None:
        return None
    slopes = [column for column in range(len(evidence.scales)) if column != constant]
    if not slopes or evidence.log_bayes_factor(slopes) <= 0:
        return None
    ratio = _unsure(target, evidence.gram, evidence, draws, constant)
    if ratio <= 1:
        return None
    return (
        f"a row's prediction varies {three_digits(math.sqrt(ratio))} times as much over the draws as predictions vary "
        "from row to row, and the release speaks for no column: one number for all rows predicts as well; take a "
        "larger epsilon, more records or fewer columns"
    )


def _unsure(
    target: LinearPredictor,
    noisy: NoisyGram,
    evidence: Evidence,
    draws: np.ndarray,
    constant: int,
) -> float:
    """Return the mean variance of a row's prediction over the draws, over that of predictions from row to row."""
    gram = project(noisy.gram, noisy.trace, evidence.structure)
    row = mean_row(gram, evidence.num_records, constant)
    values, vectors = eigh(gram / evidence.num_records - np.outer(row, row))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    rows = row + np.random.default_rng(0).normal(size=(_ROWS, len(row))) @ root.T
    draws = np.reshape(draws, (-1, len(row)))
    kept = np.unique(np.linspace(0, len(draws) - 1, _DRAWS).astype(int))
    means = np.asarray(target.mean(jnp.asarray(rows @ draws[kept].T)), np.float64)
    between = float(np.var(np.mean(means, axis=1)))
    within = float(np.mean(np.var(means, axis=1)))
    return within / max(between, np.finfo(float).tiny)
