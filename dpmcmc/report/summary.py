"""Coefficients as tables and figures show them: by name, in the units of the columns, each class relative to the first.

A softmax regression has a coefficient for every class, and data identify only their differences. So a summary shows
differences from the first class; ``draws.nc`` holds the model's own parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError, printable
from dpmcmc.inference import convergence
from dpmcmc.inference.names import flat
from dpmcmc.planning.description import INTERVALS, Verdict, html_table
from dpmcmc.report.effects import decimals
from dpmcmc.report.forest import Forest, Spans, picture
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.per_owner import PerOwner
from dpmcmc.targets.softmax import SoftmaxRegression
from dpmcmc.targets.tempered import untempered

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Shown(NamedTuple):
    """Draws as tables and figures show them.

    Attributes:
        names: of the numbers.
        numbers: (chains, draws, numbers); the first ones where there are many.
        total: of numbers.
        own_units: whether they are in the units of the columns before encoding.
        said: (label, sentence) pairs that explain the numbers.
        spans: of the numbers in their own units; None of others.
    """

    names: list[str]
    numbers: np.ndarray
    total: int
    own_units: bool
    said: tuple[tuple[str, str], ...]
    spans: Spans | None = None


class Reading(NamedTuple):
    """How draws are shown.

    Attributes:
        target: their model.
        schema: public facts of the table, or None.
        columns: names of the columns of the records, or None.
        original_units: whether in the units of the columns before encoding; None: where these are known.
    """

    target: Target
    schema: Schema | None
    columns: Sequence[str] | None
    original_units: bool | None = None

    def of(self, draws: PyTree, most: int | None = None) -> Shown:
        """Return draws, leaves (chains, draws, ...), as they are shown; the first ``most`` numbers, or all.

        Raises:
            InputError: original units, which are not known here.
        """
        draws, units, own = self.in_units(draws)
        columns = self.columns
        said = [("units", units)]
        spans = None
        if own and self.schema is not None:
            columns = self.schema.own_names
            spans = Spans.of(self.schema)
        classes = self._classes(draws)
        if classes:
            reference, *others = classes
            said.insert(
                0,
                (
                    "classes",
                    f"each is compared with the first, '{reference}', whose coefficients are 0",
                ),
            )
            draws = draws[..., 1:] - draws[..., :1]
            rows = columns or [f"theta[{j}]" for j in range(draws.shape[2])]
            names = [f"{row}, {other} − {reference}" for row in rows for other in others][:most]
            numbers = draws.reshape(*draws.shape[:2], -1)[..., :most]
            if spans is not None:
                spans = spans._replace(factors=np.repeat(spans.factors, len(others)))
        else:
            names, numbers = flat(draws, columns, most)
        total = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(draws))
        if spans is not None:
            spans = spans._replace(factors=spans.factors[:most])
        return Shown(names, numbers, total, own, tuple(said), spans)

    def directions(self, draws: PyTree, most: int | None = None) -> np.ndarray | None:
        """Return the weights of the model's coefficients in each number that is shown, (numbers, coefficients).

        Args:
            draws: (chains, draws, ...); None is returned where they are no one array.
            most: as of :meth:`of`.
        """
        if not _is_array(draws):
            return None
        shape = draws.shape[2:]
        size = math.prod(shape)
        each = np.concatenate([np.zeros((1, size)), np.eye(size)]).reshape(1, -1, *shape)
        numbers = self.of(each, most).numbers[0]
        return (numbers[1:] - numbers[0]).T

    def _classes(self, draws: PyTree) -> Sequence[str]:
        """Return the classes of a softmax regression's draws, the reference first; none of other draws."""
        if not isinstance(self._model, SoftmaxRegression) or not _is_array(draws) or np.ndim(draws) != 4:
            return ()
        count = draws.shape[-1]
        levels = () if self.schema is None else self.schema.outcome.levels
        return levels if len(levels) == count else [f"class {k}" for k in range(count)]

    @property
    def _model(self) -> Target:
        """Return the model of one row, without the targets that wrap it."""
        model = untempered(self.target)
        return model.target if isinstance(model, PerOwner) else model

    def in_units(self, draws: PyTree) -> tuple[PyTree, str, bool]:
        """Return (draws, units in words, whether these are the columns' own)."""
        schema = self.schema
        asked = self.original_units
        known = schema is not None and _is_array(draws)
        if asked and not known:
            raise InputError(
                "original_units: are known of a linear model whose plan has a schema",
                "original_units",
            )
        if schema is None or not known or not (asked or isinstance(self._model, GeneralisedLinear)):
            return (
                draws,
                "of the model's parameters, for rows as the target takes them",
                False,
            )
        encoded = "of the encoded columns: a range is mapped into [-1, 1], a level is 0 or 1, and every row is "
        encoded += f"multiplied by {schema.row_scale:.3g}"
        if asked is False:
            return draws, encoded, False
        own = schema.to_original_units(np.asarray(draws))
        units = "of the columns as they were before encoding; a level is compared with the first of its column, "
        units += "unless that one has a coefficient too"
        name = schema.own_name(schema.label)
        return (
            own,
            units if name == schema.label else f"{units}; the label is {name}",
            True,
        )


