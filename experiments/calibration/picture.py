"""Coverage against width, one panel an ε."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from experiments.calibration.cells import LEVEL, Row
from experiments.pictures import BLUE, GREEN, GREY, RED, saved

#: Ways whose points stand for themselves: (label in the legend, colour, marker).
_GROUPS = {
    "noise_aware": ("noise-aware release", BLUE, "o"),
    "metric_path": ("noise-aware, from a chain's path", GREEN, "s"),
    "sgld_planned_path": ("noise-aware, from a chain's path", GREEN, "s"),
}
#: Label of a chain's point.
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
#: Least distance of two labels on the axis of coverage, and widths outside which a label stands on the left.
_APART, _NARROW, _WIDE = 0.033, 0.95, 12.0


def _points(axis: Axes, rows: list[Row], colour: str, marker: str, label: str) -> None:
    """Draw rows with two Monte Carlo errors."""
    width, coverage, error = ([float(r[name]) for r in rows] for name in ("width", "coverage", "coverage_error"))
    bars = [2 * e for e in error]
    axis.errorbar(width, coverage, bars, fmt="none", ecolor=colour, elinewidth=0.8, alpha=0.4)
    axis.plot(width, coverage, ls="none", marker=marker, color=colour, ms=5, mew=0, label=label)


def draw(path: Path, rows: list[Row], band: tuple[float, float]) -> None:
    """Save the picture of the logistic task with the right prior; without such rows none is saved."""
    shown = [r for r in rows if "coverage" in r and r["task"] == "logistic" and r["truth_scale"] == 1]
    if not shown:
        return
    epsilons = sorted({float(r["epsilon"]) for r in shown})
    tables = {int(r["tables"]) for r in shown}
    says = "Noise-aware intervals hold the truth and narrow as ε grows; a chain's draws are too wide, or miss it"
    about = (
        f"Logistic regression with the right prior, {min(tables)} to {max(tables)} simulated tables a point; bars: two "
        "standard errors"
    )
    with saved(path, (3.1 * len(epsilons) + 0.6, 4.9), says, about) as figure:
        axes = figure.subplots(1, len(epsilons), squeeze=False, sharex=True, sharey=True)[0]
        handles: dict[str, object] = {}
        for axis, epsilon in zip(axes, epsilons, strict=True):
            _panel(axis, [r for r in shown if r["epsilon"] == epsilon], band)
            axis.set(title=f"ε = {epsilon:g}", xlabel="width ÷ the non-private posterior's")
            handles |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
        axes[0].set_ylabel("coverage of nominal 90 % intervals")
        axes[0].legend(handles.values(), handles.keys(), loc="lower left", fontsize=8)


def _panel(axis: Axes, rows: list[Row], band: tuple[float, float]) -> None:
    """Draw the rows of one ε."""
    axis.axhspan(*band, color=GREY, alpha=0.25, lw=0)
    axis.axhline(LEVEL, color=GREY, lw=1)
    axis.text(0.11, band[1], f"{band[0]:g} to {band[1]:g}", ha="left", va="top", fontsize=7.5, color="0.35")
    for way, (label, colour, marker) in _GROUPS.items():
        those = [r for r in rows if r["way"] == way]
        if those:
            _points(axis, those, colour, marker, label)
    chains = [r for r in rows if r["way"] in _CHAINS]
    if chains:
        _points(axis, chains, RED, "X", "draws of a chain, by name")
    _label(axis, chains)
    axis.set(xscale="log", xlim=(0.1, 50), ylim=(0.25, 1.05))
    axis.xaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 4, 8, 16, 32]))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(NullLocator())


def _label(axis: Axes, chains: list[Row]) -> None:
    """Write the name of each chain beside its point, from the top down, no two on one another."""
    below = float("inf")
    for r in sorted(chains, key=lambda r: -float(r["coverage"])):
        width = float(r["width"])
        coverage = float(r["coverage"])
        below = min(coverage, below - _APART)
        left = not _NARROW < width < _WIDE
        place = (width / 1.12 if left else width * 1.12, below)
        side = "right" if left else "left"
        axis.text(*place, _CHAINS[str(r["way"])], ha=side, va="center", fontsize=7.5, color=RED)
