"""The headline figure: accuracy and intervals under privacy, and the noise of each accountant.

    python -m experiments.headline --results DIR [--coverage FILE] [--quick] --out DIR

``--results`` is a folder of ``python -m experiments.fig3_2``; ``--coverage`` the ``results.csv`` of ``python -m
experiments.coverage``, by default the one in ``docs/images``. ``headline.png`` shows the accuracy that privacy costs on
the panel, and of intervals, on simulated tables whose true coefficients are known, how often they hold the truth, how
wide they are, and their continuous ranked probability score, which is proper: neither a point nor a wide law is
rewarded. ``noise.png`` and ``noise_multipliers.csv`` have the noise multiplier z that one and the same minibatch run
needs for ε: by the thesis's formula as printed (constant 128) and with the constant of its own proof (256), by advanced
composition, by Rényi DP and by privacy-loss distributions.
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from pydantic import Field

from dpmcmc.cli.refusals import CommandError
from dpmcmc.privacy import CalibrationError, FixedSize, Poisson, calibrate
from dpmcmc.privacy.calibration import closed_form
from dpmcmc.report.console import Screen
from experiments.arguments import Parser
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, load, read_table
from experiments.panel import draw
from experiments.panel.results import Row
from experiments.panel.summary import Mean, read
from experiments.panel.trial import clock
from experiments.pictures import BLUE, DARK, GREEN, GREY, ORANGE, RED, SKY, name_ends, on_epsilon, saved

_ROOT = Path(__file__).resolve().parent.parent
_CONFIG = _ROOT / "configs" / "figures" / "headline.yaml"
_COVERAGE = _ROOT / "docs" / "images" / "coverage.csv"
#: Curves of the noise, with colour and dashes; what is not the library's own is grey.
ACCOUNTS: dict[str, tuple[str, str]] = {
    "thesis, constant 256": (DARK, "-"),
    "thesis as printed, 128 (not proved)": (GREY, ":"),
    "advanced composition, fixed size": (GREY, "--"),
    "Rényi, fixed size": (ORANGE, "-"),
    "Rényi, Poisson": (SKY, "-"),
    "loss distributions, Poisson": (BLUE, "-"),
}
#: Methods for intervals: name, colour, dashes. Noise-aware inference is compared with draws of a chain.
_WAYS: dict[str, tuple[str, str, str]] = {
    "noise_aware": ("noise-aware release", BLUE, "-"),
    "metric_path": ("a chain's path, noise-aware", GREEN, "-"),
    "metric": ("draws of SGLD in a metric", RED, "-"),
    "sghmc": ("draws of SGHMC", GREY, "--"),
    "sgld": ("draws of SGLD", DARK, ":"),
}
#: Methods of the panel of accuracy; figure 3.2 has all.
_ACCURACY = ("sgld", "sghmc", "certified_ops", "objective_perturbation", "objective_clipped", "output_perturbation")
#: Panels of intervals: column, what it is, what is right.
_QUANTITIES = (
    ("coverage", "coverage of 90 % intervals", 0.9),
    ("width", "width ÷ without privacy", 1.0),
    ("crps", "CRPS ÷ without privacy (1 is best)", 1.0),
)


class Noise(FigureSection):
    """The run whose noise is compared."""

    num_records: int = Field(gt=0, description="N.")
    batch_size: int = Field(gt=0, description="τ.")
    passes: float = Field(gt=0, description="T.")
    delta: float = Field(gt=0, lt=1, description="δ.")
    adjacency: str = Field("replace_one", description="Definition of a neighbour.")

    @property
    def steps(self) -> int:
        """k = ⌈T N/τ⌉."""
        return math.ceil(self.passes * self.num_records / self.batch_size)


class Headline(FigureSection):
    """Settings of ``configs/figures/headline.yaml``."""

    panel: str = Field(description="Whose results are read.")
    encoding: str = Field(description="Encoding that is read.")
    epsilons: list[float] = Field(description="ε grid of the noise multipliers.")
    noise: Noise = Field(description="The run whose noise is compared.")
    dimension: int = Field(gt=0, description="d of the simulated tables that are shown.")
    records: int = Field(gt=0, description="N of the simulated tables that are shown.")


def multipliers(noise: Noise, epsilon: float) -> dict[str, float | None]:
    """z by every account, None where a condition of one fails."""
    shared: dict[str, Any] = {"epsilon": epsilon, "delta": noise.delta, "steps": noise.steps}
    rate = noise.batch_size / noise.num_records
    common = {**shared, "num_records": noise.num_records, "adjacency": noise.adjacency}
    fixed = FixedSize(noise.batch_size)
    poisson = Poisson(float(noise.batch_size))

    def by(accountant: str, sampling: Any) -> float | None:
        try:
            return calibrate(**common, sampling=sampling, accountant=accountant)
        except CalibrationError:
            return None

    applies = closed_form.condition(**shared, rate=rate) is None
    return {
        "thesis, constant 256": closed_form.formula(**shared, rate=rate) if applies else None,
        "thesis as printed, 128 (not proved)": closed_form.formula(**shared, rate=rate, constant=128.0),
        "advanced composition, fixed size": by("advanced", fixed),
        "Rényi, fixed size": by("rdp", fixed),
        "Rényi, Poisson": by("rdp", poisson),
        "loss distributions, Poisson": by("pld", poisson),
    }


def intervals(config: Headline, tables: list[Row]) -> dict[str, list[Row]]:
    """Return the rows of each way on the tables that are shown, by ε."""
    about = ("logistic", config.dimension, config.records, 1)
    shown = [r for r in tables if "coverage" in r and (r["task"], r["d"], r["N"], r["truth_scale"]) == about]
    found = {way: sorted((r for r in shown if r["way"] == way), key=lambda r: r["epsilon"]) for way in _WAYS}
    return {way: rows for way, rows in found.items() if rows}


def headline(path: Path, config: Headline, means: list[Mean], tables: list[Row]) -> None:
    """Save accuracy on the panel, and coverage, width and score of intervals on simulated tables."""
    found = intervals(config, tables)
    best, _ = draw.non_private(means, config.encoding)
    shown = [m for m in means if m.encoding == config.encoding and m.version == "tight" and m.method in _ACCURACY]
    runs = f"{min(m.runs for m in shown)} to {max(m.runs for m in shown)}"
    counts = sorted({int(r["tables"]) for way in found.values() for r in way})
    about = (
        f"Accuracy: {config.panel}, {config.encoding} encoding, δ = {config.noise.delta:g}, mean of {runs} runs. "
        f"Others: logistic regression, d = {config.dimension}, N = {config.records:,}, "
        f"{' or '.join(map(str, counts))} simulated tables; bars: two standard errors"
    )
    says = _said(found)
    with saved(path, (13.5, 8.0), says, about) as figure:
        axes = figure.subplots(2, 2)
        on_epsilon(axes[0, 0], sorted({m.epsilon for m in shown}))
        draw.gaps(axes[0, 0], means, config.encoding, "tight", best, _ACCURACY)
        axes[0, 0].set_title("accuracy lost to privacy, in points", loc="left")
        for axis, (quantity, title, right) in zip(axes.flat[1:], _QUANTITIES, strict=True):
            _intervals(axis, found, quantity, right)
            axis.set_title(title, loc="left")


def _said(found: dict[str, list[Row]]) -> str:
    """Return the sentence above: how much narrower noise-aware intervals are than a chain's draws, at the least ε."""
    widths = {
        way: (float(rows[0]["epsilon"]), float(rows[0]["width"]))
        for way, rows in found.items()
        if way in ("noise_aware", "sgld")
    }
    if len(widths) < 2 or widths["sgld"][0] != widths["noise_aware"][0]:
        return "Noise-aware intervals hold under privacy"
    epsilon, narrow = widths["noise_aware"]
    return (
        f"Noise-aware intervals hold, and at ε = {epsilon:g} are {widths['sgld'][1] / narrow:.0f} times narrower than "
        "those of a chain's own draws"
    )


