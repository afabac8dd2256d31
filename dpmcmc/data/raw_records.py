"""Raw records of benchmark sets, as a person may write their own: columns and levels by name, before any encoding.

Whole files of these sets are read in ``adult.py`` and ``abalone.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dpmcmc.data import abalone, adult
from dpmcmc.data.values import Values


class RawRecord:
    """Columns of a raw record, and how they are encoded.

    Attributes:
        names: of all columns, the label the last.
        label: its name.
        encoded: (columns by name, encoding) -> records.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        encoded: Callable[[Mapping[str, Values], str], dict[str, np.ndarray]],
    ) -> None:
        self.names = [*names]
        self.label = names[-1]
        self.encoded = encoded


def _adult(found: Mapping[str, Values], encoding: str) -> dict[str, np.ndarray]:
    numeric = [finite_numbers(found[name], least=0.0) for name in adult.NUMERIC]
    levels = [_codes(found[name], known) for name, known in adult.LEVELS.items()]
    labels = _codes(found["income"], ("<=50K", ">50K"))
    x = adult.encode(np.stack(numeric, axis=1), np.stack(levels, axis=1), encoding)
    return {"x": x, "y": labels.astype(np.int32)}


def _abalone(found: Mapping[str, Values], encoding: str) -> dict[str, np.ndarray]:
    sexes = tuple(abalone.SEX)
    sex = np.array([*abalone.SEX.values()])[_codes(found["sex"], sexes)]
    lengths = [finite_numbers(found[name], least=0.0) for name in abalone.COLUMNS[1:-1]]
    rings = finite_numbers(found["rings"], least=0.0)
    x = abalone.encode(sex, np.stack(lengths, axis=1), encoding)
    return {"x": x, "y": (rings >= abalone.MIN_RINGS).astype(np.int32)}


RAW_RECORDS = {
    "adult": RawRecord((*adult.FIELDS, "income"), _adult),
    "abalone": RawRecord((*abalone.COLUMNS[:-1], "rings"), _abalone),
}


def finite_numbers(column: Values, least: float = -np.inf) -> np.ndarray:
    """Return finite numbers of at least so much, (N,)."""
    column.refuse_missing(False)
    found = column.numbers()
    bad = ~np.isfinite(found) | (found < least)
    column.refuse(
        bad,
        "a number that no record has",
        f"give a finite one{'' if least < 0 else f' >= {least:g}'}",
    )
    return found


def _codes(column: Values, known: tuple[str, ...]) -> np.ndarray:
    """Return the place of every value among the known ones, (N,)."""
    column.refuse_missing(False)
    places = {name: k for k, name in enumerate(known)}
    codes = np.array([places.get(str(value).strip(), -1) for value in column.values])
    column.refuse(codes < 0, "a value that is no level", f"give one of {', '.join(known)}")
    return codes
