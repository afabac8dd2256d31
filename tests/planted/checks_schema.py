"""Tables become records row by row, within the public bound, and say nothing of a value to whoever reads a refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dpmcmc.data import Counts, DataError, Levels, Range, Schema
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


def refusals_quote_no_value(scene: Scene) -> None:
    """A value that has no place in the schema is counted, and not shown."""
    try:
        _SCHEMA.encode(_ONE | {"late": ["31415926"]})
    except DataError as error:
        require("31415926" not in str(error), f"a refusal quotes a value: {error}")
