"""Tasks of the coverage benchmark: a model, its rows, and truths whose law is a multiple of the model's prior.

``logistic``    correlated rows: an intercept, binary columns, ranges and a one-hot block, ‖x‖ <= 1; δ = N^-1.2
``softmax``     the same rows, three classes; measured are contrasts θ_k − the mean over classes, since the records say
                nothing of that mean
``poisson``     the same rows, counts of mean exp(x·θ); ``negative_binomial`` with the dispersion 1
``linear``      Bayesian linear regression in ten dimensions and an intercept, as Alrawajfeh, Jälkö and Honkela (2025)
                simulate it (coverage_experiment.py of github.com/DPBayes/noise-aware-dpvi): x ~ N(0, I), N = 5,000,
                δ = 1e-5, σ² about .5/19, θ ~ N(0, 4σ² I). There σ² is unknown; here it is known. Rows are drawn back to
                norm 5, one in 130, and labels to 5.
``statistics``  one covariate and an intercept, from the priors of Bernstein and Sheldon (2019; generate_data.py of
                github.com/gbernstein6/private_bayesian_regression): σ² about .5/19, θ ~ N(0, I), x about its mean with
                standard deviation .144. Their guarantee is pure ε and adds Laplace noise, ours has δ = 1e-6.
``adult``       rows of UCI Adult, d = 109, labels from the model
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit, softmax

from dpmcmc import data
from dpmcmc.cli.refusals import CommandError
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets import Target

#: Columns of the one-hot block, and classes of the softmax task.
_BLOCK, CLASSES = 3, 3
#: σ of both linear tasks: the prior mean of σ² is .5/(20 − 1).
_SIGMA = math.sqrt(0.5 / 19)
#: Public bounds of the linear tasks: (on rows, on labels).
_LINEAR, _STATISTICS = (5.0, 5.0), (1.25, 5.0)


class Cell(NamedTuple):
    """One setting of the benchmark; ``truth_scale`` is the truth's standard deviation over the prior's."""

    task: str
    way: str
    d: int
    n: int
    epsilon: float
    truth_scale: float


class Task(NamedTuple):
    """A task.

    Attributes:
        delta: N -> δ.
        row_bound: public bound on ‖x‖.
        table: (cell, rng, θ*) -> records of one table.
        target: section of a config in place of a way's own; empty: a way's own.
        size: parameters a column.
        data: section of a config; empty: rows of the declared N, d and bound.
        identified: symmetric linear map from parameters (..., p) to the identified numbers, which are measured.
    """

    delta: Callable[[int], float]
    row_bound: float
    table: Callable[[Cell, np.random.Generator, np.ndarray], PyTree]
    target: str = ""
    data: str = ""
    size: int = 1
    identified: Callable[[np.ndarray], np.ndarray] = lambda values: values

    def overrides(self, cell: Cell) -> list[str]:
        """Return what changes in a way's config."""
        rows = f"{{path: simulated.npz, num_records: {cell.n}, num_features: {cell.d}, row_bound: {self.row_bound}}}"
        changes = {
            "data": self.data or rows,
            "target": self.target,
            "privacy.epsilon": cell.epsilon,
            "privacy.delta": self.delta(cell.n),
        }
        return [f"{key}={value}" for key, value in changes.items() if value]


def simulated(cell: Cell, target: Target, seed: int) -> tuple[PyTree, np.ndarray]:
    """Return (records, the truth) of one table; the same for every way and ε."""
    rng = np.random.default_rng([cell.d, cell.n, seed])
    task = TASKS[cell.task]
    truth = cell.truth_scale * target.prior_scale * rng.normal(size=cell.d * task.size)
    return task.table(cell, rng, truth), truth


