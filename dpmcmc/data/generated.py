"""Generated data: the two-normals and Poisson examples, and the raw material of the stand-ins.

Everything here is a function of public seeds. ``RandomState`` is used because its stream is frozen (NumPy
NEP 19): a generated set stays the same set across NumPy releases.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpmcmc.data.base import DataSet, DataSpec
from dpmcmc.data.request import DataRequest
from dpmcmc.data.row_maps import add_intercept, clip_rows

TWO_NORMALS = DataSpec(
    name="two_normals",
    num_records=1000,
    num_features=3,
    num_classes=2,
    public=True,
    row_bound=1.0,
    encoding=None,
    description="Two overlapping unit normals in the plane, means (0.8, 0.8) and (-0.8, -0.8); an intercept.",
)

_NUM_TEST = 1000
_SEED = 20150706
_MEAN = 0.8
_SCALE = 3.0  # public: rows are (x1, x2, 1) / 3, and the few beyond norm 1 are drawn back onto the ball

POISSON_COUNTS = DataSpec(
    name="poisson_counts",
    num_records=2000,
    num_features=5,
    num_classes=None,
    public=True,
    row_bound=1.0,
    encoding=None,
    description="Counts from a log-linear Poisson model on points of the unit ball in four dimensions; an intercept.",
)

#: Coefficients of the model that made ``poisson_counts``, on its rows (x1, x2, x3, x4, 1) / sqrt(2).
POISSON_COEFFICIENTS = np.array([1.7, -1.1, 0.7, 0.0, 1.4])
_NUM_COUNTS_TEST = 500
_COUNTS_SEED = 18371837


def load_two_normals(spec: DataSpec, request: DataRequest) -> DataSet:
    """1000 training and 1000 test rows; the best possible accuracy is Phi(0.8 * sqrt(2)) = 0.871."""
    random = np.random.RandomState(_SEED)
    parts = []
    for size in (TWO_NORMALS.num_records or 0, _NUM_TEST):
        y = random.randint(0, 2, size=size).astype(np.int32)
        points = random.normal(size=(size, 2)) + _MEAN * (2.0 * y[:, None] - 1.0)
        parts.append({"x": clip_rows(add_intercept(points) / _SCALE, spec.row_bound), "y": y})
    return DataSet(spec, parts[0], parts[1], True, "generated", {}, ("x1", "x2", "intercept"))


def load_poisson_counts(spec: DataSpec, request: DataRequest) -> DataSet:
    """2000 training and 500 test rows; a count has mean exp(row . POISSON_COEFFICIENTS), from 0.59 to 12.3."""
    random = np.random.RandomState(_COUNTS_SEED)
    num_points = POISSON_COEFFICIENTS.size - 1
    parts = []
    for size in (POISSON_COUNTS.num_records or 0, _NUM_COUNTS_TEST):
        directions = random.normal(size=(size, num_points))
        radii = random.uniform(size=(size, 1)) ** (1.0 / num_points)
        points = directions * (radii / np.linalg.norm(directions, axis=1, keepdims=True))
        rows = clip_rows(add_intercept(points) / np.sqrt(2.0), spec.row_bound)
        counts = random.poisson(np.exp(rows.astype(float) @ POISSON_COEFFICIENTS))
        parts.append({"x": rows, "y": counts.astype(np.int32)})
    return DataSet(
        spec,
        parts[0],
        parts[1],
        True,
        "generated",
        {},
        ("x1", "x2", "x3", "x4", "intercept"),
    )


def random_levels(random: np.random.RandomState, num_rows: int, sizes: Sequence[int]) -> np.ndarray:
    """Level numbers (num_rows, len(sizes)), int64; level k of a column has weight 1 / (k + 1)."""
    columns = []
    for size in sizes:
        weights = 1.0 / np.arange(1, size + 1)
        columns.append(random.choice(size, size=num_rows, p=weights / weights.sum()))
    return np.stack(columns, axis=1)


def logistic_labels(
    random: np.random.RandomState,
    rows: np.ndarray,
    weights: np.ndarray,
    rate: float,
    num_train: int,
) -> np.ndarray:
    """Labels (N,), int32, of a logistic model on rows (N, d); ``rate`` is the share of ones in training.

    A label is one where weights . row + logistic noise passes a threshold, which is the logistic model with
    minus the threshold as its intercept; taking the threshold as a quantile gives the rate at once.
    """
    scores = rows @ weights + random.logistic(size=rows.shape[0])
    threshold = np.sort(scores[:num_train])[round((1.0 - rate) * num_train)]
    labels: np.ndarray = scores >= threshold
    return labels.astype(np.int32)
