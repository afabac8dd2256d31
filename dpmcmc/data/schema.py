"""Schema: public facts of a table's columns, by which rows become records.

    schema = Schema({"age": Range(17, 90), "job": Levels(["office", "field"], other=True),
                     "income": Levels(["low", "high"])}, label="income")
    schema.encode(frame)                          # {"x": float32 (N, d), "y": int32 (N,)}

Numbers go to [-1, 1] by their range, words to one column of 0 and 1 a level. Where a formula leaves out an intercept or
another term that a shift needs (``span.py``), a number is divided by the larger end of its range, and so is a label.
A row then has one block for each source column, of norm at most 1, and the intercept's 1. All k blocks are multiplied
by one public constant, the largest float32 c with k·c² <= 1, so that every row has norm at most 1. A row is encoded by
itself alone: nothing is learnt from the table, and rows are not normalised, because that would change what a
coefficient means.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from dpmcmc.data import formula, tables
from dpmcmc.data.checks import check_name
from dpmcmc.data.column_kinds import Column, Counts, Levels, Range, column_of, to_yaml
from dpmcmc.data.public_facts import Made, add_public_facts
from dpmcmc.data.span import Span
from dpmcmc.data.structure import THRESHOLD, RowStructure
from dpmcmc.data.tables import Table
from dpmcmc.data.terms import (
    Basis,
    Factor,
    Group,
    GroupEffect,
    clip_to_range,
    make_factors,
    read_exposure,
    read_weights,
)
from dpmcmc.data.values import Values
from dpmcmc.errors import DataError, InputError, UnsupportedCombination

INTERCEPT = "intercept"


@dataclass(frozen=True)
class Label:
    """The label of a record.

    Attributes:
        name: of its column.
        kind: ``binary`` (0 or 1, the last level), ``classes`` or ``ordered`` (0 to K − 1), ``count``, or ``real`` (the
            range mapped into [-1, 1]).
        num_classes: K, of levels.
        levels: names of the classes.
        bounds: of the encoded label, of ``count`` and ``real``.
    """

    name: str
    kind: Literal["binary", "classes", "ordered", "count", "real"]
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
            column but the label, the offset and the weights. It may hold splines, polynomials, groups and
            ``offset(log(exposure))`` (``formula.py``).
        offset: column whose log is added to the predictor of every record, such as an exposure; empty: none.
        weights: column of survey weights, by which log-likelihoods are multiplied; empty: none.
        mean_weight: public number that weights are divided by, such as their mean over the population; None: the end of
            their range. They are never divided by their own sum, which depends on every record.

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
    offset: str = ""
    weights: str = ""
    mean_weight: float | None = None
    #: Factors of each block of features, which are columns or made by the formula; two or more are an interaction.
    terms: tuple[tuple[str, ...], ...] = field(init=False, repr=False)
    #: Column whose log is the offset, by ``offset`` or by the formula; empty: none.
    exposure: str = field(init=False, repr=False)
    _factors: Mapping[str, Factor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = self.columns
        if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
            raise InputError("columns must map names to Range, Levels or Counts", "columns")
        for name in given:
            check_name(name, "columns")
        object.__setattr__(
            self,
            "columns",
            {name: column_of(name, column) for name, column in given.items()},
        )
        apart = (self.label, self.offset, self.weights)
        if not all(isinstance(name, str) for name in (*apart, self.formula or "")):
            raise InputError(
                "label, formula, offset, weights: must be texts; quote them in YAML",
                "formula",
            )
        terms: tuple[tuple[str, ...], ...] = tuple((name,) for name in self.columns if name not in apart)
        factors: dict[str, Any] = dict(self.columns)
        exposure = self.offset
        if self.formula is not None:
            check_name(self.formula, "formula")
            found = formula.parse_formula(self.formula, tuple(self.columns))
            label = found.label
            terms = found.terms
            intercept = found.intercept
            exposure = self.offset or found.exposure
            if found.exposure not in ("", exposure):
                raise InputError(
                    f"formula: its offset is log({found.exposure}), and offset says {exposure}; give one",
                    "formula",
                )
            factors |= make_factors(found, dict(self.columns))
            if label and self.label not in ("", label):
                raise InputError(
                    f"formula: its label is {label}, and label says {self.label}; give one",
                    "formula",
                )
            object.__setattr__(self, "label", label or self.label)
            object.__setattr__(self, "intercept", intercept)
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "exposure", exposure)
        object.__setattr__(self, "_factors", factors)
        if self.label not in self.columns:
            raise InputError(
                f"label: {self.label!r} is no column of {', '.join(self.columns)}",
                "label",
            )
        self._check()
        self._check_polynomials()
        self._check_leaves()

    def _check_leaves(self) -> None:
        """Refuse an offset or weights that are no such columns."""
        for about, name in (("offset", self.exposure), ("weights", self.weights)):
            if name and (name not in self.columns or name == self.label):
                raise InputError(
                    f"{about}: {name!r} is no column of the schema beside the label",
                    about,
                )
        if self.exposure:
            read_exposure(self.exposure, self.columns[self.exposure])
            if self.outcome.kind == "classes":
                raise InputError(
                    "offset: it adds to all classes of the label alike, which changes nothing; leave it out",
                    "offset",
                )
        if self.weights:
            column = self.columns[self.weights]
            read_weights(self.weights, column, self.mean_weight)
        elif self.mean_weight is not None:
            raise InputError("mean_weight: there are no weights; name their column", "mean_weight")

    def _check_polynomials(self) -> None:
        """Refuse polynomials without a constant, whose span would depend on where they are centred."""
        for name in self._used:
            one = self._factors[name]
            poly = isinstance(one, Basis) and one.call.function == "poly"
            if poly and not self.constant_sum.any():
                raise InputError(
                    f"formula: {name} needs an intercept, since its polynomials are made to go with one; take it in, "
                    "or add columns of the powers to the table and declare their ranges",
                    "formula",
                )

    def _check(self) -> None:
        label = self.columns[self.label]
        few = isinstance(label, Levels) and (label.other or len(label.levels) < 2)
        if few or (isinstance(label, Levels | Range) and label.missing):
            raise InputError(
                "label: needs two levels or more, or a range, without other and missing",
                "label",
            )
        if not self.terms and not self.intercept:
            raise InputError("columns: no feature is left; declare one, or an intercept", "columns")
        for name in self.sources:
            column = self.columns[name]
            if isinstance(column, Levels) and column.ordered:
                raise InputError(
                    f"columns: {name} is ordered, which only a label may be; leave ordered out",
                    "columns",
                )
            if isinstance(column, Counts):
                raise InputError(
                    f"{name}: counts are for labels; give a feature a range",
                    f"columns.{name}",
                )
            if name == self.label:
                raise InputError(f"formula: the label {name} is a feature too; leave it out", "formula")
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise InputError(
                f"columns: {', '.join(sorted(twice))} would name two features; rename one",
                "columns",
            )

    def __hash__(self) -> int:
        return hash((tuple(self.columns.items()), self._said))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema) or [*self.columns.items()] != [*other.columns.items()]:
            return False
        return self._said == other._said

    @property
    def _said(self) -> tuple[object, ...]:
        """All that is given beside the columns."""
        own = (self.label, self.intercept, self.formula)
        return (*own, self.offset, self.weights, self.mean_weight)

    def with_formula(self, formula: str) -> Schema:
        """Return the schema whose features and label a formula chooses."""
        return replace(self, label="" if "~" in formula else self.label, formula=formula)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each encoded column, as in ``age``, ``job=office``, ``age:job=office``, ``intercept``.

        Those of made factors are as in ``bs(age)[1]``, ``1|clinic=north``, ``age|clinic=north``.
        """
        return tuple(self._joined(parts) or INTERCEPT for block in self.blocks for parts in block)

    def _joined(self, parts: tuple[str, ...]) -> str:
        """Return the name of a product; a slope of groups is written ``age|clinic=north``."""
        *slopes, last = parts or ("",)
        if slopes and last in self._group_parts:
            return ":".join(slopes) + last.removeprefix("1")
        return ":".join(parts)

    @functools.cached_property
    def _group_parts(self) -> frozenset[str]:
        """Encoded columns of groups, and the groups' own names."""
        groups = {name: one for name, one in self._factors.items() if isinstance(one, Group)}
        ends = (f"{name}{end}" for name, one in groups.items() for end in one.suffixes)
        return frozenset([*groups, *ends])

    @functools.cached_property
    def own_names(self) -> tuple[str, ...]:
        """Name of each encoded column in its own units, ``log1p(income)`` on scale ``log1p``; else as in ``names``."""
        blocks = itertools.chain(*self.blocks)
        own = (tuple(map(self.own_name, parts)) for parts in blocks)
        names = tuple(self._joined(parts) or INTERCEPT for parts in own)
        return names + tuple(f"{self.label}>{level}" for level in self._thresholds)

    @property
    def _thresholds(self) -> tuple[str, ...]:
        """Levels of an ordered label that have a threshold beside the intercept's."""
        return self.outcome.levels[1:-1] if self.outcome.kind == "ordered" else ()

    def own_name(self, name: str) -> str:
        """Return what an encoded column is called in its own units.

        It is ``log1p(NAME)`` on scale ``log1p``, ``bs(log1p(NAME))[1]`` of a spline on it, and else its name.
        """
        function, _, end = name.rpartition(")[")
        basis = self._factors.get(f"{function})")
        if isinstance(basis, Basis):
            return f"{basis.call.function}({self.own_name(basis.source)})[{end}"
        column = self.columns.get(name)
        return f"log1p({name})" if isinstance(column, Range) and column.scale == "log1p" else name

    @functools.cached_property
    def answers(self) -> tuple[tuple[str, ...], ...]:
        """Names that each encoded column answers to, which are its own, its term's, and those of its source columns."""
        out: list[tuple[str, ...]] = []
        for term, block in zip((*self.terms, ()), self.blocks, strict=False):
            of_term = [self._joined(term), *term, *map(self._source, term)]
            out += [tuple(dict.fromkeys([self._joined(parts), *of_term])) if term else (INTERCEPT,) for parts in block]
        return tuple(out)

    @functools.cached_property
    def _span(self) -> Span:
        """The features and the intercept, the last term."""
        intercept: list[tuple[str, ...]] = [()] if self.intercept else []
        return Span((*self.terms, *intercept), self._factors)

    @property
    def blocks(self) -> list[list[tuple[str, ...]]]:
        """Factors of each encoded column, block by block; none of the intercept's, the last block."""
        return self._span.blocks

    @property
    def _used(self) -> list[str]:
        """Factors that features are products of."""
        return list(dict.fromkeys(name for term in self.terms for name in term))

    @property
    def sources(self) -> list[str]:
        """Columns of the table that features are made of."""
        return list(dict.fromkeys(map(self._source, self._used)))

    def _source(self, factor: str) -> str:
        """Return the column of the table that a factor is made of."""
        made = self._factors[factor]
        return made.source if isinstance(made, Basis | Group) else factor

    @functools.cached_property
    def group_effects(self) -> tuple[GroupEffect, ...]:
        """Effects that differ by group, ``(1|g)`` and ``(x|g)``, each with the places of its encoded columns."""
        found = []
        start = 0
        for term, block in zip(self.terms, self.blocks, strict=False):
            columns = tuple(range(start, start + len(block)))
            start += len(block)
            group = self._factors[term[-1]]
            if isinstance(group, Group):
                found.append(GroupEffect(self._joined(term), group.source, columns))
        return tuple(found)

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
            factors = [self._factors[name] for name in term]
            if all(isinstance(one, Levels | Group) for one in factors):
                hot.append(columns)
            elif isinstance(factors[0], Basis):
                nonnegative += columns if factors[0].call.function == "bs" else ()
            elif len(term) == 1:  # the indicator of a missing number
                nonnegative += columns[1:]
        only_levels = len(hot) == len(self.terms)
        if self.intercept:
            return RowStructure(start, tuple(hot), tuple(nonnegative), only_levels)
        return RowStructure(nonnegative=(*nonnegative, *itertools.chain(*hot)), unit_norm=only_levels)

    @functools.cached_property
    def outcome(self) -> Label:
        """Kind, classes and bounds of the encoded label."""
        kind = self.columns[self.label]
        if isinstance(kind, Counts):
            return Label(self.label, "count", bounds=(0.0, float(kind.largest)))
        if isinstance(kind, Range):
            return Label(self.label, "real", bounds=(-1.0, 1.0))
        count = len(kind.levels)
        several: Literal["ordered", "classes"] = "ordered" if kind.ordered else "classes"
        return Label(self.label, "binary" if count == 2 else several, count, kind.texts)

    @property
    def facts(self) -> dict[str, object]:
        """Public facts that ``data/public_facts.py`` gives a target, a mechanism or a metric."""
        label = self.outcome
        return {
            "num_features": self.num_features,
            "num_classes": label.num_classes,
            "row_bound": self.row_bound,
            "label_bound": None if label.bounds is None else label.bounds[1],
            "structure": self.structure,
            **self.leaf_facts,
        }

    @functools.cached_property
    def leaf_facts(self) -> dict[str, float]:
        """Bound of a record's ``offset``, and the factor of its ``weight``."""
        out = {}
        if self.exposure:
            out["offset_bound"] = float(np.abs(self._offset_ends).max())
        if self.weights:
            high = self.columns[self.weights].high  # type: ignore[union-attr]
            out["weight_scale"] = float(high / (self.mean_weight or high))
        return out

    @property
    def _offset_ends(self) -> np.ndarray:
        """Ends of an encoded offset, (2,) float32."""
        column = self.columns[self.exposure]
        return self._as_offset(np.array([column.low, column.high]))  # type: ignore[union-attr]

    def _as_offset(self, exposure: np.ndarray) -> np.ndarray:
        """Return the log in units of the encoded label, float32."""
        return (np.log(exposure) / self._label_units[1]).astype(np.float32)

    @functools.cached_property
    def _label_kind(self) -> Column:
        """The label's column; a real one has no shift where the features have no constant that takes it up."""
        kind = self.columns[self.label]
        if isinstance(kind, Range) and not self.constant_sum.any():
            return kind.from_zero
        return kind

    @property
    def _label_units(self) -> tuple[float, float]:
        """Label of the encoded label 0, and the difference that 1 makes to it."""
        kind = self._label_kind
        return kind.middle_and_half if isinstance(kind, Range) else (0.0, 1.0)

    def with_public_facts(self, made: Made, model: object = None) -> Made:
        """Return a target, a mechanism or a metric that knows the facts; see ``data/public_facts.py``.

        Raises:
            UnsupportedCombination: a target that takes no offset, or no weights, of a schema that has them.
        """
        out = add_public_facts(made, self.facts)
        for fact in self.leaf_facts if model is None else ():
            knows = getattr(out, fact, None) is not None
            if not knows and not getattr(out, "takes_every_leaf", False):
                raise UnsupportedCombination(
                    f"target: {type(made).__name__} takes no {fact.partition('_')[0]}, which the schema has; take a "
                    f"regression of this library, or one that states {fact}",
                    "target",
                )
        return out

    def encode(self, table: Table) -> dict[str, np.ndarray]:
        """Return the records of a table.

        Args:
            table: pandas, polars or Arrow's, arrays by name, or the path of a CSV or Parquet file.

        Returns:
            ``{"x": float32 (N, d), "y": (N,)}``; y is float32 for a real label, else int32. With an offset there is
            ``"offset"``, float32 (N,), the log of the exposure within its range, over half the width of a real label's
            range. With weights there is ``"weight"``, float32 (N,), in [0, 1]: the weight over the end of its range.

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
        found = self._found(table, self.label, self.exposure, self.weights)
        y, outside = self._labels(found[self.label])
        x, counts = self._rows(found)
        records = {"x": x, "y": y}
        if self.exposure:
            records["offset"], counts[self.exposure] = self._offsets(found)
        if self.weights:
            column = self.columns[self.weights]
            assert isinstance(column, Range)
            weight = clip_to_range(column, found[self.weights], positive=False)
            records["weight"] = (weight.block / column.high).astype(np.float32)
            counts[self.weights] = weight.outside
        return records, {**counts, self.label: outside}

    def encode_features(self, table: Table) -> np.ndarray:
        """Return the feature rows (N, d), float32, of a table that needs no label; raises as :meth:`encode`."""
        return self._rows(self._found(table))[0]

    def encode_inputs(self, table: Table) -> dict[str, np.ndarray]:
        """Return all that a prediction needs: ``x``, (N, d), and ``offset``, (N,), where there is one."""
        found = self._found(table, self.exposure)
        inputs = {"x": self._rows(found)[0]}
        return inputs | ({"offset": self._offsets(found)[0]} if self.exposure else {})

    def _found(self, table: Table, *more: str) -> dict[str, Values]:
        """Return the columns that features are made of, and more."""
        names = [*self.sources, *(name for name in more if name)]
        return tables.columns(tables.load_table(table), list(dict.fromkeys(names)))

    def _offsets(self, found: Mapping[str, Values]) -> tuple[np.ndarray, int]:
        column = self.columns[self.exposure]
        assert isinstance(column, Range)
        inside = clip_to_range(column, found[self.exposure], positive=True)
        return self._as_offset(inside.block).clip(*self._offset_ends), inside.outside

    def _rows(self, found: Mapping[str, Values]) -> tuple[np.ndarray, dict[str, int]]:
        if not found:
            raise DataError("data: the schema has no feature but the intercept, so no column tells the number of rows.")
        pairs = [[*zip(*one, strict=True)] for one in zip(self.terms, self._span.encoders, strict=False)]
        encoded = {
            (name, encoder): encoder.encode(found[self._source(name)]) for name, encoder in itertools.chain(*pairs)
        }
        count = len(next(iter(found.values())).values)
        x = np.full((count, self.num_features), self.row_scale, np.float32)
        start = 0
        for factors in pairs:
            block = np.full((count, 1), self.row_scale)
            for factor in factors:
                columns = encoded[factor].block
                block = (block[:, :, None] * columns[:, None, :]).reshape(count, -1)
            x[:, start : start + block.shape[1]] = block
            start += block.shape[1]
        return x, {self._source(name): one.outside for (name, _), one in encoded.items()}

    def _labels(self, column: Values) -> tuple[np.ndarray, int]:
        kind = self._label_kind
        if isinstance(kind, Levels):
            return kind.codes(column)[0].astype(np.int32), 0
        if isinstance(kind, Range):
            scaled, outside = kind.scaled(column)
            return scaled.astype(np.float32), outside
        numbers = column.whole_numbers()
        inside = np.clip(numbers, 0, kind.largest)
        return inside.astype(np.int32), int((inside != numbers).sum())

    def label_of(self, predicted: np.ndarray) -> np.ndarray:
        """Return predictions of encoded rows in the label's own units; of log(1 + label) on scale ``log1p``."""
        middle, half = self._label_units
        return middle + half * predicted

    def to_original_units(self, draws: np.ndarray) -> np.ndarray:
        """Return coefficients of the columns in their own units, in the order of :attr:`names`.

        A coefficient of ``age`` is then per year, of a column on scale ``log1p`` per unit of log(1 + value), and of a
        real label in the label's units. A level's is its difference from the first level, whose own is 0, where the
        formula has the term without that factor; in ``y ~ 0 + job`` it is the prediction for that job. One of a
        spline or a polynomial is that of its function (``terms.py``). A group's is its own effect on the link's scale,
        compared with no other group's. The intercept is the prediction where every number is 0, every word its first
        level and every made column 0; splines are 0 at the lower end of the range.

        Thresholds of an ordered label stand last. Each is like the intercept, which is the log odds of being above the
        first level, for another level.

        Args:
            draws: (..., d) of a target with these rows, (..., d, K) where the label has K > 2 classes, or
                (..., d + K − 2) where these are ordered.
        """
        classes = self.outcome.kind == "classes"
        theta = np.asarray(draws, np.float64)
        theta = np.moveaxis(theta, -2, -1) if classes else theta
        shifts = theta[..., theta.shape[-1] - len(self._thresholds) :]
        theta = theta[..., : theta.shape[-1] - len(self._thresholds)]
        middle, half = self._label_units
        out = theta @ self._span.own.T * (half * self.row_scale)
        out += middle * self.constant_sum
        if self._thresholds:
            constant = self.constant_sum.argmax()
            first = out[..., [constant]] * self.constant_sum[constant]
            shifts = THRESHOLD * self.row_bound * shifts
            return np.concatenate([out, first + shifts], axis=-1)
        return np.moveaxis(out, -1, -2) if classes else out

    @property
    def first_levels(self) -> list[int]:
        """Places of the columns whose coefficient in its own unit is 0, since others are compared with them."""
        return np.flatnonzero(~self._span.own.any(axis=1)).tolist()

    @property
    def constant_sum(self) -> np.ndarray:
        """Weights (d,) of the own columns whose sum is 1 in every row, as the intercept; 0 where there are none."""
        return self._span.constant

    def to_yaml(self) -> dict[str, object]:
        """Return the schema as a YAML says it; :meth:`from_yaml` takes it back."""
        columns = {name: to_yaml(column) for name, column in self.columns.items()}
        out: dict[str, object] = {
            "columns": columns,
            "label": self.label,
            "intercept": self.intercept,
        }
        more = {
            "formula": self.formula,
            "offset": self.offset or None,
            "weights": self.weights or None,
            "mean_weight": self.mean_weight,
        }
        return out | {name: one for name, one in more.items() if one is not None}

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
