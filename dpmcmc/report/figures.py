"""Figures of a run folder. A stand-in data set is named on every picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import jax
import numpy as np
from cycler import cycler
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.special import ndtri

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError
from dpmcmc.inference import convergence
from dpmcmc.inference.names import flat
from dpmcmc.planning.description import FROM_PATH, INTERVALS, Verdict, html_table
from dpmcmc.privacy.accounting.events import round_up
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target
from dpmcmc.targets.glm import GeneralisedLinear, SoftmaxRegression
from dpmcmc.targets.last_layer import LastLayer
from dpmcmc.targets.transformed import PerOwner, untempered

if TYPE_CHECKING:
    from dpmcmc.inference.trace import NoiseAwarePosterior
    from dpmcmc.privacy.accounting.guarantee import Guarantee


# ----------------------------------------------------------------------------------------------------
# Coefficients as tables and figures show them: by name, in the units of the columns, each class relative to the first.
#
# A softmax regression has a coefficient for every class, and data identify only their differences. So a summary shows
# differences from the first class; ``draws.nc`` holds the model's own parameters.


class Shown(NamedTuple):
    """Draws as tables and figures show them.

    Attributes:
        names: of the numbers.
        numbers: (chains, draws, numbers); the first ones where there are many.
        total: of numbers.
        own_units: whether they are in the units of the columns before encoding.
        said: (label, sentence) pairs that explain the numbers.
    """

    names: list[str]
    numbers: np.ndarray
    total: int
    own_units: bool
    said: tuple[tuple[str, str], ...]


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
        if own and self.schema is not None:
            columns = self.schema.own_names
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
            names = [f"{row}, {other} − {reference}" for row in rows for other in others][
                :most
            ]
            numbers = draws.reshape(*draws.shape[:2], -1)[..., :most]
        else:
            names, numbers = flat(draws, columns, most)
        total = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(draws))
        return Shown(names, numbers, total, own, tuple(said))

    def of_normal(
        self, found: NoiseAwarePosterior
    ) -> tuple[Shown, np.ndarray, np.ndarray]:
        """Return a posterior (d,) that is normal as it is shown: names, mean and standard deviation."""
        size = len(found.mean)
        shown = self.of(np.vstack([np.zeros(size), np.eye(size)])[None])
        zero, *rows = shown.numbers[0]
        turn = np.transpose(rows - zero)
        return (
            shown,
            turn @ found.mean + zero,
            np.sqrt(np.einsum("ij,jk,ik->i", turn, found.covariance, turn)),
        )

    def _classes(self, draws: PyTree) -> Sequence[str]:
        """Return the classes of a softmax regression's draws, the reference first; none of other draws."""
        if (
            not isinstance(self._model, SoftmaxRegression)
            or not _is_array(draws)
            or np.ndim(draws) != 4
        ):
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
        known = (
            schema is not None
            and _is_array(draws)
            and not isinstance(self._model, LastLayer)
        )
        if asked and not known:
            raise InputError(
                "original_units: are known of a linear model whose plan has a schema",
                "original_units",
            )
        if (
            schema is None
            or not known
            or not (asked or isinstance(self._model, GeneralisedLinear))
        ):
            return (
                draws,
                "of the model's parameters, for rows as the target takes them",
                False,
            )
        encoded = "of the encoded columns: a range is mapped to [-1, 1], a level is 0 or 1, and every row is "
        encoded += f"multiplied by {schema.row_scale:.3g}"
        if asked is False:
            return draws, encoded, False
        try:
            own = schema.to_original_units(np.asarray(draws))
        except InputError as error:  # a term that has no units of its own
            if asked:
                raise
            return draws, f"{encoded} ({error})", False
        units = "of the columns as they were before encoding; a level is compared with the first of its column"
        name = schema.own_name(schema.label)
        return (
            own,
            units if name == schema.label else f"{units}; the label is {name}",
            True,
        )


