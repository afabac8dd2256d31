"""Gradient samplers with tight accounting."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dpmcmc
from dpmcmc.privacy import CalibrationError
from dpmcmc.privacy.accounting.sampling import Sampling
from experiments.panel.config import Settings
from experiments.panel.trial import Outcome, Site, Trial

#: Draws kept of a chain, at most.
_DRAWS = 100

Planner = Callable[[Settings, float, Site], dpmcmc.Plan]


def sampling_of(settings: Settings) -> Sampling:
    """The minibatches that settings ask for; all records by default."""
    if "batch_size" not in settings:
        return dpmcmc.Full()
    return dpmcmc.Poisson(settings["batch_size"])


def length_of(settings: Settings, site: Site) -> dict[str, int]:
    """Steps, burn-in and thinning: ``burn_in`` is a share, and so many draws are kept that averages are smooth."""
    steps = settings.get("steps")
    if steps is None:
        steps = math.ceil(settings["passes"] * site.num_records / settings["batch_size"])
    burn_in = int(settings.get("burn_in", 0.5) * steps)
    return {"steps": steps, "burn_in": burn_in, "thin": max(1, (steps - burn_in) // _DRAWS)}


def planner(make: Callable[[Settings, float], Any]) -> Planner:
    """Plans of a sampler that ``make(settings, prior precision)`` builds."""

    def plan(settings: Settings, epsilon: float, site: Site) -> dpmcmc.Plan:
        target = site.target(settings.get("prior_scale"))
        return dpmcmc.plan(
            target,
            num_records=site.num_records,
            sampler=make(settings, target.prior_precision),
            sampling=sampling_of(settings),
            **length_of(settings, site),
            privacy=dpmcmc.Privacy(
                epsilon=epsilon,
                delta=site.delta,
                adjacency=site.adjacency,
                clip=settings.get("clip", 0.5),
                clipping="residual",  # as the thesis clips
            ),
        )

    return plan


SGLD = planner(lambda s, _: dpmcmc.SGLD(s["step_size"], s.get("temperature", 1.0)))
NOISY_SGD = planner(lambda s, _: dpmcmc.SGLD(s["step_size"], 0.0))
SGHMC = planner(lambda s, _: dpmcmc.SGHMC(s["step_size"], s.get("temperature", 1.0), s["friction"]))
SGNHT = planner(lambda s, _: dpmcmc.SGNHT(s["step_size"], s.get("temperature", 1.0), s["friction"]))
SGFS = planner(
    lambda s, precision: dpmcmc.SGFS(
        s["step_size"],
        s["temperature"],
        fisher="query",
        noise_ratio=s.get("noise_ratio", 3.0),
        query_every=1,
        prior_precision=precision,
        structure=s.get("structure", "auto"),
    )
)


def runner(make_plan: Planner) -> Callable[[Sequence[Trial], Site], list[Outcome]]:
    """Runs trials of one planner."""

    def run(trials: Sequence[Trial], site: Site) -> list[Outcome]:
        found = plans(make_plan, trials, site)
        return run_plans(found, trials, site)

    return run


def plans(make_plan: Callable[..., Any], trials: Sequence[Trial], site: Site) -> list[Any]:
    """A plan for each trial, made once for each (settings, ε); a sentence where there is none."""
    made: dict[str, Any] = {}
    out = []
    for trial in trials:
        about = json.dumps([trial.settings, trial.epsilon], sort_keys=True)
        if about not in made:
            try:
                made[about] = make_plan(trial.settings, trial.epsilon, site)
            except (ValueError, CalibrationError) as error:
                made[about] = str(error)
        out.append(made[about])
    return out


def run_plans(
    found: Sequence[dpmcmc.Plan | str], trials: Sequence[Trial], site: Site, starts: Any = None
) -> list[Outcome]:
    """Run plans.

    Args:
        found: one for each trial; a sentence where there is none.
        trials: for their keys.
        site: where.
        starts: private starting points, one for each plan that is one.
    """
    begun = itertools.repeat(None) if starts is None else iter(starts)
    return [
        Outcome(None, None, 0.0, plan) if isinstance(plan, str) else _outcome(plan, trial, site, next(begun))
        for plan, trial in zip(found, trials, strict=True)
    ]


def _outcome(plan: dpmcmc.Plan, trial: Trial, site: Site, start: Any) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dpmcmc.NotForIntervals)
            result = dpmcmc.sample(plan, site.records, key=trial.key, starts=start)
    except dpmcmc.DivergedError as error:
        return Outcome(None, plan.guarantee, 0.0, f"diverged by step {error.step}")
    return Outcome(np.asarray(result.flat_draws()), plan.guarantee, sum(result.wall_seconds.values()))
