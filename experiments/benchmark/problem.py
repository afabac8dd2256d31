"""A table as every method gets it: rows, halves, labels with a known truth, and coefficients in the units of columns.

Methods are judged on two tasks. Both are the same for every method and ε.

``simulated``  All rows, with labels drawn from a model that was fitted to the table: Bernoulli or categorical labels;
               negative binomial counts of the table's own dispersion; the fitted mean plus a residual of the table.
               The truth is therefore known, and is drawn from nobody's prior. Where the schema clips labels, the truth
               is the best-fitting coefficients of the clipped law.
``real``       A random half of the rows with its own labels. The other half is held out: predictions are scored on it,
               and it has a non-private estimate of its own.

Coefficients are compared in the units of the columns: levels with their first level, classes with the first class. The
intercept is left out, and so are coefficients that the table does not identify, such as that of a pixel that is always
0.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.data import Counts, Levels, Range, Schema
from experiments import glm
from experiments.benchmark.tables import TABLES

if TYPE_CHECKING:
    import pandas as pd

#: Standard deviation, over the length of its encoded contrast, beyond which a coefficient is not identified.
_UNIDENTIFIED = 100.0
#: Quantiles that stand for a table's residuals; precision that keeps a truth finite where classes are separated.
_QUANTILES, _PRECISION = 200, 0.01


@dataclass(frozen=True)
class Problem:
    """Records that a method may use.

    Attributes:
        frame: the table, with its label.
        schema: public facts.
        x: encoded rows, (n, d), of norm at most 1; the last column is the intercept's.
        y: encoded labels, (n,).
    """

    frame: pd.DataFrame
    schema: Schema
    x: np.ndarray
    y: np.ndarray

    @property
    def kind(self) -> str:
        """``binary``, ``classes``, ``count`` or ``real``."""
        return self.schema.outcome.kind

    @property
    def classes(self) -> int:
        """Number of classes of a label that has more than two; else 1."""
        return (self.schema.outcome.num_classes or 1) if self.kind == "classes" else 1

    @property
    def columns(self) -> np.ndarray:
        """Columns of the non-private fit: all but the first level of each block."""
        first = {block[0] for block in self.schema.structure.blocks}
        return np.array([at for at in range(self.x.shape[1]) if at not in first])

    @property
    def delta(self) -> float:
        """δ of every method that has one: the least of 1e-5 and n^-1.2."""
        return min(1e-5, len(self.y) ** -1.2)


@dataclass(frozen=True)
class Units:
    """The map from encoded coefficients to those in the units of the columns, by one matrix.

    Attributes:
        matrix: (m, d·K).
        kept: encoded coefficients of the non-private fit, of which there are no more than needed, as places.
    """

    matrix: np.ndarray
    kept: np.ndarray

    def of(self, draws: np.ndarray) -> np.ndarray:
        """Return (k, m) of draws (k, d) or (k, d, K)."""
        return draws.reshape(len(draws), -1) @ self.matrix.T

    def estimate(self, fit: glm.Fit) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return estimate, standard error and whether it is identified, each (m,), of a fit of the kept columns."""
        matrix = self.matrix[:, self.kept]
        spread = np.sqrt(np.einsum("ij,jk,ik->i", matrix, fit.inverse, matrix))
        identified = spread < _UNIDENTIFIED * np.linalg.norm(matrix, axis=1)
        error = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", matrix, fit.covariance, matrix), 0))
        return matrix @ fit.theta.ravel(), error, identified & (error > 0)


def units_of(schema: Schema) -> Units:
    """Return the map of a schema."""
    classes = schema.outcome.num_classes if schema.outcome.kind == "classes" else None
    shape = (len(schema.names),) if classes is None else (len(schema.names), classes)
    size = int(np.prod(shape))
    mapped = schema.to_original_units(np.eye(size).reshape(size, *shape)) - schema.to_original_units(np.zeros(shape))
    if classes is not None:
        mapped = mapped[..., 1:] - mapped[..., :1]
    mapped = mapped[:, :-1]  # without the intercept
    matrix = mapped.reshape(size, -1).T
    first = {block[0] for block in schema.structure.blocks}
    places = np.arange(size).reshape(shape)
    columns = [at for at in range(shape[0]) if at not in first]
    kept = places[columns] if classes is None else places[columns][:, 1:]
    return Units(matrix[np.abs(matrix).sum(axis=1) > 0], kept.ravel())