def _is_array(draws: PyTree) -> bool:
    return isinstance(draws, np.ndarray | jax.Array)


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
    def of_draws(
        cls, shown: Shown, level: float, verdict: Verdict, chains: bool
    ) -> Summary:
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
        names = tuple(shown.names)
        said = (*_said(verdict), *shown.said)
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
        )

    @classmethod
    def of_path(
        cls, found: NoiseAwarePosterior, reading: Reading, level: float, verdict: Verdict
    ) -> Summary:
        """Return the summary of the posterior that follows from the path of a run; arguments as of :meth:`of_draws`."""
        shown, mean, std = reading.of_normal(found)
        low, high = (mean + ndtri(tail) * std for tail in _tails(level))
        why = f"{FROM_PATH} They account for the noise of privacy, and hold if the model and its prior are true."
        claims = (*verdict.usable_for, f"{INTERVALS} (of result.noise_aware())")
        uses = {"usable for": " and ".join(claims), **verdict.reasons, INTERVALS: why}
        said = (*uses.items(), *shown.said)
        names = tuple(shown.names)
        own = shown.own_units
        return cls(
            names, mean, std, low, high, level, True, said, len(mean), own_units=own
        )

    def to_dict(self) -> dict[str, list[str] | list[float]]:
        """Return the columns of the table, as ``pandas.DataFrame`` takes them."""
        tails = [
            f"{100 * tail:g} %" + ("" if self.intervals else " of draws")
            for tail in _tails(self.level)
        ]
        numbers = dict(
            zip(
                ["mean", "sd", *tails],
                [self.mean, self.std, self.low, self.high],
                strict=True,
            )
        )
        if self.ess is not None and self.rhat is not None:
            numbers |= {"ESS": self.ess, "R-hat": self.rhat}
        return {"name": list(self.names)} | {
            name: values.tolist() for name, values in numbers.items()
        }

    def __getitem__(self, name: str) -> dict[str, float]:
        """Return the row of a parameter.

        Raises:
            KeyError: no parameter has the name.
        """
        if name not in self.names:
            raise KeyError(
                f"{name}: no parameter has this name; the names are {', '.join(self.names[:ROWS])}"
            )
        row = self.names.index(name)
        return {
            column: float(values[row])
            for column, values in self.to_dict().items()
            if column != "name"
        }

    def __len__(self) -> int:
        return len(self.names)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return (titles, rows) of the table in print, at most 150 rows."""
        # The spread has two digits, and other numbers of its row as many decimal places.
        places = [
            int(np.clip(1 - np.floor(np.log10(std)), 0, 9)) if std > 0 else 0
            for std in self.std[:ROWS]
        ]
        titles = list(self.to_dict())
        rows = []
        for (name, *values), places_of_row in zip(
            zip(*self.to_dict().values(), strict=True), places, strict=False
        ):
            formats = [
                {"ESS": ".0f", "R-hat": ".3f"}.get(title, f".{places_of_row}f")
                for title in titles[1:]
            ]
            rows.append(
                [
                    name,
                    *(
                        f"{v:{form}}".replace("nan", "–")
                        for v, form in zip(values, formats, strict=True)
                    ),
                ]
            )
        return titles, rows

    def __str__(self) -> str:
        titles, rows = self.cells()
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
            ).rstrip()
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
    return (
        ("usable for", " and ".join(verdict.usable_for) or "nothing"),
        *verdict.reasons.items(),
    )


#: Where a picture goes: a path, or an open file, which gets a PNG.
File = Path | BinaryIO

#: Okabe and Ito's colours (2008), which people with any colour vision can distinguish; grey is for the reference.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
#: Matplotlib settings of every figure, here and in the experiments.
STYLE: Any = {
    "figure.figsize": (6.4, 4.0),
    "figure.dpi": 130,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "legend.frameon": False,
    "svg.hashsalt": "dpmcmc",
}


def plain(text: str) -> str:
    """Return a text with dollars escaped: Matplotlib would read a formula between two of them, and fail on most."""
    return text.replace("$", r"\$")


def traces(
    path: File,
    shown: Mapping[str, np.ndarray],
    kept: tuple[int, int],
    title: str,
    note: str | None,
) -> None:
    """Save traces of a few coordinates, one line for each chain.

    Args:
        path: file, a PNG where it is an open one.
        shown: (chains, draws) by the name of the coordinate.
        kept: steps before the first draw, and steps from one to the next.
        title: of the figure.
        note: text that must stand on it, or None.
    """
    first_step, thin = kept
    steps = first_step + thin * (1 + np.arange(next(iter(shown.values())).shape[1]))
    with _picture(path, note, (6.4, 1.05 * len(shown) + 1.0)) as figure:
        axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)
        for axis, (label, lines) in zip(axes[:, 0], shown.items(), strict=True):
            axis.plot(steps, lines.T, lw=0.8)
            # Above: names of a network's parameters are longer than an axis is high.
            axis.set_title(
                plain(label.replace("theta", "θ")),
                loc="left",
                fontsize=8,
                color="0.35",
                pad=3,
            )
            axis.yaxis.set_major_locator(MaxNLocator(3, prune="both"))
        figure.suptitle(plain(title), fontsize=STYLE["axes.titlesize"])
        axes[-1, 0].set_xlabel("step")


def calibration(
    path: File,
    curves: dict[str, tuple[np.ndarray, np.ndarray]],
    event: str,
    title: str,
    note: str | None,
) -> None:
    """Save predicted probability against observed share of an event on test rows.

    Args:
        path: file, a PNG where it is an open one.
        curves: for each model (its calibration curve, (bins, 3), predicted probability of each row).
        event: in words, for the axes.
        title: of the figure.
        note: text that must stand on it, or None.
    """
    with _picture(path, note, (5.0, 5.4)) as figure:
        axis, below = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1]}
        )
        axis.plot(
            [0, 1], [0, 1], color="0.6", lw=1, ls="--", label="perfectly calibrated"
        )
        for name, (rows, probability) in curves.items():
            axis.plot(rows[:, 0], rows[:, 1], marker="o", ms=4, label=plain(name))
            below.hist(
                probability, bins=30, range=(0, 1), histtype="step", label=plain(name)
            )
        _label(axis, title, y=f"observed share of {event}")
        below.set_xlabel(plain(f"predicted probability of {event}"))
        below.set_ylabel("test rows")


def predictions(
    path: File, means: dict[str, np.ndarray], y: np.ndarray, title: str, note: str | None
) -> None:
    """Save observed labels against posterior predictive means on test rows, (rows,) each, one colour for each model."""
    with _picture(path, note, (5.0, 4.4)) as figure:
        axis = figure.subplots()
        ends = [float(np.min(y)), float(np.max(y))]
        axis.plot(ends, ends, color="0.6", lw=1, ls="--", label="predicted = observed")
        for name, mean in means.items():
            axis.plot(mean, y, "o", ms=3.5, mew=0, alpha=0.5, label=plain(name))
        _label(axis, title, "posterior predictive mean", "observed y")


def temperature(
    path: File,
    temperatures: np.ndarray,
    noise_multipliers: np.ndarray | None,
    title: str,
    note: str | None,
) -> None:
    """Save the temperature kept at each step, (steps,), and the noise multiplier beside it, (steps,) or None."""
    shown = np.unique(np.linspace(0, len(temperatures) - 1, 2000).astype(int))
    with _picture(path, note) as figure:
        axis = figure.subplots()
        lines = axis.plot(shown + 1, temperatures[shown], color="C3", label="temperature")
        axis.axhline(1.0, color="0.6", lw=1, ls="--", label="the posterior's: 1")
        axis.set_xlabel("step")
        axis.set_ylabel("temperature kept")
        _from_zero(axis, np.append(temperatures, 1.0), room=1.25)
        if noise_multipliers is not None:
            right = axis.twinx()
            right.spines["right"].set_visible(True)
            right.grid(visible=False)
            lines += right.plot(
                shown + 1,
                noise_multipliers[shown],
                color="C0",
                ls="-.",
                label="noise multiplier",
            )
            right.set_ylabel("noise multiplier")
            # More room than on the left, so that two constant lines do not coincide.
            _from_zero(right, noise_multipliers, room=1.7)
        handles = [*lines, axis.lines[1]]
        axis.legend(
            handles=handles,
            frameon=False,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.16),
            ncols=len(handles),
        )
        axis.set_title(plain(title))


def epsilon_delta(path: File, guarantee: Guarantee, title: str, note: str | None) -> None:
    """Save ε at every δ that the events give, with the promised point."""
    delta = np.geomspace(max(guarantee.delta * 1e-3, 1e-14), 1e-2, 25)
    epsilon = np.array([guarantee.epsilon_at(float(d)) for d in delta])
    stated = f"stated: ε = {round_up(guarantee.epsilon, 3)} at δ = {guarantee.delta:.3g}"
    with _picture(path, note) as figure:
        axis = figure.subplots()
        axis.plot(delta, epsilon, label=f"all released iterates ({guarantee.accountant})")
        axis.plot([guarantee.delta], [guarantee.epsilon], "o", color="C3", label=stated)
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        _label(axis, title, "δ", "ε")


def forest(summary: Summary, most: int) -> Figure:
    """Return a figure with a line for each of the first ``most`` parameters, and means alone without intervals."""
    count = min(len(summary), most)
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 1.2 + 0.22 * count), layout="constrained")
        axis = figure.subplots()
        rows = np.arange(count)
        mean = summary.mean[:count]
        low, high = (
            (summary.low[:count], summary.high[:count])
            if summary.intervals
            else (mean, mean)
        )
        # In their own units every coefficient has an axis of its own, from its least to its largest number or 0.
        least = np.zeros(count)
        width = np.ones(count)
        if not summary.own_units:
            axis.axvline(0, color="0.6", lw=1, ls="--")
        else:
            least = np.minimum(low, 0)
            width = np.maximum(np.maximum(high, 0) - least, 1e-300)
            axis.set_xticks([], [])
            axis.set_xlabel("every line has a scale of its own; the grey mark is 0")
            axis.plot(-least / width, rows, "|", ms=9, color="0.4", zorder=3)
            for row, (_, *cells) in enumerate(summary.cells()[1]):
                text = (
                    f"{cells[0]} [{cells[2]}, {cells[3]}]"
                    if summary.intervals
                    else cells[0]
                )
                axis.text(
                    1.02,
                    row,
                    text,
                    va="center",
                    fontsize=8,
                    transform=axis.get_yaxis_transform(),
                )
        if summary.intervals:
            axis.hlines(rows, (low - least) / width, (high - least) / width, lw=1.6)
        axis.plot((mean - least) / width, rows, "o", ms=3.5)
        axis.set_yticks(rows, [plain(name) for name in summary.names[:count]], fontsize=8)
        axis.set_ylim(count - 0.4, -0.6)
        shown = f"mean and {100 * summary.level:g} % interval"
        axis.set_title(
            shown
            if summary.intervals
            else "means of the draws; their verdict refuses intervals"
        )
        return figure


def _label(axis: Axes, title: str, x: str = "", y: str = "") -> None:
    """Add a title, names of the axes, and a legend."""
    axis.set_title(plain(title))
    axis.set_xlabel(plain(x))
    axis.set_ylabel(plain(y))
    axis.legend(frameon=False)


def _from_zero(axis: Axes, values: np.ndarray, room: float) -> None:
    """Draw an axis from zero to ``room`` times the largest value, or in powers of ten where values span two of them."""
    least = float(values.min())
    most = float(values.max())
    if least > 0 and most > 100 * least:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, room * max(most, 1e-9))


@contextmanager
def _picture(
    path: File, note: str | None, size: tuple[float, float] = (6.4, 4.0)
) -> Iterator[Figure]:
    """Yield a figure to draw on, and save it with its note."""
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        if note:
            figure.supxlabel(
                plain(note), x=0.99, ha="right", fontsize=8, color="C3", weight="bold"
            )
        figure.savefig(path, format=None if isinstance(path, Path) else "png")
