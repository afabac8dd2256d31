r"""Adaptive questions about means, answered with the noise of ``GaussianAnswers``, and without any.

    python -m experiments.adaptive_answers [--quick] [--out DIR] [--config configs/figures/adaptive_answers.yaml]

The adversary of the thesis's chapter 10 asks for k−1 independent statistics φ_i ~ N(0, σ²), gets A_i = φ_i + N(0, w²),
and asks at last for φ_k = Σ A_iφ_i/‖A‖, whose true mean is 0, too. Given the answers, φ_k is normal with

    mean  ‖A‖σ²/(σ² + w²),  whose mean square is (k−1)σ⁴/(σ² + w²),     and variance  σ²w²/(σ² + w²)

With w² = √(k−1)σ² on all k answers the last one has a mean squared error of exactly 2√(k−1)σ², below the bound
(2√(k−1) + 1)σ². Without noise it is (k−1)σ². Games against the library have records x = 1/2 ± s with
s = 1/(2√(k−1)), so that every direction of norm 1 stays in [0, 1] and nothing is clipped.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from dpmcmc.privacy import round_up
from dpmcmc.privacy.interactive import GaussianAnswers
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.pictures import BLUE, DARK, ORANGE, saved

COLUMNS = (
    "queries",
    "answers",
    "repeats",
    "squared_bias",
    "squared_bias_closed",
    "squared_error",
    "squared_error_error",
    "squared_error_closed",
    "bound",
    "epsilon",
)
#: Values of the column ``answers``.
NOISY, PLAIN, LIBRARY = "noisy", "plain", "library"


class Library(FigureSection):
    """Games against the library."""

    queries: list[Annotated[int, Field(ge=2)]] = Field(min_length=1, description="k.")
    num_records: int = Field(gt=1, description="n of each game.")
    repeats: int = Field(gt=1, description="Games.")


class Promise(FigureSection):
    """Public facts that the stated ε is of."""

    num_records: int = Field(gt=1, description="n.")
    std: float = Field(gt=0, le=0.5, description="s.")
    delta: float = Field(gt=0, lt=1, description="δ.")


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    repeats: int = Field(gt=1, description="Games against the library.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    seed: int = Field(ge=0, description="Seed of the simulated games.")
    queries: list[Annotated[int, Field(ge=2)]] = Field(min_length=1, description="k of the simulated games.")
    repeats: int = Field(gt=1, description="Simulated games.")
    library: Library = Field(description="Games against the library.")
    promise: Promise = Field(description="Public facts that the stated ε is of.")
    quick: Quick = Field(description="Settings that --quick shortens.")


def closed(queries: int, variance: float) -> tuple[float, float]:
    """(mean square of the bias, mean squared error of the last answer), in σ², where the noise has this variance."""
    bias = (queries - 1) / (1 + variance)
    return bias, bias + variance / (1 + variance) + variance


def simulated(queries: int, variance: float, repeats: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Squared bias given the answers, and squared error of the last answer, in σ²; (repeats,) each."""
    statistics = rng.standard_normal((repeats, queries - 1))
    answers = statistics + math.sqrt(variance) * rng.standard_normal(statistics.shape)
    norm = np.linalg.norm(answers, axis=1)
    last = np.einsum("rk,rk->r", answers, statistics) / norm + math.sqrt(variance) * rng.standard_normal(repeats)
    return (norm / (1 + variance)) ** 2, last**2


