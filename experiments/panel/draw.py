"""Pictures of a panel: what privacy costs in accuracy against ε, as printed and with tight accounting."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from dpmcmc.privacy.accounting.shown_numbers import round_up
from experiments.panel.config import Panel
from experiments.panel.methods import METHODS
from experiments.panel.summary import Mean
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


def of(means: list[Mean], encoding: str, version: str, method: str | None = None) -> list[Mean]:
    """Return the means of one version, or of one of its methods, by ε."""
    those = [m for m in means if (m.encoding, m.version) == (encoding, version) and method in (None, m.method)]
    return sorted(those, key=lambda m: m.epsilon)


def non_private(means: list[Mean], encoding: str) -> tuple[float, str]:
    """(accuracy, name) of the best fit without privacy; that of the clipped loss is one of them."""
    names = {"nuts": "posterior", "map": "mode", "map_clipped": "mode of the clipped loss"}
    return max((m.accuracy, names[m.method]) for m in of(means, encoding, "non-private"))


def gaps(
    axis: Axes, means: list[Mean], encoding: str, version: str, best: float, only: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Draw each method's gap to the best non-private fit, in points, with names at the ends; returns the gaps."""
    found = {}
    ends = []
    for method in METHODS:
        points = of(means, encoding, version, method.name) if method.version == version else []
        if not points or (version, method.name) not in _LOOKS or (only and method.name not in only):
            continue
        colour, marker, dashes = _LOOKS[version, method.name]
        gap = np.array([100 * (best - point.accuracy) for point in points])
        shown = np.maximum(gap, _LEAST)
        error = np.array([100 * point.error for point in points])
        # An error bar ends at the axis.
        bars = [np.minimum(error, shown - 0.8 * _LEAST), error]
        epsilon = [point.epsilon for point in points]
        axis.errorbar(epsilon, shown, bars, color=colour, marker=marker, ls=dashes, ms=4.5, lw=1.3, elinewidth=0.7)
        found[method.label] = gap
        ends.append((float(shown[-1]), method.label + _proved(points), colour))
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


def _proved(points: list[Mean]) -> str:
    """Return the ε that is proved, in percent of the ε that the source claims; nothing where ε is the guarantee."""
    if points[0].version != "printed":
        return ""
    percent = [100 * point.proved / point.epsilon for point in points]
    low, high = (f"{float(round_up(of, 3)):g}" for of in (min(percent), max(percent)))
    return f" (proved: {low} % of ε)" if low == high else f" (proved: {low} to {high} % of ε)"


def panel_figure(path: Path, panel: Panel, means: list[Mean], encoding: str, note: str | None) -> None:
    """Save both versions of one panel side by side, each with a scale of its own.

    Args:
        path: PNG file; an SVG and a PDF are saved beside it.
        panel: whose results these are.
        means: of its results.
        encoding: drawn.
        note: what must stand on the picture, or None.
    """
    best, name = non_private(means, encoding)
    runs = {m.runs for m in means if m.encoding == encoding and m.version != "non-private"}
    counted = f"mean of {min(runs)}" + (f" to {max(runs)}" if len(runs) > 1 else "")
    hidden = [
        method.label
        for method in METHODS
        if (method.version, method.name) not in _LOOKS and of(means, encoding, method.version, method.name)
    ]
    undrawn = f" In the table, not drawn: {'; '.join(hidden)}." if hidden else ""
    about = (
        f"Encoding {encoding}, δ = {panel.delta:g}, {panel.adjacency}; {counted} runs; bars: one standard error."
        f"{undrawn}\n"
        f"Without privacy: {name}, accuracy {best:.4f}. In brackets: the ε that our accountant proves, in percent of "
        "the ε that the source claims"
    )
    with saved(path, (11.0, 5.4), said(panel, means, encoding, best), about, note) as figure:
        for axis, (version, title) in zip(figure.subplots(1, 2), _VERSIONS.items(), strict=True):
            on_epsilon(axis, sorted({m.epsilon for m in means if m.version != "non-private"}))
            axis.set_title(title, loc="left")
            gaps(axis, means, encoding, version, best)
            axis.set_ylabel("accuracy lost to privacy, in points")


def said(panel: Panel, means: list[Mean], encoding: str, best: float) -> str:
    """Return the sentence above: what the best of each version loses at the ε nearest to 1."""
    epsilons = {m.epsilon for m in means if m.version != "non-private"}
    nearest = min(epsilons, key=lambda epsilon: abs(np.log(epsilon)))

    def least(version: str) -> str:
        there = [
            m.accuracy for m in of(means, encoding, version) if m.epsilon == nearest and (version, m.method) in _LOOKS
        ]
        return f"{max(0.0, 100 * (best - max(there))):.2g}" if there else "–"

    return (
        f"{panel.data.replace('_', ' ').capitalize()}: at ε = {nearest:g} the best loses {least('tight')} points "
        f"to privacy with tight accounting, and {least('printed')} as printed"
    )
