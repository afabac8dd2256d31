"""How the shipped Adult settings were chosen, and what they give.

    python -m experiments.adult_settings choose --epsilon 1.0      a grid, on a split of the TRAINING set
    python -m experiments.adult_settings report CONFIG [CONFIG...] ten fresh runs on the official test set

Adult is public, so looking at its records to choose settings costs nothing; on private data it would.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import jax
import numpy as np

import dpmcmc
from dpmcmc import config as config_room
from dpmcmc import config_file
from dpmcmc.diagnostics import predictive, reference
from dpmcmc.targets import bind


def split() -> tuple[dict, dict]:
    """Official training set in two: 80 % to run on, 20 % to judge by. The test set is not touched."""
    train = dpmcmc.data.load("adult").train
    order = np.random.RandomState(20_261_120).permutation(len(train["y"]))
    cut = int(0.8 * len(order))
    return tuple({k: v[part] for k, v in train.items()} for part in (order[:cut], order[cut:]))  # type: ignore[return-value]


def judge(target: Any, plan: dpmcmc.Plan, data: dict, held_out: dict, runs: int) -> np.ndarray:
    """Posterior-predictive accuracy of fresh runs, (runs,)."""
    out = []
    for _ in range(runs):
        try:
            result = dpmcmc.sample(plan, data)
        except dpmcmc.DivergedError:
            return np.full(runs, np.nan)
        out.append(predictive.binary(target, result.flat_draws(), held_out).posterior_predictive)
    return np.array(out)


def sampler(step_size: float | str, friction: float) -> Any:
    """SGLD for friction 0, else SGHMC."""
    return dpmcmc.SGLD(step_size) if friction == 0 else dpmcmc.SGHMC(step_size, friction=friction)


def choose(arguments: argparse.Namespace) -> None:
    """Print the grid, best last."""
    data, held_out = split()
    n = len(data["y"])
    rows = []
    grid = itertools.product(
        arguments.steps,
        arguments.clip,
        arguments.step_size,
        arguments.prior_scale,
        arguments.batch,
        arguments.friction,
    )
    for steps, clip, step_size, prior_scale, batch, friction in grid:
        target = bind(dpmcmc.targets.LogisticRegression(prior_scale), jax.tree.map(lambda leaf: leaf[0], data))
        sampling = dpmcmc.Full() if batch == 0 else dpmcmc.Poisson(batch)
        burn_in = int(steps * arguments.burn_in)
        plan = dpmcmc.plan(
            target,
            num_records=n,
            sampler=sampler("auto" if step_size == 0 else step_size, friction),
            sampling=sampling,
            steps=steps,
            burn_in=burn_in,
            thin=max(1, (steps - burn_in) // 100),
            privacy=dpmcmc.Privacy(epsilon=arguments.epsilon, delta=arguments.delta, clip=clip),
        )
        accuracy = judge(target, plan, data, held_out, arguments.runs)
        row = (
            float(accuracy.mean()),
            float(accuracy.std()),
            f"steps {steps} clip {clip} step_size {plan.sampler.step_size:.3g} prior {prior_scale} batch {batch} "
            f"friction {friction:g} "
            f"T {plan.temperatures.max():.3g} time {plan.time:.3g}",
        )
        rows.append(row)
        print(f"{row[0]:.4f} ± {row[1]:.4f}  {row[2]}", flush=True)
    print("\nbest")
    for row in sorted(rows)[-8:]:
        print(f"{row[0]:.4f} ± {row[1]:.4f}  {row[2]}")


def report(arguments: argparse.Namespace) -> None:
    """Mean and spread of fresh runs of shipped configs, and their distance to the non-private posterior."""
    for path in arguments.configs:
        config = config_file.load(path)
        plan = config_room.make_plan(config)
        data = dpmcmc.data.load(config.data)
        target = bind(plan.target, jax.tree.map(lambda leaf: leaf[0], data.train))
        fit = reference.laplace(target, data.train)
        plain = predictive.binary(target, fit.draws(200), data.test)
        accuracy, density, distances = [], [], []
        for _ in range(arguments.runs):
            result = dpmcmc.sample(plan, data.train)
            private = predictive.binary(target, result.flat_draws(), data.test)
            accuracy.append(private.posterior_predictive)
            density.append(private.log_predictive_density)
            distances.append(reference.distance(fit, result.flat_draws()))
        mean = {k: float(np.mean([d[k] for d in distances])) for k in distances[0]}
        assert plan.guarantee is not None
        print(
            f"{path}: {plan.guarantee}\n  accuracy {np.mean(accuracy):.4f} ± {np.std(accuracy, ddof=1):.4f} "
            f"(min {min(accuracy):.4f}) over {arguments.runs} runs; non-private {plain.posterior_predictive:.4f}\n"
            f"  log predictive density {np.mean(density):.4f}; non-private {plain.log_predictive_density:.4f}\n"
            f"  temperature {plan.temperatures.max():.3g}, free {plan.free_fraction:.2f}, noise multiplier "
            f"{plan.noise_multipliers.min():.4g}\n  distance to the non-private posterior: "
            + ", ".join(f"{k} {v:.3g}" for k, v in mean.items())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    grid = commands.add_parser("choose")
    grid.set_defaults(run=choose)
    grid.add_argument("--epsilon", type=float, default=1.0)
    grid.add_argument("--delta", type=float, default=1e-6)
    grid.add_argument("--steps", type=int, nargs="+", default=[60, 100, 200])
    grid.add_argument("--clip", type=float, nargs="+", default=[0.25, 0.5])
    grid.add_argument("--step-size", type=float, nargs="+", default=[16.0, 32.0, 64.0], help="0 means auto")
    grid.add_argument("--prior-scale", type=float, nargs="+", default=[1.0])
    grid.add_argument("--batch", type=float, nargs="+", default=[0], help="expected batch size; 0 means all")
    grid.add_argument("--friction", type=float, nargs="+", default=[0.0], help="of SGHMC; 0 means SGLD")
    grid.add_argument("--burn-in", type=float, default=0.5)
    grid.add_argument("--runs", type=int, default=3)
    figures = commands.add_parser("report")
    figures.set_defaults(run=report)
    figures.add_argument("configs", nargs="+")
    figures.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
