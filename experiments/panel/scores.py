"""From draws to numbers: predictions on other rows, and how far the draws are from a reference posterior.

In NumPy for logistic regression alone: thousands of tasks are scored, and each of them has another number of draws.
The definitions are those of ``dpmcmc.diagnostics``; the reference here is a set of NUTS draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

_LEAST_PROBABILITY = 1e-12
#: Fewer draws have no 5 % quantile.
_FEWEST_FOR_AN_INTERVAL = 20
#: Draws that a score is computed from, at most.
_SCORED = 200


@dataclass(frozen=True)
class Score:
    """How well draws predict.

    Attributes:
        accuracy: of the posterior predictive.
        log_predictive_density: mean over rows of the log of the posterior predictive probability of y.
        single_draw_accuracy: mean over draws.
    """

    accuracy: float
    log_predictive_density: float
    single_draw_accuracy: float


def predict(draws: np.ndarray, rows: dict[str, np.ndarray]) -> Score:
    """Predict rows by the average over draws, (draws, d)."""
    y = np.asarray(rows["y"]) == 1
    probability = expit(rows["x"] @ np.asarray(draws, np.float32).T)
    mean = probability.mean(axis=1, dtype=np.float64)
    likelihood = np.maximum(np.where(y, mean, 1 - mean), _LEAST_PROBABILITY)
    return Score(
        accuracy=float(np.mean((mean > 0.5) == y)),
        log_predictive_density=float(np.mean(np.log(likelihood))),
        single_draw_accuracy=float(np.mean((probability > 0.5) == y[:, None])),
    )


class Posterior:
    """Reference draws, (draws, d), sorted once."""

    def __init__(self, draws: np.ndarray) -> None:
        self.draws = np.asarray(draws)
        self._some = _spread_out(self.draws)
        self._spread = _distance(self._some, self._some) / 2

    def crps(self, draws: np.ndarray) -> float:
        """Continuous ranked probability score of the draws for a draw of the reference, over the reference's own.

        E|X − Y| − E|X − X'|/2 for draws X and reference Y, mean over coordinates of its ratio to the reference's. It is
        proper: 1 is the least that any law has on average, and only the reference has it. A point at the mean of a
        normal reference has √2.
        """
        own = _spread_out(draws)
        return float(np.mean((_distance(own, self._some) - _distance(own, own) / 2) / self._spread))

    def coverage(self, draws: np.ndarray) -> float | None:
        """Mean over coordinates of the reference's mass in the draws' central 90 % interval; .9 is ideal."""
        if len(draws) < _FEWEST_FOR_AN_INTERVAL:
            return None
        low, high = np.quantile(np.asarray(draws, np.float64), [0.05, 0.95], axis=0)
        return float(np.mean((low <= self.draws) & (self.draws <= high)))


def _spread_out(draws: np.ndarray) -> np.ndarray:
    """Return at most so many draws as a score is computed from, evenly spread, (draws, d)."""
    at = np.linspace(0, len(draws) - 1, min(len(draws), _SCORED)).astype(int)
    return np.asarray(draws, np.float64)[at]


def _distance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the mean distance of two samples' draws in each coordinate, (d,)."""
    total = sum(np.abs(second - draw).sum(axis=0) for draw in first)
    return np.asarray(total / (len(first) * len(second)))
