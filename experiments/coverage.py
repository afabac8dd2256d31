r"""Coverage under privacy: how often intervals of a noise-aware release hold the parameter that made the labels.

    python -m experiments.coverage [--quick] [--config configs/figures/coverage.yaml] --out DIR

A cell simulates tables of a logistic regression with correlated rows: an intercept, binary columns, ranges and a
one-hot block, scaled so that ‖x‖ <= 1. The truth has the law N(0, truth_scale²) and the model the prior N(0, 1):
where truth_scale is 1, the prior is right. ``results.csv`` has a row per cell: share of coordinates inside central 90 %
intervals, its Monte Carlo standard error over tables, mean width over that of the non-private Laplace posterior, and
the width that the plan predicted. The picture shows coverage against width, one panel an ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from pydantic import Field
from scipy.special import expit

from dpmcmc.mechanisms import NoiseAware, release
from dpmcmc.report.figures import STYLE
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets import LogisticRegression
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table

LEVEL = 0.9
_BLOCK = 3
COLUMNS = ("d", "N", "epsilon", "truth_scale", "prior_scale", "coverage", "error", "width", "predicted_width")


class Quick(FigureSection):
    """Settings that ``--quick`` replaces."""

    records: list[Annotated[int, Field(gt=10)]] = Field(description="N.")
    tables: int = Field(gt=1, description="Simulated tables a cell.")
    truth_scales: list[Annotated[float, Field(gt=0)]] = Field(
        description="Standard deviation of the truth's coefficients."
    )


class Settings(Quick):
    """The YAML."""

    name: str = Field(description="Name of the picture.")
    dimensions: list[Annotated[int, Field(ge=5)]] = Field(description="d.")
    epsilons: list[Annotated[float, Field(gt=0)]] = Field(description="ε.")
    quick: Quick


class Cell(NamedTuple):
    """One setting."""

    d: int
    n: int
    epsilon: float
    truth_scale: float
    prior_scale: Literal["target", "evidence"]


def table(cell: Cell, seed: int) -> tuple[PyTree, np.ndarray]:
    """(records, the truth) of one simulated table."""
    rng, k = np.random.default_rng([cell.d, cell.n, seed]), cell.d - 1
    z = rng.normal(size=(cell.n, k)) @ (rng.normal(size=(k, k)) / math.sqrt(k) + np.eye(k))
    z /= z.std(axis=0)
    free = k - _BLOCK
    binary, ranged = z[:, : free // 2] > rng.normal(size=free // 2) / 2, np.clip(z[:, free // 2 : free], -3, 3) / 3
    hot = np.eye(_BLOCK)[np.argmax(z[:, free:], axis=1)]
    x = np.concatenate([np.ones((cell.n, 1)), binary, ranged, hot], axis=1) / math.sqrt(2 + free)
    truth = cell.truth_scale * rng.normal(size=cell.d)
    return {"x": x.astype(np.float32), "y": (rng.random(cell.n) < expit(x @ truth)).astype(np.int32)}, truth


def laplace_std(records: PyTree) -> np.ndarray:
    """Standard deviations of the non-private posterior's normal approximation, (d,)."""
    x, y = np.asarray(records["x"], np.float64), records["y"]
    mode = np.zeros(x.shape[1])
    for _ in range(25):
        p = expit(x @ mode)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.eye(len(mode))
        mode -= np.linalg.solve(curvature, x.T @ (p - y) + mode)
    return np.sqrt(np.diag(np.linalg.inv(curvature)))


def measured(cell: Cell, tables: int) -> dict[str, Any]:
    """A row of the table."""
    target = LogisticRegression(prior_scale=1.0, num_features=cell.d, row_bound=1.0)
    mechanism = NoiseAware(prior_scale=cell.prior_scale)
    plan = mechanism.plan(target, num_records=cell.n, epsilon=cell.epsilon, delta=cell.n**-1.2)
    inside, widths = [], []
    for seed in range(tables):
        records, truth = table(cell, seed)
        draws = release(plan, records).draws[0]
        low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        inside.append(np.mean((low < truth) & (truth < high)))
        widths.append(np.mean(draws.std(axis=0) / laplace_std(records)))
    error = float(np.std(inside) / math.sqrt(tables))
    found = (float(np.mean(inside)), error, float(np.mean(widths)), plan.settings["predicted_width"])
    return dict(zip(COLUMNS, (*cell, *found), strict=True))


def cells(settings: Settings) -> Iterator[Cell]:
    """All settings; evidence where the prior is wrong, too."""
    for truth_scale in settings.truth_scales:
        for d in settings.dimensions:
            for n in settings.records:
                for epsilon in settings.epsilons:
                    yield Cell(d, n, epsilon, truth_scale, "target")
                    if truth_scale != 1:
                        yield Cell(d, n, epsilon, truth_scale, "evidence")


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """Coverage against width, one panel an ε."""
    kinds = [
        (True, "target", "C0", "o", "the prior is right"),
        (False, "target", "C1", "x", "the truth is longer"),
        (False, "evidence", "C2", "x", "the same, scale by evidence"),
    ]
    epsilons = sorted({row["epsilon"] for row in rows})
    with rc_context(STYLE):
        figure = Figure(figsize=(3.0 * len(epsilons) + 0.6, 3.8), layout="constrained")
        axes = figure.subplots(1, len(epsilons), squeeze=False, sharex=True, sharey=True)[0]
        for axis, epsilon in zip(axes, epsilons, strict=True):
            axis.axhline(LEVEL, color="0.6", lw=1)
            for right, prior, color, marker, label in kinds:
                those = [
                    r
                    for r in rows
                    if (r["epsilon"], r["truth_scale"] == 1, r["prior_scale"]) == (epsilon, right, prior)
                ]
                if not those:
                    continue
                width, coverage, error = ([row[name] for row in those] for name in ("width", "coverage", "error"))
                axis.errorbar(width, coverage, [2 * e for e in error], fmt=marker, color=color, label=label, ms=4)
            axis.set(xscale="log", xlabel="width ÷ non-private", title=f"ε = {epsilon:g}")
            axis.xaxis.set_major_locator(FixedLocator([1, 1.5, 2, 3, 5, 8]))
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_locator(NullLocator())
        axes[0].set_ylabel("coverage of nominal 90 % intervals")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path)


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("coverage", "Coverage of intervals under privacy.", argv)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        settings = settings.model_copy(update=settings.quick.model_dump())
    with folder_for(arguments.out):
        rows = []
        for cell in cells(settings):
            rows.append(measured(cell, settings.tables))
            write_table(arguments.out / "results.csv", COLUMNS, rows)
        draw(arguments.out / f"{settings.name}.png", rows)
        report(summary(rows), arguments.out)


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Return the findings of the table, one per line."""
    lines = []
    for scale, prior in dict.fromkeys((row["truth_scale"], row["prior_scale"]) for row in rows):
        those = [row for row in rows if (row["truth_scale"], row["prior_scale"]) == (scale, prior)]
        held = sum(0.86 - 2 * row["error"] <= row["coverage"] <= 0.94 + 2 * row["error"] for row in those)
        lines.append(
            f"truth {scale:g} times the prior's scale, {prior} scale: {held} of {len(those)} cells cover within .86 to "
            f".94 (two standard errors); mean coverage {np.mean([row['coverage'] for row in those]):.3f}"
        )
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
