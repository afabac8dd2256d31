"""Cost of a private run on Adult to each training record.

    python -m experiments.fig_per_record [--quick] [--out DIR] [--config configs/figures/fig_per_record.yaml]

One run with minibatches and one with full batches; of every record the ε of the smallest individual filter that would
have let it through (``diagnostics/per_record``), coloured by the share of steps in which it was clipped.
``results.csv`` has a row per panel and number of steps between checks: how large the bound is. Adult is public; of
other data all of this is confidential.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

import dpmcmc
from dpmcmc import config as config_room
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import file as config_file
from dpmcmc.diagnostics import per_record
from dpmcmc.diagnostics.per_record import PerRecord
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy import round_up
from dpmcmc.report.per_record import histogram
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.pictures import saved

COLUMNS = (
    "panel",
    "every",
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
    "times_exact",
)


class Panel(FigureSection):
    """One run."""

    title: str = Field(description="Title of the panel.")
    set: list[str] = Field(description="Changes to the config.")
    quick: list[str] = Field(description="More of them, with --quick.")


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    looseness: list[int] = Field(description="Steps between checks.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    config: str = Field(description="The run, beside this file.")
    every: int = Field(gt=0, description="Steps between checks in the picture.")
    panels: list[Panel] = Field(description="Runs.")
    looseness: list[int] = Field(description="Steps between checks, of the first panel's run.")
    seed: int = Field(ge=0, description="Seed of the runs.")
    quick: Quick = Field(description="Settings that --quick shortens.")


def positions_of(plan: Plan, data: Any, seed: int) -> np.ndarray:
    """Return the positions before each step; logistic regression starts at zero."""
    after = np.asarray(dpmcmc.sample(plan, data, key=seed).positions)
    return np.concatenate([np.zeros_like(after[:, :1]), after[:, :-1]], axis=1)


def run(settings: Settings, where: Path, quick: bool) -> tuple[list[dict[str, Any]], list[tuple[Panel, PerRecord]]]:
    """Rows of results.csv, and the account that each panel shows."""
    rows: list[dict[str, Any]] = []
    shown = []
    for i, panel in enumerate(settings.panels):
        changes = [*panel.set, *(panel.quick if quick else ()), "run.burn_in=0", "run.thin=1"]
        config = config_file.load(where / settings.config, changes)
        plan = config_room.make_plan(config)
        data = dpmcmc.data.load(config.data)
        if not isinstance(plan, Plan) or plan.guarantee is None or not data.spec.public:
            raise CommandError(f"config: {settings.config} must be a private run of a sampler on public data.")
        positions = positions_of(plan, data.train, settings.seed)
        exact = None
        for every in dict.fromkeys((1, settings.every, *(settings.looseness if i == 0 else ()))):
            account = per_record.per_record_epsilon(plan, data.train, positions, every=every)
            exact = account if exact is None else exact
            if every == settings.every:
                shown.append((panel, account))
            each = account.epsilon
            rows.append(
                {
                    "panel": panel.title,
                    "every": every,
                    "promised": plan.guarantee.epsilon,
                    "worst_case": account.worst_case,
                    "mean": float(each.mean()),
                    "median": float(np.median(each)),
                    "largest": float(each.max()),
                    "smallest": float(each.min()),
                    "below_0.2": float(np.mean(each < 0.2)),
                    "above_promised": float(np.mean(each > plan.guarantee.epsilon)),
                    **{f"mean_label_{label}": float(each[data.train["y"] == label].mean()) for label in (0, 1)},
                    "clipped_share": float(account.clipped_share.mean()),
                    "times_exact": float(np.mean(each / exact.epsilon)),
                }
            )
    return rows, shown


def draw(path: Path, rows: list[dict[str, Any]], shown: list[tuple[Panel, PerRecord]]) -> None:
    """A histogram for each run."""
    first = next(row for row in rows if row["panel"] == shown[0][0].title)
    half = 100 * first["median"] / first["promised"]
    says = f"Half of the records of Adult cost at most {half:.0f} % of the guarantee"
    about = (
        "Records of Adult by the ε that each cost, one private run a panel. Their ε, and that of one clipped at "
        "every step, are by Rényi divergences; the guarantee is by loss distributions"
    )
    with saved(path, (5.2 * len(shown) + 0.8, 4.8), says, about) as figure:
        axes = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
        for axis, (panel, account) in zip(axes, shown, strict=True):
            promised = next(row["promised"] for row in rows if row["panel"] == panel.title)
            colours = histogram(axis, account.epsilon, account.clipped_share, account.worst_case, promised)
            axis.set_title(panel.title)
            axis.set_xlabel(f"ε of a record at δ = {account.delta:.0e}, {account.adjacency}".replace("e-0", "e-"))
            axis.label_outer()
        figure.colorbar(colours, ax=list(axes), label="share of steps in which the record is clipped")


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return the findings of the table, one per line."""
    return [
        f"{row['panel']}, all norms every {row['every']}: mean ε {round_up(row['mean'], 3)}, median "
        f"{round_up(row['median'], 3)}, of {round_up(row['worst_case'], 3)} at most; {row['times_exact']:.2f} times "
        "exact"
        for row in rows
    ]


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("fig_per_record", "Cost of a private run to each record.", argv)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        settings = settings.model_copy(update={"looseness": settings.quick.looseness})
    with folder_for(arguments.out):
        rows, shown = run(settings, arguments.config.parent, arguments.quick)
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        draw(arguments.out / f"{settings.name}.png", rows, shown)
        report(summary(rows), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
