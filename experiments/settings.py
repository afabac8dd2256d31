"""Accuracy of shipped configs on their test sets, over fresh runs, beside the non-private posterior.

python -m experiments.settings CONFIG [CONFIG...] [--runs 10] [--set a.b=VALUE]
"""

from __future__ import annotations

import argparse

import numpy as np

import dpmcmc
from dpmcmc import config as config_room
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import file as config_file
from dpmcmc.diagnostics import reference
from dpmcmc.inference import predictive
from dpmcmc.targets import bind, record_shapes
from experiments.arguments import Parser, add_allow_code
from experiments.commands import command

#: Largest number of runs of one setting.
_MOST_RUNS = 10_000


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
        if plan.run is not None:
            print(
                f"  temperature {'none' if plan.run.offers.optimises else f'{plan.temperatures.max():.3g}'}, "
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
    parser = Parser(prog="python -m experiments.settings", description=__doc__)
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="override one key")
    add_allow_code(parser)
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.runs <= _MOST_RUNS:
        raise CommandError(f"--runs: must lie in 1..{_MOST_RUNS}, got {arguments.runs}.")
    report(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
