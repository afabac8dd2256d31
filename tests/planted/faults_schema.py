"""Faults of how a table becomes records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpmcmc.data import DataError, Range, Schema, column_kinds
from tests.planted import Fault
from tests.planted import checks_schema as checks

Patch = pytest.MonkeyPatch


def _learns_the_range(patch: Patch) -> None:
    scaled = Range.scaled

    def learnt(self: Range, column: Any) -> Any:
        numbers = column.numbers()
        return scaled(Range(numbers.min() - 1, numbers.max() + 1), column)

    patch.setattr(Range, "scaled", learnt)


def _compares_levels_as_they_are_stored(patch: Patch) -> None:
    patch.setattr(column_kinds, "word", str)


def _rounds_the_scale_to_nearest(patch: Patch) -> None:
    patch.setattr(Schema, "row_scale", property(lambda self: float(np.float32(1 / np.sqrt(len(self.blocks))))))


def _drops_rows(patch: Patch) -> None:
    encode = Schema.encode
    patch.setattr(Schema, "encode", lambda self, table: encode(self, pd.DataFrame(table).dropna()))


def _quotes_values(patch: Patch) -> None:
    def refuse(self: Any, bad: np.ndarray, what: str, how: str) -> None:
        if bad.any():
            raise DataError(f"data: column {self.name!r} has {what}, {self.values[bad.argmax()]}: {how}.")

    patch.setattr(column_kinds.Values, "refuse", refuse)


FAULTS = (
    Fault(
        "range learnt from the table",
        "A column is scaled by its own least and largest value, as a scaler of a library does.",
        _learns_the_range,
        (checks.a_row_is_encoded_by_itself_alone,),
    ),
    Fault(
        "levels compared as a reader stored them",
        "One missing value turns a column of whole numbers into real ones, and 1.0 is not the level 1 for any row.",
        _compares_levels_as_they_are_stored,
        (checks.a_row_is_encoded_by_itself_alone,),
    ),
    Fault(
        "scale of rows rounded to nearest",
        "The constant 1/√k is the nearest float32, and half of the time rows of norm 1 pass their bound.",
        _rounds_the_scale_to_nearest,
        (checks.rows_stay_within_the_bound,),
    ),
    Fault(
        "rows with missing values dropped",
        "Incomplete rows leave the table as in most software, and the number of records tells how many there were.",
        _drops_rows,
        (checks.no_row_is_dropped,),
    ),
    Fault(
        "refusal of a table quotes a value",
        "The message shows the value that has no place in the schema, and messages are logged and sent around.",
        _quotes_values,
        (checks.refusals_quote_no_value,),
    ),
)
