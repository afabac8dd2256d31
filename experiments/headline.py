"""The headline figure: accuracy and posterior quality of every method against ε, and what accounting is worth.

    python -m experiments.headline --results DIR [--quick] --out DIR

``--results`` is a folder of ``python -m experiments.fig3_2``. The third panel is the noise multiplier z that one and
the same minibatch run needs for ε: by the thesis's formula as printed (constant 128) and with the constant of its own
proof (256), by advanced composition, by Rényi DP and by privacy-loss distributions. Written: ``headline.png`` and
``noise_multipliers.csv``.
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from pydantic import Field
from rich.console import Console

from dpmcmc.cli.refusals import CommandError
from dpmcmc.privacy import CalibrationError, FixedSize, Poisson, calibrate
from dpmcmc.privacy.calibration import closed_form
from dpmcmc.report.figures import STYLE
from experiments.arguments import Parser
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, load
from experiments.panel import draw
from experiments.panel.cells import Row, read_table
from experiments.panel.trial import clock

_CONFIG = Path(__file__).resolve().parent.parent / "configs" / "figures" / "headline.yaml"
#: Curves of the third panel, with colour and dashes.
_ACCOUNTS: dict[str, tuple[str, str]] = {
    "thesis, constant 256": ("C3", "-"),
    "thesis as printed, 128 (not proved)": ("C3", ":"),
    "advanced composition, fixed size": ("C1", "-"),
    "Rényi, fixed size": ("C0", "-"),
    "Rényi, Poisson": ("C9", "--"),
    "loss distributions, Poisson": ("C2", "-"),
}


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


def multipliers(noise: Noise, epsilon: float) -> dict[str, float | None]:
    """z by every account, None where a condition of one fails."""
    shared: dict[str, Any] = {"epsilon": epsilon, "delta": noise.delta, "steps": noise.steps}
    rate = noise.batch_size / noise.num_records
    common = {**shared, "num_records": noise.num_records, "adjacency": noise.adjacency}
    fixed, poisson = FixedSize(noise.batch_size), Poisson(float(noise.batch_size))

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


def picture(path: Path, config: Headline, rows: list[Row], found: dict[float, dict[str, float | None]]) -> None:
    """Accuracy, distance to the posterior, and noise multipliers."""
    epsilons = sorted({float(row["epsilon"]) for row in rows if math.isfinite(float(row["epsilon"]))})
    with rc_context(STYLE):
        figure = Figure(figsize=(14.0, 5.6))
        axes = figure.subplots(1, 3)
        for axis, quantity in zip(axes, ("accuracy", "wasserstein"), strict=False):
            handles = draw.curves(axis, rows, config.encoding, "tight", quantity)
            draw.on_epsilon(axis, epsilons)
            axis.set_ylabel(draw.QUANTITIES[quantity])
            if quantity == "wasserstein":
                axis.set_yscale("log")
                axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
                axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axis.yaxis.set_minor_formatter(NullFormatter())
                axis.set_title("posterior quality (0 is the posterior; one exact draw: 1.1)")
            else:
                axis.set_title("accuracy")
                figure.legend(
                    handles=handles, frameon=False, ncols=5, loc="lower left", bbox_to_anchor=(0.02, 0.0), fontsize=8.5
                )
        for name, (colour, dashes) in _ACCOUNTS.items():
            points = [(e, values[name]) for e, values in found.items() if values[name] is not None]
            axes[2].plot(*zip(*points, strict=True), color=colour, ls=dashes, marker=".", label=name)
        draw.on_epsilon(axes[2], list(found))
        axes[2].set_yscale("log")
        axes[2].set_ylabel("noise multiplier z")
        noise = config.noise
        axes[2].set_title(f"noise for the same ε: {noise.steps:,} steps of {noise.batch_size}")
        figure.legend(
            handles=axes[2].lines, frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(0.99, 0.0), fontsize=8.5
        )
        figure.suptitle(
            f"{config.panel}, {config.encoding} encoding, N = {noise.num_records:,}: δ = {noise.delta:g}, "
            f"{noise.adjacency}, tight accounting"
        )
        figure.tight_layout(rect=(0, 0.13, 1, 1))
        figure.savefig(path)


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = Parser(
        prog="python -m experiments.headline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", required=True, metavar="DIR", help="folder of the panel's results")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write to")
    parser.add_argument("--config", default=str(_CONFIG), help="YAML file")
    parser.add_argument("--quick", action="store_true", help="noise multipliers at three values of ε alone")
    arguments = parser.parse_args(argv)
    elapsed, console = clock(), Console(highlight=False, soft_wrap=True, markup=False)
    config = load(Path(arguments.config), Headline)
    source = Path(arguments.results) / "results.csv"
    if not source.exists():
        raise CommandError(
            f"--results: {source} is not there; make it with `python -m experiments.fig3_2 --panel {config.panel} "
            f"--out {arguments.results}`."
        )
    rows = read_table(source, "--results")
    if not rows:
        raise CommandError(f"--results: {source} holds no row; make it anew.")
    epsilons = [e for e in config.epsilons if not arguments.quick or e in (0.1, 1, 10)]
    folder = Path(arguments.out)
    with folder_for(folder):
        found = {epsilon: multipliers(config.noise, epsilon) for epsilon in epsilons}
        with (folder / "noise_multipliers.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["epsilon", *_ACCOUNTS])
            for epsilon, values in found.items():
                writer.writerow([f"{epsilon:g}", *("" if v is None else f"{v:.5g}" for v in values.values())])
        for epsilon, values in found.items():
            told = ", ".join(f"{name} {value:.3g}" for name, value in values.items() if value is not None)
            console.print(f"epsilon {epsilon:g}: {told}")
        picture(folder / "headline.png", config, rows, found)
        console.print(f"written to {folder}\nwall time {elapsed():.0f} s")


if __name__ == "__main__":
    raise SystemExit(main())
