"""Common parts of the experiments' figures: a sentence above, names next to lines, and how they are saved.

Colours and type are those of ``dpmcmc.report.figures.STYLE``. Baselines are grey.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpmcmc.report.figures import STYLE

#: Colours of Okabe and Ito (2008), which people with any colour vision can distinguish, and greys for baselines.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442",
)  # fmt: skip
DARK, GREY, LIGHT = "0.3", "0.5", "0.65"


@contextmanager
def saved(path: Path, size: tuple[float, float], says: str, about: str, note: str | None = None) -> Iterator[Figure]:
    """Yield a figure to draw on, and save it as a PNG, an SVG and a PDF of one name.

    Args:
        path: of the PNG.
        size: in inches.
        says: one sentence that says what to see.
        about: data, privacy and number of runs.
        note: what must stand on the picture beside these, or None.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(says, x=0.01, ha="left", fontsize=11, weight="bold", wrap=True)
        about = about if note is None else f"{about}. {note}"
        figure.supxlabel(about, x=0.01, ha="left", fontsize=8, color=DARK, wrap=True)
        yield figure
        figure.savefig(path)
        # No date, and identifiers of the picture alone (``svg.hashsalt``): the same numbers give the same bytes.
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})


def points(
    axis: Axes, rows: Sequence[dict[str, Any]], x: str, y: str, error: str, scale: float = 2.0, **style: Any
) -> None:
    """Draw column ``y`` of rows against ``x``, with bars of ``scale`` times column ``error``."""
    bars = [scale * row[error] for row in rows]
    style = {"marker": "o", "ms": 4, "capsize": 2} | style
    axis.errorbar([row[x] for row in rows], [row[y] for row in rows], yerr=bars, **style)


def on_epsilon(axis: Axes, epsilons: Sequence[float]) -> None:
    """Make x a logarithmic axis of ε that names the grid's own values."""
    axis.set_xscale("log")
    axis.set_xticks(list(epsilons), [f"{e:g}" for e in epsilons])
    axis.minorticks_off()
    axis.set_xlabel("ε")


def name_ends(axis: Axes, ends: Sequence[tuple[float, str, str]], size: float = 8.0) -> None:
    """Write names next to the right ends of lines without overlap; call it when the limits are final.

    Args:
        axis: with its final limits.
        ends: (y in data, name, colour).
        size: of the type, in points.
    """
    figure = axis.figure.get_figure(root=True)
    assert figure is not None
    # Share of its height that an axis keeps after layout.
    apart = 1.3 * size / (72 * 0.85 * axis.get_position().height * figure.get_figheight())
    order = sorted(ends, key=lambda end: end[0])
    if not order:
        return
    y = np.array([axis.transLimits.transform(axis.transScale.transform((1.0, value)))[1] for value, _, _ in order])
    y, rank = np.clip(y, 0.0, 1.0), np.arange(len(y))
    # Within the axis, where there is room.
    placed = spread(np.clip(y, apart * rank, np.maximum(1 - apart * rank[::-1], apart * rank)), apart)
    for at, label, (_, name, colour) in zip(y, placed, order, strict=True):
        axis.annotate(
            name, (1.0, at), (1.06, label), xycoords="axes fraction", textcoords="axes fraction", color=colour,
            fontsize=size, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.5, "shrinkA": 0, "shrinkB": 1, "relpos": (0, 0.5)},
        )  # fmt: skip


def spread(values: np.ndarray, apart: float) -> np.ndarray:
    """Return ascending values moved as little as needed to be ``apart``, each group about its own mean."""
    if not len(values):
        return np.zeros(0)
    groups = [[float(v)] for v in values]
    centres = [float(v) for v in values]

    def ends(i: int) -> tuple[float, float]:
        half = apart * (len(groups[i]) - 1) / 2
        return centres[i] - half, centres[i] + half

    i = 0
    while i < len(groups) - 1:
        if ends(i + 1)[0] - ends(i)[1] < apart * (1 - 1e-9):
            groups[i] += groups.pop(i + 1)
            centres.pop(i + 1)
            centres[i] = float(np.mean(groups[i]))
            i = max(i - 1, 0)
        else:
            i += 1
    return np.concatenate([np.linspace(*ends(i), len(group)) for i, group in enumerate(groups)])