def _intervals(axis: Axes, found: dict[str, list[Row]], quantity: str, right: float) -> None:
    """Draw one quantity of each way against ε."""
    ends = []
    for way, rows in found.items():
        name, colour, dashes = _WAYS[way]
        epsilon, value, error = (
            np.array([float(r[key]) for r in rows]) for key in ("epsilon", quantity, f"{quantity}_error")
        )
        axis.errorbar(epsilon, value, 2 * error, color=colour, ls=dashes, marker="o", ms=4, lw=1.4, elinewidth=0.7)
        ends.append((float(value[-1]), name, colour))
    axis.axhline(right, color=GREY, lw=1, zorder=0)
    on_epsilon(axis, sorted({float(r["epsilon"]) for rows in found.values() for r in rows}))
    if quantity != "coverage":
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= t <= high]
        axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
        axis.minorticks_off()
    else:
        axis.set_ylim(0, 1)
    name_ends(axis, ends)


def noise_figure(path: Path, config: Headline, found: dict[float, dict[str, float | None]]) -> None:
    """Save the noise multipliers against ε."""
    noise = config.noise
    ends = []
    first, last = (_ratio(found[e]) for e in (min(found), max(found)))
    says = (
        f"The same ε takes {last:.0f} to {first:.0f} times less noise by loss distributions than by the thesis's proof"
    )
    about = (
        f"{noise.steps:,} steps of {noise.batch_size} records, N = {noise.num_records:,}, δ = {noise.delta:g}, "
        f"{noise.adjacency}"
    )
    with saved(path, (8.4, 4.8), says, about) as figure:
        axis = figure.subplots()
        for name, (colour, dashes) in ACCOUNTS.items():
            points = [(e, float(value)) for e, values in found.items() if (value := values[name]) is not None]
            axis.plot(*zip(*points, strict=True), color=colour, ls=dashes, marker=".")
            ends.append((points[-1][1], name, colour))
        on_epsilon(axis, list(found))
        axis.set_yscale("log")
        axis.set_ylabel("noise multiplier z")
        name_ends(axis, ends)


