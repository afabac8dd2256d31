"""Calibration of predicted probabilities on UCI Adult's test set, a task of Alrawajfeh, Jälkö and Honkela (2025).

There are ten bins of equally many test rows. The error of a run is the root mean square over bins of the mean predicted
probability of y = 1 less the observed share.
"""

from __future__ import annotations

import math

import numpy as np

from dpmcmc.inference import predictive
from experiments.calibration.tasks import Cell, adult
from experiments.calibration.ways import WAYS

BINS = 10
COLUMNS = ("way", "epsilon", "runs", "accuracy", "accuracy_error", "calibration_error", "calibration_error_error")


def binned_error(probability: np.ndarray, y: np.ndarray) -> float:
    """Return the root mean square difference of predicted and observed shares over bins of equally many rows."""
    order = np.array_split(np.argsort(probability, kind="stable"), BINS)
    return float(np.sqrt(np.mean([(probability[rows].mean() - y[rows].mean()) ** 2 for rows in order])))


def calibrated(way: str, epsilon: float, runs: int) -> dict[str, str | float | int]:
    """Return a row: mean and standard error over runs on the real labels."""
    records = adult()
    assert records.test is not None
    plan = WAYS[way].plan(Cell("adult", way, *records.train["x"].shape[::-1], epsilon, 1.0))
    found = []
    for _ in range(runs):
        draws, _ = WAYS[way].run(plan, records.train)
        seen = predictive.predict(plan.target, draws.astype(np.float32), records.test)
        assert seen.probability is not None
        found.append((seen.posterior_predictive, binned_error(seen.probability, records.test["y"])))
    accuracy, error = np.mean(found, axis=0)
    of_accuracy, of_error = np.std(found, axis=0) / math.sqrt(runs)
    return dict(zip(COLUMNS, (way, epsilon, runs, accuracy, of_accuracy, error, of_error), strict=True))
