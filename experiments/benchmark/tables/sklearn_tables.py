"""Tables that come with scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpmcmc.data import Levels, Range
from experiments.benchmark.tables.declared import Declared, Table, range_of

if TYPE_CHECKING:
    import pandas as pd

_PIXELS = {
    f"pixel_{row}_{column}": Declared(Range(0, 16), "shades of a pixel") for row in range(8) for column in range(8)
}


def _even(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(even=(frame["target"] % 2 == 0).astype(int))


_DIGITS = Table(
    "digits",
    "sklearn",
    "digits",
    "target",
    {**_PIXELS, "target": Declared(Levels(list(range(10))), "digits")},
    1_797,
)
_EVEN_DIGITS = Table(
    "even_digits",
    "sklearn",
    "digits",
    "even",
    {**_PIXELS, "even": Declared(Levels([0, 1]), "an indicator")},
    1_797,
    changed=_even,
    quick=True,
)
#: Fewer than 1,000 records, for ``--quick`` alone.
_DIABETES = Table(
    "diabetes",
    "sklearn",
    "diabetes",
    "target",
    {
        "target": range_of(0, 400, "a score of progression; four hundred is the end of its scale"),
        "age": range_of(18, 90, "years of adults"),
        "sex": range_of(1, 2, "two codes"),
        "bmi": range_of(15, 60, "kg/m²; from thin to very fat"),
        "bp": range_of(50, 150, "mmHg, the mean of two pressures"),
        "s1": range_of(80, 400, "total cholesterol, mg/dl"),
        "s2": range_of(20, 300, "LDL, mg/dl"),
        "s3": range_of(10, 120, "HDL, mg/dl"),
        "s4": range_of(1, 12, "total over HDL"),
        "s5": range_of(3, 7, "log of triglycerides, mg/dl; 20 to 1,100"),
        "s6": range_of(40, 200, "fasting glucose, mg/dl"),
    },
    442,
    quick=True,
)

TABLES = (
    _DIGITS,
    _EVEN_DIGITS,
    _DIABETES,
)