def _rows(cell: Cell, rng: np.random.Generator) -> np.ndarray:
    """Return correlated rows (N, d) of norm 1 at most: an intercept, binary columns, ranges and a one-hot block."""
    k = cell.d - 1
    z = rng.normal(size=(cell.n, k)) @ (rng.normal(size=(k, k)) / math.sqrt(k) + np.eye(k))
    z /= z.std(axis=0)
    free = k - _BLOCK
    binary = z[:, : free // 2] > rng.normal(size=free // 2) / 2
    ranged = np.clip(z[:, free // 2 : free], -3, 3) / 3
    hot = np.eye(_BLOCK)[np.argmax(z[:, free:], axis=1)]
    return np.concatenate([np.ones((cell.n, 1)), binary, ranged, hot], axis=1) / math.sqrt(2 + free)


def _logistic(cell: Cell, rng: np.random.Generator, truth: np.ndarray) -> PyTree:
    x = _rows(cell, rng)
    return {"x": x.astype(np.float32), "y": (rng.random(cell.n) < expit(x @ truth)).astype(np.int32)}


def _softmax(cell: Cell, rng: np.random.Generator, truth: np.ndarray) -> PyTree:
    x = _rows(cell, rng)
    p = softmax(x @ truth.reshape(cell.d, CLASSES), axis=1)
    y = np.sum(np.cumsum(p, axis=1)[:, :-1] < rng.random((cell.n, 1)), axis=1)
    return {"x": x.astype(np.float32), "y": y.astype(np.int32)}


def contrasts(values: np.ndarray) -> np.ndarray:
    """Return each class's coefficients less their mean over classes, (..., d * K), from Θ (..., d * K)."""
    table = values.reshape(*values.shape[:-1], -1, CLASSES)
    return (table - table.mean(axis=-1, keepdims=True)).reshape(values.shape)


def _poisson(cell: Cell, rng: np.random.Generator, truth: np.ndarray) -> PyTree:
    x = _rows(cell, rng)
    return {"x": x.astype(np.float32), "y": rng.poisson(np.exp(x @ truth)).astype(np.int32)}


def _negative_binomial(cell: Cell, rng: np.random.Generator, truth: np.ndarray) -> PyTree:
    """Counts whose means are multiplied by gamma numbers of mean 1 and variance 1: dispersion 1."""
    x = _rows(cell, rng)
    return {
        "x": x.astype(np.float32),
        "y": rng.poisson(np.exp(x @ truth) * rng.exponential(size=cell.n)).astype(np.int32),
    }


def _linear(cell: Cell, rng: np.random.Generator, truth: np.ndarray) -> PyTree:
    return _responses(np.append(rng.normal(size=(cell.n, cell.d - 1)), np.ones((cell.n, 1)), 1), truth, rng, *_LINEAR)


def _statistics(cell: Cell, rng: np.random.Generator, truth: np.ndarray) -> PyTree:
    z = 0.144 * (rng.normal(size=(cell.n, cell.d - 1)) + rng.normal(size=cell.d - 1))
    return _responses(np.append(z, np.ones((cell.n, 1)), 1), truth, rng, *_STATISTICS)


def _responses(x: np.ndarray, truth: np.ndarray, rng: np.random.Generator, row: float, label: float) -> PyTree:
    """Return records whose rows and labels are drawn back to their public bounds."""
    x = (x * np.minimum(1, row * (1 - 1e-6) / np.linalg.norm(x, axis=1, keepdims=True))).astype(np.float32)
    y = x @ truth + _SIGMA * rng.normal(size=len(x))
    return {"x": x, "y": np.clip(y, -label, label).astype(np.float32)}


@functools.cache
def adult() -> data.DataSet:
    """Return UCI Adult."""
    return data.load(data.DataRequest(name="adult"))


def _adult(cell: Cell, rng: np.random.Generator, truth: np.ndarray) -> PyTree:
    x = adult().train["x"]
    if x.shape != (cell.n, cell.d):
        raise CommandError(f"task adult has {x.shape[0]} records of {x.shape[1]} columns; write these numbers.")
    return {"x": x, "y": (rng.random(cell.n) < expit(x @ truth)).astype(np.int32)}


def _regression(prior_scale: float, label_bound: float) -> str:
    return f"{{name: linear_regression, prior_scale: {prior_scale}, noise_scale: {_SIGMA}, label_bound: {label_bound}}}"


#: By the name that the YAML says.
TASKS = {
    "logistic": Task(lambda n: n**-1.2, 1.0, _logistic),
    "softmax": Task(
        lambda n: n**-1.2,
        1.0,
        _softmax,
        f"{{name: softmax_regression, prior_scale: 1.0, num_classes: {CLASSES}}}",
        size=CLASSES,
        identified=contrasts,
    ),
    "poisson": Task(lambda n: n**-1.2, 1.0, _poisson, "{name: poisson_regression, prior_scale: 1.0}"),
    "negative_binomial": Task(
        lambda n: n**-1.2, 1.0, _negative_binomial, "{name: negative_binomial_regression, dispersion: 1.0}"
    ),
    "linear": Task(lambda n: 1e-5, _LINEAR[0], _linear, _regression(2 * _SIGMA, _LINEAR[1])),
    "statistics": Task(lambda n: 1e-6, _STATISTICS[0], _statistics, _regression(1.0, _STATISTICS[1])),
    "adult": Task(lambda n: 1e-6, 1.0, _adult, data="{name: adult, encoding: public}"),
}
