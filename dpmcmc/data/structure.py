"""Public facts of every row that an encoder makes, which an inference from noisy sums of rows may use.

No guarantee rests on them: a wrong declaration makes intervals wrong, never a release less private.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dpmcmc.errors import InputError

#: Size of the column that marks a threshold of an ordinal regression, over the rows' bound.
THRESHOLD = 0.5


@dataclass(frozen=True)
class RowStructure:
    """Declared facts of all rows x, (d,).

    Args:
        constant: column of the intercept, or None. It need not be 1: rows are scaled after the encoding.
        blocks: columns of each one-hot block. In a row exactly one of them is not zero, and it equals the intercept's
            column.
        nonnegative: columns that are never below zero, beside those of blocks and the intercept.
        unit_norm: whether every row has norm 1 exactly (to rounding).

    Raises:
        ValueError: blocks without an intercept, or a column that is in two of them.
    """

    constant: int | None = None
    blocks: tuple[tuple[int, ...], ...] = ()
    nonnegative: tuple[int, ...] = ()
    unit_norm: bool = False

    def __post_init__(self) -> None:
        columns = [column for block in self.blocks for column in block]
        if not all(self.blocks):
            raise InputError("blocks: a one-hot block has no columns; leave it out", "blocks")
        if self.blocks and self.constant is None:
            raise InputError("blocks: one-hot blocks are declared relative to the intercept; give its column, constant")
        if len(set(columns)) != len(columns) or self.constant in columns:
            raise InputError("blocks: a column belongs to one block at most, and the intercept to none")

    def check(self, num_features: int) -> None:
        """Raise ValueError where a declared column is beyond the row."""
        columns = [column for block in self.blocks for column in block] + list(self.nonnegative)
        for column in columns + ([] if self.constant is None else [self.constant]):
            if not 0 <= column < num_features:
                raise InputError(f"structure: declares column {column}, and rows have {num_features}")

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON values; :meth:`of_json` takes them."""
        return dataclasses.asdict(self)

    @classmethod
    def of_json(cls, facts: dict[str, Any]) -> Self:
        """Return the structure of :meth:`to_json`."""
        blocks = tuple(tuple(block) for block in facts["blocks"])
        return cls(**{**facts, "blocks": blocks, "nonnegative": tuple(facts["nonnegative"])})

    @classmethod
    def of_columns(cls, columns: Sequence[str], *, nonnegative: Sequence[str] = (), unit_norm: bool) -> RowStructure:
        """Return the structure that column names state: ``name=level`` is one of a block, ``intercept`` the intercept.

        Args:
            columns: names, in order.
            nonnegative: names of further columns that are never below zero.
            unit_norm: as of the class.
        """
        blocks: dict[str, list[int]] = {}
        for number, column in enumerate(columns):
            name, separator, _ = column.partition("=")
            if separator:
                blocks.setdefault(name, []).append(number)
        return cls(
            columns.index("intercept"),
            tuple(tuple(block) for block in blocks.values()),
            tuple(columns.index(name) for name in nonnegative),
            unit_norm,
        )


def contrasts(structure: RowStructure | None, size: int) -> np.ndarray:
    """Return the combinations of coefficients that records identify, (k, d).

    They are coefficients of numbers, differences of a block's levels from its first, and the intercept plus the first
    levels. A block's columns add up to the intercept's, so records do not identify the coefficient of a single level.
    """
    if structure is None or not structure.blocks:
        return np.eye(size)
    out = np.eye(size)
    firsts = [block[0] for block in structure.blocks]
    for block in structure.blocks:
        out[list(block), block[0]] = -1.0
    out[structure.constant, firsts] = 1.0
    return np.delete(out, firsts, axis=0)
