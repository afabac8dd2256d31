"""Designs: a public schema, a simulator of tables, and the coefficients that an interval should contain.

Truths are fixed numbers in the units of the columns. Where the fitted model holds, they are what intervals should
contain. Where it does not hold (an omitted square, another link, labels that the schema clips), the best-fitting
coefficients are: the mean of non-private fits of four million rows, a million each.

``one_*``, ``three_*``       logistic, covariates uniform or arcsine on [-1, 1]
``awan_wang``                logistic, one uniform covariate, intercept .5 and slope 2
``eight_*x``                 logistic, four uniform and four binary covariates; at 1x the logits have standard deviation
                             1, as they have under the prior of ``fit``, and a multiple scales all coefficients
``strong``                   logistic, slopes 12, −9 and 6
``linear_R_RHO_ERROR``       five covariates of equal correlation, errors of standard deviation 1, a label range of R
``binagg``                   linear, three normal covariates, errors of standard deviation 1; no more is known to us of
                             the peer's design than n, d and μ, and non-private intervals are .088 wide here
``omitted_square``           logistic regression of a law with the square of a covariate
``probit``, ``cauchit``, ``cloglog``  logistic regression of a law with another link
``counts_A``                 counts of mean exp(x·β) whose variance is μ + A μ²
``rare_P``                   logistic, a share P of labels 1
``collinear``                logistic, two covariates of correlation .95
``adult``                    rows of UCI Adult by the library's encoder, labels from a fit to its own labels
``groups_G``                 logistic, random intercepts of G groups with standard deviation .5
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm

import dpmcmc
from dpmcmc import config, data
from dpmcmc.config import file as config_file
from dpmcmc.data import Counts, Levels, Range, Schema
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.targets import LogisticRegression
from experiments import glm
from experiments.intervals import simulators

INTERCEPT, LABEL, GROUP = "intercept", "y", "g"
#: Rows of each fit that gives best-fitting coefficients, number of such fits, and the seed of their simulation.
ROWS, _FITS, _SEED = 1_000_000, 4, 29
Columns = dict[str, np.ndarray]


class Chain(NamedTuple):
    """A shipped config of a chain, and changes of it as ``--set`` takes them."""

    config: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Design:
    """A design.

    Attributes:
        family: kind of label of the model that is fitted; a name in ``glm.LAWS``.
        names: coefficients that are measured, as ``result.summary()`` calls them.
        truth: coefficients in that order; None: the best-fitting ones.
        simulate: (rng, N) -> a table.
        schema: public facts of the table; None: of Adult, whose rows are records already.
        formula: as ``dpmcmc.fit`` takes it.
        precision: of the prior that the non-private fit has, 0 for maximum likelihood.
    """

    family: str
    names: tuple[str, ...]
    truth: tuple[float, ...] | None
    simulate: Callable[[np.random.Generator, int], Columns]
    schema: Schema | None
    formula: str | None = None
    precision: float = 0.0

    def fit(self, table: Columns, epsilon: float, delta: float | None, chain: Chain | None = None) -> dpmcmc.Result:
        """Fit a table privately, as a user does: by ``dpmcmc.fit``, or by a shipped config of a chain."""
        if chain is not None:
            return self._run(table, epsilon, delta, chain)
        if self.schema is None:
            return _fit_adult(table, epsilon, delta)
        return dpmcmc.fit(self.formula, table, self.schema, epsilon, delta=delta, progress=False)

    def _run(self, table: Columns, epsilon: float, delta: float | None, chain: Chain) -> dpmcmc.Result:
        n = len(table[LABEL])
        changes = (f"privacy.epsilon={epsilon}", f"privacy.delta={delta or n**-1.2}", *chain.changes)
        if self.schema is not None:
            rows = {"path": "simulated.csv", "num_records": n, "schema": self.schema.to_yaml()}
            changes = (*changes, f"data={json.dumps(rows)}")
        return dpmcmc.sample(_planned(chain.config, changes), table, progress=False)

    def reference(self, table: Columns, precision: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the non-private fit of a table and its standard errors; NaN where it does not exist.

        Args:
            table: simulated.
            precision: of the prior in place of the design's own, or None.
        """
        precision = self.precision if precision is None else precision
        kept = slice(len(self.names))
        try:
            found = glm.fitted(self._matrix(table), table[LABEL], self.family, precision=precision, ridge=0.0)
        except np.linalg.LinAlgError:
            return np.full(len(self.names), np.nan), np.full(len(self.names), np.nan)
        return found.theta[kept], found.errors(precision)[kept]

    def best_fitting(self, rows: int = ROWS) -> tuple[float, ...]:
        """Return the coefficients that intervals should contain; they are the same in every call."""
        if self.truth is not None:
            return self.truth
        found = []
        for part in range(_FITS):
            table = self.simulate(np.random.default_rng([_SEED, part]), rows)
            found.append(glm.fitted(self._matrix(table), table[LABEL], self.family, ridge=0.0).theta)
        return tuple(np.mean(found, axis=0)[: len(self.names)])

    def _matrix(self, table: Columns) -> np.ndarray:
        if self.schema is None:
            return table["x"].astype(np.float64)
        x = np.column_stack([table[name] for name in self.names if name != INTERCEPT])
        if GROUP in table:  # an intercept a group
            return np.append(x, table[GROUP][:, None] == np.unique(table[GROUP]), axis=1).astype(np.float64)
        return np.append(x, np.ones((len(x), 1)), axis=1)


