"""From rows to a summary: one row for each method and ε, and whether the benchmark's goals are met.

Coverage is pooled over coefficients, tables and repeats; its Monte Carlo error is clustered by table and repeat. A
method's intervals count only in cells, a table at one ε, where it says that they may be used, in most repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.benchmark import ranks
from experiments.benchmark.run import LEVEL, Row

#: Columns of ``summary.csv``.
COLUMNS = (
    *("epsilon", "method", "family", "tables", "failed", "refused"),
    *("rank_log_score", "rank_crps", "critical", "log_score", "score", "crps"),
    *("fit", "coverage", "coverage_error", "width", "predicted_ratio"),
    *("own", "expected_own", "other", "expected_other", "seconds", "memory"),
)
#: Goals: coverage with simulated labels; the least of any cell; the gap of real labels; shares of cells.
BAND, LEAST, GAP, SHARE, FIT_SHARE = (0.85, 0.95), 0.80, 0.05, 0.9, 0.8
#: A cell of the goal on shares has at least this ε and N.
_FIT_EPSILON, _FIT_RECORDS = 1.0, 5000
#: Largest ε of the goal on the rank of the log score.
_RANK_EPSILON = 3.0
#: The method whose goals are read.
OURS = "fit"


class Cell(NamedTuple):
    """A method on a table at one ε, over repeats.

    Attributes:
        mean: of each column that has numbers.
        error: standard error of the coverage, at least that of independent intervals at the nominal level.
        apart: by how much the shares of real labels, ``own`` and ``other``, differ from what is expected, and the
            standard error of each difference over the repeats, at least as above.
        fit: whether the method says in most repeats that its intervals may be used.
        repeats: rows that are ok.
        records: N.
    """

    table: str
    method: str
    epsilon: float
    mean: dict[str, float]
    error: float
    apart: dict[str, tuple[float, float]]
    fit: bool
    repeats: int
    records: int


def number(row: Mapping[str, object], name: str) -> float:
    """Return a number of a row; NaN where it has none."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def _mean(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan


def cells_of(rows: Iterable[Row]) -> list[Cell]:
    """Return the cells of rows that are ok."""
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        if row["status"] == "ok":
            groups.setdefault((str(row["table"]), str(row["method"]), number(row, "epsilon")), []).append(row)
    found = []
    for (table, method, epsilon), those in groups.items():
        names = {name for row in those for name, value in row.items() if isinstance(value, int | float)}
        mean = {name: _mean(number(row, name) for row in those) for name in names}
        size = max(mean.get("coefficients", 1), 1)
        error = _error((number(row, "coverage") for row in those), size)
        apart = {
            name: (
                mean[name] - mean[f"expected_{name}"],
                _error((number(row, name) - number(row, f"expected_{name}") for row in those), size),
            )
            for name in ("own", "other")
            if name in mean
        }
        fit = mean.get("intervals", 0) > 0.5
        records = int(mean.get("records", 0))
        found.append(Cell(table, method, epsilon, mean, error, apart, fit, len(those), records))
    return found


def _error(values: Iterable[float], size: float) -> float:
    """Return the standard error of a mean of shares, at least that of independent intervals of so many coefficients."""
    finite = [value for value in values if math.isfinite(value)]
    count = max(len(finite), 1)
    least = math.sqrt(LEVEL * (1 - LEVEL) / (count * size))
    return max(float(np.std(finite, ddof=1)) / math.sqrt(count), least) if count > 1 else least


