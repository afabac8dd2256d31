"""Histogram of what a run cost each record, coloured by how often it was clipped. CONFIDENTIAL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from dpmcmc.privacy.accounting.events import round_up
from dpmcmc.report.figures import STYLE, plain

if TYPE_CHECKING:
    from dpmcmc.diagnostics.per_record.account import PerRecord

_BINS = 60


def plot(path: Path, account: PerRecord, promised: float, title: str) -> None:
    """Save a picture that only its owner can read; ``promised`` is the ε of the run's guarantee."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.8), layout="constrained")
        axis = figure.subplots()
        shown = histogram(axis, account.epsilon, account.clipped_share, account.worst_case, promised)
        axis.set_xlabel(f"ε of a record at δ = {account.delta:.3g}, {account.adjacency}")
        axis.set_title(plain(title))
        figure.colorbar(shown, ax=axis, label="share of steps in which it was clipped")
        path.touch(mode=0o600)
        figure.savefig(path)


def histogram(axis: Axes, epsilon: np.ndarray, clipped: np.ndarray, worst: float, promised: float) -> ScalarMappable:
    """Draw bars of records by ε in the colour of their mean clipped share, and name the mean and both bounds.

    Returns the map of a colour bar.

    Args:
        axis: of Matplotlib.
        epsilon: ε_i, (N,).
        clipped: share of steps in which each was clipped, (N,).
        worst: ε of a record that is clipped at every step, by the accountant of ``epsilon``.
        promised: ε of the run's guarantee.
    """
    edges = np.linspace(0, max(worst, promised, float(epsilon.max())) * 1.02, _BINS + 1)
    counts, _ = np.histogram(epsilon, edges)
    total, _ = np.histogram(epsilon, edges, weights=clipped)
    shown = ScalarMappable(Normalize(0, 1), colormaps["viridis"])
    colours = shown.to_rgba(total / np.maximum(counts, 1))
    axis.bar(
        edges[:-1],
        counts,
        np.diff(edges),
        align="edge",
        color=colours,
        edgecolor="white",
        linewidth=0.3,
    )
    # A bar of a few records is visible, and names are above the bars, each at its own height.
    axis.set_yscale("log")
    axis.set_ylim(0.7, counts.max() * 40)
    axis.set_ylabel("records")
    said = (
        (worst, "-", "clipped at every step"),
        (promised, "--", "the run's guarantee"),
        (epsilon.mean(), ":", "mean"),
    )
    for line, (value, dashes, name) in enumerate(said):
        height = 0.97 - 0.06 * line  # below the earlier names, which the line would cross
        axis.axvline(value, ymax=height + 0.02, color="C3", ls=dashes, lw=1.7)
        side, by = ("right", -4) if value > edges[-1] / 2 else ("left", 4)
        place = (value, height), (by, 0), ("data", "axes fraction"), "offset points"
        axis.annotate(
            f"{name}: {round_up(float(value), 3)}",
            *place,
            color="C3",
            fontsize=8.5,
            ha=side,
            va="center",
        )
    return shown