def _is_array(draws: PyTree) -> bool:
    return isinstance(draws, np.ndarray | jax.Array)


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """Draws of parameters that may be reported, by name.

    Attributes:
        names: of the parameters.
        draws: (draws, parameters).
        units: of the parameters, in words.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.report.summary import Posterior
        >>> posterior = Posterior(("age", "intercept"), np.array([[1.0, 0.0], [3.0, 0.5]]), "years")
        >>> posterior.mean
        array([2.  , 0.25])
        >>> posterior["age"]
        array([1., 3.])
        >>> posterior.intervals(0.9).shape
        (2, 2)
    """

    names: tuple[str, ...]
    draws: np.ndarray
    units: str

    @classmethod
    def of(cls, shown: Shown) -> Posterior:
        """Return the posterior of draws as they are shown."""
        numbers = shown.numbers.reshape(-1, shown.numbers.shape[2])
        return cls(tuple(shown.names), numbers, dict(shown.said)["units"])

    @property
    def mean(self) -> np.ndarray:
        """Means, (parameters,)."""
        return self.draws.mean(axis=0)

    @property
    def std(self) -> np.ndarray:
        """Standard deviations, (parameters,)."""
        return self.draws.std(axis=0, ddof=min(1, len(self.draws) - 1))

    def intervals(self, level: float = 0.9) -> np.ndarray:
        """Return central intervals, (parameters, 2).

        Raises:
            ValueError: a level outside (0, 1).
        """
        return np.quantile(self.draws, _tails(level), axis=0).T

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the draws of a parameter, (draws,).

        Raises:
            KeyError: no parameter has the name.
        """
        if name not in self.names:
            raise KeyError(no_parameter(name, self.names))
        return self.draws[:, self.names.index(name)]

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:_NAMED])
        more = ", ..." if len(self.names) > _NAMED else ""
        return printable(f"Posterior({len(self.draws):,} draws of {shown}{more}; {self.units})")


#: Parameters that a posterior names in print.
_NAMED = 6


def no_parameter(name: str, names: Sequence[str]) -> str:
    """Return the refusal of a name that no parameter has."""
    return f"{name}: no parameter has this name; the names are {', '.join(names[:ROWS])}"


# ----------------------------------------------------------------------------------------------------
# A table of each parameter's mean, spread and quantiles, with the verdict on the draws.

#: Rows that are printed and drawn, at most.
ROWS = 150


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """Mean, spread and quantiles of each parameter; ``print`` shows the table, and the verdict under it.

    Attributes:
        names: of the parameters.
        mean, std: of the draws, (parameters,).
        low, high: ends of the central range that holds a share ``level`` of the draws, (parameters,).
        level: of that range.
        intervals: whether the range may be reported as an interval of the parameter.
        said: (label, sentence) pairs of the verdict.
        total: number of parameters, of which the summary may have the first.
        ess, rhat: of each parameter, (parameters,), where the draws are chains; else None.
        own_units: whether numbers are in the units of the columns before their encoding.
        spans: of the columns, where numbers are in their units; else None.
        from_path: whether the draws are those of a posterior that follows from the path of a chain.
        weak: names of the parameters of which the releases say too little for an interval.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray
    level: float
    intervals: bool
    said: tuple[tuple[str, str], ...]
    total: int
    ess: np.ndarray | None = None
    rhat: np.ndarray | None = None
    own_units: bool = False
    spans: Spans | None = None
    from_path: bool = False
    weak: tuple[str, ...] = ()

    @classmethod
    def of_draws(
        cls,
        shown: Shown,
        level: float,
        verdict: Verdict,
        chains: bool,
        weak: Sequence[str] = (),
    ) -> Summary:
        """Return the summary of draws.

        Args:
            shown: the draws as they are shown.
            level: of the range.
            verdict: on the draws.
            chains: whether they are, so that they have R-hat and ESS.
            weak: names of the parameters of which the releases say too little for an interval, while others may be
                reported.

        Raises:
            ValueError: a level outside (0, 1).
        """
        numbers = shown.numbers
        every = numbers.reshape(-1, numbers.shape[2]).astype(np.float64)
        low, high = np.quantile(every, _tails(level), axis=0)
        ess, rhat = convergence.each(numbers) if chains else (None, None)
        moments = every.mean(axis=0), every.std(axis=0, ddof=min(1, len(every) - 1))
        usable = INTERVALS in verdict.usable_for
        names = tuple(shown.names)
        said = (*_said(verdict), *_weak_said(weak), *shown.said)
        return cls(
            names,
            *moments,
            low,
            high,
            level,
            usable,
            said,
            shown.total,
            ess,
            rhat,
            shown.own_units,
            shown.spans,
            verdict.from_path,
            tuple(weak),
        )

    def to_dict(self) -> dict[str, list[str] | list[float] | list[bool]]:
        """Return the columns of the table, as ``pandas.DataFrame`` takes them.

        ``usable`` says of each parameter whether its interval may be reported.
        """
        usable = [self.intervals and name not in self.weak for name in self.names]
        return {"name": list(self.names)} | self._numbers() | {"usable": usable}

    def _numbers(self) -> dict[str, list[float]]:
        """Return the columns of numbers."""
        tails = [f"{100 * tail:g} %" + ("" if self.intervals else " of draws") for tail in _tails(self.level)]
        numbers = dict(
            zip(
                ["mean", "sd", *tails],
                [self.mean, self.std, self.low, self.high],
                strict=True,
            )
        )
        if self.ess is not None and self.rhat is not None:
            numbers |= {"ESS": self.ess, "R-hat": self.rhat}
        return {name: values.tolist() for name, values in numbers.items()}

    def __getitem__(self, name: str) -> dict[str, float]:
        """Return the row of a parameter.

        Raises:
            KeyError: no parameter has the name.
        """
        if name not in self.names:
            raise KeyError(no_parameter(name, self.names))
        row = self.names.index(name)
        return {column: values[row] for column, values in self._numbers().items()}

    def __len__(self) -> int:
        return len(self.names)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return (titles, rows) of the table in print, at most 150 rows."""
        places = [decimals(std) for std in self.std[:ROWS]]
        titles = ["name", *self._numbers()]
        rows = []
        for name, values, places_of_row in zip(
            self.names, zip(*self._numbers().values(), strict=True), places, strict=False
        ):
            formats = [{"ESS": ".0f", "R-hat": ".3f"}.get(title, f".{places_of_row}f") for title in titles[1:]]
            rows.append(
                [
                    printable(name),
                    *(f"{v:{form}}".replace("nan", "–") for v, form in zip(values, formats, strict=True)),
                ]
            )
        return titles, rows

    def __str__(self) -> str:
        titles, rows = self.cells()
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in (titles, *rows)
        ]
        left_out = self.total - len(rows)
        lines.append(f"{left_out} more parameters are not shown\n" if left_out else "")
        return "\n".join([*lines, *(printable(f"{label:<12} {text}") for label, text in self.said)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        titles, rows = self.cells()
        return html_table(rows, titles) + html_table(self.said)

    def forest(self, most: int = ROWS) -> Forest:
        """Return the first ``most`` numbers on one axis: effects over the spans of their columns in own units."""
        factors = 1.0 if self.spans is None else self.spans.factors[:most]
        mean = self.mean[:most] * factors
        if not self.intervals:
            return Forest.of(mean, mean, mean)
        return Forest.of(mean, self.low[:most] * factors, self.high[:most] * factors)

    @property
    def axis_label(self) -> str:
        """Name of the axis of :meth:`forest`."""
        if self.spans is not None:
            return self.spans.label
        units = dict(self.said).get("units", "")
        encoded = units.startswith("of the encoded columns")
        return "coefficient of the encoded column" if encoded else "value of the parameter"

    def plot(self) -> Figure:
        """Return a Matplotlib figure: a line for each parameter from ``low`` to ``high`` with its mean.

        In own units the axis has the change over half a column's range or for a level, and numbers in own units stand
        beside the lines. Where intervals may not be reported it has the means alone, and says so.
        """
        forest = self.forest()
        texts = []
        if self.own_units:
            for (_, *cells), place in zip(self.cells()[1], forest.mean, strict=True):
                ends = f" [{cells[2]}, {cells[3]}]" if self.intervals else ""
                absent = "; not on the axis" if np.isnan(place) else ""
                texts.append(f"{cells[0]}{ends}{absent}")
        shown = f"mean and {100 * self.level:g} % interval"
        if not self.intervals:
            shown = "means of the draws; their verdict refuses intervals"
        label = self.axis_label
        if texts:
            label += "\nnumbers at the right: per unit of the column"
        names = list(self.names[:ROWS])
        return picture(forest, names, texts, label, shown, self.intervals)


def _tails(level: float) -> tuple[float, float]:
    """Return the shares of draws below the two ends of a central range.

    Raises:
        ValueError: a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise InputError(f"level must be in (0, 1), got {level}", "level")
    return round((1 - level) / 2, 12), round((1 + level) / 2, 12)


def _weak_said(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return what is said of parameters that have no interval; nothing where there are none."""
    if not names:
        return ()
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    text = f"{', '.join(names[:_NAMED])}{more}: the releases say too little of them; do not report their intervals"
    return (("no interval", text),)


def _said(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    return (
        ("usable for", " and ".join(verdict.usable_for) or "nothing"),
        *verdict.reasons.items(),
    )
