"""From draws to numbers: predictions on other rows, and how far the draws are from a reference posterior.

In NumPy for logistic regression alone: thousands of cells are scored, and each of them has another number of draws.
The definitions are those of ``dpmcmc.diagnostics``; the reference here is a set of NUTS draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

_LEAST_PROBABILITY = 1e-12
#: Fewer draws have no 5 % quantile.
_FEWEST_FOR_AN_INTERVAL = 20
#: Levels at which quantile functions are compared.
_LEVELS = 400


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
        self._sorted = np.sort(np.asarray(draws, np.float64), axis=0)
        self._std = self._sorted.std(axis=0)

    def wasserstein(self, draws: np.ndarray) -> float:
        """Mean over coordinates of the marginal W₁ distance, in the reference's standard deviations.

        A single draw is a point: an exact one is at distance 1.13 on average, not at 0.
        """
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        own = np.sort(np.asarray(draws, np.float64), axis=0)
        gaps = np.abs(_at(own, levels) - _at(self._sorted, levels)).mean(axis=0)
        return float(np.mean(gaps / self._std))

    def coverage(self, draws: np.ndarray) -> float | None:
        """Mean over coordinates of the reference's mass in the draws' central 90 % interval; .9 is ideal."""
        if len(draws) < _FEWEST_FOR_AN_INTERVAL:
            return None
        low, high = np.quantile(np.asarray(draws, np.float64), [0.05, 0.95], axis=0)
        return float(np.mean((low <= self.draws) & (self.draws <= high)))


def _at(ordered: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Quantile function of the empirical law of sorted draws (draws, d) at levels, (levels, d)."""
    return ordered[np.minimum((levels * len(ordered)).astype(int), len(ordered) - 1)]
