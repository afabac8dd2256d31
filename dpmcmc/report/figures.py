"""Figures of a run folder. A stand-in data set is named on every picture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from cycler import cycler
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dpmcmc.errors import printable
from dpmcmc.privacy.accounting.shown_numbers import round_up

if TYPE_CHECKING:
    from dpmcmc.privacy.accounting.guarantee import Guarantee


#: Where a picture goes: a path, or an open file, which gets a PNG.
File = Path | BinaryIO

#: Okabe and Ito's colours (2008), which people with any colour vision can distinguish; grey is for the reference.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
#: Matplotlib settings of every figure, here and in the experiments.
STYLE: Any = {
    "figure.figsize": (6.4, 4.0),
    "figure.dpi": 130,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "legend.frameon": False,
    "svg.hashsalt": "dpmcmc",
}


def plain(text: str) -> str:
    """Return a text with dollars escaped, between which Matplotlib would read a formula, and what is not printable."""
    return printable(text, "\n").replace("$", r"\$")


def readable(name: str, most: int = 80) -> str:
    """Return the name of a number as a picture shows it.

    A lone array is θ, the path of a network's layer is words, and a long name loses its middle. Names of columns stay
    as they are.

    Args:
        name: as ``draws.nc`` has it.
        most: characters.
    """
    text = " ".join(name.split())
    if text.startswith("params."):
        text = text.removeprefix("params.").replace(".", " ")
    text = re.sub(r"^theta(?=\[|$)", "θ", text)
    text = re.sub(r"(?<=\d),(?=\d+(?:,\d+)*\]$)", ", ", text)
    if len(text) > most:
        tail = most // 3
        text = f"{text[: most - tail - 1]}…{text[-tail:]}"
    return plain(text)


def traces(
    path: File,
    shown: Mapping[str, np.ndarray],
    kept: tuple[int, int],
    title: str,
    note: str | None,
) -> None:
    """Save traces of a few coordinates, one line for each chain.

    Args:
        path: file, a PNG where it is an open one.
        shown: (chains, draws) by the name of the coordinate.
        kept: steps before the first draw, and steps from one to the next.
        title: of the figure.
        note: text that must stand on it, or None.
    """
    first_step, thin = kept
    steps = first_step + thin * (1 + np.arange(next(iter(shown.values())).shape[1]))
    with _picture(path, note, (6.4, 1.05 * len(shown) + 1.0)) as figure:
        axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)
        for axis, (label, lines) in zip(axes[:, 0], shown.items(), strict=True):
            axis.plot(steps, lines.T, lw=0.8)
            # Above: names of a network's parameters are longer than an axis is high.
            axis.set_title(
                readable(label),
                loc="left",
                fontsize=8,
                color="0.35",
                pad=3,
            )
            axis.yaxis.set_major_locator(MaxNLocator(3, prune="both"))
        figure.suptitle(plain(title), fontsize=STYLE["axes.titlesize"])
        axes[-1, 0].set_xlabel("step")


def calibration(
    path: File,
    curves: dict[str, tuple[np.ndarray, np.ndarray]],
    event: str,
    title: str,
    note: str | None,
) -> None:
    """Save predicted probability against observed share of an event on test rows.

    Args:
        path: file, a PNG where it is an open one.
        curves: for each model (its calibration curve, (bins, 3), predicted probability of each row).
        event: in words, for the axes.
        title: of the figure.
        note: text that must stand on it, or None.
    """
    with _picture(path, note, (5.0, 5.4)) as figure:
        axis, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1]})
        axis.plot([0, 1], [0, 1], color="0.6", lw=1, ls="--", label="perfectly calibrated")
        for name, (rows, probability) in curves.items():
            axis.plot(rows[:, 0], rows[:, 1], marker="o", ms=4, label=plain(name))
            below.hist(probability, bins=30, range=(0, 1), histtype="step", label=plain(name))
        _label(axis, title, y=f"observed share of {event}")
        below.set_xlabel(plain(f"predicted probability of {event}"))
        below.set_ylabel("test rows")


def predictions(path: File, means: dict[str, np.ndarray], y: np.ndarray, title: str, note: str | None) -> None:
    """Save observed labels against posterior predictive means on test rows, (rows,) each, one colour for each model."""
    with _picture(path, note, (5.0, 4.4)) as figure:
        axis = figure.subplots()
        ends = [float(np.min(y)), float(np.max(y))]
        axis.plot(ends, ends, color="0.6", lw=1, ls="--", label="predicted = observed")
        for name, mean in means.items():
            axis.plot(mean, y, "o", ms=3.5, mew=0, alpha=0.5, label=plain(name))
        _label(axis, title, "posterior predictive mean", "observed y")


def temperature(
    path: File,
    temperatures: np.ndarray,
    noise_multipliers: np.ndarray | None,
    title: str,
    note: str | None,
) -> None:
    """Save the temperature kept at each step, (steps,), and the noise multiplier beside it, (steps,) or None."""
    shown = np.unique(np.linspace(0, len(temperatures) - 1, 2000).astype(int))
    with _picture(path, note) as figure:
        axis = figure.subplots()
        lines = axis.plot(shown + 1, temperatures[shown], color="C3", label="temperature")
        axis.axhline(1.0, color="0.6", lw=1, ls="--", label="the posterior's: 1")
        axis.set_xlabel("step")
        axis.set_ylabel("temperature kept")
        _from_zero(axis, np.append(temperatures, 1.0), room=1.25)
        if noise_multipliers is not None:
            right = axis.twinx()
            right.spines["right"].set_visible(True)
            right.grid(visible=False)
            lines += right.plot(
                shown + 1,
                noise_multipliers[shown],
                color="C0",
                ls="-.",
                label="noise multiplier",
            )
            right.set_ylabel("noise multiplier")
            # More room than on the left, so that two constant lines do not coincide.
            _from_zero(right, noise_multipliers, room=1.7)
        handles = [*lines, axis.lines[1]]
        axis.legend(
            handles=handles,
            frameon=False,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.16),
            ncols=len(handles),
        )
        axis.set_title(plain(title))


def epsilon_delta(path: File, guarantee: Guarantee, title: str, note: str | None) -> None:
    """Save ε at every δ that the events give, with the promised point."""
    delta = np.geomspace(max(guarantee.delta * 1e-3, 1e-14), 1e-2, 25)
    epsilon = np.array([guarantee.epsilon_at(float(d)) for d in delta])
    stated = f"stated: ε = {round_up(guarantee.epsilon, 3)} at δ = {guarantee.delta:.3g}"
    with _picture(path, note) as figure:
        axis = figure.subplots()
        axis.plot(delta, epsilon, label=f"all that is released ({guarantee.accountant})")
        # A pure promise, of δ = 0, stands at the left end.
        at = max(guarantee.delta, float(delta[0]))
        axis.plot([at], [guarantee.epsilon], "o", color="C3", label=stated)
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        _label(axis, title, "δ", "ε")


def _label(axis: Axes, title: str, x: str = "", y: str = "") -> None:
    """Add a title, names of the axes, and a legend."""
    axis.set_title(plain(title))
    axis.set_xlabel(plain(x))
    axis.set_ylabel(plain(y))
    axis.legend(frameon=False)


def _from_zero(axis: Axes, values: np.ndarray, room: float) -> None:
    """Draw an axis from zero to ``room`` times the largest value, or in powers of ten where values span two of them."""
    least = float(values.min())
    most = float(values.max())
    if least > 0 and most > 100 * least:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, room * max(most, 1e-9))


@contextmanager
def _picture(path: File, note: str | None, size: tuple[float, float] = (6.4, 4.0)) -> Iterator[Figure]:
    """Yield a figure to draw on, and save it with its note."""
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        if note:
            figure.supxlabel(plain(note), x=0.99, ha="right", fontsize=8, color="C3", weight="bold")
        figure.savefig(path, format=None if isinstance(path, Path) else "png")