def summarised(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of ``summary.csv``: medians over tables, and ranks among private methods."""
    every = cells_of(rows)
    tables = sorted({str(row["table"]) for row in rows})
    out: list[Row] = []
    for epsilon in sorted({number(row, "epsilon") for row in rows}):
        here = [row for row in rows if number(row, "epsilon") == epsilon]
        order = among(here)
        found = {score: ranked(here, order, tables, score) for score in ("log_score", "crps")}
        methods = dict.fromkeys(str(row["method"]) for row in here if row["status"] != "skipped")
        for method in methods:
            own = [row for row in here if row["method"] == method]
            those = [cell for cell in every if cell.method == method and cell.epsilon == epsilon]
            row: Row = {"epsilon": epsilon, "method": method, "family": own[0]["family"], "tables": len(those)}
            for status in ("failed", "refused"):
                row[status] = sum(one["status"] == status for one in own)
            if method in order:
                at = order.index(method)
                row |= {f"rank_{score}": float(found[score].mean[at]) for score in found}
                row["critical"] = found["crps"].critical
            for name in ("log_score", "score", "crps", "seconds", "memory"):
                row[name] = _median(cell.mean.get(name, math.nan) for cell in those)
            row |= _of_intervals([cell for cell in those if cell.fit], len(those))
            out.append(row)
    return out


def _median(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return float(np.median(finite)) if finite else math.nan


def _of_intervals(fit: Sequence[Cell], every: int) -> Row:
    """Return the numbers of cells that are fit for intervals."""
    row: Row = {"fit": len(fit) / every if every else math.nan}
    for name in ("coverage", "own", "expected_own", "other", "expected_other"):
        row[name] = _mean(cell.mean.get(name, math.nan) for cell in fit)
    row["coverage_error"] = math.sqrt(sum(cell.error**2 for cell in fit)) / len(fit) if fit else math.nan
    row["width"] = _median(cell.mean.get("width", math.nan) for cell in fit)
    row["predicted_ratio"] = _median(
        cell.mean.get("predicted", math.nan) / cell.mean.get("width", math.nan) for cell in fit
    )
    return row


def among(rows: Iterable[Row]) -> list[str]:
    """Return the private methods that are ranked: those that are installed."""
    return list(
        dict.fromkeys(str(row["method"]) for row in rows if row["family"] != "limit" and row["status"] != "skipped")
    )


def ranked(rows: Sequence[Row], methods: Sequence[str], tables: Sequence[str], score: str) -> ranks.Ranks:
    """Return average ranks by a score; less is better of the CRPS."""
    found = ranks.table_of(rows, methods, tables, score)
    return ranks.average(methods, -found if score == "crps" else found)


def goals(rows: Sequence[Row], found: Sequence[Row]) -> list[str]:
    """Return a line for each goal of ``fit``: what was measured, and whether the goal is met."""
    lines = []
    for epsilon in sorted({number(row, "epsilon") for row in found}):
        here = [row for row in found if row["epsilon"] == epsilon]
        for score, most in (("log_score", _RANK_EPSILON), ("crps", math.inf)):
            placed = {str(row["method"]): number(row, f"rank_{score}") for row in here if f"rank_{score}" in row}
            if epsilon <= most and OURS in placed:
                best = min(placed, key=lambda name: placed[name])
                met = placed[OURS] <= placed[best]
                lines.append(
                    f"{_met(met)} ε = {epsilon:g}: {OURS} is {placed[OURS]:.1f} in average rank of {score}; "
                    f"the first is {best}, {placed[best]:.1f}"
                )
    every = [cell for cell in cells_of(rows) if cell.method == OURS]
    fit = [cell for cell in every if cell.fit and math.isfinite(cell.mean.get("coverage", math.nan))]
    if fit:
        inside = [BAND[0] - 2 * cell.error <= cell.mean["coverage"] <= BAND[1] + 2 * cell.error for cell in fit]
        lines.append(_share(f"coverage within {BAND[0]:g} to {BAND[1]:g}", inside, SHARE))
        near = [abs(gap) <= GAP + 2 * error for cell in fit for gap, error in cell.apart.values()]
        lines.append(_share(f"real labels within {GAP:g} of what is expected", near, SHARE))
        low = sorted({cell.table for cell in fit if cell.mean["coverage"] < LEAST - 2 * cell.error})
        lines.append(f"{_met(not low)} coverage below {LEAST:g} beyond two errors on: {', '.join(low) or 'none'}")
    large = [cell for cell in every if cell.epsilon >= _FIT_EPSILON and cell.records >= _FIT_RECORDS]
    if large:
        lines.append(
            _share(f"fit for intervals at ε ≥ 1 and N ≥ {_FIT_RECORDS:,}", [cell.fit for cell in large], FIT_SHARE)
        )
    return lines


def _met(met: bool) -> str:
    return "met   " if met else "missed"


def _share(what: str, true: Sequence[bool], least: float) -> str:
    share = sum(true) / len(true)
    return f"{_met(share >= least)} {what}: {sum(true)} of {len(true)} cells ({share:.0%}; {least:.0%} wanted)"


#: Columns of the table that is printed, and their formats.
SHOWN = {
    "method": ("method", "{}"),
    "rank_log_score": ("rank, log score", "{:.1f}"),
    "rank_crps": ("rank, CRPS", "{:.1f}"),
    "score": ("accuracy or R²", "{:.3f}"),
    "fit": ("fit for intervals", "{:.0%}"),
    "coverage": ("coverage", "{:.2f}"),
    "width": ("width", "{:.2f}"),
    "other": ("other half", "{:.2f}"),
    "expected_other": ("expected", "{:.2f}"),
    "failed": ("failed", "{:.0f}"),
    "refused": ("refused", "{:.0f}"),
    "seconds": ("seconds", "{:.1f}"),
}


def shown(row: Mapping[str, object], name: str) -> str:
    """Return a number of the printed table; a dash where there is none."""
    value = row.get(name)
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    return "–" if value is None or value == "" else SHOWN[name][1].format(value)


def markdown(found: Sequence[Row], epsilon: float) -> list[str]:
    """Return the table of one ε, the methods by their average rank of the CRPS; fits without privacy stand last."""
    here = [row for row in found if row["epsilon"] == epsilon]
    here.sort(key=lambda row: (row["family"] == "limit", number(row, "rank_crps")))
    lines = ["| " + " | ".join(title for title, _ in SHOWN.values()) + " |", "|" + "---|" * len(SHOWN)]
    return lines + ["| " + " | ".join(shown(row, name) for name in SHOWN) + " |" for row in here]


def told(rows: Sequence[Row], found: Sequence[Row]) -> list[str]:
    """Return the lines that the command prints."""
    lines = []
    for epsilon in sorted({number(row, "epsilon") for row in found}):
        lines += [f"ε = {epsilon:g}", *markdown(found, epsilon), ""]
    skipped = dict.fromkeys(str(row.get("reason")) for row in rows if row["status"] == "skipped")
    lines += [f"skipped: {reason}" for reason in skipped]
    failed = [row for row in rows if row["status"] == "failed"]
    lines += [
        f"failed: {row['method']} on {row['table']} at ε = {number(row, 'epsilon'):g}: {row.get('reason', '')}"
        for row in failed
    ]
    return lines + goals(rows, found)
