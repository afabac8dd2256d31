r"""Scores of posterior draws against the parameter that made the records.

**Ranks** (simulation-based calibration, Talts et al. 2018). Where truths have the law of the prior and draws that of
the posterior, the rank of the truth among K draws is uniform on 0..K. The fraction (rank + U)/(K + 1), with U uniform
on [0, 1), is then uniform on [0, 1) for every K.

**TARP** (Lemos, Coogan, Hezaveh and Perreault-Levasseur 2023). Take a reference point r that may depend on the release
but not on the truth. The fraction f of draws that lie nearer to r than the truth does is uniform if the draws are those
of the posterior. The expected coverage at credibility α is P(f < α). Alrawajfeh, Jälkö and Honkela (2025) use this
test with r uniform within four standard deviations of the draws in each coordinate, twenty r a table, and α = .001,
.05, .10, …, .95, .999 (their code: github.com/DPBayes/noise-aware-dpvi). Here r is centred at the draws'
mean, and distances are in standard deviations of the draws. The error of a curve is the root mean square, over these
α, of P(f < α) − α. Their formula could not be confirmed; a summary of their paper calls the column RMSE.

**CRPS** and the **log score** are proper: in expectation no other law than the true posterior does better.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

#: Credibilities at which a curve is read.
LEVELS = np.concatenate([[0.001], np.arange(1, 20) / 20, [0.999]])
#: Reference points a table, and their farthest distance from the draws' mean in standard deviations.
REFERENCES, REACH = 20, 4.0


def _fractions(smaller: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return (rank + U)/(count + 1) of ranks among ``count`` draws."""
    return (smaller + rng.random(smaller.shape)) / (count + 1)


def rank_fractions(draws: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the fraction of draws (K, d) below the truth, (d,), ties split at random."""
    return _fractions(np.sum(draws < truth, axis=0), len(draws), rng)


def tarp_fractions(draws: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the fraction of draws (K, d) nearer than the truth to each of ``REFERENCES`` random points."""
    centre = draws.mean(axis=0)
    std = draws.std(axis=0)
    points = REACH * rng.uniform(-1, 1, size=(REFERENCES, len(truth)))
    of_draws = np.linalg.norm((draws - centre) / std - points[:, None], axis=2)
    of_truth = np.linalg.norm((truth - centre) / std - points, axis=1)
    return _fractions(np.sum(of_draws < of_truth[:, None], axis=1), len(draws), rng)


def curve_error(fractions: np.ndarray) -> float:
    """Return the root mean square over ``LEVELS`` of P(f < α) − α, of fractions f of any shape."""
    shares = np.mean(fractions.reshape(-1, 1) < LEVELS, axis=0)
    return float(np.sqrt(np.mean((shares - LEVELS) ** 2)))


def curve_floor(tables: int) -> float:
    """Return the expected :func:`curve_error` of exact posteriors, with one independent fraction a table.

    Several fractions of one table are not independent, so with them the floor lies at or below this.
    """
    return math.sqrt(float(np.mean(LEVELS * (1 - LEVELS))) / tables)


def crps(draws: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return E|X − θ| − E|X − X'|/2 of each coordinate, (d,), without bias for K > 1 draws (Ferro 2014).

    The CRPS of one draw is its distance to the truth.
    """
    count = len(draws)
    weights = (2 * np.arange(1, count + 1) - count - 1) / (count * max(count - 1, 1))
    return np.mean(np.abs(draws - truth), axis=0) - weights @ np.sort(draws, axis=0)


def normal_crps(mean: np.ndarray, std: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the CRPS of normal laws, (d,) (Gneiting and Raftery 2007)."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a standard deviation of 0
        z = (truth - mean) / std
        return std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))


def normal_log_score(mean: np.ndarray, std: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the log densities of normal laws at the truth, (d,)."""
    return norm.logpdf(truth, mean, std)
