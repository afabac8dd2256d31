"""Picture of what N and ε buy: predicted widths of intervals, from public facts alone."""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.estimators.suggestion import Request
from dpmcmc.report.figures import STYLE, File

_EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
#: Numbers of records, in units of the plan's.
_MULTIPLES = np.geomspace(0.1, 10.0, 7)


def picture(file: File, asked: Request) -> None:
    """Save the predicted width of intervals over that without privacy against N, a line for each ε.

    Args:
        file: path, or an open file that gets a PNG.
        asked: the question of :func:`dpmcmc.suggest`, from :func:`~dpmcmc.estimators.suggestion.ask`.

    Raises:
        UnsupportedCombination: no noise-aware intervals are derived for the model.
    """
    if asked.question is None:
        raise UnsupportedCombination(f"picture: no width is predicted for {type(asked.target).__name__}")
    numbers = sorted({max(10, round(asked.num_records * part)) for part in _MULTIPLES})
    with rc_context(STYLE):
        figure = Figure(layout="constrained")
        axis = figure.subplots()
        for epsilon in sorted({*_EPSILONS, asked.epsilon}):
            found = [asked.at(n, epsilon).rough() for n in numbers]
            own = epsilon == asked.epsilon
            axis.plot(
                numbers,
                [one.width for one in found if one],
                marker="o",
                lw=2.5 if own else 1.2,
                label=f"ε = {epsilon:g}",
            )
        axis.axvline(asked.num_records, color="0.6", lw=1, ls="--")
        axis.set(xscale="log", yscale="log", xlabel="N, records", ylabel="width of intervals ÷ without privacy")
        axis.set_title(
            f"{type(asked.target).__name__}, {len(asked.question.scales)} columns, predicted from public facts"
        )
        axis.yaxis.set_major_formatter("{x:g}")
        axis.legend(frameon=False)
        figure.savefig(file, format=None if hasattr(file, "suffix") else "png")