def _ratio(values: dict[str, float | None]) -> float:
    """Return the thesis's noise, as far as it is proved, over the least."""
    proved = values["thesis, constant 256"]
    least = values["loss distributions, Poisson"]
    return math.nan if proved is None or least is None else proved / least


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = Parser(
        prog="python -m experiments.headline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", required=True, metavar="DIR", help="folder of the panel's results")
    parser.add_argument("--coverage", type=Path, default=_COVERAGE, metavar="FILE", help="results.csv of the intervals")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write to")
    parser.add_argument("--config", default=str(_CONFIG), help="YAML file")
    parser.add_argument("--quick", action="store_true", help="noise multipliers at two values of ε alone")
    arguments = parser.parse_args(argv)
    elapsed = clock()
    console = Screen()
    config = load(Path(arguments.config), Headline)
    source = Path(arguments.results) / "summary.csv"
    if not source.is_file():
        raise CommandError(
            f"--results: {source} is not there; make it with `python -m experiments.fig3_2 --panel {config.panel} "
            f"--out {arguments.results}`."
        )
    if not arguments.coverage.is_file():
        raise CommandError(
            f"--coverage: {arguments.coverage} is not there; make it with `python -m experiments.coverage`."
        )
    means = read(source, "--results")
    epsilons = [e for e in config.epsilons if not arguments.quick or e in (1, 10)]
    folder = Path(arguments.out)
    with folder_for(folder):
        found = {epsilon: multipliers(config.noise, epsilon) for epsilon in epsilons}
        with (folder / "noise_multipliers.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["epsilon", *ACCOUNTS])
            for epsilon, values in found.items():
                writer.writerow([f"{epsilon:g}", *("" if v is None else f"{v:.5g}" for v in values.values())])
        for epsilon, values in found.items():
            told = ", ".join(f"{name} {value:.3g}" for name, value in values.items() if value is not None)
            console.print(f"epsilon {epsilon:g}: {told}")
        noise_figure(folder / "noise.png", config, found)
        headline(folder / "headline.png", config, means, read_table(arguments.coverage))
        console.print(f"written to {folder}\nwall time {elapsed():.0f} s")


if __name__ == "__main__":
    raise SystemExit(main())
