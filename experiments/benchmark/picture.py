"""The headline picture: average ranks against ε, and coverage against width at the ε nearest to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from experiments.benchmark import summary
from experiments.benchmark.run import LEVEL, Row
from experiments.benchmark.summary import number
from experiments.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, saved, spread

#: Methods that are drawn with a line of their own, and their colours; others are grey.
_LINES = {"fit": BLUE, "sgld": GREEN, "jax_privacy_dpsgd": RED, "diffprivlib": ORANGE, "binagg": PURPLE}
#: Least distance of two names on the axis of ranks, over the number of methods.
_APART = 0.04
#: Least distance of two names on the axis of coverage.
_NAMES_APART = 0.035


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Save the picture; none is saved where nothing was measured."""
    if not any(row["status"] == "ok" for row in rows):
        return
    found = summary.summarised(rows)
    tables = {row["table"] for row in rows if row["status"] == "ok"}
    epsilons = sorted({number(row, "epsilon") for row in found})
    says = "Private regression on public tables: average ranks, and whether intervals hold"
    about = f"{len(tables)} tables; ranks among private methods, 1 is best; bar: critical difference of Nemenyi at 5 %"
    with saved(path, (12.0, 4.9), says, about) as figure:
        left, middle, right = figure.subplots(1, 3)
        for axis, score, title in ((left, "log_score", "rank of the log score"), (middle, "crps", "rank of the CRPS")):
            _ranks(axis, found, epsilons, f"rank_{score}")
            axis.set_ylabel(title)
        _coverage(right, found, summary.nearest_to_one(found))


def _ranks(axis: Axes, found: Sequence[Row], epsilons: Sequence[float], column: str) -> None:
    methods = dict.fromkeys(str(row["method"]) for row in found if column in row)
    for method in [*(m for m in methods if m not in _LINES), *(m for m in _LINES if m in methods)]:
        points = [(number(row, "epsilon"), number(row, column)) for row in found if row["method"] == method]
        colour = _LINES.get(method)
        style = {"lw": 1.8, "zorder": 3} if colour else {"lw": 0.8, "alpha": 0.6}
        axis.plot(*zip(*points, strict=True), marker="o", ms=4, color=colour or GREY, **style)
    critical = max((number(row, "critical") for row in found if "critical" in row), default=math.nan)
    if math.isfinite(critical):
        axis.plot([epsilons[0] * 0.85] * 2, [1, 1 + critical], color="0.2", lw=2)
    axis.set(xscale="log", xlabel="ε")
    axis.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.invert_yaxis()
    last = [row for row in found if row["epsilon"] == epsilons[-1] and column in row]
    last.sort(key=lambda row: number(row, column))
    places = spread(np.array([number(row, column) for row in last]), _APART * len(methods))
    for row, place in zip(last, places, strict=True):
        colour = _LINES.get(str(row["method"]), GREY)
        where = ("axes fraction", "data")
        axis.annotate(str(row["method"]), (1.02, place), xycoords=where, color=colour, fontsize=7, va="center")


def _coverage(axis: Axes, found: Sequence[Row], epsilon: float) -> None:
    here = [
        row
        for row in found
        if row["epsilon"] == epsilon and math.isfinite(number(row, "coverage")) and math.isfinite(number(row, "width"))
    ]
    axis.axhspan(*summary.BAND, color=GREY, alpha=0.25, lw=0)
    axis.axhline(LEVEL, color=GREY, lw=1)
    here.sort(key=lambda row: number(row, "coverage"))
    places = spread(np.array([number(row, "coverage") for row in here]), _NAMES_APART)
    for row, place in zip(here, places - max(0.0, places.max(initial=0.0) - 1.03), strict=True):
        method = str(row["method"])
        colour = _LINES.get(method, "0.2" if row["family"] == "limit" else GREY)
        error = 2 * number(row, "coverage_error")
        width, coverage = number(row, "width"), number(row, "coverage")
        axis.errorbar(width, coverage, error, fmt="o", ms=5, color=colour, elinewidth=0.8)
        line = {"arrowstyle": "-", "lw": 0.4, "color": colour, "relpos": (0, 0.5)}
        beside = {"xytext": (1.04, place), "textcoords": ("axes fraction", "data"), "va": "center"}
        axis.annotate(method, (width, coverage), **beside, fontsize=7, color=colour, arrowprops=line)
    axis.set(xscale="log", ylim=(-0.02, 1.05), xlabel=f"width ÷ without privacy, ε = {epsilon:g}")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_ylabel("coverage of 90 % intervals")
