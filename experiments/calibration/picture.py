"""Coverage against width, one panel an ε."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from dpmcmc.report.figures import STYLE
from experiments.calibration.cells import LEVEL, Row

#: Okabe and Ito's colours, which people with colour-blindness tell apart.
_BLUE, _GREEN, _ORANGE, _GREY = "#0072B2", "#009E73", "#D55E00", "#999999"
#: Ways whose points stand for themselves: (label in the legend, colour, marker).
_GROUPS = {
    "noise_aware": ("noise-aware release (every d and N)", _BLUE, "o"),
    "metric_path": ("noise-aware inference from a chain's path", _GREEN, "s"),
    "sgld_planned_path": ("noise-aware inference from a chain's path", _GREEN, "s"),
}
#: Label of a chain's point in the picture, and its place: points to the right and up.
_CHAINS = {
    "sgld": "SGLD",
    "sghmc": "SGHMC",
    "sgfs": "SGFS",
    "sgld_temperature_one": "SGLD, T = 1",
    "noisy_sgd": "noisy SGD",
    "metric": "SGLD in a metric",
    "hybrid": "hybrid",
    "sgld_planned": "SGLD planned",
}
_OFFSET = (5.0, 3.0)


def _points(axis: Axes, rows: list[Row], colour: str, marker: str, label: str) -> None:
    """Draw rows with two Monte Carlo errors."""
    width, coverage, error = ([float(r[name]) for r in rows] for name in ("width", "coverage", "coverage_error"))
    axis.errorbar(
        width, coverage, [2 * e for e in error], fmt=marker, color=colour, ms=4.5, lw=0.8, alpha=0.85, label=label
    )


def draw(path: Path, rows: list[Row], band: tuple[float, float]) -> None:
    """Save the picture of the logistic task with the right prior; without such rows none is saved."""
    shown = [r for r in rows if "coverage" in r and r["task"] == "logistic" and r["truth_scale"] == 1]
    if not shown:
        return
    epsilons = sorted({float(r["epsilon"]) for r in shown})
    with rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(epsilons) + 0.6, 4.4), layout="constrained")
        axes = figure.subplots(1, len(epsilons), squeeze=False, sharex=True, sharey=True)[0]
        handles: dict[str, object] = {}
        for axis, epsilon in zip(axes, epsilons, strict=True):
            _panel(axis, [r for r in shown if r["epsilon"] == epsilon], band)
            axis.set_title(f"ε = {epsilon:g}")
            handles |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
        axes[0].set_ylabel("coverage of nominal 90 % intervals")
        figure.supxlabel("width ÷ the non-private posterior's", fontsize=9.5)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path)


def _panel(axis: Axes, rows: list[Row], band: tuple[float, float]) -> None:
    """Draw the rows of one ε."""
    axis.axhspan(*band, color=_GREY, alpha=0.25, lw=0)
    axis.axhline(LEVEL, color=_GREY, lw=1)
    for way, (label, colour, marker) in _GROUPS.items():
        those = [r for r in rows if r["way"] == way]
        if those:
            _points(axis, those, colour, marker, label)
    chains = [r for r in rows if r["way"] in _CHAINS]
    if chains:
        _points(axis, chains, _ORANGE, "X", "draws of a chain (verdict: not for intervals)")
    for r in chains:
        point = (float(r["width"]), float(r["coverage"]))
        axis.annotate(_CHAINS[str(r["way"])], point, _OFFSET, textcoords="offset points", fontsize=7.5, color=_ORANGE)
    axis.set(xscale="log", ylim=(0, 1.04))
    axis.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 4, 8, 16]))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(NullLocator())
