"""Pictures of a panel: what privacy costs in accuracy against ε, as printed and with tight accounting."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from experiments.panel.cells import Row
from experiments.panel.config import Panel
from experiments.panel.methods import METHODS, Method
from experiments.pictures import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    name_ends,
    on_epsilon,
    saved,
)

_VERSIONS = {
    "printed": "as printed: ε is the source's claim",
    "tight": "tight accounting: ε is the guarantee",
}
#: Colour, marker, dashes: gradient samplers in colour, what they are compared with in grey.
_LOOKS: dict[tuple[str, str], tuple[str, str, str]] = {
    ("tight", "sgld"): (BLUE, "o", "-"),
    ("tight", "sghmc"): (GREEN, "s", "-"),
    ("tight", "sgnht"): (PURPLE, "^", "-"),
    ("tight", "sgfs"): (SKY, "D", "-"),
    ("tight", "hybrid"): (ORANGE, "P", "-"),
    ("tight", "certified_ops"): (RED, "*", "-"),
    ("tight", "objective_perturbation"): (GREY, "v", "--"),
    ("tight", "objective_clipped"): (DARK, "v", "-"),
    ("tight", "output_perturbation"): (LIGHT, "x", "--"),
    ("tight", "ops_gdp"): (GREY, "h", ":"),
    ("printed", "objective_perturbation"): (GREY, "v", "--"),
    ("printed", "output_perturbation"): (LIGHT, "x", "--"),
    ("printed", "ops"): (DARK, "h", ":"),
    ("printed", "sgld"): (BLUE, "o", "-"),
    ("printed", "sgnht"): (PURPLE, "^", "-"),
    ("printed", "hybrid"): (ORANGE, "P", "-"),
}
#: Smallest gap that is drawn, in points of accuracy: a mean beyond it is at the non-private fit.
_LEAST = 0.03


def of(rows: list[Row], encoding: str, version: str, method: str) -> list[Row]:
    """Return the rows of one method."""
    return [r for r in rows if (r["encoding"], r["version"], r["method"]) == (encoding, version, method)]


def curve(rows: list[Row], quantity: str) -> np.ndarray:
    """(ε, mean, standard error) rows over repeats, where there are numbers."""
    values: dict[float, list[float]] = {}
    for row in rows:
        if row[quantity] != "":
            values.setdefault(float(row["epsilon"]), []).append(float(row[quantity]))
    return np.array([(e, np.mean(v), np.std(v) / np.sqrt(max(1, len(v) - 1))) for e, v in sorted(values.items())])


def non_private(rows: list[Row], encoding: str) -> tuple[float, str]:
    """(accuracy, name) of the best fit without privacy; the clipped loss is one of them."""
    names = {"nuts": "posterior", "map": "mode", "map_clipped": "mode of the clipped loss"}
    return max((float(r["accuracy"]), names[m]) for m in names for r in of(rows, encoding, "non-private", m))


def gaps(
    axis: Axes, rows: list[Row], encoding: str, version: str, best: float, only: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Draw each method's gap to the best non-private fit, in points, with names at the ends; returns the gaps."""
    found, ends = {}, []
    for method in METHODS:
        points = (
            curve(of(rows, encoding, version, method.name), "accuracy") if method.version == version else np.zeros(0)
        )
        if not len(points) or (version, method.name) not in _LOOKS or (only and method.name not in only):
            continue
        colour, marker, dashes = _LOOKS[version, method.name]
        epsilon, mean, error = points.T
        gap = 100 * (best - mean)
        shown = np.maximum(gap, _LEAST)
        # An error bar ends at the axis.
        bars = [np.minimum(100 * error, shown - 0.8 * _LEAST), 100 * error]
        axis.errorbar(epsilon, shown, bars, color=colour, marker=marker, ls=dashes, ms=4.5, lw=1.3, elinewidth=0.7)
        found[method.label] = gap
        ends.append((float(shown[-1]), method.label + _proved(rows, encoding, method), colour))
    axis.set_yscale("log")
    if found:
        widest = max(float(gap.max()) for gap in found.values())
        least = min(float(np.maximum(gap, _LEAST).min()) for gap in found.values())
        axis.set_ylim(0.8 * least, 1.4 * widest)
        ticks = [t for t in (0.03, 0.1, 0.3, 1, 3, 10, 30) if 0.8 * least <= t <= 1.4 * widest]
        axis.set_yticks(ticks, [f"≤ {t:g}" if t == _LEAST else f"{t:g}" for t in ticks])
        axis.minorticks_off()
        name_ends(axis, ends)
    return found


def _proved(rows: list[Row], encoding: str, method: Method) -> str:
    """Return what is proved of a claimed ε, as a share of it; nothing where ε is the guarantee."""
    if method.version != "printed":
        return ""
    shares = [float(r["guarantee_epsilon"]) / float(r["epsilon"]) for r in of(rows, encoding, "printed", method.name)]
    low, high = (f"{share:.2g}" for share in (min(shares), max(shares)))
    return f" ({low} ε)" if low == high else f" ({low} to {high} ε)"


def panel_figure(path: Path, panel: Panel, rows: list[Row], encoding: str, about: str, note: str | None) -> None:
    """Save both versions of one panel side by side, each with a scale of its own.

    Args:
        path: PNG file; an SVG and a PDF are saved beside it.
        panel: whose results these are.
        rows: of ``results.csv``.
        encoding: drawn.
        about: data, encoding, δ, adjacency and runs.
        note: what must stand on the picture, or None.
    """
    best, name = non_private(rows, encoding)
    about = f"{about}. Non-private: {name}, accuracy {best:.4f}. Bars: one standard error. In brackets: what is proved"
    with saved(path, (11.0, 5.2), said(panel, rows, encoding, best), about, note) as figure:
        for axis, (version, title) in zip(figure.subplots(1, 2), _VERSIONS.items(), strict=True):
            on_epsilon(axis, sorted({float(r["epsilon"]) for r in rows if r["version"] != "non-private"}))
            axis.set_title(title, loc="left")
            gaps(axis, rows, encoding, version, best)
            axis.set_ylabel("accuracy lost to privacy, in points")


def said(panel: Panel, rows: list[Row], encoding: str, best: float) -> str:
    """Return the sentence above: what the best of each version loses at the ε nearest to 1."""
    epsilons = {float(r["epsilon"]) for r in rows if r["version"] != "non-private"}
    if not epsilons:
        return panel.data
    nearest = min(epsilons, key=lambda e: abs(np.log(e)))

    def least(version: str) -> str:
        curves = [curve(of(rows, encoding, version, m.name), "accuracy") for m in METHODS if m.version == version]
        means = [mean for points in curves if len(points) for e, mean, _ in points if e == nearest]
        return f"{max(0.0, 100 * (best - max(means))):.2g}" if means else "–"

    return (
        f"{panel.data.replace('_', ' ')}: at ε = {nearest:g} the best method loses {least('tight')} points to privacy, "
        f"and {least('printed')} as printed"
    )
