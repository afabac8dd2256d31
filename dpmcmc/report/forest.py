"""Effects on one numbered axis, for the figure of a summary and for the page of a run.

In their own units coefficients cannot share an axis: one is per year, another per dollar. So each is multiplied by the
**span** of its column: half the declared range, or 1 for a level against the first. This is the change of the
prediction over that span. Ranges are public, so the axis shows nothing that the coefficients do not. An intercept, a
level that stands for one (as in ``y ~ 0 + job``) and a threshold are no effects. They have their numbers and no place
on this axis.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmcmc.data.column_kinds import Range
from dpmcmc.data.schema import Schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Scale of a prediction, by the kind of the label; a real label has its own units.
_SCALES = {
    "binary": "log odds",
    "classes": "log odds",
    "ordered": "log odds",
    "count": "log of the expected count",
}


class Spans(NamedTuple):
    """Factors that turn coefficients in their own units into effects on one axis.

    Attributes:
        factors: half a range, 1 for a level, NaN for what is no effect, (numbers,).
        scale: of the prediction, in words.
    """

    factors: np.ndarray
    scale: str

    @classmethod
    def of(cls, schema: Schema) -> Spans:
        """Return the spans of a schema's coefficients, in the order of ``schema.own_names``."""
        factors = [
            math.nan if constant else math.prod(_span(schema, part) for part in parts)
            for constant, parts in zip(schema.constant_sum, itertools.chain(*schema.blocks), strict=True)
        ]
        thresholds = len(schema.own_names) - len(factors)
        scale = _SCALES.get(schema.outcome.kind, schema.own_name(schema.label))
        return cls(np.array(factors + [math.nan] * thresholds), scale)

    @property
    def label(self) -> str:
        """Name of the axis."""
        return f"change of the {self.scale} over half the range of a column, or from its first level to another"


def _span(schema: Schema, part: str) -> float:
    column = schema.columns.get(part)
    return column.middle_and_half[1] if isinstance(column, Range) else 1.0


class Forest(NamedTuple):
    """Numbers on one axis.

    Attributes:
        mean, low, high: of each number, (numbers,); NaN for one that has no place on the axis.
        least, most: ends of the axis, which has 0 on it.
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    least: float
    most: float

    @classmethod
    def of(cls, mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> Forest:
        """Return the numbers with the ends of their axis."""
        shown = np.concatenate([low, high, [0.0]])
        shown = shown[np.isfinite(shown)]
        return cls(mean, low, high, float(shown.min()), float(shown.max()))

    def place(self, value: float) -> str:
        """Return where a value lies, in percent of the axis from its least end."""
        width = max(self.most - self.least, 1e-12)
        return f"{100 * (value - self.least) / width:.2f}%"


def picture(
    forest: Forest,
    names: list[str],
    texts: list[str],
    label: str,
    title: str,
    intervals: bool,
) -> Figure:
    """Return a Matplotlib figure with a line for each number.

    Args:
        forest: the numbers.
        names: of each.
        texts: beside each line, such as the number in its own units; empty for none.
        label: of the axis.
        title: of the figure.
        intervals: whether lines are drawn from ``low`` to ``high``.
    """
    # Matplotlib takes long to import, and most results are never plotted.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from dpmcmc.report.figures import STYLE, plain, readable

    count = len(names)
    with rc_context(STYLE):
        figure = Figure(figsize=(7.4 if texts else 6.4, 1.5 + 0.22 * count), layout="constrained")
        axis = figure.subplots()
        rows = np.arange(count)
        axis.axvline(0, color="0.6", lw=1, ls="--")
        if intervals:
            axis.hlines(rows, forest.low, forest.high, lw=1.6)
        axis.plot(forest.mean, rows, "o", ms=3.5)
        for row, text in enumerate(texts):
            axis.text(
                1.02,
                row,
                plain(text),
                va="center",
                fontsize=8,
                color="0.25",
                transform=axis.get_yaxis_transform(),
            )
        axis.set_yticks(rows, [readable(name, 40) for name in names], fontsize=8)
        axis.set_ylim(count - 0.4, -0.6)
        axis.margins(x=0.04)
        axis.set_xlabel(plain(label), fontsize=8)
        axis.set_title(plain(title))
        return figure
