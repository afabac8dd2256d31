"""From rows to a summary: one row for each method and ε, and whether the benchmark's goals are met.

Coverage is pooled over coefficients, tables and repeats; its Monte Carlo error is clustered by table and repeat. A
method's intervals count only in cells, a table at one ε, where it says that they may be used, in most repeats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.benchmark import ranks
from experiments.benchmark.run import COLUMNS as OF_RESULTS
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
#: Columns that tell a cell, and columns of results that are no numbers.
_CELL, _TEXTS = ["table", "method", "epsilon"], ["table", "method", "status", "reason", "family", "kind", "guarantee"]


def number(row: Mapping[str, object], name: str) -> float:
    """Return a number of a row; NaN where it has none."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows of ``results.csv`` as a frame; what a row lacks is NaN."""
    frame = pd.DataFrame(rows, columns=list(OF_RESULTS))
    numbers = frame.columns.difference(_TEXTS)
    frame[numbers] = frame[numbers].apply(pd.to_numeric, errors="coerce")
    return frame


def cells_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the means over repeats that are ok, one row a cell: a method on a table at one ε.

    Further columns: ``error``, the standard error of the coverage; ``own_gap`` and ``other_gap``, by how much shares
    of real labels differ from what is expected, with ``own_error`` and ``other_error``; ``fit``, whether the method
    says in most repeats that its intervals may be used. No error is below that of independent intervals.
    """
    ok = frame[frame["status"] == "ok"].replace([np.inf, -np.inf], np.nan)
    cells = ok.drop(columns=[name for name in _TEXTS if name not in _CELL]).groupby(_CELL, sort=False).mean()
    gaps = {f"{name}_error": ok[name] - ok[f"expected_{name}"] for name in ("own", "other")}
    shares = ok[_CELL].assign(error=ok["coverage"], **gaps).groupby(_CELL, sort=False)
    count = shares.count()
    least = np.sqrt(
        LEVEL * (1 - LEVEL) / count.clip(lower=1).mul(cells["coefficients"].fillna(1).clip(lower=1), axis=0)
    )
    cells[least.columns] = np.fmax(shares.std() / np.sqrt(count), least)
    for name in ("own", "other"):
        cells[f"{name}_gap"] = cells[name] - cells[f"expected_{name}"]
    cells["fit"] = cells["intervals"] > 0.5
    return cells.reset_index()


def summarised(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of ``summary.csv``: medians over tables, and ranks among private methods."""
    frame = frame_of(rows)
    cells = cells_of(frame)
    tables = sorted(frame["table"].unique())
    out: list[Row] = []
    for epsilon, here in frame.groupby("epsilon"):
        here = here[here["status"] != "skipped"]
        private = here[here["family"] != "limit"]["method"].unique()
        placed = {f"rank_{score}": average_ranks(here, private, tables, score) for score in ("log_score", "crps")}
        critical = ranks.critical_difference(len(private), len(tables))
        for method, own in here.groupby("method", sort=False):
            those = cells[(cells["method"] == method) & (cells["epsilon"] == epsilon)]
            row: Row = {"epsilon": epsilon, "method": method, "family": own["family"].iloc[0], "tables": len(those)}
            row |= {status: int((own["status"] == status).sum()) for status in ("failed", "refused")}
            if method in private:
                row |= {name: found[method] for name, found in placed.items()} | {"critical": critical}
            row |= dict(those[["log_score", "score", "crps", "seconds", "memory"]].median())
            out.append(row | _of_intervals(those[those["fit"]], len(those)))
    return out


def _of_intervals(fit: pd.DataFrame, every: int) -> Row:
    """Return the numbers of cells that are fit for intervals, of so many cells."""
    row: Row = {"fit": len(fit) / every if every else math.nan}
    row |= dict(fit[["coverage", "own", "expected_own", "other", "expected_other"]].mean())
    row["coverage_error"] = math.sqrt((fit["error"] ** 2).sum()) / len(fit) if len(fit) else math.nan
    return row | {"width": fit["width"].median(), "predicted_ratio": (fit["predicted"] / fit["width"]).median()}


def average_ranks(rows: pd.DataFrame, methods: Sequence[str], tables: Sequence[str], score: str) -> dict[str, float]:
    """Return the average rank over tables of each method by its mean score; less is better of the CRPS.

    A method has no mean on a table that it failed in any repeat.
    """
    seen = rows[score].where(rows["status"] == "ok")
    means = seen.groupby([rows["table"], rows["method"]]).agg(lambda values: values.mean(skipna=False)).unstack()
    means = means.reindex(index=tables, columns=methods)
    found = ranks.ranked((-means if score == "crps" else means).to_numpy(float)).mean(axis=0)
    return dict(zip(methods, found.tolist(), strict=True))


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
    every = cells_of(frame_of(rows)).query("method == @OURS")
    fit = every[every["fit"] & every["coverage"].notna()]
    if len(fit):
        covered, slack = fit["coverage"], 2 * fit["error"]
        inside = (covered >= BAND[0] - slack) & (covered <= BAND[1] + slack)
        lines.append(_share(f"coverage within {BAND[0]:g} to {BAND[1]:g}", inside, SHARE))
        near = pd.concat(
            [
                (fit[f"{name}_gap"].abs() <= GAP + 2 * fit[f"{name}_error"])[fit[f"{name}_gap"].notna()]
                for name in ("own", "other")
            ]
        )
        lines.append(_share(f"real labels within {GAP:g} of what is expected", near, SHARE))
        low = sorted(set(fit["table"][covered < LEAST - slack]))
        lines.append(f"{_met(not low)} coverage below {LEAST:g} beyond two errors on: {', '.join(low) or 'none'}")
    large = every[(every["epsilon"] >= _FIT_EPSILON) & (every["records"] >= _FIT_RECORDS)]
    if len(large):
        lines.append(_share(f"fit for intervals at ε ≥ 1 and N ≥ {_FIT_RECORDS:,}", large["fit"], FIT_SHARE))
    return lines


def _met(met: bool) -> str:
    return "met   " if met else "missed"


def _share(what: str, true: pd.Series, least: float) -> str:
    share = true.mean()
    return f"{_met(share >= least)} {what}: {true.sum()} of {len(true)} cells ({share:.0%}; {least:.0%} wanted)"


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


def nearest_to_one(found: Sequence[Row]) -> float:
    """Return the ε of the rows that is nearest to 1."""
    return min((number(row, "epsilon") for row in found), key=lambda epsilon: abs(math.log(epsilon)))


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