@functools.lru_cache(maxsize=1)
def _planned(name: str, changes: tuple[str, ...]) -> dpmcmc.Plan:
    """Return the plan of a shipped config; tables of one row share it, and what is compiled for it."""
    return config.make_plan(config_file.load(name, list(changes)))


#: Slopes of the linear designs for a label range of 10; they grow with the range.
_LINEAR = (1.0, -0.8, 0.6, 0.4, 0.5)
#: Slopes of ``eight_1x``: they give logits a standard deviation of 1.
_EIGHT = (0.85, -0.46, 0.59, -0.66, 0.72, -0.39, 0.52, -0.79)
_COUNTS, _THREE, _RARE, _WRONG = (0.8, -0.5, 0.3), (1.0, -2.0, 3.0), (1.0, -0.8, 0.5), (1.5, -1.0, 0.5)


def regression(
    slopes: tuple[float, ...],
    intercept: float,
    respond: simulators.Respond,
    rows: simulators.Rows = simulators.uniform,
    label: Range | Levels | Counts | None = None,
    right: bool = True,
    columns: Mapping[str, Range] | None = None,
) -> Design:
    """Return a design with k covariates and an intercept; ``right``: whether its truth is what a fit estimates."""
    names = tuple(f"x{j + 1}" for j in range(len(slopes)))
    label = label or Levels([0, 1])
    family = {Range: "real", Levels: "binary", Counts: "count"}[type(label)]

    def simulate(rng: np.random.Generator, n: int) -> Columns:
        x = rows(rng, n, len(slopes))
        return {**dict(zip(names, x.T, strict=True)), LABEL: respond(rng, x, intercept + x @ np.array(slopes))}

    return Design(
        family,
        (*names, INTERCEPT),
        (*slopes, intercept) if right else None,
        simulate,
        Schema({**{name: Range(-1, 1) for name in names}, **(columns or {}), LABEL: label}, label=LABEL),
    )


def _logistic(
    slopes: tuple[float, ...], intercept: float = 0.5, rows: simulators.Rows = simulators.uniform, **more: Any
) -> Design:
    return regression(slopes, intercept, simulators.binary(expit), rows, **more)


def _eight(times: int) -> Design:
    slopes = tuple(times * slope for slope in _EIGHT)
    binary = {f"x{j + 1}": Range(0, 1) for j in range(4, 8)}
    return _logistic(slopes, 0.3 * times, simulators.half_binary, columns=binary)


def _linear(ratio: int, correlation: float, error: str) -> Design:
    half = ratio / 2
    slopes = tuple(half / 5 * slope for slope in _LINEAR)
    return regression(
        slopes,
        0.0,
        simulators.real(half, 1.0, error),
        simulators.correlated(correlation),
        Range(-half, half),
        right=False,
    )


def _binagg() -> Design:
    ranges = {f"x{j + 1}": Range(-simulators.END, simulators.END) for j in range(3)}
    return regression(
        (1.0, -1.0, 0.5), 0.0, simulators.real(8.0, 1.0, "normal"), simulators.normal, Range(-8, 8), columns=ranges
    )


