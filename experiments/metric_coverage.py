r"""A chain at temperature 1 in a private metric: coverage of its intervals, R-hat, and those that its trace gives.

    python -m experiments.metric_coverage [--quick] [--config configs/figures/metric_coverage.yaml] --out DIR

Tables are those of ``experiments.coverage``: logistic regressions with correlated rows, whose truths have the law of
the model's prior. Each run is SGLD with ``step_size: auto`` and all records in every step. ``results.csv`` has a row
per ε:

* coverage of central 90 % intervals, its Monte Carlo standard error, and their mean width over that of the non-private
  Laplace posterior;
* split R-hat, worst over coordinates: its median over tables, and its worst;
* relaxation times of the slowest direction after burn-in (``ReleasedMetric.curvatures``);
* coverage and width of ``result.noise_aware()``.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from pydantic import Field

import dpmcmc
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets import LogisticRegression
from experiments.commands import command, folder_for
from experiments.coverage import LEVEL, Cell, laplace_std, table
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table

COLUMNS = (
    *("d", "N", "epsilon", "coverage", "error", "width", "rhat_median", "rhat_worst", "relaxations"),
    *("noise_aware_coverage", "noise_aware_error", "noise_aware_width"),
)
#: Curvature of a logistic loss in its margin, where margins are moderate.
_CURVATURE = 0.2
_BURN_IN = 0.2


class Quick(FigureSection):
    """Settings that ``--quick`` replaces."""

    records: Annotated[int, Field(gt=10)] = Field(description="N.")
    tables: int = Field(gt=1, description="Simulated tables an ε.")
    steps: int = Field(gt=32, description="Steps of the chain.")


class Settings(Quick):
    """The YAML."""

    dimension: Annotated[int, Field(ge=5)] = Field(description="d.")
    epsilons: list[Annotated[float, Field(gt=0)]] = Field(description="ε.")
    clip_ratio: float = Field(gt=0, description="Clip norm over the typical norm of a row in the metric.")
    quick: Quick


def plan_of(settings: Settings, epsilon: float) -> dpmcmc.Plan:
    """The plan of one chain."""
    return dpmcmc.plan(
        LogisticRegression(prior_scale=1.0, num_features=settings.dimension, row_bound=1.0),
        num_records=settings.records,
        sampler=dpmcmc.SGLD(step_size="auto"),
        steps=settings.steps,
        burn_in=int(_BURN_IN * settings.steps),
        thin=4,
        privacy=dpmcmc.Privacy(epsilon=epsilon, delta=settings.records**-1.2),
        metric=dpmcmc.PrivateMetric(clip_ratio=settings.clip_ratio),
    )


def measured(plan: dpmcmc.Plan, records: PyTree, truth: np.ndarray) -> dict[str, float]:
    """Return what one run on one table shows."""
    result = dpmcmc.sample(plan, records)
    draws, laplace = result.draws[0], laplace_std(records)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    assert result.metric is not None
    slowest = float(result.metric.curvatures(_CURVATURE, 1.0)[0])
    aware = result.noise_aware()
    inside = aware.intervals(LEVEL)
    return {
        "coverage": float(np.mean((low < truth) & (truth < high))),
        "width": float(np.mean(draws.std(axis=0) / laplace)),
        "rhat": result.diagnostics["rhat"] or math.inf,
        "relaxations": slowest * float(plan.times[plan.burn_in :].sum()),
        "noise_aware_coverage": float(np.mean((inside[:, 0] < truth) & (truth < inside[:, 1]))),
        "noise_aware_width": float(np.mean(aware.std / laplace)),
    }


def row(settings: Settings, epsilon: float) -> dict[str, Any]:
    """A row of the table."""
    plan = plan_of(settings, epsilon)
    cell = Cell(settings.dimension, settings.records, epsilon, 1.0, "target")
    found = [measured(plan, *table(cell, seed)) for seed in range(settings.tables)]
    each = {name: np.array([one[name] for one in found]) for name in found[0]}
    rhat = each.pop("rhat")
    errors = {
        name: float(np.std(each[of]) / math.sqrt(settings.tables))
        for name, of in (("error", "coverage"), ("noise_aware_error", "noise_aware_coverage"))
    }
    facts = {"d": settings.dimension, "N": settings.records, "epsilon": epsilon}
    ends = {"rhat_median": float(np.median(rhat)), "rhat_worst": float(np.max(rhat))}
    return facts | {name: float(np.mean(values)) for name, values in each.items()} | errors | ends


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return the findings of the table, one per line."""
    return [
        f"epsilon {r['epsilon']:g}: the chain covers {r['coverage']:.3f} ({r['width']:.2f} times as wide), split R-hat "
        f"{r['rhat_median']:.2f} and {r['rhat_worst']:.2f} at worst; noise-aware inference from its trace covers "
        f"{r['noise_aware_coverage']:.3f} ({r['noise_aware_width']:.2f} times as wide)"
        for r in rows
    ]


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("metric_coverage", "Coverage of a chain in a private metric.", argv)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        settings = settings.model_copy(update=settings.quick.model_dump())
    with folder_for(arguments.out):
        rows = []
        for epsilon in settings.epsilons:
            rows.append(row(settings, epsilon))
            write_table(arguments.out / "results.csv", COLUMNS, rows)
        report(summary(rows), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