def played(queries: int, num_records: int, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """Squared errors of the library's last answer, in σ²; (repeats,)."""
    std = 0.5 / math.sqrt(queries - 1)
    errors = np.empty(repeats)
    for game in range(repeats):
        signs = rng.choice([-1.0, 1.0], (num_records, queries - 1))
        # No ledger and no promise beyond the game: the records are generated.
        desk = GaussianAnswers({"x": 0.5 + std * signs}, queries, std, delta=0.5 / num_records)
        answers = np.array([desk.ask(lambda r, i=i: r["x"][i]) for i in range(queries - 1)]) - 0.5
        direction = answers / np.linalg.norm(answers)
        last = desk.ask(lambda r, direction=direction: 0.5 + direction @ (r["x"] - 0.5))
        errors[game] = (last - 0.5) ** 2 / (std**2 / num_records)
    return errors


def run(settings: Settings) -> list[dict[str, Any]]:
    """Rows of results.csv."""
    rng = np.random.default_rng(settings.seed)
    promise = settings.promise
    rows = []
    for queries in settings.queries:
        records = {"x": np.zeros(promise.num_records)}
        epsilon = GaussianAnswers(records, queries, promise.std, delta=promise.delta).guarantee.epsilon
        for name, variance in ((NOISY, math.sqrt(queries - 1)), (PLAIN, 0.0)):
            bias, errors = simulated(queries, variance, settings.repeats, rng)
            rows.append(_row(queries, name, variance, errors, float(bias.mean())))
            if name == NOISY:
                rows[-1]["epsilon"] = epsilon
    body = settings.library
    for queries in body.queries:
        errors = played(queries, body.num_records, body.repeats, rng)
        rows.append(_row(queries, LIBRARY, math.sqrt(queries - 1), errors, None))
    return rows


def _row(queries: int, name: str, variance: float, errors: np.ndarray, bias: float | None) -> dict[str, Any]:
    closed_bias, closed_error = closed(queries, variance)
    return {
        "queries": queries,
        "answers": name,
        "repeats": len(errors),
        "squared_bias": bias,
        "squared_bias_closed": closed_bias,
        "squared_error": float(errors.mean()),
        "squared_error_error": float(errors.std(ddof=1) / math.sqrt(len(errors))),
        "squared_error_closed": closed_error,
        "bound": 2 * variance + 1 if variance else None,
    }


def draw(path: Path, settings: Settings, rows: list[dict[str, Any]], note: str | None) -> None:
    """Squared error against k: lines are closed forms, points games."""
    says = "With noise the error of adaptive answers grows as √k, without it as k"
    about = (
        f"{settings.repeats:,} simulated games, {settings.library.repeats:,} against GaussianAnswers; generated data"
    )
    grid = np.geomspace(min(settings.queries), max(settings.queries), 100)
    with saved(path, (7.2, 4.6), says, about, note) as figure:
        axis = figure.subplots()
        axis.plot(grid, grid - 1, color=ORANGE, label="means without noise: k − 1")
        axis.plot(grid, 2 * np.sqrt(grid - 1) + 1, color=DARK, ls=":", label="proved bound: 2√(k−1) + 1")
        axis.plot(grid, 2 * np.sqrt(grid - 1), color=BLUE, label="with noise √(k−1) σ²: 2√(k−1)")
        for name, colour, marker, label in (
            (PLAIN, ORANGE, "o", None),
            (NOISY, BLUE, "o", "simulated"),
            (LIBRARY, BLUE, "x", "played against GaussianAnswers"),
        ):
            found = [row for row in rows if row["answers"] == name]
            x = [row["queries"] for row in found]
            y = [row["squared_error"] for row in found]
            axis.errorbar(
                x, y, yerr=[2 * row["squared_error_error"] for row in found], fmt=marker,
                ms=9 if marker == "x" else 5, color=colour, capsize=2, label=label,
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(settings.queries, [str(k) for k in settings.queries])
        axis.minorticks_off()
        axis.set_xlabel("questions k, the last one along the direction of the noise in the data")
        axis.set_ylabel("mean squared error of the last answer, σ²")
        axis.legend(frameon=False, loc="upper left", fontsize=8.5)


def summary(settings: Settings, rows: list[dict[str, Any]]) -> list[str]:
    """One line a row."""
    promise = settings.promise
    lines = []
    for row in rows:
        line = f"k = {row['queries']}, {row['answers']}: "
        if row["squared_bias"] is not None:
            line += f"squared bias {row['squared_bias']:.3g} (closed form {row['squared_bias_closed']:.3g}), "
        line += f"squared error {row['squared_error']:.3g} ± {row['squared_error_error']:.2g} "
        line += f"(closed form {row['squared_error_closed']:.3g})"
        if "epsilon" in row:
            line += f", ε = {round_up(row['epsilon'], 3)} at δ = {promise.delta:g} for {promise.num_records} records"
        lines.append(line)
    return lines


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("adaptive_answers", "Adaptive questions against noisy and plain means.", argv)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        shorter = settings.library.model_copy(update={"repeats": settings.quick.repeats})
        settings = settings.model_copy(update={"library": shorter})
    with folder_for(arguments.out):
        rows = run(settings)
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        note = "quick: few games against GaussianAnswers" if arguments.quick else None
        draw(arguments.out / f"{settings.name}.png", settings, rows, note)
        report(summary(settings, rows), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
