"""Tables that others have printed, run on our side: 25 cells of Awan and Wang, and four of BinAgg.

Awan and Wang (arXiv 2303.05328): logistic regression with one uniform covariate on [-1, 1], slope 2, nominal 95 %,
1,000 repeats. Their method, Repro, promises pure ε; so does the interval by output perturbation that they compare with,
DP-CI-ERM. ``dpmcmc.fit`` has δ = 1e-6. Lin, Slavković and Bhoomireddy (2025, arXiv 2510.16974): linear regression, n =
2,000, d = 3; more of their design is not known to us, so their widths are comparable to about the ratio of the
non-private widths. Our own BinAgg, from the formulas of their paper, runs on the same tables.

Designs and cells are those of ``python -m experiments.intervals``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from dpmcmc.engine import results_table
from experiments.benchmark.methods.contract import Refused
from experiments.benchmark.methods.papers import binagg
from experiments.benchmark.run import Row
from experiments.figure_files import CONFIGS, load
from experiments.intervals.designs import design
from experiments.intervals.measure import Task, seen, simulated, summarised
from experiments.intervals.table import Asked, Settings

KEY = ("paper", "N", "budget")
COLUMNS = (
    *KEY,
    *("tables", "failed", "coverage", "coverage_error", "width", "mean_width", "usable"),
    *("their_coverage", "their_width", "erm_coverage", "erm_width", "binagg_coverage", "binagg_width"),
)
#: (N, ε) -> coverage and mean width of Repro, then of DP-CI-ERM; NaN where we know of no number.
_NONE = float("nan")
REPRO: dict[tuple[int, float], tuple[float, float, float, float]] = {
    (100, 1): (_NONE, 11.1, _NONE, 4.27),
    (200, 1): (_NONE, 7.9, _NONE, 2.91),
    (500, 1): (_NONE, 1.77, _NONE, 1.32),
    (1000, 1): (0.994, 0.97, 0.824, 0.77),
    (1000, 3): (0.990, 0.77, 0.924, 0.52),
    (1000, 10): (_NONE, 0.744, _NONE, 0.494),
    (2000, 1): (0.996, 0.62, 0.862, 0.47),
    (2000, 3): (0.994, 0.54, 0.934, 0.36),
    (2000, 10): (_NONE, 0.532, _NONE, 0.349),
}
#: μ -> mean width of BinAgg as printed; its coverage was .917 to .934.
BINAGG = {0.5: 0.518, 1.0: 0.291, 2.0: 0.181, 5.0: 0.103}
_PAPERS = ("Awan and Wang", "BinAgg")
_QUICK_TABLES = 2
#: Tables of a cell of Awan and Wang, over those of BinAgg's: they have one slope each, and widths vary by a quarter.
_MORE_TABLES = 3


class Printed(NamedTuple):
    """A cell: which paper, and what ``experiments.intervals`` asks for."""

    paper: str
    asked: Asked


def asked(quick: bool) -> list[Printed]:
    """Return the 29 cells; one of each paper of two tables where ``quick``."""
    settings = load(CONFIGS / "intervals.yaml", Settings)
    tables = _QUICK_TABLES if quick else settings.tables
    found = [
        Printed(paper, one)
        for cell in settings.cells
        for paper in _PAPERS
        if cell.name.startswith(paper)
        for one in cell.rows(tables * (1 if quick or paper == "BinAgg" else _MORE_TABLES))
    ]
    wanted = {("Awan and Wang", 2000, 1.0), ("BinAgg", 2000, 1.0)}
    return [one for one in found if not quick or key_of(one) in wanted]


def key_of(one: Printed) -> tuple[str, int, float]:
    """Return paper, N, and ε or μ."""
    return one.paper, one.asked.records, float(one.asked.epsilon if one.asked.mu is None else one.asked.mu)


def tasks(quick: bool, table: results_table.Table) -> list[Printed]:
    """Return the cells that a table lacks."""
    return [one for one in asked(quick) if not table.has(dict(zip(KEY, key_of(one), strict=True)))]


def row_of(one: Printed) -> Row:
    """Return the row of a cell."""
    this = one.asked
    estimand = design(this.design).best_fitting()
    facts = (this.design, this.records, this.epsilon, this.delta, this.level)
    todo = [Task(*facts, number, estimand, None) for number in range(this.tables)]
    row = dict(zip(KEY, key_of(one), strict=True)) | summarised([seen(task) for task in todo], todo[0])
    row |= {"tables": this.tables}
    if one.paper == "BinAgg":
        row |= {"their_width": BINAGG[row["budget"]]} | _by_formula(todo, float(row["budget"]))
    elif (this.records, this.epsilon) in REPRO:
        names = ("their_coverage", "their_width", "erm_coverage", "erm_width")
        row |= dict(zip(names, REPRO[this.records, this.epsilon], strict=True))
    return {name: row[name] for name in COLUMNS if name in row}


def _by_formula(todo: list[Task], mu: float) -> Row:
    """Return coverage and mean width of BinAgg's slopes on the same tables."""
    inside, widths = [], []
    for task in todo:
        of, table = design(task.design), simulated(task)
        assert of.schema is not None
        slopes = of.names[:-1]  # the intercept stands last
        x = np.column_stack([*(table[name] for name in slopes), np.ones(task.records)])
        ends = [of.schema.columns[name] for name in slopes]
        low = np.array([*(end.low for end in ends), 1.0])
        high = np.array([*(end.high for end in ends), 1.0])
        label = of.schema.columns[of.schema.label]
        try:
            beta, covariance = binagg(x, table[of.schema.label], low, high, label.high, mu, np.random.default_rng())
        except Refused:
            continue
        half = norm.ppf((1 + task.level) / 2) * np.sqrt(np.diag(covariance))[:-1]
        inside.append(np.abs(beta[:-1] - np.array(task.estimand)[:-1]) <= half)
        widths.append(2 * half)
    if not widths:
        return {}
    return {"binagg_coverage": float(np.mean(inside)), "binagg_width": float(np.median(np.mean(widths, axis=1)))}


