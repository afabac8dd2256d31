r"""AdaOPS beside the other one-shot methods of linear regression, on diabetes and on generated designs.

    python -m experiments.adaops [--quick] --out DIR [--config configs/figures/adaops.yaml]

The error of a release θ is its distance to the non-private ridge estimate θ̂ in prediction, √((θ − θ̂)ᵀXᵀX(θ − θ̂)/N)
relative to that of θ = 0: at 1 it predicts no better than a constant. AdaOPS, AdaSSP and the noisy sufficient
statistics need no further setting. OPS with a fixed ridge, output and objective perturbation
(``ridge_perturbation.py``) need a public ridge; each gets the one that is best in hindsight at each ε.

Written: ``results.csv``, one row per design, ε and method, and ``adaops.png``. Runs are seeded; the guarantee is the
plan's, which a run under a secret key carries.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pydantic import Field
from rich.console import Console

import dpmcmc
from dpmcmc.mechanisms import AdaOPS, AdaSSP, SufficientStatistics
from dpmcmc.privacy import CalibrationError
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.report.console import Screen
from dpmcmc.targets import LinearRegression
from experiments.arguments import Parser
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, load
from experiments.pictures import name_ends, saved
from experiments.ridge_perturbation import Ridge, objective_std, output_std, perturb_objective, perturb_output

_CONFIG = Path(__file__).resolve().parent.parent / "configs" / "figures" / "adaops.yaml"

#: Methods in the order of the legend: colour, marker, dashes.
LOOKS: dict[str, tuple[str, str, str]] = {
    "AdaOPS": ("C0", "o", "-"),
    "OPS, fixed ridge": ("C5", "h", "--"),
    "AdaSSP": ("C1", "s", "-"),
    "sufficient statistics": ("C2", "^", "-"),
    "objective perturbation": ("C3", "v", "--"),
    "output perturbation": ("0.35", "x", "--"),
}
COLUMNS = (
    "design", "num_records", "num_features", "epsilon", "delta", "adjacency", "method", "ridge", "repeats",
    "error", "error_std", "guarantee_epsilon",
)  # fmt: skip


class Design(FigureSection):
    """Source of the records."""

    name: str = Field(description="diabetes, or a name of your own for a generated one.")
    num_records: int | None = Field(None, gt=0, description="N of a generated one.")
    num_features: int | None = Field(None, gt=0, description="d of a generated one.")
    weakest: float | None = Field(None, gt=0, le=1, description="Scale of the last column of a generated one.")
    noise_scale: float = Field(gt=0, description="The target's, and the generated labels'.")
    label_bound: float = Field(gt=0, description="Y.")
    delta: float = Field(gt=0, lt=1, description="δ.")


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    epsilons: list[float] = Field(description="ε grid.")
    repeats: int = Field(gt=0, description="Runs of each.")
    num_records: int = Field(gt=0, description="N of generated designs.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    epsilons: list[float] = Field(description="ε grid.")
    repeats: int = Field(gt=0, description="Runs of each method at each ε.")
    seed: int = Field(ge=0, description="Seed of designs and noise.")
    adjacency: str = Field("replace_one", description="Definition of a neighbour.")
    ridges: list[float] = Field(description="Ridges that fixed methods choose from in hindsight.")
    designs: list[Design] = Field(description="Panels.")
    quick: Quick = Field(description="Settings that --quick shortens.")

    def shortened(self) -> Settings:
        """Return the settings of ``--quick``: every method and design."""
        designs = [
            one if one.num_records is None else one.model_copy(update={"num_records": self.quick.num_records})
            for one in self.designs
        ]
        return self.model_copy(
            update={"epsilons": self.quick.epsilons, "repeats": self.quick.repeats, "designs": designs}
        )


@dataclass(frozen=True)
class Problem:
    """Records, their target, and the reference of errors: θ̂ and XᵀX/N."""

    design: Design
    target: LinearRegression
    records: dict[str, np.ndarray]
    estimate: np.ndarray
    second_moment: np.ndarray

    def error(self, theta: np.ndarray) -> float:
        """Relative distance in prediction of (d,) to θ̂."""
        gap = theta - self.estimate
        return float(np.sqrt(gap @ self.second_moment @ gap / (self.estimate @ self.second_moment @ self.estimate)))


def make_problem(design: Design, seed: int) -> Problem:
    """Load or generate the records."""
    if design.num_records is None:
        records = dpmcmc.data.load(design.name).train
    else:
        assert design.num_features is not None
        assert design.weakest is not None
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(design.num_records, design.num_features))
        x *= np.geomspace(1, design.weakest, design.num_features)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        # Coefficients have one size, so the signal of a direction is as strong as its column.
        coefficients = rng.choice([-1.0, 1.0], design.num_features) * 0.5
        y = x @ coefficients + design.noise_scale * rng.normal(size=len(x))
        records = {"x": x, "y": np.clip(y, -design.label_bound, design.label_bound)}
    x, y = (np.asarray(records[name], np.float64) for name in "xy")
    x *= np.minimum(1.0, (1 - 1e-12) / np.linalg.norm(x, axis=1, keepdims=True))
    target = LinearRegression(1.0, design.noise_scale, design.label_bound, num_features=x.shape[1], row_bound=1.0)
    return Problem(design, target, {"x": x, "y": y}, target.posterior({"x": x, "y": y})[0], x.T @ x / len(x))


#: Makes one release, (d,), from a seed.
_Draw = Callable[[int], np.ndarray]


def methods(problem: Problem, settings: Settings, epsilon: float) -> list[tuple[str, float | None, float, _Draw]]:
    """Yield (name, ridge where it is fixed, guaranteed ε, function that draws) of every method that has a plan at this
    ε."""
    design = problem.design
    target = problem.target
    records = problem.records
    promise: dict[str, Any] = {
        "num_records": len(records["y"]),
        "epsilon": epsilon,
        "delta": design.delta,
        "adjacency": settings.adjacency,
    }

    def planned(name: str, mechanism: Any, ridge: float | None = None) -> tuple[str, float | None, float, _Draw]:
        plan = mechanism.plan(target, **promise)
        draw = lambda seed: mechanism.draw(plan, records, streams_of(seed)[0])[0]  # noqa: E731
        return name, ridge, plan.guarantee.epsilon, draw

    out = [
        planned("AdaOPS", AdaOPS()),
        planned("AdaSSP", AdaSSP()),
        planned("sufficient statistics", SufficientStatistics()),
    ]
    for ridge in settings.ridges:
        facts = Ridge(1.0, design.label_bound, len(problem.estimate), len(records["y"]), ridge, settings.adjacency)
        with contextlib.suppress(CalibrationError):  # too small a ridge for this ε
            out.append(planned("OPS, fixed ridge", AdaOPS(ridge=ridge), ridge))
        for name, calibrate, perturb in (
            ("output perturbation", output_std, perturb_output),
            ("objective perturbation", objective_std, perturb_objective),
        ):
            try:
                std = calibrate(facts, epsilon, design.delta)
            except CalibrationError:
                continue

            def draw(seed: int, facts: Ridge = facts, std: float = std, perturb: Any = perturb) -> np.ndarray:
                return perturb(facts, std, records, jax.random.key(seed))

            out.append((name, ridge, epsilon, draw))
    return out


def run(settings: Settings, console: Console) -> list[dict[str, Any]]:
    """Return the rows of every design, ε and method, with the best ridge."""
    rows: list[dict[str, Any]] = []
    for design in settings.designs:
        problem = make_problem(design, settings.seed)
        for epsilon in settings.epsilons:
            best: dict[str, dict[str, Any]] = {}
            for name, ridge, guaranteed, draw in methods(problem, settings, epsilon):
                errors = [problem.error(draw(settings.seed + i)) for i in range(settings.repeats)]
                row = {
                    "design": design.name,
                    "num_records": len(problem.records["y"]),
                    "num_features": len(problem.estimate),
                    "epsilon": epsilon,
                    "delta": design.delta,
                    "adjacency": settings.adjacency,
                    "method": name,
                    "ridge": "" if ridge is None else ridge,
                    "repeats": len(errors),
                    "error": float(np.mean(errors)),
                    "error_std": float(np.std(errors, ddof=1)),
                    "guarantee_epsilon": guaranteed,
                }
                if name not in best or row["error"] < best[name]["error"]:
                    best[name] = row
            rows += best.values()
            told = ", ".join(f"{name} {best[name]['error']:.3g}" for name in LOOKS if name in best)
            console.print(f"{design.name}, epsilon {epsilon:g}: {told}")
    return rows


def picture(path: Path, settings: Settings, rows: list[dict[str, Any]]) -> None:
    """Error against ε, one panel a design."""
    says = "Noisy sufficient statistics, the simplest adaptive method, are nearest to the non-private estimate"
    about = f"{settings.adjacency}, {settings.repeats} runs; bars: one standard error; best fixed ridges in hindsight"
    with saved(path, (4.4 * len(settings.designs), 5.0), says, about) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(settings.designs), sharey=True))
        for axis, design in zip(axes, settings.designs, strict=True):
            for name, (colour, marker, dashes) in LOOKS.items():
                of = [row for row in rows if (row["design"], row["method"]) == (design.name, name)]
                axis.errorbar(
                    [row["epsilon"] for row in of],
                    [row["error"] for row in of],
                    [row["error_std"] / np.sqrt(row["repeats"]) for row in of],
                    color=colour, marker=marker, ls=dashes, ms=4.5, lw=1.3, capsize=2, label=name,
                )  # fmt: skip
            axis.axhline(1.0, color="0.6", lw=0.8, ls=":")
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_ylim(0.7 * min(row["error"] for row in rows), 1.5 * max(row["error"] for row in rows))
            axis.set_xticks(settings.epsilons, [f"{e:g}" for e in settings.epsilons])
            axis.minorticks_off()
            axis.set_xlabel("ε")
            one = next(row for row in rows if row["design"] == design.name)
            axis.set_title(
                f"{design.name}: N = {one['num_records']:,}, d = {one['num_features']}, δ = {design.delta:g}"
            )
        axes[0].set_ylabel("distance to the ridge estimate (1: predicts nothing)")
        last = [row for row in rows if row["design"] == settings.designs[-1].name]
        ends = {row["method"]: row["error"] for row in last if row["epsilon"] == max(settings.epsilons)}
        name_ends(axes[-1], [(error, name, LOOKS[name][0]) for name, error in ends.items()])


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = Parser(
        prog="python -m experiments.adaops", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write to")
    parser.add_argument("--quick", action="store_true", help="fewer ε, records and repeats; every method")
    parser.add_argument("--config", default=str(_CONFIG), help="YAML file")
    arguments = parser.parse_args(argv)
    console = Screen()
    settings = load(Path(arguments.config), Settings)
    settings = settings.shortened() if arguments.quick else settings
    folder = Path(arguments.out)
    with folder_for(folder):
        rows = run(settings, console)
        with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        picture(folder / f"{settings.name}.png", settings, rows)
        console.print(f"written to {folder}")


if __name__ == "__main__":
    raise SystemExit(main())
