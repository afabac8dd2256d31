"""Faults of how a table becomes records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpmcmc.data import (
    DataError,
    Levels,
    Range,
    Schema,
    base,
    column_kinds,
    containers,
    owners,
    schema,
    tables,
    values,
)
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
    codes = Levels.codes

    def stored(self: Levels, column: Any) -> Any:
        return codes(self, column._replace(values=np.array([*map(str, column.values.tolist())], object)))

    patch.setattr(Levels, "_known", property(lambda self: {str: {text: k for k, text in enumerate(self.texts)}}))
    patch.setattr(Levels, "_spelled", property(lambda self: {}))
    patch.setattr(Levels, "codes", stored)


def _compares_levels_as_floats(patch: Patch) -> None:
    def rounded(value: Any) -> Any:
        number = values.number(value)
        return value if isinstance(value, bool) or number != number else number

    codes = Levels.codes

    def compared(self: Levels, column: Any) -> Any:
        return codes(self, column._replace(values=np.array([*map(rounded, column.values.tolist())], object)))

    declared = column_kinds._declared
    patch.setattr(column_kinds, "_declared", lambda level: declared(rounded(level)))
    patch.setattr(Levels, "codes", compared)


def _takes_the_last_entry_for_a_null(patch: Patch) -> None:
    patch.setattr(containers, "_arrow", lambda column: (np.asarray(column).astype(object), None))


def _ignores_masks(patch: Patch) -> None:
    read = containers._numpy
    patch.setattr(containers, "_numpy", lambda array: read(np.asarray(array)))


def _rounds_the_scale_to_nearest(patch: Patch) -> None:
    patch.setattr(Schema, "row_scale", property(lambda self: float(np.float32(1 / np.sqrt(len(self.blocks))))))


def _drops_rows(patch: Patch) -> None:
    encode = Schema.encode
    patch.setattr(Schema, "encode", lambda self, table: encode(self, pd.DataFrame(table).dropna()))


def _quotes_values(patch: Patch) -> None:
    def refuse(self: Any, bad: np.ndarray, what: str, how: str) -> None:
        if bad.any():
            raise DataError(f"data: column {self.name!r} has {what}, {self.values[bad.argmax()]}: {how}.")

    patch.setattr(tables.Values, "refuse", refuse)


def _quotes_rows(patch: Patch) -> None:
    def refuse(self: Any, bad: np.ndarray, what: str, how: str) -> None:
        if bad.any():
            raise DataError(f"data: column {self.name!r} has {what} in row {bad.argmax()} and others: {how}.")

    patch.setattr(tables.Values, "refuse", refuse)


def _quotes_owners(patch: Patch) -> None:
    checked = owners.read_owner

    def quoting(owner: np.ndarray, *arguments: Any) -> np.ndarray:
        try:
            return checked(owner, *arguments)
        except DataError as error:
            raise DataError(f"{error} The largest is {owner.max()}.") from None

    patch.setattr(owners, "read_owner", quoting)


def _takes_any_name(patch: Patch) -> None:
    for module in (base, column_kinds, schema):
        patch.setattr(module, "check_name", lambda name, about: name)


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
        "null of a dictionary taken for its last entry",
        "Arrow's conversion gives a null the last entry of a dictionary, which depends on other people's rows: one "
        "changed person moved 305 of 1,000 rows.",
        _takes_the_last_entry_for_a_null,
        (checks.a_missing_value_of_a_dictionary_is_missing,),
    ),
    Fault(
        "mask of an array ignored",
        "A conversion drops NumPy's mask, and what lies beneath it counts as a value.",
        _ignores_masks,
        (checks.a_masked_value_is_missing,),
    ),
    Fault(
        "levels compared as floats",
        "Texts that a float can be made of become one, so that 01 is 1, and 2⁵³ + 1 is 2⁵³.",
        _compares_levels_as_floats,
        (checks.levels_are_compared_exactly,),
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
    Fault(
        "refusal of a table quotes a row",
        "The message shows how many rows were refused, and which one is the first: it says something of one person.",
        _quotes_rows,
        (checks.refusals_quote_no_value,),
    ),
    Fault(
        "refusal of owners quotes a number",
        "The message shows the number of an owner that is out of range, which may be a person's number elsewhere.",
        _quotes_owners,
        (checks.refusals_quote_no_owner,),
    ),
    Fault(
        "name of a column that no file holds",
        "A name with NUL is taken, and the run is charged before its draws cannot be written.",
        _takes_any_name,
        (checks.names_that_no_file_holds_are_refused,),
    ),
)
