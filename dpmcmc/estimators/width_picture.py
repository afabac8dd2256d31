"""Picture of predicted widths of intervals against N and ε, from public facts alone.

Each width is that of a plan that ``suggestion.py`` makes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.estimators.suggestion import Request
from dpmcmc.report.figures import STYLE, File

_EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
#: Numbers of records, in units of the plan's.
_MULTIPLES = np.geomspace(0.1, 10.0, 5)
#: First digits of the numbers on the axes.
_OF_NUMBERS, _OF_WIDTHS = (1, 3), (1, 1.2, 1.5, 2, 3, 5, 7)


def picture(file: File, asked: Request) -> None:
    """Save the predicted width of intervals over that without privacy against N, a line for each ε.

    Args:
        file: path, or an open file that gets a PNG.
        asked: request of :func:`dpmcmc.suggest`, from :func:`~dpmcmc.estimators.suggestion.ask`.

    Raises:
        UnsupportedCombination: no noise-aware intervals are derived for the model.
    """
    if asked.facts is None:
        raise UnsupportedCombination(f"picture: no width is predicted for {type(asked.target).__name__}")
    numbers = sorted({max(10, round(asked.num_records * part)) for part in _MULTIPLES})
    with rc_context(STYLE):
        figure = Figure(layout="constrained")
        axis = figure.subplots()
        left_to_prior = False
        for epsilon in sorted({*_EPSILONS, asked.epsilon}, reverse=True):
            widths = [asked.at(n, epsilon).width() for n in numbers]
            own = epsilon == asked.epsilon
            label = f"ε = {epsilon:g}" + " (asked)" * own
            peak = int(np.argmax(widths))
            (drawn,) = axis.plot(
                numbers[peak:],
                widths[peak:],
                marker="o",
                lw=2.5 if own else 1.2,
                label=label,
            )
            axis.plot(
                numbers[: peak + 1],
                widths[: peak + 1],
                "o:",
                mfc="w",
                color=drawn.get_color(),
                markevery=slice(peak),
            )
            left_to_prior |= peak > 0
        if left_to_prior:
            figure.supxlabel(
                "Dotted: too few records; the prior makes most of the interval, with privacy or without.",
                size="small",
            )
        axis.axvline(asked.num_records, color="0.6", lw=1, ls="--")
        axis.set(
            xscale="log",
            yscale="log",
            xlabel="N, records",
            ylabel="width of intervals ÷ without privacy",
        )
        axis.set_title(f"{type(asked.target).__name__}, {len(asked.facts.scales)} columns, predicted from public facts")
        for line, digits, form in (
            (axis.xaxis, _OF_NUMBERS, "{x:,.0f}"),
            (axis.yaxis, _OF_WIDTHS, "{x:g}"),
        ):
            line.set_major_locator(LogLocator(subs=digits, numticks=30))
            line.set_major_formatter(form)
            line.set_minor_locator(NullLocator())
        figure.legend(
            *(reversed(part) for part in axis.get_legend_handles_labels()),
            loc="outside right upper",
        )
        figure.savefig(file, format=None if isinstance(file, Path) else "png")
