r"""Figure 1 of the per-instance DP paper: three levels of privacy loss of one release.

    python -m experiments.fig_pdp_1 [--quick] [--out DIR] [--config configs/figures/fig_pdp_1.yaml]

The release is the ridge estimate plus N(0, σ² I). Three losses at one δ: the largest over data and persons
(differential privacy), the largest over persons who could join these data (per-instance DP for all), and that of each
person in these data against the others. Every ε is of the exact Gaussian curve. ``results.csv`` has a row per data set
and level, ``records.csv`` the people of the first one. The data are generated: of real ones, all but the first level is
confidential.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from dpmcmc.diagnostics.per_instance import leave_one_out
from dpmcmc.privacy import round_up
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.pictures import saved
from experiments.sources.per_instance import noisy_estimate_epsilon
from experiments.sources.worst_case import estimate_for_all, estimate_sensitivity

COLUMNS = ("repeat", "level", "sensitivity", "epsilon", "delta")


class Regression(FigureSection):
    """The generated data: rows uniform on the unit sphere, targets of a linear Gaussian model, clipped to [-1, 1]."""

    num_records: int = Field(gt=1, description="n.")
    dimension: int = Field(gt=0, description="d.")
    noise_scale: float = Field(gt=0, description="Scale of y given x, before y is clipped.")
    seed: int = Field(ge=0, description="Seed of coefficients and records.")


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    repeats: int = Field(gt=0, description="Data sets.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    regression: Regression = Field(description="The data.")
    ridge: float = Field(gt=0, description="λ.")
    noise_std: float = Field(gt=0, description="σ.")
    delta: float = Field(gt=0, lt=1, description="δ.")
    repeats: int = Field(gt=0, description="Data sets.")
    quick: Quick = Field(description="Settings that --quick shortens.")


def make_coefficients(regression: Regression, repeat: int = 0) -> tuple[np.random.Generator, np.ndarray]:
    """A generator, and coefficients ~ N(0, I/d) drawn from it."""
    rng = np.random.default_rng([regression.seed, repeat])
    return rng, rng.normal(size=regression.dimension) / np.sqrt(regression.dimension)


def draw_records(
    rng: np.random.Generator, regression: Regression, coefficients: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (count, d) and targets (count,)."""
    x = rng.normal(size=(count, regression.dimension))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.clip(x @ coefficients + regression.noise_scale * rng.normal(size=count), -1, 1)


def shifts(x: np.ndarray, residual: np.ndarray, ridge: float) -> np.ndarray:
    """How far each record moves the ridge estimate, ‖H⁻¹x‖·|r| with H of all records and r out of sample, (n,)."""
    return np.linalg.norm(np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T), axis=0) * np.abs(residual)


def run(settings: Settings) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Rows of results.csv, and of the first data set each record's leverage, residual, shift and ε."""
    body = settings.regression
    rows = []
    first = {}
    promise = {"noise_std": settings.noise_std, "delta": settings.delta}
    # A function of the public n and λ alone.
    worst = estimate_sensitivity(body.num_records, settings.ridge)
    for repeat in range(settings.repeats):
        rng, coefficients = make_coefficients(body, repeat)
        x, y = draw_records(rng, body, coefficients, body.num_records)
        others = leave_one_out(x, y, settings.ridge)
        moved = shifts(x, others.residual, settings.ridge)
        each = noisy_estimate_epsilon(moved, **promise)
        anyone = estimate_for_all(x, y, ridge=settings.ridge, **promise)
        if repeat == 0:
            first = {"leverage": others.leverage, "residual": others.residual, "shift": moved, "epsilon": each}
        levels = {
            "differential privacy": (worst, float(noisy_estimate_epsilon(worst, **promise))),
            "for all, proved": (None, anyone.epsilon),
            "for all, attained": (None, anyone.attained),
            "in the data, largest": (float(moved.max()), float(each.max())),
            "in the data, mean": (float(moved.mean()), float(each.mean())),
            "in the data, median": (float(np.median(moved)), float(np.median(each))),
        }
        rows += [
            {"repeat": repeat, "level": level, "sensitivity": far, "epsilon": epsilon, "delta": settings.delta}
            for level, (far, epsilon) in levels.items()
        ]
    return rows, first


def of_level(rows: list[dict[str, Any]], level: str) -> np.ndarray:
    """ε of each data set."""
    return np.array([row["epsilon"] for row in rows if row["level"] == level])


def draw(path: Path, settings: Settings, rows: list[dict[str, Any]], each: np.ndarray, note: str | None) -> None:
    """Histogram of the people's ε, and the two levels above them as lines."""
    values = {level: of_level(rows, level)[0] for level in ("differential privacy", "for all, proved")}
    shown = np.maximum(each, 1e-4)
    edges = np.geomspace(shown.min() / 1.3, values["differential privacy"] * 1.6, 46)
    body = settings.regression
    ratio = values["differential privacy"] / float(each.mean())
    says = f"The people in the data lose {ratio:.0f} times less than the worst case"
    about = f"Ridge estimate + N(0, {settings.noise_std:g}² I), n = {body.num_records}, d = {body.dimension}"
    with saved(path, (7.6, 4.6), says, about, note) as figure:
        axis = figure.subplots()
        axis.hist(shown, bins=edges, color="C0", alpha=0.75, label=f"the {len(each)} people in these data")
        lines = (
            (float(each.mean()), "C0", ":", "their mean"),
            (values["for all, proved"], "C1", "--", "anyone who could join these data, at most"),
            (values["differential privacy"], "C3", "-", "anyone, whatever the data: differential privacy"),
        )
        for value, colour, dashes, name in lines:
            axis.axvline(value, color=colour, ls=dashes, lw=1.8, label=f"{name}: ε = {round_up(value, 3)}")
        axis.set_xscale("log")
        axis.set_xlabel(f"ε at δ = {settings.delta:.0e}".replace("e-0", "e-"))
        axis.set_ylabel("people")
        axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8.5)


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("fig_pdp_1", "Redraw Figure 1 of the per-instance DP paper.", argv)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        settings = settings.model_copy(update={"repeats": settings.quick.repeats})
    with folder_for(arguments.out):
        rows, first = run(settings)
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        people = [dict(zip(first, map(float, values), strict=True)) for values in zip(*first.values(), strict=True)]
        write_table(arguments.out / "records.csv", tuple(first), people)
        draw(arguments.out / f"{settings.name}.png", settings, rows, first["epsilon"], None)
        report([], arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
