"""Tables become records row by row, within the public bound, and say nothing of a value to whoever reads a refusal."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dpmcmc.data import Counts, DataError, DataSet, Levels, Range, Schema, by_owner
from dpmcmc.errors import InputError
from tests.planted import Scene, require

_SCHEMA = Schema(
    {"age": Range(0, 100), "region": Levels([1, 2], other=True, missing=True), "late": Levels(["no", "yes"])},
    label="late",
)
_ONE = {"age": [30.0], "region": [1], "late": ["yes"]}
#: A row beside which a reader takes the column of regions for real numbers, and one of an age beyond all others.
_OTHERS = {"age": [20.0, 99.0], "region": [None, 2], "late": ["no", "yes"]}


def _encoded(*tables: dict[str, list]) -> dict[str, np.ndarray]:
    rows: dict[str, Any] = {name: [value for table in tables for value in table[name]] for name in _ONE}
    return _SCHEMA.encode(pd.DataFrame(rows))


def a_row_is_encoded_by_itself_alone(scene: Scene) -> None:
    """A row has the same code whatever rows stand beside it, and whatever types a reader gave its columns for them."""
    alone, together = _encoded(_ONE)["x"][0], _encoded(_ONE, _OTHERS)["x"][0]
    require(np.array_equal(alone, together), f"a row is {alone} alone, and {together} beside two others")


def rows_stay_within_the_bound(scene: Scene) -> None:
    """No row of float32 has a norm above the bound that guarantees rest on."""
    for blocks in range(1, 30):
        schema = Schema({f"x{k}": Range(0, 1) for k in range(blocks)} | {"y": Counts(1)}, label="y")
        row = schema.encode({name: [1] for name in schema.columns})["x"].astype(np.float64)
        require((row**2).sum() <= schema.row_bound**2, f"a row of {blocks + 1} blocks has a norm above the bound")


def no_row_is_dropped(scene: Scene) -> None:
    """Every row of a table is a record, one with a missing value too: their number is public."""
    found = _encoded(_ONE, _OTHERS)["x"]
    require(len(found) == 3, f"3 rows became {len(found)} records")


def a_missing_value_of_a_dictionary_is_missing(scene: Scene) -> None:
    """A null of Arrow's dictionaries is a missing value, whichever entries other people's rows give the dictionary."""
    rows = [None, "2", None, "1", "other"]

    def encoded(last: str) -> np.ndarray:
        column = pa.chunked_array([pa.array([*rows[:-1], last]).dictionary_encode()])
        return _SCHEMA.encode({"age": [1.0] * 5, "region": column, "late": ["no"] * 5})["x"]

    changed = (encoded("1") != encoded("other")).any(axis=1)
    require(changed.tolist() == [False] * 4 + [True], f"one changed person changes the rows {np.flatnonzero(changed)}")


def a_masked_value_is_missing(scene: Scene) -> None:
    """NumPy's mask says which values are missing, and what lies beneath it is no value."""
    for beneath in (1, 2):
        region = np.ma.array([beneath, 2], mask=[True, False])
        row = _SCHEMA.encode({"age": [1.0] * 2, "region": region, "late": ["no"] * 2})["x"][0]
        require(row[_SCHEMA.names.index("region=missing")] > 0, "a masked value counts as the number beneath its mask")


def levels_are_compared_exactly(scene: Scene) -> None:
    """Neighbouring whole numbers, and texts that write one number in two ways, are levels of their own."""
    for levels in ([2**53, 2**53 + 1], ["01", "1"], [Decimal("0.1"), Decimal("0.1000000000000000001")]):
        schema = None
        with contextlib.suppress(InputError):
            schema = Schema({"g": Levels(levels), "y": Levels([0, 1])}, formula="y ~ g - 1")
        require(schema is not None, f"{levels} are refused as one level")
        assert schema is not None
        found = schema.encode({"g": levels, "y": [0, 1]})["x"]
        require(np.array_equal(found, np.eye(2)), f"{levels} are encoded as {found.tolist()}")


def refusals_quote_no_value(scene: Scene) -> None:
    """A value that has no place in the schema is not shown, and neither is its row or how many there are."""
    try:
        _SCHEMA.encode({"age": [1.0] * 7, "region": [1] * 7, "late": ["no"] * 5 + ["31415926"] * 2})
    except DataError as error:
        told = [secret for secret in ("31415926", "5", "2") if secret in str(error)]
        require(not told, f"a refusal quotes {told}: {error}")


def refusals_quote_no_owner(scene: Scene) -> None:
    """A number that is no owner's is not shown: it may be a number that the world knows the person by."""
    try:
        by_owner({"x": np.ones(2)}, np.array([0, 31415926]), num_owners=2, records_per_owner=1)
    except DataError as error:
        require("31415926" not in str(error), f"a refusal quotes an owner's number: {error}")


def names_that_no_file_holds_are_refused(scene: Scene) -> None:
    """A column's name with NUL or a surrogate is refused before a plan is made, and so before anything is charged."""
    for name in ("a\0b", "\ud800"):
        columns = {name: Range(0, 1), "y": Levels([0, 1])}
        for made in (
            lambda: Schema(columns, label="y"),  # noqa: B023
            lambda: Levels([name]),  # noqa: B023
            lambda: DataSet(None, {}, None, False, "", {}, (name,)),  # type: ignore[arg-type]  # noqa: B023
        ):
            refused = False
            try:
                made()
            except InputError:
                refused = True
            require(refused, f"the name {name!r} is taken")