def intercept_of_share(share: float, slopes: tuple[float, ...]) -> float:
    """Return the intercept at which a share of labels is 1, for independent uniform covariates."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    eta = np.array([np.dot(point, slopes) for point in itertools.product(nodes, repeat=len(slopes))])
    weight = np.array([math.prod(w) for w in itertools.product(weights / 2, repeat=len(slopes))])
    return float(brentq(lambda a: float(weight @ expit(a + eta)) - share, -20, 20))


def _rare(share: float) -> Design:
    return _logistic(_RARE, intercept_of_share(share, _RARE))


def _groups(count: int) -> Design:
    names = ("x1", "x2")
    slopes = (1.0, -0.7)
    levels = [f"g{j}" for j in range(count)]
    ranges = {name: Range(-1, 1) for name in names}

    def simulate(rng: np.random.Generator, n: int) -> Columns:
        x = simulators.uniform(rng, n, len(names))
        group = rng.integers(count, size=n)
        eta = 0.3 + x @ np.array(slopes) + (0.5 * rng.normal(size=count))[group]
        return {
            "x1": x[:, 0],
            "x2": x[:, 1],
            GROUP: np.array(levels)[group],
            LABEL: simulators.binary(expit)(rng, x, eta),
        }

    schema = Schema({**ranges, GROUP: Levels(levels), LABEL: Levels([0, 1])}, label=LABEL)
    return Design("binary", names, slopes, simulate, schema, f"{LABEL} ~ x1 + x2 + (1|{GROUP})")


#: Prior standard deviation of the shipped config for Adult.
_ADULT_PRIOR = 1.0


@functools.cache
def _adult_rows() -> data.DataSet:
    return data.load(data.DataRequest(name="adult", encoding="public", standin="allow"))


def _adult() -> Design:
    train = _adult_rows().train
    precision = _ADULT_PRIOR**-2
    truth = glm.fitted(train["x"].astype(np.float64), train["y"], "binary", precision=precision, ridge=0.0).theta

    def simulate(rng: np.random.Generator, n: int) -> Columns:
        x = train["x"][:n]
        return {"x": x, LABEL: (rng.random(len(x)) < expit(x @ truth)).astype(np.int32)}

    names = tuple(f"theta[{j}]" for j in range(len(truth)))
    return Design("binary", names, tuple(truth), simulate, None, precision=precision)


def _fit_adult(records: Columns, epsilon: float, delta: float | None) -> dpmcmc.Result:
    """Fit rows that Adult's own encoder made, which no schema describes."""
    n, d = records["x"].shape
    target = LogisticRegression(prior_scale=_ADULT_PRIOR, num_features=d, row_bound=1.0)
    plan = NoiseAware(structure=_adult_rows().spec.structure).plan(
        target, num_records=n, epsilon=epsilon, delta=delta or n**-1.2
    )
    return dpmcmc.sample(plan, records, progress=False)


_MARGINS: dict[str, simulators.Rows] = {"uniform": simulators.uniform, "arcsine": simulators.arcsine}
_LINKS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "probit": norm.cdf,
    "cauchit": lambda eta: 0.5 + np.arctan(3 * eta) / math.pi,
    "cloglog": lambda eta: -np.expm1(-np.exp(eta)),
}
_MADE: dict[str, Callable[[], Design]] = {
    **{
        f"one_{margin}_{slope}": functools.partial(_logistic, (float(slope),), rows=rows)
        for margin, rows in _MARGINS.items()
        for slope in (1, 2, 3)
    },
    **{f"three_{margin}": functools.partial(_logistic, _THREE, rows=rows) for margin, rows in _MARGINS.items()},
    "awan_wang": functools.partial(_logistic, (2.0,)),
    **{f"eight_{times}x": functools.partial(_eight, times) for times in (1, 2, 3, 6)},
    "strong": functools.partial(_logistic, (12.0, -9.0, 6.0), 1.0),
    **{
        f"linear_{ratio}_{correlation:g}_{error}": functools.partial(_linear, ratio, correlation, error)
        for ratio in (5, 30)
        for correlation in (0.0, 0.95)
        for error in simulators.ERRORS
    },
    "binagg": _binagg,
    "omitted_square": functools.partial(regression, _WRONG, 0.3, simulators.with_square, right=False),
    **{
        name: functools.partial(regression, _WRONG, 0.3, simulators.binary(link), right=False)
        for name, link in _LINKS.items()
    },
    **{
        f"counts_{dispersion:g}": functools.partial(
            regression, _COUNTS, 0.5, simulators.counts(dispersion), label=Counts(simulators.LARGEST_COUNT)
        )
        for dispersion in (0.0, 0.5, 1.0, 2.0)
    },
    **{f"rare_{share:g}": functools.partial(_rare, share) for share in (0.01, 0.05)},
    "collinear": functools.partial(_logistic, (1.5, -1.0), rows=simulators.correlated(0.95)),
    "adult": _adult,
    **{f"groups_{count}": functools.partial(_groups, count) for count in (8, 40, 200)},
}
NAMES = tuple(_MADE)


@functools.lru_cache(maxsize=8)
def design(name: str) -> Design:
    """Return the design of a name in :data:`NAMES`."""
    return _MADE[name]()
