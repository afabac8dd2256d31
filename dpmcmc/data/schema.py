"""Schema: public facts of a table's columns, by which rows become records.

    schema = Schema({"age": Range(17, 90), "job": Levels(["office", "field"], other=True),
                     "income": Levels(["low", "high"])}, label="income")
    schema.encode(frame)                          # {"x": float32 (N, d), "y": int32 (N,)}

Numbers go to [-1, 1] by their range, words to one column of 0 and 1 a level. A row then has one block for each source
column, of which at most one entry is not 0, and the intercept's 1. All k blocks are multiplied by one public constant,
the largest float32 c with k·c² <= 1, so that every row has norm at most 1. A row is encoded by itself alone: nothing is
learnt from the table, and rows are not normalised, because that would change what a coefficient means.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from dpmcmc.data import frames
from dpmcmc.data.base import DataError
from dpmcmc.data.column_kinds import Column, Counts, Levels, Range, column_of, to_yaml
from dpmcmc.data.frames import Table
from dpmcmc.data.row_structure import RowStructure
from dpmcmc.errors import InputError

if TYPE_CHECKING:
    from sklearn.preprocessing import FunctionTransformer

INTERCEPT = "intercept"
#: A target, a mechanism or a metric.
Told = TypeVar("Told")


@dataclass(frozen=True)
class Label:
    """The label of a record.

    Attributes:
        name: of its column.
        kind: ``binary`` (0 or 1, the last level), ``classes`` (0 to K − 1), ``count``, or ``real`` (the range mapped to
            [-1, 1]).
        num_classes: K, of ``binary`` and ``classes``.
        levels: names of the classes.
        bounds: of the encoded label, of ``count`` and ``real``.
    """

    name: str
    kind: Literal["binary", "classes", "count", "real"]
    num_classes: int | None = None
    levels: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Schema:
    """Public facts of a table: ranges and levels of its columns, which one is the label, and the intercept.

    Args:
        columns: name -> ``Range``, ``Levels`` or ``Counts``; as in YAML ``{range: [low, high], scale: log1p}``,
            ``{levels: [a, b], other: true}`` or ``{counts: largest}``.
        label: column of the label; needed unless the formula names it.
        intercept: whether rows have a constant column, the last one.
        formula: which columns and interactions are features, as in ``"income ~ age + C(job) + age:job"``; None: every
            column but the label.

    Raises:
        InputError: a label that is no column, a column that cannot be what it stands for, a formula that is not public.
    """

    columns: Mapping[str, Column]
    label: str = ""
    intercept: bool = True
    formula: str | None = None

    def __post_init__(self) -> None:
        given = self.columns
        if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
            raise InputError("columns must map names to Range, Levels or Counts", "columns")
        object.__setattr__(self, "columns", {name: column_of(name, column) for name, column in given.items()})
        if self.formula is not None:
            from dpmcmc.data import formula

            label, terms, intercept = formula.parsed(self.formula, tuple(self.columns))
            if label and self.label not in ("", label):
                raise InputError(f"formula: its label is {label}, and label says {self.label}; give one", "formula")
            object.__setattr__(self, "label", label or self.label)
            object.__setattr__(self, "intercept", intercept)
            object.__setattr__(self, "_formula_terms", terms)
        if self.label not in self.columns:
            raise InputError(f"label: {self.label!r} is no column of {', '.join(self.columns)}", "label")
        self._check()

    def _check(self) -> None:
        label = self.columns[self.label]
        if isinstance(label, Levels) and (label.other or label.missing or len(label.levels) < 2):
            raise InputError("label: needs two or more levels, without other and missing", "label")
        if isinstance(label, Range) and label.missing:
            raise InputError("label: a label may not be missing", "label")
        if not self.terms and not self.intercept:
            raise InputError("columns: no feature is left; declare one, or an intercept", "columns")
        for name in {name for term in self.terms for name in term}:
            if isinstance(self.columns[name], Counts):
                raise InputError(f"{name}: counts are for labels; give a feature a range", f"columns.{name}")
            if name == self.label:
                raise InputError(f"formula: the label {name} is a feature too; leave it out", "formula")
        twice = {name for name in self.names if self.names.count(name) > 1}
        if twice:
            raise InputError(f"columns: {', '.join(sorted(twice))} would name two features; rename one", "columns")

    def __hash__(self) -> int:
        return hash((tuple(self.columns.items()), self.label, self.intercept, self.formula))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.to_yaml() == other.to_yaml() and [*self.columns] == [*other.columns]

    def with_formula(self, formula: str) -> Schema:
        """Return the schema whose features and label a formula chooses."""
        return replace(self, label="" if "~" in formula else self.label, formula=formula)

    @functools.cached_property
    def terms(self) -> tuple[tuple[str, ...], ...]:
        """Source columns of each block of features; two or more names are an interaction."""
        if self.formula is not None:
            return self._formula_terms  # type: ignore[attr-defined]
        return tuple((name,) for name in self.columns if name != self.label)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each encoded column: ``age``, ``job=office``, ``age:job=office``, ``intercept``."""
        found = [name for term in self.terms for name in self.block_names(term)]
        return (*found, *([INTERCEPT] if self.intercept else []))

    def block_names(self, term: tuple[str, ...]) -> list[str]:
        """Names of the encoded columns of a term, the last source column's levels changing fastest."""
        found = [""]
        for name in term:
            parts = [f"{name}{suffix}" for suffix in _feature(self.columns[name]).suffixes]
            found = [f"{before}:{part}" if before else part for before in found for part in parts]
        return found

    @property
    def num_features(self) -> int:
        """Number of encoded columns d, the intercept's included."""
        return len(self.names)

    @property
    def row_bound(self) -> float:
        """Bound on the norm of every row, exact in float32."""
        return 1.0

    @functools.cached_property
    def row_scale(self) -> float:
        """The constant c that every encoded row is multiplied by; the intercept's column is c."""
        blocks = len(self.terms) + self.intercept
        scale = np.float32(1 / math.sqrt(blocks))
        while blocks * float(scale) ** 2 > 1:
            scale = np.nextafter(scale, np.float32(0))
        return float(scale)

    @functools.cached_property
    def structure(self) -> RowStructure:
        """Facts of every row that an inference from noisy sums may use."""
        blocks: list[tuple[int, ...]] = []
        nonnegative: list[int] = []
        start = 0
        only_levels = True
        for term in self.terms:
            kinds, names = [self.columns[name] for name in term], self.block_names(term)
            block = tuple(range(start, start + len(names)))
            start += len(names)
            if all(isinstance(kind, Levels) for kind in kinds):
                blocks.append(block)
                continue
            only_levels = False
            # The indicator of a missing number is the only other entry that is never below zero.
            if len(term) == 1:
                nonnegative += block[1:]
        if self.intercept:
            return RowStructure(start, tuple(blocks), tuple(nonnegative), only_levels)
        hot = [column for block in blocks for column in block]
        return RowStructure(nonnegative=(*nonnegative, *hot), unit_norm=only_levels)

    @functools.cached_property
    def outcome(self) -> Label:
        """Kind, classes and bounds of the encoded label."""
        kind = self.columns[self.label]
        if isinstance(kind, Counts):
            return Label(self.label, "count", bounds=(0.0, float(kind.largest)))
        if isinstance(kind, Range):
            return Label(self.label, "real", bounds=(-1.0, 1.0))
        count = len(kind.levels)
        return Label(self.label, "binary" if count == 2 else "classes", count, kind.levels)

    def told(self, made: Told) -> Told:
        """Return a target, a mechanism or a metric whose fields that say nothing take the schema's facts.

        Raises:
            InputError: it says another number of features or classes.
        """
        if not dataclasses.is_dataclass(made):
            return made
        facts = {
            "num_features": self.num_features,
            "num_classes": self.outcome.num_classes,
            "row_bound": self.row_bound,
            "label_bound": None if self.outcome.bounds is None else self.outcome.bounds[1],
            "structure": self.structure,
        }
        fields = {f.name for f in dataclasses.fields(made) if f.init}
        for name in ("num_features", "num_classes"):
            given = getattr(made, name, None)
            if None not in (given, facts[name]) and given != facts[name]:
                raise InputError(f"{name}: is {given}, and the schema says {facts[name]}; leave it out", name)
        unsaid = {name: fact for name, fact in facts.items() if name in fields and getattr(made, name) is None}
        return dataclasses.replace(made, **unsaid)  # type: ignore[type-var]

    def encode(self, table: Table) -> dict[str, np.ndarray]:
        """Return the records of a table.

        Args:
            table: pandas, polars or Arrow's, arrays by name, or the path of a CSV or Parquet file.

        Returns:
            ``{"x": float32 (N, d), "y": (N,)}``; y is float32 for a real label, else int32.

        Raises:
            DataError: for the data holder: a column that is not there, a value that the schema has no place for. It
                counts rows and quotes no value.
        """
        return self.encode_counted(table)[0]

    def encode_counted(self, table: Table) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Return the records of a table, and how many of its values lay outside the schema.

        The counts, column -> values clipped or sent to ``other``, are functions of private records: they are for the
        data holder alone.
        """
        source = [*{name: None for term in self.terms for name in term}, self.label]
        found = frames.columns(frames.in_memory(table), source)
        y, outside = self._labels(found[self.label])
        x, counts = self._rows(found)
        return {"x": x, "y": y}, {**counts, self.label: outside}

    def encode_features(self, table: Table) -> np.ndarray:
        """Return the feature rows (N, d), float32, of a table that needs no label; raises as :meth:`encode`."""
        source = list({name: None for term in self.terms for name in term})
        return self._rows(frames.columns(frames.in_memory(table), source))[0]

    def _rows(self, found: Mapping[str, frames.Values]) -> tuple[np.ndarray, dict[str, int]]:
        if not self.terms:
            raise DataError("data: the schema has no feature but the intercept, so a table does not tell its rows")
        encoded = {name: _feature(self.columns[name]).encode(found[name]) for term in self.terms for name in term}
        count = len(next(iter(encoded.values())).block)
        x, start = np.full((count, self.num_features), self.row_scale, np.float32), 0
        for term in self.terms:
            block = np.full((count, 1), self.row_scale)
            for name in term:
                block = (block[:, :, None] * encoded[name].block[:, None, :]).reshape(count, -1)
            x[:, start : start + block.shape[1]] = block
            start += block.shape[1]
        return x, {name: one.outside for name, one in encoded.items()}

    def _labels(self, column: frames.Values) -> tuple[np.ndarray, int]:
        kind = self.columns[self.label]
        if isinstance(kind, Levels):
            words, _ = kind.named(column)
            number = {level: k for k, level in enumerate(kind.levels)}
            return np.array([number[value] for value in words], np.int32), 0
        column.refuse_missing(False)
        numbers = column.numbers()
        if isinstance(kind, Range):
            return kind.scaled(numbers).astype(np.float32), int(((numbers < kind.low) | (numbers > kind.high)).sum())
        whole = np.floor(numbers) == numbers
        column.refuse(~whole, "a value that is no whole number", "counts are whole; give the label a range instead")
        inside = np.clip(numbers, 0, kind.largest)
        return inside.astype(np.int32), int((inside != numbers).sum())

    @property
    def transformer(self) -> FunctionTransformer:
        """A scikit-learn transformer of tables to feature rows; there is nothing to fit."""
        from sklearn.preprocessing import FunctionTransformer

        return FunctionTransformer(self.encode_features, feature_names_out=lambda *_: np.array(self.names, object))

    def to_yaml(self) -> dict[str, object]:
        """Return the schema as a YAML says it; :meth:`from_yaml` takes it back."""
        columns = {name: to_yaml(column) for name, column in self.columns.items()}
        out: dict[str, object] = {"columns": columns, "label": self.label, "intercept": self.intercept}
        return out if self.formula is None else out | {"formula": self.formula}

    @classmethod
    def from_yaml(cls, given: Mapping[str, object]) -> Schema:
        """Return the schema that a YAML says.

        Raises:
            InputError: an unknown key, or what the constructor refuses.
        """
        known = ("columns", "label", "intercept", "formula")
        unknown = [str(key) for key in given if key not in known]
        if unknown or "columns" not in given:
            wrong = f"unknown key {', '.join(unknown)}" if unknown else "columns is missing"
            raise InputError(f"schema: {wrong}; the keys are {', '.join(known)}", unknown[0] if unknown else "columns")
        return cls(**given)  # type: ignore[arg-type]


def _feature(column: Column) -> Range | Levels:
    assert not isinstance(column, Counts)
    return column
