"""Tables of many settings, thinned: every two values still meet, and only some cells of three or more are left out.

A fault that shows in a table usually comes with one value, or with two that meet. So a covering table finds it in a
fraction of the time; the cells that are left out are marked ``exhaustive``.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def covering(cells: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return few of the cells, such that every two values that meet in some cell meet in one of these."""

    def pairs(cell: tuple[Any, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(map(str, cell)), 2))

    missing = set().union(*map(pairs, cells))
    chosen = []
    while missing:
        chosen.append(max(cells, key=lambda cell: len(pairs(cell) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


def slow_pairs(cells: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return all cells as parameters: those of the covering table are slow, and the others exhaustive."""
    kept = {id(cell) for cell in covering(cells)}
    return [
        pytest.param(*cell, marks=pytest.mark.slow if id(cell) in kept else pytest.mark.exhaustive, id=_name(cell))
        for cell in cells
    ]


def _name(cell: tuple[Any, ...]) -> str:
    return "-".join(map(str, cell))
