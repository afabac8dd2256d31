"""Simulated rows that public facts allow: a plan is tried on them before any record is read.

Columns are those that a ``RowStructure`` declares: an intercept, one-hot blocks, columns that are never negative, and
numbers on [-1, 1]. A Gaussian copula makes them depend on each other. No public fact says how strongly they do, how
much of their ranges values fill, or how far labels lie from a line: designs differ in these. Numbers of real tables
mostly have a standard deviation of 0.15 to 0.4 about a middle that is well off 0, as those of ``REAL`` have.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from dpmcmc.data.structure import RowStructure

#: Least rows of a simulated design, and rows for each column.
_ROWS, _ROWS_PER_COLUMN = 2000, 4


class SimulatedDesign(NamedTuple):
    """How simulated columns behave.

    Attributes:
        name: in words.
        common: part of a column's variance that is due to a factor that all columns share.
        spread: standard deviation of a number's place on [-1, 1], in units of the uniform law's; levels of a block have
            weights k^-2(1 - spread).
        centre: standard deviation of the middles of numbers on [-1, 1].
        noise: standard deviation of a real label about its mean, in units of the model's noise_scale.
    """

    name: str
    common: float
    spread: float
    centre: float = 0.0
    noise: float = 1.0


#: Designs with values about the middle of their range, for the largest curvature of a chain.
DESIGNS = (
    SimulatedDesign("independent columns, values spread evenly", 0.0, 1.0),
    SimulatedDesign("correlated columns, values near the middle", 0.3, 0.6),
    SimulatedDesign("strongly correlated columns, few values far out", 0.6, 0.4),
)
#: Designs with values as real tables have them, for predicted widths; each fills its ranges less than the one before.
#: The first and the last are extremes; the third stands for all where only one is tried.
REAL = (
    SimulatedDesign("independent columns that fill their ranges", 0.0, 1.0),
    SimulatedDesign("correlated columns that fill most of their ranges", 0.2, 0.7, 0.3, 0.8),
    SimulatedDesign("correlated columns that fill part of their ranges", 0.4, 0.5, 0.4, 0.5),
    SimulatedDesign(
        "strongly correlated columns that fill little of their ranges",
        0.6,
        0.35,
        0.5,
        0.3,
    ),
    SimulatedDesign("strongly correlated columns that hardly fill their ranges", 0.6, 0.25, 0.5, 0.2),
)


def simulated_rows(
    design: SimulatedDesign,
    size: int,
    row_bound: float,
    structure: RowStructure | None,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return rows of norm at most ``row_bound``, (n, size).

    Args:
        design: how columns behave.
        size: d.
        row_bound: public bound on the norm; every row has it where the structure says so.
        structure: of the rows; None: the last column is the intercept, and the others are numbers.
        rng: of the simulation.
    """
    known = structure
    if known is None:
        known = RowStructure(constant=size - 1 if size > 1 else None)
    count = max(_ROWS, _ROWS_PER_COLUMN * size)
    blocks = [list(block) for block in known.blocks]
    taken = {column for block in blocks for column in block} | {known.constant}
    sources = blocks + [[column] for column in range(size) if column not in taken]
    out = np.zeros((count, size))
    factor = rng.normal(size=count)
    for columns in sources:
        sign = rng.choice([-1.0, 1.0])
        own = rng.normal(size=count)
        latent = math.sqrt(design.common) * sign * factor + math.sqrt(1 - design.common) * own
        if len(columns) > 1 or columns in blocks:
            weights = np.arange(1, len(columns) + 1) ** (-2 * (1 - design.spread))
            ends = np.cumsum(weights) / weights.sum()
            level = np.minimum(np.searchsorted(ends, ndtr(latent)), len(columns) - 1)
            out[np.arange(count), np.array(columns)[level]] = 1.0
        else:
            number = (2 * ndtr(latent) - 1) * design.spread
            if design.centre:
                number = np.clip(number + design.centre * rng.normal(), -1, 1)
            out[:, columns[0]] = np.abs(number) if columns[0] in known.nonnegative else number
    if known.constant is not None:
        out[:, known.constant] = 1.0
    if known.unit_norm:
        return out * (row_bound / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12))
    return out * (row_bound / math.sqrt(len(sources) + (known.constant is not None)))