def told(rows: list[Row]) -> list[str]:
    """Return a line for each cell."""
    lines = []
    for row in rows:
        text = f"{row['paper']}, N {row['N']:g}, {'ε' if row['paper'] != 'BinAgg' else 'μ'} {row['budget']:g}: "
        if "coverage" not in row:
            lines.append(text + "failed")
            continue
        text += f"coverage {row['coverage']:.3f}, mean width {row['mean_width']:.3f}"
        text += f" ({row['width']:.2f} times without privacy)"
        if "their_width" in row:
            text += f"; theirs {row['their_width']:g}"
        if "binagg_width" in row:
            text += f"; BinAgg here {row['binagg_width']:.3f}, coverage {row['binagg_coverage']:.3f}"
        lines.append(text)
    return lines


def markdown(rows: list[Row]) -> str:
    """Return a table of each paper, for the page."""
    return f"{_awan_wang(rows)}\n{_binagg(rows)}"


def _awan_wang(rows: list[Row]) -> str:
    titles = ("n", "ε", "coverage", "width", "÷ without privacy", "called usable")
    return _table(
        (*titles, "Repro, width", "DP-CI-ERM, width, coverage"),
        [
            (
                *(f"{row['N']:g}", f"{row['budget']:g}", _covered(row), _shown(row, "mean_width")),
                *(_shown(row, "width"), _shown(row, "usable", ".0%"), _shown(row, "their_width")),
                f"{_shown(row, 'erm_width')}, {_shown(row, 'erm_coverage')}",
            )
            for row in _of("Awan and Wang", rows)
        ],
    )


def _binagg(rows: list[Row]) -> str:
    titles = ("μ", "coverage", "width", "÷ without privacy")
    return _table(
        (*titles, "BinAgg as printed, width", "BinAgg here, width and coverage"),
        [
            (
                *(f"{row['budget']:g}", _covered(row), _shown(row, "mean_width", ".3f"), _shown(row, "width")),
                _shown(row, "their_width", ".3f"),
                f"{_shown(row, 'binagg_width', '.3f')}, {_shown(row, 'binagg_coverage')}",
            )
            for row in _of("BinAgg", rows)
        ],
    )


def _table(titles: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, ("---",) * len(titles), *lines))


def _of(paper: str, rows: list[Row]) -> list[Row]:
    return sorted((row for row in rows if row["paper"] == paper), key=_by_size)


def _by_size(row: Row) -> tuple[float, float]:
    return float(row["N"]), float(row["budget"])


def _covered(row: Row) -> str:
    return f"{_shown(row, 'coverage')} ± {_shown(row, 'coverage_error')}" if "coverage" in row else "failed"


def _shown(row: Row, name: str, form: str = ".2f") -> str:
    """Return a number, or a dash where none is known."""
    value = float(row.get(name, _NONE))
    return "–" if value != value else format(value, form)
