"""One task of the benchmark: a method on a table in one repeat, at every ε. It returns one row for each ε.

A row has the numbers of both tasks of ``problem.py``. Its status is ``ok``; ``refused``, where the method says that it
does not fit the problem; ``failed``, where it raised; or ``skipped``, where its package is not installed. A method that
gives numbers that are not finite has failed.
"""

from __future__ import annotations

import functools
import math
import time
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from experiments import glm
from experiments.benchmark.memory import Peak
from experiments.benchmark.methods import METHODS
from experiments.benchmark.methods.contract import Method, Outcome, Refused
from experiments.benchmark.problem import Prepared, Problem, prepared
from experiments.calibration import scores

#: Level of intervals, draws that predict, and rows that are predicted at once.
LEVEL, _PREDICTING, _ROWS = 0.9, 100, 2**14
_Z = float(norm.ppf((1 + LEVEL) / 2))

KEY = ("table", "method", "epsilon", "repeat")
#: Columns of ``results.csv``. ``coverage`` to ``crps`` are of simulated labels, ``score`` to ``expected_other`` of real
#: ones. ``width`` is the median over coefficients of the width over the non-private one, and ``predicted`` what the
#: method predicted for it. ``error`` is the median distance of an estimate from the truth. It and ``crps`` are in
#: non-private standard errors. ``score`` is accuracy, or R² of counts and real labels. ``own`` and ``other`` are shares
#: of the non-private estimates of the same half, and of the other, that intervals contain; ``expected_…`` is what the
#: two sampling laws predict from the widths. ``baseline`` columns are those of the non-private maximum likelihood on
#: the same labels.
COLUMNS = (
    *KEY,
    *("status", "reason", "family", "kind", "records", "coefficients", "intervals", "guarantee"),
    *("coverage", "width", "predicted", "error", "crps", "baseline_coverage", "baseline_crps"),
    *("score", "log_score", "own", "expected_own", "other", "expected_other", "intervals_real"),
    *("seconds", "memory"),
)
Row = dict[str, str | float | int]


class Task(NamedTuple):
    """A method on a table in one repeat."""

    table: str
    method: str
    epsilons: tuple[float, ...]
    repeat: int


def rows_of(task: Task) -> list[Row]:
    """Return a row for each ε."""
    method = METHODS[task.method]
    if method.missing:
        return [_row(task, e, status="skipped", reason=f"{method.missing} is not installed") for e in task.epsilons]
    try:
        table = prepared(task.table)
    except ImportError as error:
        return [_row(task, e, status="skipped", reason=f"{error.name} is not installed") for e in task.epsilons]
    _forget_other_tables(task.table)
    if table.whole.kind not in method.kinds:
        reason = f"it takes no {table.whole.kind} labels"
        return [_row(task, e, status="refused", reason=reason) for e in task.epsilons]
    rows = []
    for epsilon in task.epsilons:
        if method.family == "limit" and rows:  # no ε moves it
            rows.append(rows[0] | {"epsilon": epsilon})
            continue
        facts: Row = {"kind": table.whole.kind, "records": len(table.whole.y), "coefficients": len(table.units.matrix)}
        try:
            found = _measured(method, table, epsilon, task.repeat)
            rows.append(_row(task, epsilon, status="ok", **facts, **found))
        except Refused as error:
            rows.append(_row(task, epsilon, status="refused", reason=_short(error), **facts))
        except Exception as error:
            reason = f"{type(error).__name__}: {_short(error)}"
            rows.append(_row(task, epsilon, status="failed", reason=reason, **facts))
    return rows


def _forget_other_tables(name: str) -> None:
    """Drop what JAX compiled for another table, of which a process would keep all."""
    import jax

    if _last[0] not in ("", name):
        jax.clear_caches()
    _last[0] = name


#: Table that this process worked on last.
_last = [""]


def _row(task: Task, epsilon: float, **found: str | float | int) -> Row:
    cell = {"table": task.table, "method": task.method, "epsilon": epsilon, "repeat": task.repeat}
    return cell | {"family": METHODS[task.method].family} | found


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _measured(method: Method, table: Prepared, epsilon: float, repeat: int) -> Row:
    problem = _simulated(table.name, repeat)
    with Peak() as peak:
        start = time.perf_counter()
        outcome = _checked(method.run(problem, epsilon))
        seconds = time.perf_counter() - start
    estimate, error, identified = _reference(table.name, repeat, "simulated")
    truth = table.truth
    row: Row = {"guarantee": outcome.guarantee, "seconds": seconds, "memory": peak.mebibytes}
    row |= {"intervals": int(outcome.claims), "predicted": outcome.predicted if outcome.claims else math.nan}
    low, high, draws = intervals(table, outcome)
    away = np.abs(draws.mean(axis=0) - truth) / error
    row |= {"error": float(np.median(away[identified]))}
    row |= {"crps": float(np.mean((scores.crps(draws, truth) / error)[identified]))}
    row |= {"baseline_coverage": float(np.mean((np.abs(estimate - truth) <= _Z * error)[identified]))}
    row |= {"baseline_crps": float(np.mean((scores.normal_crps(estimate, error, truth) / error)[identified]))}
    if len(outcome.draws) > 1:
        row |= {"coverage": float(np.mean(((low <= truth) & (truth <= high))[identified]))}
        row |= {"width": float(np.median(((high - low) / (2 * _Z * error))[identified]))}
    half, other = _halves(table.name, repeat)
    outcome = _checked(method.run(half, epsilon))
    row |= predicted(outcome, other) | {"intervals_real": int(outcome.claims)}
    if len(outcome.draws) > 1:
        low, high, _ = intervals(table, outcome)
        row |= contained(low, high, _reference(table.name, repeat, "half"), _reference(table.name, repeat, "other"))
    return row


