"""Cost of a private run on Adult to each training record.

    python -m experiments.fig_per_record [--quick] [--out DIR] [--config configs/figures/fig_per_record.yaml]

One run with minibatches and one with full batches; of every record the ε of the smallest individual filter that would
have let it through (``diagnostics/per_record``), coloured by the share of steps in which it was clipped. The numbers
are those of the table that ``dpmcmc run --per-record`` writes: here one a panel, ``records_1.csv`` and
``records_2.csv``, of runs with a public seed. Adult is public; of other data all of this is confidential.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from pydantic import Field

import dpmcmc
from dpmcmc import config as config_room
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import file as config_file
from dpmcmc.diagnostics.per_record import sample_and_account
from dpmcmc.privacy import round_up
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.pictures import saved

COLUMNS = (
    "panel",
    "promised",
    "worst_case",
    "mean",
    "median",
    "largest",
    "smallest",
    "below_0.2",
    "above_promised",
    "mean_label_0",
    "mean_label_1",
    "clipped_share",
)
_BINS = 60


class Panel(FigureSection):
    """One run."""

    title: str = Field(description="Title of the panel.")
    set: list[str] = Field(description="Changes to the config.")
    quick: list[str] = Field(description="More of them, with --quick.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    config: str = Field(description="The run, beside this file.")
    panels: list[Panel] = Field(description="Runs.")
    seed: int = Field(ge=0, description="Seed of the runs.")


def run(settings: Settings, where: Path, quick: bool, out: Path) -> list[dict[str, Any]]:
    """Write the table of each panel's run, and return the rows of results.csv."""
    rows = []
    for number, panel in enumerate(settings.panels, 1):
        changes = [*panel.set, *(panel.quick if quick else ()), "run.burn_in=0", "run.thin=1"]
        config = config_file.load(where / settings.config, changes)
        plan = config_room.make_plan(config)
        data = dpmcmc.data.load(config.data)
        if plan.run is None or plan.guarantee is None or not data.spec.public:
            raise CommandError(f"config: {settings.config} must be a private run of a sampler on public data.")
        sample_and_account(plan, data.train, key=settings.seed)[1].save(table_of(out, number))
        each = read(table_of(out, number))
        epsilon = each["epsilon"]
        rows.append(
            {
                "panel": panel.title,
                "promised": plan.guarantee.epsilon,
                "worst_case": float(each["worst_case"][0]),
                "mean": float(epsilon.mean()),
                "median": float(np.median(epsilon)),
                "largest": float(epsilon.max()),
                "smallest": float(epsilon.min()),
                "below_0.2": float(np.mean(epsilon < 0.2)),
                "above_promised": float(np.mean(epsilon > plan.guarantee.epsilon)),
                **{f"mean_label_{label}": float(epsilon[data.train["y"] == label].mean()) for label in (0, 1)},
                "clipped_share": float(each["clipped_share"].mean()),
            }
        )
    return rows


def table_of(out: Path, number: int) -> Path:
    """Return the file of a panel's records."""
    return out / f"records_{number}.csv"


def read(path: Path) -> np.ndarray:
    """Return the table of an account, one entry a record, with its columns by name."""
    return np.genfromtxt(path, delimiter=",", names=True)


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """A histogram for each run."""
    half = 100 * rows[0]["median"] / rows[0]["promised"]
    says = f"Half of the records of Adult cost at most {half:.0f} % of the guarantee"
    about = (
        "Records of Adult by the ε that each cost, one private run a panel. Their ε, and that of one clipped at "
        "every step, are by Rényi divergences; the guarantee is by loss distributions"
    )
    with saved(path, (5.2 * len(rows) + 0.8, 4.8), says, about) as figure:
        axes = figure.subplots(1, len(rows), squeeze=False, sharey=True)[0]
        for number, (axis, row) in enumerate(zip(axes, rows, strict=True), 1):
            each = read(table_of(path.parent, number))
            colours = histogram(axis, each, row["promised"])
            axis.set_title(row["panel"])
            axis.set_xlabel(f"ε of a record at δ = {each['delta'][0]:.0e}".replace("e-0", "e-"))
            axis.label_outer()
        figure.colorbar(colours, ax=list(axes), label="share of steps in which the record is clipped")


def histogram(axis: Axes, each: np.ndarray, promised: float) -> ScalarMappable:
    """Draw bars of records by ε in the colour of their mean clipped share, and name the mean and both bounds.

    Returns the map of a colour bar.

    Args:
        axis: of Matplotlib.
        each: table of an account.
        promised: ε of the run's guarantee.
    """
    epsilon = each["epsilon"]
    worst = float(each["worst_case"][0])
    edges = np.linspace(0, max(worst, promised, float(epsilon.max())) * 1.02, _BINS + 1)
    counts, _ = np.histogram(epsilon, edges)
    total, _ = np.histogram(epsilon, edges, weights=each["clipped_share"])
    shown = ScalarMappable(Normalize(0, 1), colormaps["viridis"])
    colours = shown.to_rgba(total / np.maximum(counts, 1))
    axis.bar(edges[:-1], counts, np.diff(edges), align="edge", color=colours, edgecolor="white", linewidth=0.3)
    # A bar of a few records is visible, and names are above the bars, each at its own height.
    axis.set_yscale("log")
    axis.set_ylim(0.7, counts.max() * 40)
    axis.set_ylabel("records")
    said = (
        (worst, "-", "clipped at every step"),
        (promised, "--", "the run's guarantee"),
        (epsilon.mean(), ":", "mean"),
    )
    for line, (value, dashes, name) in enumerate(said):
        height = 0.97 - 0.06 * line  # below the earlier names, which the line would cross
        axis.axvline(value, ymax=height + 0.02, color="C3", ls=dashes, lw=1.7)
        side, by = ("right", -4) if value > edges[-1] / 2 else ("left", 4)
        place = (value, height), (by, 0), ("data", "axes fraction"), "offset points"
        text = f"{name}: {round_up(float(value), 3)}"
        axis.annotate(text, *place, color="C3", fontsize=8.5, ha=side, va="center")
    return shown


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("fig_per_record", "Cost of a private run to each record.", argv)
    settings = load(arguments.config, Settings)
    with folder_for(arguments.out):
        rows = run(settings, arguments.config.parent, arguments.quick, arguments.out)
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        draw(arguments.out / f"{settings.name}.png", rows)
        report([], arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