@dataclass(frozen=True)
class Prepared:
    """A loaded table, and the model that its labels are simulated from."""

    name: str
    whole: Problem
    units: Units

    def fit(self, problem: Problem, precision: float = 0.0) -> glm.Fit:
        """Return the non-private fit, with the first levels' coefficients held at 0."""
        return glm.fitted(problem.x[:, problem.columns], problem.y, problem.kind, problem.classes, precision)

    @functools.cached_property
    def _law(self) -> tuple[glm.Fit, np.ndarray, np.ndarray]:
        """Return the fitted model, its predictors, and residuals of real labels."""
        fit = self.fit(self.whole, _PRECISION)
        eta = self.whole.x[:, self.whole.columns] @ fit.theta
        return fit, eta, self.whole.y - eta if self.whole.kind == "real" else np.zeros(0)

    @functools.cached_property
    def truth(self) -> np.ndarray:
        """Coefficients that intervals of simulated labels should contain, (m,)."""
        fit, eta, residuals = self._law
        kind = self.whole.kind
        if kind == "real":
            steps = np.quantile(residuals, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
            means = np.mean([np.clip(eta + step, -1, 1) for step in steps], axis=0)
        elif kind == "count":
            means = glm.clipped_mean(np.exp(eta), fit.dispersion, self._most)
        else:
            return self.units.matrix[:, self.units.kept] @ fit.theta.ravel()
        best = glm.fitted(self.whole.x[:, self.whole.columns], means, kind, 1)
        return self.units.matrix[:, self.units.kept] @ best.theta.ravel()

    @property
    def _most(self) -> int:
        label = self.whole.schema.columns[self.whole.schema.label]
        assert isinstance(label, Counts)
        return label.largest

    def simulated(self, repeat: int) -> Problem:
        """Return all rows with simulated labels."""
        rng = np.random.default_rng([zlib.crc32(self.name.encode()), repeat, 1])
        fit, eta, residuals = self._law
        kind = self.whole.kind
        if kind == "binary":
            y = (rng.random(len(eta)) < glm.expit(eta)).astype(np.int64)
        elif kind == "classes":
            y = (glm.softmax(eta).cumsum(axis=1) < rng.random((len(eta), 1))).sum(axis=1)
        elif kind == "count":
            size = 1 / max(fit.dispersion, 1e-6)
            y = np.minimum(rng.poisson(rng.gamma(size, np.exp(eta) / size)), self._most)
        else:
            y = np.clip(eta + rng.choice(residuals, size=len(eta)), -1, 1)
        return self._labelled(self.whole, y)

    def halves(self, repeat: int) -> tuple[Problem, Problem]:
        """Return a random half, and the other."""
        rng = np.random.default_rng([zlib.crc32(self.name.encode()), repeat])
        order = rng.permutation(len(self.whole.y))
        middle = len(order) // 2
        return self._rows(order[:middle]), self._rows(order[middle:])

    def _rows(self, rows: np.ndarray) -> Problem:
        whole = self.whole
        return Problem(whole.frame.iloc[rows].reset_index(drop=True), whole.schema, whole.x[rows], whole.y[rows])

    def _labelled(self, problem: Problem, y: np.ndarray) -> Problem:
        """Return a problem with other labels, in the table too."""
        label = problem.schema.columns[problem.schema.label]
        if isinstance(label, Levels):
            values = np.array(label.levels, dtype=object)[y]
        elif isinstance(label, Range):
            values = label.low + (y + 1) / 2 * (label.high - label.low)
        else:
            values = y
        frame = problem.frame.assign(**{problem.schema.label: values})
        return Problem(frame, problem.schema, problem.x, y)


@functools.lru_cache(maxsize=1)
def prepared(name: str) -> Prepared:
    """Load a table of the list.

    Raises:
        ImportError: its package is not installed.
        ValueError: the package has another table.
    """
    table = TABLES[name]
    frame = table.load()
    records = table.schema.encode(frame)
    x, y = (np.asarray(records[part], np.float64) for part in ("x", "y"))
    whole = Problem(frame, table.schema, x, y.astype(np.int64) if table.schema.outcome.kind != "real" else y)
    return Prepared(name, whole, units_of(table.schema))
