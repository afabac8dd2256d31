"""One table, and one row from its tables.

Means over tables have a Monte Carlo error. It is clustered by table, because coefficients of one table are not
independent, and it is at least that of independent intervals at the nominal level, so that a few tables in which every
interval covers are not taken for certainty.
"""

from __future__ import annotations

import functools
import math
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

import dpmcmc
from dpmcmc.errors import InputError
from experiments.intervals.designs import INTERCEPT, Chain, design

Row = dict[str, str | float | int]


class Task(NamedTuple):
    """One table of a design at one ε.

    Attributes:
        estimand: coefficients that its intervals should contain.
        chain: that is run in place of ``dpmcmc.fit``, or None.
    """

    design: str
    records: int
    epsilon: float
    delta: float | None
    level: float
    table: int
    estimand: tuple[float, ...]
    chain: Chain | None = None


class Seen(NamedTuple):
    """Outcome of one table; arrays have an entry a coefficient.

    Attributes:
        low: lower ends of the intervals.
        high: upper ends.
        estimate: of the non-private fit.
        error: standard errors of the non-private fit.
        usable: whether the result says that its intervals may be reported.
        predicted: width over that of the non-private fit as the plan predicts it; NaN where it says none.
        seconds: of the fit.
    """

    low: np.ndarray
    high: np.ndarray
    estimate: np.ndarray
    error: np.ndarray
    usable: bool
    predicted: float
    seconds: float


class Failure(NamedTuple):
    """Class of the error that a fit raised, and whether it is a refusal."""

    name: str
    refused: bool


def intervals_of(result: dpmcmc.Result, level: float, names: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper ends of the intervals of these coefficients, in the units of the columns.

    A result that is not for intervals has the same numbers under ``5 % of draws``.
    """
    shown = result.summary(level=level).to_dict()
    low, high = sorted((key for key in shown if " %" in key), key=lambda key: float(key.split(" %")[0]))
    places = [list(shown["name"]).index(name) for name in names]
    return np.asarray(shown[low], float)[places], np.asarray(shown[high], float)[places]


def simulated(task: Task) -> dict[str, np.ndarray]:
    """Return a table; the same for every ε."""
    seed = [zlib.crc32(task.design.encode()), task.records, task.table]
    return design(task.design).simulate(np.random.default_rng(seed), task.records)


def seen(task: Task) -> Seen | Failure:
    """Simulate one table, fit it, and return what its intervals are."""
    of = design(task.design)
    table = simulated(task)
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = of.fit(table, task.epsilon, task.delta, task.chain)
            low, high = intervals_of(result, task.level, of.names)
    except Exception as error:
        return Failure(type(error).__name__, isinstance(error, InputError))
    seconds = time.perf_counter() - start
    # A chain on Adult has a prior of its own; columns with units have none in the non-private fit.
    own = task.chain is not None and of.schema is None
    precision = result.plan.target.prior_precision if own else None
    estimate, error = _reference(task.design, task.records, task.table, precision)
    return Seen(low, high, estimate, error, "intervals" in result.usable_for, predicted_width(result), seconds)


def seen_of_row(task: tuple[int, Task]) -> Seen | Failure:
    """Return the outcome of a table that is numbered by its row; a worker finds functions of modules alone."""
    return seen(task[1])


@functools.lru_cache(maxsize=256)
def _reference(name: str, records: int, table: int, precision: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the non-private fit of a table, which rows of several ε share."""
    task = Task(name, records, 1.0, None, 0.9, table, ())
    return design(name).reference(simulated(task), precision)


def predicted_width(result: dpmcmc.Result) -> float:
    """Return the width over that of the non-private fit as the plan predicts it, of a range its geometric mean."""
    found = result.plan.settings.get("predicted_width") if result.plan.release is not None else None
    if found is None:
        found = result.verdict.predicted_width
    if found is None:
        return math.nan
    with np.errstate(all="ignore"):
        return float(np.exp(np.mean(np.log(np.asarray(found, float)))))


def summarised(outcomes: list[Seen | Failure], task: Task) -> Row:
    """Return the numbers of a row from the outcomes of its tables; see ``table.COLUMNS``."""
    tables = [one for one in outcomes if isinstance(one, Seen)]
    failures = [one for one in outcomes if isinstance(one, Failure)]
    names = Counter(one.name for one in failures)
    row: Row = {
        "measured": len(tables),
        "failed": len(failures),
        "refused": sum(one.refused for one in failures),
        "failures": " ".join(f"{name}:{count}" for name, count in sorted(names.items())),
    }
    if not tables:
        return row
    low, high, estimate, error = (np.array(values) for values in list(zip(*tables, strict=True))[:4])
    truth = np.array(task.estimand)
    half = norm.ppf((1 + task.level) / 2) * error
    inside = (low <= truth) & (truth <= high)
    own = np.where(np.isnan(half), np.nan, np.abs(estimate - truth) <= half)
    outside = np.maximum(low - truth, truth - high)
    missed = np.any(outside > (high - low) / 2, axis=1)
    flagged = np.array([not one.usable for one in tables])
    slopes = np.array([name != INTERCEPT for name in design(task.design).names])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a mean of nothing, where no non-private fit exists
        row |= {
            "coverage": float(np.mean(inside[:, slopes])),
            "coverage_error": monte_carlo_error(inside[:, slopes], task.level),
            "reference_coverage": float(np.nanmean(own[:, slopes])),
            "width": float(np.mean(np.nanmedian((high - low) / (2 * half), axis=0)[slopes])),
            "mean_width": float(np.mean((high - low)[:, slopes])),
            "reference_mean_width": float(np.nanmean(2 * half[:, slopes])),
            "predicted_width": float(np.nanmean([one.predicted for one in tables])),
        }
        if not slopes.all():
            row |= {
                "intercept_coverage": float(np.mean(inside[:, ~slopes])),
                "intercept_error": monte_carlo_error(inside[:, ~slopes], task.level),
                "reference_intercept_coverage": float(np.nanmean(own[:, ~slopes])),
            }
    row |= {"usable": float(np.mean(~flagged)), "misses": float(np.mean(missed))}
    row |= {"misses_flagged": float(np.mean(flagged[missed]))} if missed.any() else {}
    row |= {"false_alarms": float(np.mean(flagged[~missed]))} if not missed.all() else {}
    row["predicted_over_realised"] = float(row["predicted_width"]) / float(row["width"])
    row["seconds"] = float(np.median([one.seconds for one in tables]))
    return {name: value for name, value in row.items() if value == value}  # a number that is NaN is left out


def monte_carlo_error(inside: np.ndarray, level: float) -> float:
    """Return the standard error of the mean of truth values (tables, coefficients)."""
    count = len(inside)
    clustered = np.std(inside.mean(axis=1), ddof=1) / math.sqrt(count) if count > 1 else 0.0
    return max(float(clustered), math.sqrt(level * (1 - level) / inside.size))
