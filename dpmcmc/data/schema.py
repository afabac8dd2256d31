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
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

from dpmcmc.data import formula, tables
from dpmcmc.data.checks import Made, check_name, with_public_facts
from dpmcmc.data.column_kinds import Column, Counts, Levels, Range, column_of, to_yaml
from dpmcmc.data.tables import Table, Values
from dpmcmc.errors import DataError, InputError

# ----------------------------------------------------------------------------------------------------
# Public facts of every row that an encoder makes, which an inference from noisy sums of rows may use.
#
# No guarantee rests on them: a wrong declaration makes intervals wrong, never a release less private.


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
            raise InputError(
                "blocks: a one-hot block has no columns; leave it out", "blocks"
            )
        if self.blocks and self.constant is None:
            raise InputError(
                "blocks: one-hot blocks are declared relative to the intercept; give its column, constant"
            )
        if len(set(columns)) != len(columns) or self.constant in columns:
            raise InputError(
                "blocks: a column belongs to one block at most, and the intercept to none"
            )

    def check(self, num_features: int) -> None:
        """Raise ValueError where a declared column is beyond the row."""
        columns = [column for block in self.blocks for column in block] + list(
            self.nonnegative
        )
        for column in columns + ([] if self.constant is None else [self.constant]):
            if not 0 <= column < num_features:
                raise InputError(
                    f"structure: declares column {column}, and rows have {num_features}"
                )

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON values; :meth:`of_json` takes them."""
        return dataclasses.asdict(self)

    @classmethod
    def of_json(cls, facts: dict[str, Any]) -> Self:
        """Return the structure of :meth:`to_json`."""
        blocks = tuple(tuple(block) for block in facts["blocks"])
        return cls(
            **{**facts, "blocks": blocks, "nonnegative": tuple(facts["nonnegative"])}
        )

    @classmethod
    def of_columns(
        cls, columns: Sequence[str], *, nonnegative: Sequence[str] = (), unit_norm: bool
    ) -> RowStructure:
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


INTERCEPT = "intercept"


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
        formula: columns and interactions that are features, as in ``"income ~ age + C(job) + age:job"``; None: every
            column but the label.

    Raises:
        InputError: a label that is no column, a column that cannot be what it stands for, a formula that is not public.

    Example:
        >>> from dpmcmc.data import Levels, Range, Schema
        >>> columns = {"age": Range(17, 90), "job": Levels(["office", "field"]), "late": Levels(["no", "yes"])}
        >>> schema = Schema(columns, label="late")
        >>> schema.names
        ('age', 'job=office', 'job=field', 'intercept')
    """

    columns: Mapping[str, Column]
    label: str = ""
    intercept: bool = True
    formula: str | None = None
    #: Source columns of each block of features; two or more names are an interaction.
    terms: tuple[tuple[str, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = self.columns
        if not isinstance(given, Mapping) or not all(
            isinstance(name, str) and name for name in given
        ):
            raise InputError(
                "columns must map names to Range, Levels or Counts", "columns"
            )
        for name in given:
            check_name(name, "columns")
        object.__setattr__(
            self,
            "columns",
            {name: column_of(name, column) for name, column in given.items()},
        )
        terms: tuple[tuple[str, ...], ...] = tuple(
            (name,) for name in self.columns if name != self.label
        )
        if not isinstance(self.label, str) or not isinstance(self.formula, str | None):
            raise InputError("label, formula: must be texts", "formula")
        if self.formula is not None:
            check_name(self.formula, "formula")
            label, terms, intercept = formula.parsed(self.formula, tuple(self.columns))
            if label and self.label not in ("", label):
                raise InputError(
                    f"formula: its label is {label}, and label says {self.label}; give one",
                    "formula",
                )
            object.__setattr__(self, "label", label or self.label)
            object.__setattr__(self, "intercept", intercept)
        object.__setattr__(self, "terms", terms)
        if self.label not in self.columns:
            raise InputError(
                f"label: {self.label!r} is no column of {', '.join(self.columns)}",
                "label",
            )
        self._check()

    def _check(self) -> None:
        label = self.columns[self.label]
        few = isinstance(label, Levels) and (label.other or len(label.levels) < 2)
        if few or (isinstance(label, Levels | Range) and label.missing):
            raise InputError(
                "label: needs two levels or more, or a range, without other and missing",
                "label",
            )
        if not self.terms and not self.intercept:
            raise InputError(
                "columns: no feature is left; declare one, or an intercept", "columns"
            )
        for name in self._sources:
            if isinstance(self.columns[name], Counts):
                raise InputError(
                    f"{name}: counts are for labels; give a feature a range",
                    f"columns.{name}",
                )
            if name == self.label:
                raise InputError(
                    f"formula: the label {name} is a feature too; leave it out", "formula"
                )
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise InputError(
                f"columns: {', '.join(sorted(twice))} would name two features; rename one",
                "columns",
            )

    def __hash__(self) -> int:
        return hash(
            (tuple(self.columns.items()), self.label, self.intercept, self.formula)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema) or [*self.columns.items()] != [
            *other.columns.items()
        ]:
            return False
        return (self.label, self.intercept, self.formula) == (
            other.label,
            other.intercept,
            other.formula,
        )

    def with_formula(self, formula: str) -> Schema:
        """Return the schema whose features and label a formula chooses."""
        return replace(self, label="" if "~" in formula else self.label, formula=formula)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each encoded column, as in ``age``, ``job=office``, ``age:job=office``, ``intercept``."""
        return tuple(
            ":".join(parts) or INTERCEPT for block in self.blocks for parts in block
        )

    @functools.cached_property
    def own_names(self) -> tuple[str, ...]:
        """Name of each encoded column in its own units, ``log1p(income)`` on scale ``log1p``; else as in ``names``."""
        blocks = itertools.chain(*self.blocks)
        return tuple(":".join(map(self.own_name, parts)) or INTERCEPT for parts in blocks)

    def own_name(self, name: str) -> str:
        """Return what a column is called in its own units: ``log1p(NAME)`` on scale ``log1p``, else its name."""
        column = self.columns.get(name)
        return (
            f"log1p({name})"
            if isinstance(column, Range) and column.scale == "log1p"
            else name
        )

    @functools.cached_property
    def answers(self) -> tuple[tuple[str, ...], ...]:
        """Names that each encoded column answers to, which are its own, its term's, and those of its source columns."""
        out: list[tuple[str, ...]] = []
        for term, block in zip((*self.terms, ()), self.blocks, strict=False):
            out += [
                (":".join(parts), ":".join(term), *term) if term else (INTERCEPT,)
                for parts in block
            ]
        return tuple(out)

    @functools.cached_property
    def blocks(self) -> list[list[tuple[str, ...]]]:
        """Factors of each encoded column, block by block; none of the intercept's, the last block."""
        terms = (*self.terms, *([()] if self.intercept else []))
        parts = {
            name: [f"{name}{s}" for s in _feature(self.columns[name]).suffixes]
            for name in self._sources
        }
        return [
            list(itertools.product(*(parts[name] for name in term))) for term in terms
        ]

    @property
    def _sources(self) -> list[str]:
        """Columns that features are made of."""
        return list(dict.fromkeys(name for term in self.terms for name in term))

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
        blocks = len(self.blocks)
        scale = np.float32(1 / math.sqrt(blocks))
        while blocks * float(scale) ** 2 > 1:
            scale = np.nextafter(scale, np.float32(0))
        return float(scale)

    @functools.cached_property
    def structure(self) -> RowStructure:
        """Facts of every row that an inference from noisy sums may use."""
        hot: list[tuple[int, ...]] = []
        nonnegative: list[int] = []
        start = 0
        for term, block in zip(self.terms, self.blocks, strict=False):
            columns = tuple(range(start, start + len(block)))
            start += len(block)
            if all(isinstance(self.columns[name], Levels) for name in term):
                hot.append(columns)
            elif len(term) == 1:  # the indicator of a missing number
                nonnegative += columns[1:]
        only_levels = len(hot) == len(self.terms)
        if self.intercept:
            return RowStructure(start, tuple(hot), tuple(nonnegative), only_levels)
        return RowStructure(
            nonnegative=(*nonnegative, *itertools.chain(*hot)), unit_norm=only_levels
        )

    @functools.cached_property
    def outcome(self) -> Label:
        """Kind, classes and bounds of the encoded label."""
        kind = self.columns[self.label]
        if isinstance(kind, Counts):
            return Label(self.label, "count", bounds=(0.0, float(kind.largest)))
        if isinstance(kind, Range):
            return Label(self.label, "real", bounds=(-1.0, 1.0))
        count = len(kind.levels)
        return Label(self.label, "binary" if count == 2 else "classes", count, kind.texts)

    @property
    def facts(self) -> dict[str, object]:
        """Public facts that ``data/checks.py`` gives a target, a mechanism or a metric."""
        label = self.outcome
        return {
            "num_features": self.num_features,
            "num_classes": label.num_classes,
            "row_bound": self.row_bound,
            "label_bound": None if label.bounds is None else label.bounds[1],
            "structure": self.structure,
        }

    def with_public_facts(self, made: Made, model: object = None) -> Made:
        """Return a target, a mechanism or a metric that knows the facts; see ``data/checks.py``."""
        return with_public_facts(made, self.facts, model)

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

    def encode_counted(
        self, table: Table
    ) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Return the records of a table, and how many of its values lay outside the schema.

        The counts, column -> values clipped or sent to ``other``, are functions of private records: they are for the
        data holder alone.
        """
        found = tables.columns(tables.in_memory(table), [*self._sources, self.label])
        y, outside = self._labels(found[self.label])
        x, counts = self._rows(found)
        return {"x": x, "y": y}, {**counts, self.label: outside}

    def encode_features(self, table: Table) -> np.ndarray:
        """Return the feature rows (N, d), float32, of a table that needs no label; raises as :meth:`encode`."""
        return self._rows(tables.columns(tables.in_memory(table), self._sources))[0]

    def _rows(self, found: Mapping[str, Values]) -> tuple[np.ndarray, dict[str, int]]:
        if not found:
            raise DataError(
                "data: the schema has no feature but the intercept, so no column tells the number of rows."
            )
        encoded = {
            name: _feature(self.columns[name]).encode(found[name])
            for name in self._sources
        }
        count = len(next(iter(found.values())).values)
        x = np.full((count, self.num_features), self.row_scale, np.float32)
        start = 0
        for term in self.terms:
            block = np.full((count, 1), self.row_scale)
            for name in term:
                block = (block[:, :, None] * encoded[name].block[:, None, :]).reshape(
                    count, -1
                )
            x[:, start : start + block.shape[1]] = block
            start += block.shape[1]
        return x, {name: one.outside for name, one in encoded.items()}

    def _labels(self, column: Values) -> tuple[np.ndarray, int]:
        kind = self.columns[self.label]
        if isinstance(kind, Levels):
            return kind.codes(column)[0].astype(np.int32), 0
        if isinstance(kind, Range):
            scaled, outside = kind.scaled(column)
            return scaled.astype(np.float32), outside
        numbers = column.whole_numbers()
        inside = np.clip(numbers, 0, kind.largest)
        return inside.astype(np.int32), int((inside != numbers).sum())

    def decode_features(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the table, column name -> values (N,), that encoded rows (N, d) stand for.

        Rows that no table has are brought to the nearest value of each column: numbers into their range, blocks to
        their largest level.

        Raises:
            InputError: a column that is part of an interaction alone.
        """
        found = {}
        start = 0
        for term, block in zip(self.terms, self.blocks, strict=False):
            part = x[:, start : start + len(block)]
            start = start + len(block)
            if len(term) == 1:
                found[term[0]] = _feature(self.columns[term[0]]).decoded(
                    part / self.row_scale
                )
        lost = [name for name in self._sources if name not in found]
        if lost:
            raise InputError(
                f"decode: {', '.join(lost)} is part of an interaction alone; add it to the formula"
            )
        return found

    def decode(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Return the table that encoded records stand for: :meth:`decode_features`, and the label within its bounds."""
        kind = self.columns[self.label]
        if isinstance(kind, Levels):
            label = np.array(kind.texts, object)[np.asarray(y, int)]
        else:
            label = (
                kind.decoded(y[:, None])
                if isinstance(kind, Range)
                else np.clip(y, 0, kind.largest).astype(int)
            )
        return {**self.decode_features(x), self.label: label}

    def label_of(self, predicted: np.ndarray) -> np.ndarray:
        """Return predictions of encoded rows in the label's own units; of log(1 + label) on scale ``log1p``."""
        kind = self.columns[self.label]
        if not isinstance(kind, Range):
            return predicted
        middle, half = kind.middle_and_half
        return middle + half * predicted

    def to_original_units(self, draws: np.ndarray) -> np.ndarray:
        """Return coefficients of the columns in their own units, in the order of :attr:`names`.

        A coefficient of ``age`` is then per year, of a column on scale ``log1p`` per unit of log(1 + value), and of a
        real label in the label's units. A level's is its difference from the first level, whose own is 0. The
        intercept is the prediction where every number is 0 and every word its first level.

        Args:
            draws: (..., d) of a target with these rows, or (..., d, K) where the label has K > 2 classes.

        Raises:
            InputError: a term's own units need a term that the schema lacks, such as the intercept.
        """
        classes = self.outcome.kind == "classes"
        theta = np.asarray(draws, np.float64)
        theta = np.moveaxis(theta, -2, -1) if classes else theta
        middle = 0.0
        half = 1.0
        if self.outcome.kind == "real":
            middle, half = self.columns[self.label].middle_and_half  # type: ignore[union-attr]
        out = (
            theta
            @ (self._expanded(Levels) @ self._expanded(Range)).T
            * (half * self.row_scale)
        )
        if middle:
            out[..., self._index(())] += middle
        return np.moveaxis(out, -1, -2) if classes else out

    def _expanded(self, kind: type) -> np.ndarray:
        """Matrix to coefficients where every column of a kind is the sum that ``own_units`` states, (d, d)."""
        out = np.zeros((self.num_features, self.num_features))
        columns = itertools.count()
        there = [
            frozenset(term) for term in (*self.terms, *([()] if self.intercept else []))
        ]
        for term, block in zip((*self.terms, ()), self.blocks, strict=False):
            sums = {part: {part: 1.0} for parts in block for part in parts}
            for name in term:
                # Levels are compared where the term without them can take up the first one's effect.
                taken_up = kind is Range or frozenset(term) - {name} in there
                if isinstance(self.columns[name], kind) and taken_up:
                    sums |= _feature(self.columns[name]).own_units(name)
            for parts, column in zip(block, columns, strict=False):
                for chosen in itertools.product(*(sums[part].items() for part in parts)):
                    weight = math.prod(weight for _, weight in chosen)
                    if weight:
                        out[self._index(part for part, _ in chosen if part), column] += (
                            weight
                        )
        return out

    def _index(self, parts: Iterable[str]) -> int:
        """Return the encoded column that is the product of these parts."""
        wanted = frozenset(parts)
        if wanted not in self._places:
            missing = ":".join(sorted(wanted)) or INTERCEPT
            raise InputError(
                f"original units: need the term {missing}; add it to the schema"
            )
        return self._places[wanted]

    @functools.cached_property
    def _places(self) -> dict[frozenset[str], int]:
        """Factors of each encoded column -> its place, the first of columns with the same ones."""
        factors = [*map(frozenset, itertools.chain(*self.blocks))]
        return {parts: k for k, parts in reversed([*enumerate(factors)])}

    def to_yaml(self) -> dict[str, object]:
        """Return the schema as a YAML says it; :meth:`from_yaml` takes it back."""
        columns = {name: to_yaml(column) for name, column in self.columns.items()}
        out: dict[str, object] = {
            "columns": columns,
            "label": self.label,
            "intercept": self.intercept,
        }
        return out if self.formula is None else out | {"formula": self.formula}

    @classmethod
    def from_yaml(cls, given: Mapping[str, object]) -> Schema:
        """Return the schema that a YAML says.

        Raises:
            InputError: an unknown key, or what the constructor refuses.
        """
        try:
            return cls(**given)  # type: ignore[arg-type]
        except TypeError as error:  # an unknown key
            raise InputError(f"schema: {error}") from None


def _feature(column: Column) -> Range | Levels:
    assert not isinstance(column, Counts)
    return column
