"""A posterior by name, and the table of each parameter's mean, spread and quantiles, with the verdict on the draws.

``coefficients.py`` decides which numbers are shown, and in which units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.errors import InputError, printable
from dpmcmc.inference import convergence
from dpmcmc.inference.evidence import CALLED, REFUSED_WITH_ALL, IntervalUse
from dpmcmc.planning.description import html_table
from dpmcmc.planning.permitted_uses import Verdict
from dpmcmc.report.coefficients import Shown
from dpmcmc.report.effects import decimals
from dpmcmc.report.forest import Forest, Spans, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        uses: for what the interval of each parameter is (:class:`~dpmcmc.inference.evidence.IntervalUse`).
        path: of the iterates of the chain that the posterior follows from, where these are draws of one by themselves.
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
    uses: tuple[IntervalUse, ...] = ()
    path: Summary | None = None

    @classmethod
    def of_draws(
        cls,
        shown: Shown,
        level: float,
        verdict: Verdict,
        chains: bool,
        uses: Sequence[IntervalUse],
        path: Summary | None = None,
    ) -> Summary:
        """Return the summary of draws.

        Args:
            shown: the draws as they are shown.
            level: of the range.
            verdict: on the draws.
            chains: whether they are, so that they have R-hat and ESS.
            uses: for what the interval of each parameter is.
            path: of iterates that stand beside the draws.

        Raises:
            ValueError: a level outside (0, 1).
        """
        numbers = shown.numbers
        every = Posterior(tuple(shown.names), numbers.reshape(-1, numbers.shape[2]).astype(np.float64), "")
        low, high = every.intervals(level).T
        ess, rhat = convergence.each(numbers) if chains else (None, None)
        return cls(
            every.names,
            every.mean,
            every.std,
            low,
            high,
            level,
            verdict.intervals.usable,
            (
                *verdict.permissions(),
                *_use_said(every.names, uses),
                *(() if path is None else (_beside(path, every.mean, every.std, high - low),)),
                *shown.said,
            ),
            shown.total,
            ess,
            rhat,
            shown.own_units,
            shown.spans,
            verdict.from_path,
            tuple(uses),
            path,
        )

    def to_dict(self) -> dict[str, list[str] | list[float]]:
        """Return the columns of the table, as ``pandas.DataFrame`` takes them.

        ``use`` says of each interval whether it may be reported: ``yes``; ``prior``, it is mostly the prior's; ``no``.
        """
        uses: list[str] = [one.use for one in self.uses]
        return {"name": list(self.names)} | self._numbers() | {"use": uses}

    def _numbers(self) -> dict[str, list[float]]:
        """Return the columns of numbers."""
        tails = [f"{100 * tail:g} %" + ("" if self.intervals else " of draws") for tail in _tails(self.level)]
        numbers = {"mean": self.mean, "sd": self.std, tails[0]: self.low, tails[1]: self.high}
        if self.ess is not None and self.rhat is not None:
            numbers |= {"ESS": self.ess, "R-hat": self.rhat}
        if self.path is not None:
            numbers |= {f"{tails[0]} of path": self.path.low, f"{tails[1]} of path": self.path.high}
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
        columns = self._numbers()
        digits = {"ESS": 0, "R-hat": 3}
        rows = []
        for name, use, std, *values in zip(self.names[:ROWS], self.uses, self.std, *columns.values(), strict=False):
            places = [digits.get(title, decimals(std)) for title in columns]
            texts = (f"{value:.{place}f}" for value, place in zip(values, places, strict=True))
            said = [use.use] if self.intervals else []
            rows.append([printable(name), *(text.replace("nan", "–") for text in texts), *said])
        return ["name", *columns, *(["use"] if self.intervals else [])], rows

    @property
    def table(self) -> str:
        """The table as text, without the verdict."""
        titles, rows = self.cells()
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in (titles, *rows)
        ]
        left_out = self.total - len(rows)
        more = [f"{left_out} more parameters are not shown"] if left_out else []
        return "\n".join([*lines, *more])

    def __str__(self) -> str:
        return "\n".join([self.table, "", *(printable(f"{label:<12} {text}") for label, text in self.said)])

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


def _beside(path: Summary, mean: np.ndarray, std: np.ndarray, width: np.ndarray) -> tuple[str, str]:
    """Return what intervals of a path's iterates differ by from those of the posterior that follows from the path."""
    some = std > 0  # the level that others are compared with is 0
    wide = float(np.median((path.high - path.low)[some] / width[some]))
    away = float(np.max(np.abs(path.mean - mean)[some] / std[some]))
    said = f"iterates mix at temperature 1: their own intervals are {wide:.2f} times as wide (median), and their means"
    return "path", f"{said} at most {away:.2g} standard deviations away"


def _use_said(names: Sequence[str], uses: Sequence[IntervalUse]) -> list[tuple[str, str]]:
    """Return what is said of parameters whose intervals are not to be reported, by why; nothing where all are."""
    alike: dict[IntervalUse, list[str]] = {}
    for name, use in zip(names, uses, strict=True):
        alike.setdefault(use, []).append(name)
    alike.pop(CALLED, None)
    alike.pop(REFUSED_WITH_ALL, None)
    said = []
    for use, those in alike.items():
        more = f" and {len(those) - _NAMED} more" if len(those) > _NAMED else ""
        kind = "mostly prior" if use.use == "prior" else "no interval"
        said.append((kind, f"{', '.join(those[:_NAMED])}{more}: {use.why}"))
    return said
