"""A table of what a release says of each parameter, with its names, and of what may be claimed of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from dpmcmc.errors import InputError
from dpmcmc.inference import convergence
from dpmcmc.planning.description import html_table
from dpmcmc.planning.permitted import FROM_PATH, INTERVALS, Verdict
from dpmcmc.report.coefficients import Reading, Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmcmc.inference.trace import NoiseAwarePosterior

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

    @classmethod
    def of_draws(cls, shown: Shown, level: float, verdict: Verdict, chains: bool) -> Summary:
        """Return the summary of draws.

        Args:
            shown: the draws as they are shown.
            level: of the range.
            verdict: on the draws.
            chains: whether they are, so that they have R-hat and ESS.

        Raises:
            ValueError: a level outside (0, 1).
        """
        numbers = shown.numbers
        every = numbers.reshape(-1, numbers.shape[2]).astype(np.float64)
        low, high = np.quantile(every, _tails(level), axis=0)
        ess, rhat = convergence.each(numbers) if chains else (None, None)
        moments = every.mean(axis=0), every.std(axis=0, ddof=min(1, len(every) - 1))
        usable = INTERVALS in verdict.usable_for
        names, said = tuple(shown.names), (*_said(verdict), *shown.said)
        return cls(names, *moments, low, high, level, usable, said, shown.total, ess, rhat, shown.own_units)

    @classmethod
    def of_path(cls, found: NoiseAwarePosterior, reading: Reading, level: float, verdict: Verdict) -> Summary:
        """Return the summary of the posterior that follows from the path of a run; arguments as of :meth:`of_draws`."""
        shown, mean, std = reading.of_normal(found)
        low, high = (mean + ndtri(tail) * std for tail in _tails(level))
        why = f"{FROM_PATH} They account for the noise of privacy, and hold if the model and its prior are true."
        claims = (*verdict.usable_for, f"{INTERVALS} (of result.noise_aware())")
        uses = {"usable for": " and ".join(claims), **verdict.reasons, INTERVALS: why}
        said = (*uses.items(), *shown.said)
        names, own = tuple(shown.names), shown.own_units
        return cls(names, mean, std, low, high, level, True, said, len(mean), own_units=own)

    def to_dict(self) -> dict[str, list[str] | list[float]]:
        """Return the columns of the table, as ``pandas.DataFrame`` takes them."""
        tails = [f"{100 * tail:g} %" + ("" if self.intervals else " of draws") for tail in _tails(self.level)]
        numbers = dict(zip(["mean", "sd", *tails], [self.mean, self.std, self.low, self.high], strict=True))
        if self.ess is not None and self.rhat is not None:
            numbers |= {"ESS": self.ess, "R-hat": self.rhat}
        return {"name": list(self.names)} | {name: values.tolist() for name, values in numbers.items()}

    def __getitem__(self, name: str) -> dict[str, float]:
        """Return the row of a parameter.

        Raises:
            KeyError: no parameter has the name.
        """
        if name not in self.names:
            raise KeyError(f"{name}: no parameter has this name; the names are {', '.join(self.names[:ROWS])}")
        row = self.names.index(name)
        return {column: float(values[row]) for column, values in self.to_dict().items() if column != "name"}

    def __len__(self) -> int:
        return len(self.names)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return (titles, rows) of the table in print, at most 150 rows."""
        # Two digits of the spread, and as many places of what it belongs to.
        places = [int(np.clip(1 - np.floor(np.log10(std)), 0, 9)) if std > 0 else 0 for std in self.std[:ROWS]]
        titles, rows = list(self.to_dict()), []
        for (name, *values), places_of_row in zip(zip(*self.to_dict().values(), strict=True), places, strict=False):
            formats = [{"ESS": ".0f", "R-hat": ".3f"}.get(title, f".{places_of_row}f") for title in titles[1:]]
            rows.append([name, *(f"{v:{form}}".replace("nan", "–") for v, form in zip(values, formats, strict=True))])
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
        return "\n".join([*lines, *(f"{label:<12} {text}" for label, text in self.said)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        titles, rows = self.cells()
        return html_table(rows, titles) + html_table(self.said)

    def plot(self) -> Figure:
        """Return a Matplotlib figure: a line for each parameter from ``low`` to ``high`` with its mean.

        Where intervals may not be reported it has the means alone, and says so.
        """
        from dpmcmc.report.figures import forest

        return forest(self, ROWS)


def _tails(level: float) -> tuple[float, float]:
    """Return the shares of draws below the two ends of a central range.

    Raises:
        ValueError: a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise InputError(f"level must be in (0, 1), got {level}", "level")
    return round((1 - level) / 2, 12), round((1 + level) / 2, 12)


def _said(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    return (("usable for", " and ".join(verdict.usable_for) or "nothing"), *verdict.reasons.items())
