r"""A private recommender: root mean squared error of ratings that users complete at home, against ε.

    python -m experiments.recommender [--quick] [--out DIR] [--config configs/figures/recommender.yaml]

A record is a user with all of their ratings (``dpmcmc.targets.shipped_models.Recommender``). The chain releases draws
of the films' factors V. A user who takes part in nothing completes a rating from V and their own other ratings, so that
step reads no one else's record and costs no privacy.

Beside the private chain: a longer chain without privacy, the V that made the ratings, and the mean rating of each film,
both not private. Written: ``results.csv`` and ``recommender.png``, the error against the number of ratings that a
user has given.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from rich.console import Console

import dpmcmc
from dpmcmc import config as config_room
from dpmcmc.config import file as config_file
from dpmcmc.data import DataSet, generated
from dpmcmc.inference import predictive
from dpmcmc.report.console import Screen
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.pictures import BLUE, DARK, GREY, LIGHT, ORANGE, RED, SKY, name_ends, saved

WITHOUT, TRUTH, MEANS = "chain without privacy", "the V that made the ratings", "mean of each film"
COLUMNS = ("method", "epsilon", "guarantee_epsilon", "temperature", "steps", "runs", "ratings", "rmse", "rmse_std")
#: How many ratings a user has given; all are about 17.
FEW = (0, 1, 2, 4, 8, 16)
COLOURS = (RED, ORANGE, SKY, BLUE)


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    epsilons: list[float] = Field(description="ε.")
    runs: int = Field(gt=0, description="Runs of each.")
    steps_without_privacy: int = Field(gt=0, description="Steps of the chain without privacy.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    config: str = Field(description="The run.")
    epsilons: list[float] = Field(description="ε.")
    runs: int = Field(gt=0, description="Runs at each ε.")
    steps_without_privacy: int = Field(gt=0, description="Steps of the chain without privacy.")
    quick: Quick = Field(description="Settings that --quick shortens.")

    def shortened(self) -> Settings:
        """Return the settings of ``--quick``."""
        return self.model_copy(update=self.quick.model_dump())


#: Rows of users, (n, 3·items), to predictions of the ratings that are asked, (n,).
Completes = Callable[[np.ndarray], np.ndarray]


def with_at_most(x: np.ndarray, ratings: int) -> np.ndarray:
    """Rows of the same users when they have given no more than their first few ratings."""
    shown, mask, asked = np.split(x, 3, axis=1)
    kept = mask * (np.cumsum(mask, axis=1) <= ratings)
    return np.concatenate([shown * kept, kept, asked], axis=1)


def errors(ways: list[Completes], test: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Error of each run for users with all of their ratings, and with a few of them."""
    rows = []
    for name, x in [("all", test["x"]), *((str(few), with_at_most(test["x"], few)) for few in FEW)]:
        rmse = [float(np.sqrt(np.mean(np.square(completes(x) - test["y"])))) for completes in ways]
        spread = float(np.std(rmse, ddof=1)) if len(rmse) > 1 else ""
        rows.append({"ratings": name, "rmse": float(np.mean(rmse)), "rmse_std": spread})
    return rows


def of_a_chain(settings: Settings, epsilon: float | None, data: DataSet) -> list[dict[str, Any]]:
    """Return the rows of the config's chain at an ε, or of a longer one without privacy."""
    without = ["privacy=null", f"run.steps={settings.steps_without_privacy}"]
    overrides = without if epsilon is None else [f"privacy.epsilon={epsilon}"]
    plan = config_room.make_plan(config_file.load(settings.config, overrides))
    assert isinstance(plan, dpmcmc.Plan)
    assert data.test is not None
    ways: list[Completes] = []
    for _ in range(1 if epsilon is None else settings.runs):
        draws = dpmcmc.sample(plan, data.train).flat_draws()
        ways.append(partial(predictive.mean, plan.target, draws))
    about = {
        "method": WITHOUT if epsilon is None else f"ε = {epsilon:g}",
        "epsilon": "" if epsilon is None else epsilon,
        "guarantee_epsilon": "" if plan.guarantee is None else plan.guarantee.epsilon,
        "temperature": float(plan.temperatures.max()),
        "steps": plan.steps,
        "runs": len(ways),
    }
    return [about | row for row in errors(ways, data.test)]


def of_baselines(settings: Settings, data: DataSet) -> list[dict[str, Any]]:
    """Return the rows of the truth, and of a mean for each film; neither is private."""
    target = config_room.make_plan(config_file.load(settings.config)).target
    assert data.test is not None
    films = generated.ratings_films().astype(np.float32)
    asked = data.train["x"][:, 2 * generated.ITEMS :]
    means = (data.train["y"] @ asked) / asked.sum(axis=0)
    ways: dict[str, Completes] = {
        TRUTH: lambda x: np.asarray(target.predict(films, x)),
        MEANS: lambda x: x[:, 2 * generated.ITEMS :] @ means,
    }
    return [
        {"method": name, "runs": 1} | row for name, completes in ways.items() for row in errors([completes], data.test)
    ]


def run(settings: Settings, console: Console) -> list[dict[str, Any]]:
    """Return the rows of every way."""
    data = dpmcmc.data.load("ratings")
    rows: list[dict[str, Any]] = []
    for epsilon in (*settings.epsilons, None):
        rows += of_a_chain(settings, epsilon, data)
        console.print(f"{rows[-1]['method']}: done")
    rows += of_baselines(settings, data)
    for row in rows:
        if row["ratings"] == "all":
            console.print(f"{row['method']}: rmse {row['rmse']:.4f}")
    return rows


def picture(path: Path, settings: Settings, rows: list[dict[str, Any]], note: str | None) -> None:
    """Error against the number of ratings that a user has."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    colours = dict(zip(names, COLOURS, strict=False)) | {WITHOUT: DARK, TRUTH: GREY, MEANS: LIGHT}
    says = "From ε = 1 on, ratings completed at home are nearly as good as without privacy"
    about = f"4,000 generated users of 30 films, 2,000 others to test; {settings.runs} runs; a record is a user"
    with saved(path, (7.6, 4.6), says, about, note) as figure:
        axis = figure.subplots()
        for name in names:
            of = [row for row in rows if row["method"] == name and row["ratings"] != "all"]
            private = name.startswith("ε")
            axis.plot(
                range(len(of)), [row["rmse"] for row in of], color=colours[name], marker="o" if private else None,
                ms=4.5, ls="-" if private else "--",
            )  # fmt: skip
        axis.set_yscale("log")
        ticks = [0.3, 0.4, 0.5, 0.6, 0.8]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_ylim(0.25, 1.0)
        axis.set_xticks(range(len(FEW)), [str(few) for few in FEW])
        axis.set_xlabel("ratings that the user has given")
        axis.set_ylabel("rmse of one more rating")
        ends = {row["method"]: row["rmse"] for row in rows if row["ratings"] == str(FEW[-1])}
        name_ends(axis, [(rmse, name, colours[name]) for name, rmse in ends.items()])


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("recommender", "Ratings completed at home from private factors, against ε.", argv)
    settings = load(arguments.config, Settings)
    settings = settings.shortened() if arguments.quick else settings
    with folder_for(arguments.out), warnings.catch_warnings():
        warnings.simplefilter("ignore", dpmcmc.NotForIntervals)
        rows = run(settings, Screen())
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        note = "quick: few runs" if arguments.quick else None
        picture(arguments.out / f"{settings.name}.png", settings, rows, note)
    report([], arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
