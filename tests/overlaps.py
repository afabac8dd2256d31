"""Texts of a figure that lie on one another."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import pytest
from matplotlib.axis import Axis, Tick
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

#: Pixels by which two boxes may meet: a box is a line high, and its letters are not.
_ROOM = 2.0


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Return each pair of visible texts whose boxes overlap, and texts that the page cuts off, with "the edge"."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer, page = canvas.get_renderer(), figure.bbox
    axes = figure.findobj(Axis)
    # An axis keeps ticks beyond its limits, and does not draw them.
    drawn = [tick for axis in axes if axis.get_visible() for tick in axis._update_ticks()]
    ticks = [tick for axis in axes for tick in (*axis.majorTicks, *axis.minorTicks)]
    hidden = _labels(ticks) - _labels(drawn)
    shown = [
        (text.get_text(), Text.get_window_extent(text, renderer))  # of an annotation without its line
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden
    ]
    found = [
        (a, b)
        for (a, first), (b, second) in combinations(shown, 2)
        if min(first.x1, second.x1) - max(first.x0, second.x0) > _ROOM
        and min(first.y1, second.y1) - max(first.y0, second.y0) > _ROOM
    ]
    return found + [
        (text, "the edge")
        for text, box in shown
        if box.x0 < page.x0 - _ROOM or box.x1 > page.x1 + _ROOM or box.y0 < page.y0 - _ROOM or box.y1 > page.y1 + _ROOM
    ]


@contextmanager
def no_overlaps(write: bool = True) -> Iterator[list[Figure]]:
    """Fail where a figure is saved in which texts overlap; yields the figures that were saved, once for each file.

    A figure is looked at and written when its first file is; the others are the same picture in other formats. Without
    ``write`` no file is made.
    """
    save, seen = Figure.savefig, []

    def checked(figure: Figure, *args: Any, **kwargs: Any) -> None:
        if not any(figure is other for other in seen):
            assert overlapping(figure) == []
            if write:
                save(figure, *args, **kwargs)
        seen.append(figure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", checked)
        yield seen


def _labels(ticks: list[Tick]) -> set[int]:
    return {id(label) for tick in ticks for label in (tick.label1, tick.label2)}
