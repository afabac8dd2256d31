"""One row of the benchmark: a way on the simulated tables of a task."""

from __future__ import annotations

import functools
import math
import statistics

import numpy as np
from scipy.stats import norm

import dpmcmc
from dpmcmc.errors import InputError
from dpmcmc.targets import Target
from experiments.calibration import scores
from experiments.calibration.reference import laplace
from experiments.calibration.tasks import TASKS, Cell, simulated
from experiments.calibration.ways import WAYS

#: Nominal level of intervals, and fewest draws that have any.
LEVEL, _FEWEST = 0.9, 2
#: A row: the cell, what the plan says, then what the tables show. A number that a way has not is empty.
COLUMNS = (
    *("task", "way", "d", "N", "epsilon", "truth_scale", "tables", "prior_scale", "verdict", "upheld"),
    *("coverage", "coverage_error", "width", "width_error", "predicted_width", "crps", "crps_error"),
    *(
        "log_score",
        "log_score_error",
        "rank_error",
        "tarp_error",
        "floor",
        "reference_coverage",
        "reference_tarp_error",
    ),
    *("rhat_median", "rhat_worst", "reason"),
)
Row = dict[str, str | float | int]
#: One table's numbers, or fractions of draws, by name.
Seen = dict[str, np.ndarray]


def measured(cell: Cell, tables: int) -> Row:
    """Return a row of the results."""
    way = WAYS[cell.way]
    facts: Row = dict(zip(COLUMNS, (*cell, tables), strict=False))
    try:
        plan = way.plan(cell)
        verdict, reason = way.verdict(plan)
        facts |= {"prior_scale": plan.target.prior_scale, "verdict": verdict, "reason": reason}
        width = plan.verdict.to_json()["predicted_width"]
        facts |= {} if width is None or way.path else {"predicted_width": width}
        if not tables or plan.draws < _FEWEST:
            return facts
        return facts | _summary([_seen(cell, plan, seed) for seed in range(tables)])
    except InputError as error:
        return facts | {"verdict": "refused", "reason": str(error)}


def _seen(cell: Cell, plan: dpmcmc.Plan, seed: int) -> Seen:
    """Return what one table shows."""
    records, truth = simulated(cell, plan.target, seed)
    draws, result = WAYS[cell.way].run(plan, records)
    mean, covariance = _reference(cell._replace(way="", epsilon=0), plan.target, seed)
    rng = np.random.default_rng([seed, cell.n])
    exact = rng.multivariate_normal(mean, covariance, size=len(draws), method="eigh")
    of = TASKS[cell.task].identified
    draws = of(draws)
    exact = of(exact)
    truth = of(truth)
    mean = of(mean)
    covariance = of(of(covariance).T)
    std = np.sqrt(np.diag(covariance))
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    half = -norm.ppf((1 - LEVEL) / 2)
    own = scores.normal_log_score(draws.mean(axis=0), draws.std(axis=0, ddof=1), truth)
    return {
        "coverage": np.mean((low < truth) & (truth < high)),
        "width": np.mean(draws.std(axis=0) / std),
        "crps": np.mean(scores.crps(draws, truth) / std),
        "reference_crps": np.mean(scores.normal_crps(mean, std, truth) / std),
        "log_score": np.mean(own - scores.normal_log_score(mean, std, truth)),
        "reference_coverage": np.mean(np.abs(truth - mean) < half * std),
        "ranks": scores.rank_fractions(draws, truth, rng),
        "tarp": scores.tarp_fractions(draws, truth, rng),
        "reference_tarp": scores.tarp_fractions(exact, truth, rng),
        "upheld": np.float64("intervals" in result.verdict.usable_for or WAYS[cell.way].path),
        "rhat": np.float64(result.diagnostics["rhat"] or math.nan),
    }


@functools.lru_cache(maxsize=4096)
def _reference(cell: Cell, target: Target, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of a table's non-private posterior, the same for every way and ε."""
    return laplace(target, simulated(cell, target, seed)[0])


def _summary(seen: list[Seen]) -> Row:
    """Return means over tables with their standard errors, and errors of the curves."""
    each = {name: np.array([one[name] for one in seen]) for name in seen[0]}
    ratio = np.mean(each["reference_crps"])
    each["crps"] = each["crps"] / ratio
    row: Row = {name: float(np.mean(each[name])) for name in ("coverage", "width", "crps", "log_score", "upheld")}
    root = math.sqrt(len(seen))
    row |= {f"{name}_error": float(np.std(each[name]) / root) for name in ("coverage", "width", "crps", "log_score")}
    row |= {"reference_coverage": float(np.mean(each["reference_coverage"]))}
    row |= {"rank_error": scores.curve_error(each["ranks"]), "tarp_error": scores.curve_error(each["tarp"])}
    row |= {"floor": scores.curve_floor(len(seen)), "reference_tarp_error": scores.curve_error(each["reference_tarp"])}
    rhat = [float(value) for value in each["rhat"] if not math.isnan(value)]
    return row | ({"rhat_median": statistics.median(rhat), "rhat_worst": max(rhat)} if rhat else {})
