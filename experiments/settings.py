"""How the shipped settings were chosen, and what they give.

    python -m experiments.settings choose CONFIG --grid sampler.step_size=2,4 --grid privacy.clip=0.5,1
                                              every combination, on a split of the TRAINING set
    python -m experiments.settings report CONFIG [CONFIG...]
                                              ten fresh runs on the test set

The benchmark sets are public, so choosing settings by their records costs nothing. On private data it would cost
privacy.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np

import dpmcmc
from dpmcmc import config as config_room
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import Config
from dpmcmc.config import file as config_file
from dpmcmc.diagnostics import reference
from dpmcmc.inference import predictive
from dpmcmc.targets import bind, record_shapes
from experiments.arguments import Parser, add_allow_code
from experiments.commands import command


def split(train: dict) -> tuple[dict, dict]:
    """The training set in two: 80 % to run on, 20 % to judge by. The test set is not touched."""
    order = np.random.RandomState(20_261_120).permutation(len(train["y"]))
    cut = int(0.8 * len(order))
    return tuple({k: v[part] for k, v in train.items()} for part in (order[:cut], order[cut:]))  # type: ignore[return-value]


def judge(plan: dpmcmc.Plan, data: dict, held_out: dict, runs: int) -> list[predictive.Prediction]:
    """Return what fresh runs predict; empty where a chain diverges."""
    target = bind(plan.target, record_shapes(data))
    try:
        return [predictive.predict(target, dpmcmc.sample(plan, data).flat_draws(), held_out) for _ in range(runs)]
    except dpmcmc.DivergedError:
        return []


#: Largest number of runs of one setting.
_MOST_RUNS = 10_000


def _of_a_sampler(path: str, overrides: list[str], allow_code: list[str]) -> Config:
    config = config_file.load(path, overrides, allow_code=allow_code)
    if config.one_shot or config.mechanism is not None:
        raise CommandError(f"{path}: its release is a mechanism's; name a config of a sampler's own run.")
    return config


def choose(arguments: argparse.Namespace) -> None:
    """Print the grid, best last: highest accuracy, or smallest error."""
    grids = [
        [(key, value) for value in values.split(",")] for key, _, values in (g.partition("=") for g in arguments.grid)
    ]
    rows: list[tuple[float, str]] = []
    for combination in itertools.product(*grids):
        overrides = [*arguments.set, *(f"{key}={value}" for key, value in combination)]
        config = _of_a_sampler(arguments.config, overrides, arguments.allow_code)
        data, held_out = split(dpmcmc.data.load(config.data).train)
        plan = config_room.make_plan(config, num_records=len(data["y"]))
        assert isinstance(plan, dpmcmc.Plan)
        found = judge(plan, data, held_out, arguments.runs)
        values = np.array([p.posterior_predictive for p in found] or [np.nan])
        density = np.mean([p.log_predictive_density for p in found]) if found else np.nan
        row = (
            f"{values.mean():.4f}{_spread(values)} (log density {density:.4f})  "
            f"{' '.join(f'{k}={v}' for k, v in combination)}"
            + ("" if plan.optimises else f"  T {plan.temperatures.max():.3g} time {plan.time:.3g}")
        )
        better = -values.mean() if found and found[0].measure == "rmse" else values.mean()
        rows.append((float(np.nan_to_num(better, nan=-np.inf)), row))
        print(row, flush=True)
    print("\nbest")
    for _, row in sorted(rows)[-8:]:
        print(row)


def _spread(values: np.ndarray) -> str:
    """Standard deviation over runs, of N − 1 degrees of freedom; nothing for one run."""
    return f" ± {values.std(ddof=1):.4f}" if len(values) > 1 else ""


def report(arguments: argparse.Namespace) -> None:
    """Mean and spread of fresh runs of shipped configs, and their distance to the non-private posterior."""
    for path in arguments.configs:
        config = config_file.load(path, arguments.set, allow_code=arguments.allow_code)
        plan = config_room.make_plan(config)
        data = dpmcmc.data.load(config.data)
        if data.test is None:
            raise CommandError(f"{path}: its data has no test set to report on; name another config.")
        target = bind(plan.target, record_shapes(data.train))
        fit = reference.fit(target, data.train)
        plain = predictive.predict(target, fit.draws(200), data.test)
        found = []
        distances = []
        for _ in range(arguments.runs):
            draws = dpmcmc.sample(plan, data.train).flat_draws()
            found.append(predictive.predict(target, draws, data.test))
            if isinstance(fit, reference.Laplace):
                distances.append(reference.distance(fit, draws))
        values = np.array([p.posterior_predictive for p in found])
        print(
            f"{path}: {plan.guarantee or 'no guarantee'}\n  {plain.measure} {values.mean():.4f}{_spread(values)} (from "
            f"{values.min():.4f} to {values.max():.4f}) over {arguments.runs} runs; non-private "
            f"({fit.method}) {plain.posterior_predictive:.4f}\n  log predictive density "
            f"{np.mean([p.log_predictive_density for p in found]):.4f}; non-private "
            f"{plain.log_predictive_density:.4f}"
        )
        if isinstance(plan, dpmcmc.Plan):
            print(
                f"  temperature {'none' if plan.optimises else format(plan.temperatures.max(), '.3g')}, "
                f"free {plan.free_fraction:.2f}, noise multiplier "
                f"{'none' if plan.noise_multipliers is None else f'{plan.noise_multipliers.min():.4g}'}"
            )
        if distances:
            # A coverage needs more draws than some mechanisms release.
            known = [name for name, value in distances[0].items() if value is not None]
            mean = {name: float(np.mean([distance[name] for distance in distances])) for name in known}
            print("  distance to the non-private posterior: " + ", ".join(f"{k} {v:.3g}" for k, v in mean.items()))


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = Parser(
        prog="python -m experiments.settings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    grid = commands.add_parser("choose")
    grid.set_defaults(run=choose)
    grid.add_argument("config")
    grid.add_argument("--grid", action="append", default=[], metavar="a.b=V1,V2", help="values of one key to try")
    grid.add_argument("--runs", type=int, default=3)
    figures = commands.add_parser("report")
    figures.set_defaults(run=report)
    figures.add_argument("configs", nargs="+")
    figures.add_argument("--runs", type=int, default=10)
    for each in (grid, figures):
        each.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="override one key")
        add_allow_code(each)
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.runs <= _MOST_RUNS:
        raise CommandError(f"--runs: must lie in 1..{_MOST_RUNS}, got {arguments.runs}.")
    arguments.run(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
