r"""Figure 3.1 of the thesis: samplers on a generated Bayesian linear regression in two dimensions.

    python -m experiments.fig3_1 [--quick] [--out DIR] [--config configs/figures/fig3_1.yaml]

Left, chains from the prior mean to the posterior. DP-SGLD as printed (Algorithm 3) moves by

    θ' = θ − η g + N(0, max(V η², η)),     V = 128 (N T L²/(τ ε²)) log(2.5 N T/(τ δ)) log(2/δ),

here at η = 1/V, the largest step at which it adds no noise for privacy. The pair (drift η, variance η) keeps
temperature 1/2, and its covariance is half the posterior's. Beside it, SGLD with the same step and minibatches at
temperature 1, private and not.

Right, SGLD, SGHMC and SGNHT at ε, against the exact posterior: minibatches heat SGLD and SGHMC, not SGNHT. Each has the
largest step at which the noise that privacy needs is that of its own dynamics at temperature 1 (``step_size: auto``).

The error of a mean is the largest over coordinates, in standard deviations of the posterior; that of a covariance Ĉ is
‖Ĉ − Σ‖_F/‖Σ‖_F; the temperature is tr(Σ⁻¹Ĉ)/2. A long run has its own mean. The chains on the left last a few
relaxation times, so Ĉ is about the mean over repeats at the same step, free of what is left of the common start.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np

import dpmcmc
from dpmcmc.cli.refusals import CommandError
from dpmcmc.report.console import Screen
from experiments.commands import command, folder_for
from experiments.figure_files import arguments_of, load, report, write_table
from experiments.two_dimensions.measures import COLUMNS, Found, rows_of, summary
from experiments.two_dimensions.methods import methods
from experiments.two_dimensions.picture import draw
from experiments.two_dimensions.problem import Problem, make_problem
from experiments.two_dimensions.settings import Settings


def run(settings: Settings, problem: Problem) -> list[Found]:
    """Plan, sample and measure every method."""
    lines = methods(settings, problem)
    seed = settings.noise_seed
    keys = itertools.repeat(None) if seed is None else itertools.count(seed)
    out = []
    for method in lines:
        try:
            of_method = [
                dpmcmc.sample(method.plan, problem.records, key=key) for key in itertools.islice(keys, method.repeats)
            ]
        except dpmcmc.DivergedError as error:
            raise CommandError(f"{method.name}: {error}", code=1) from None
        draws = np.concatenate([np.asarray(result.draws, np.float64) for result in of_method])
        out.append(Found(method, draws, rows_of(settings, problem, method, draws, of_method[0].guarantee)))
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("fig3_1", "Redraw Figure 3.1.", argv)
    console = Screen()
    settings = load(arguments.config, Settings)
    if arguments.quick:
        settings = settings.shortened()
    warnings.simplefilter("ignore", dpmcmc.NotForIntervals)
    with folder_for(arguments.out):
        problem = make_problem(settings.regression)
        share = problem.clipped_share(settings.clip_norm)
        console.print(
            f"N = {problem.num_records:,}, started {problem.distance(np.zeros(2)):.1f} posterior standard deviations "
            f"away; {100 * share:.2f} % of the gradients are clipped at the posterior mean"
        )
        found = run(settings, problem)
        write_table(arguments.out / "results.csv", COLUMNS, [row for one in found for row in one.rows])
        note = "quick: short runs" if arguments.quick else None
        draw(arguments.out / f"{settings.name}.png", settings, problem, found, note)
        report(summary(found), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