def _checked(outcome: Outcome) -> Outcome:
    if not np.all(np.isfinite(outcome.draws)):
        raise FloatingPointError("coefficients are not finite")
    return outcome


def intervals(table: Prepared, outcome: Outcome) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ends of the intervals (m,), and the draws (k, m), in the units of the columns."""
    draws = table.units.of(outcome.draws)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high, draws


def contained(
    low: np.ndarray,
    high: np.ndarray,
    own: tuple[np.ndarray, np.ndarray, np.ndarray],
    other: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Row:
    r"""Return the shares of non-private estimates that intervals contain, and what is expected of them.

    Let s be the standard deviation that an interval's width stands for, s = width/2z, of which the sampling of its own
    half is a and the noise the rest. The estimate of the same half then differs from the interval's centre by
    √(s² − a²), and that of another half, with standard error b, by √(s² + b²). Where s < a a prior N(0, τ²) makes the
    interval narrower than sampling does, s² = a²τ²/(a² + τ²). The centre is then s²/a² of the estimate, whose own
    variance is τ² + a² under the prior, so that they differ by (1 − s²/a²)√(τ² + a²) = √(a² − s²). The expected shares
    are 2Φ(z s/√|s² − a²|) − 1 and 2Φ(z s/√(s² + b²)) − 1.

    Args:
        low: lower ends, (m,).
        high: upper ends.
        own: estimates, standard errors and whether they are identified, of the interval's own records.
        other: the same of the held-out half.
    """
    keep = own[2] & other[2]
    if not keep.any():
        return {}
    spread = (high - low)[keep] / (2 * _Z)
    noise = np.sqrt(np.abs(spread**2 - own[1][keep] ** 2))
    both = np.sqrt(spread**2 + other[1][keep] ** 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = [np.where(of > 0, 2 * norm.cdf(_Z * spread / of) - 1, 1.0) for of in (noise, both)]
    inside = [((low <= one[0]) & (one[0] <= high))[keep] for one in (own, other)]
    return {
        "own": float(np.mean(inside[0])),
        "expected_own": float(np.mean(expected[0])),
        "other": float(np.mean(inside[1])),
        "expected_other": float(np.mean(expected[1])),
    }


def predicted(outcome: Outcome, rows: Problem) -> Row:
    """Return accuracy or R², and the log score, of held-out rows."""
    keep = np.unique(np.linspace(0, len(outcome.draws) - 1, _PREDICTING).astype(int))
    draws = outcome.draws[keep]
    dispersion = outcome.of_labels(rows.kind)
    means, logs = [], []
    for start in range(0, len(rows.y), _ROWS):
        x, y = rows.x[start : start + _ROWS], rows.y[start : start + _ROWS]
        eta = np.einsum("nd,kdc->knc", x, draws) if rows.kind == "classes" else draws @ x.T
        means.append(glm.predicted(eta, rows.kind, rows.schema.outcome.bounds))
        logs.append(glm.log_score(eta, y, rows.kind, dispersion) * len(y))
    mean = np.concatenate(means)
    if rows.kind == "classes":
        score = float(np.mean(mean.argmax(axis=1) == rows.y))
    elif rows.kind == "binary":
        score = float(np.mean((mean > 0.5) == rows.y))
    else:
        score = 1 - float(np.sum((rows.y - mean) ** 2) / np.sum((rows.y - rows.y.mean()) ** 2))
    return {"score": score, "log_score": sum(logs) / len(rows.y)}


@functools.lru_cache(maxsize=2)
def _simulated(name: str, repeat: int) -> Problem:
    return prepared(name).simulated(repeat)


@functools.lru_cache(maxsize=2)
def _halves(name: str, repeat: int) -> tuple[Problem, Problem]:
    return prepared(name).halves(repeat)


@functools.lru_cache(maxsize=32)
def _reference(name: str, repeat: int, which: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return estimates, standard errors and whether they are identified, of the non-private fit."""
    table = prepared(name)
    problem = _simulated(name, repeat) if which == "simulated" else _halves(name, repeat)[which == "other"]
    return table.units.estimate(table.fit(problem))
