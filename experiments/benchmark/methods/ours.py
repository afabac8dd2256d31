"""The library's methods whose draws may be for intervals: ``fit``, ``suggest`` and the four samplers.

``dpmcmc.fit`` is called as a user calls it. A sampler runs by its shipped configuration for UCI Adult, with the prior
that ``fit`` would take, on all records in a private metric; the planner follows N, d, ε and δ. Adult is no table of the
benchmark.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import dpmcmc
from dpmcmc.errors import InputError
from dpmcmc.estimators.fitting import model_of
from dpmcmc.estimators.suggestion import ask
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.samplers.base import Sampler
from experiments.benchmark.methods.contract import ALL, Method, Outcome, Refused
from experiments.benchmark.problem import Problem

_PROMISE = "(ε, δ), one record replaced"
#: Samplers as shipped for Adult: learning rate on the mean loss in units of the metric; 80 steps, half of them burn-in.
_SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    "sgld": lambda target: dpmcmc.SGLD(step_size=12.0),
    "sghmc": lambda target: dpmcmc.SGHMC(step_size=4.0, friction=0.4),
    "sgnht": lambda target: dpmcmc.SGNHT(step_size=1.75, friction=0.1, temperature=2.0),
    "sgfs": lambda target: dpmcmc.SGFS(
        step_size=48.0, temperature=8.0, fisher="gradients", prior_precision=target.prior_precision
    ),
}
_STEPS, _SHARE = 80, 0.25
#: Most draws that are kept.
_DRAWS = 1000


def records_of(problem: Problem) -> dict[str, np.ndarray]:
    """Return rows as the library takes them."""
    integers = problem.kind != "real"
    return {"x": problem.x.astype(np.float32), "y": problem.y.astype(np.int32 if integers else np.float32)}


def bound_model(problem: Problem) -> Any:
    """Return the model of the label with the default prior, bound to the schema's public facts."""
    return ask(model_of(problem.schema), len(problem.y), 1.0, problem.delta, problem.schema, None, {}).target


def outcome_of(result: dpmcmc.Result) -> Outcome:
    """Return draws and claims of a result."""
    draws = np.asarray(result.flat_draws(), np.float64)
    keep = np.unique(np.linspace(0, len(draws) - 1, _DRAWS).astype(int))
    predicted = result.plan.settings.get("predicted_width") if hasattr(result.plan, "settings") else None
    predicted = result.verdict.predicted_width if predicted is None else predicted
    with np.errstate(all="ignore"):
        width = np.nan if predicted is None else float(np.exp(np.mean(np.log(np.asarray(predicted, float)))))
    claims = "intervals" in result.usable_for
    learnt = None if result.evidence is None else result.evidence.label_scale
    return Outcome(draws[keep], claims, str(result.guarantee), width, learnt)


def refusing(run: Callable[[Problem, float], Outcome]) -> Callable[[Problem, float], Outcome]:
    """Turn a refusal of the library into :class:`Refused`."""

    @functools.wraps(run)
    def refused(problem: Problem, epsilon: float) -> Outcome:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return run(problem, epsilon)
        except InputError as error:
            raise Refused(str(error)) from None

    return refused


@refusing
def _fit(problem: Problem, epsilon: float) -> Outcome:
    return outcome_of(dpmcmc.fit(None, problem.frame, problem.schema, epsilon, delta=problem.delta, progress=False))


@refusing
def _suggest(problem: Problem, epsilon: float) -> Outcome:
    plan = dpmcmc.suggest(
        model_of(problem.schema),
        num_records=len(problem.y),
        epsilon=epsilon,
        delta=problem.delta,
        schema=problem.schema,
        goal="prediction",
    )
    return outcome_of(dpmcmc.sample(plan, records_of(problem), progress=False))


@refusing
def _noise_aware(problem: Problem, epsilon: float) -> Outcome:
    mechanism = NoiseAware(structure=problem.schema.structure)
    plan = mechanism.plan(
        bound_model(problem), num_records=len(problem.y), epsilon=epsilon, delta=problem.delta, adjacency="replace_one"
    )
    return outcome_of(dpmcmc.sample(plan, records_of(problem), progress=False))


def _sampler(name: str) -> Callable[[Problem, float], Outcome]:
    @refusing
    def run(problem: Problem, epsilon: float) -> Outcome:
        target = bound_model(problem)
        plan = dpmcmc.plan(
            target,
            num_records=len(problem.y),
            sampler=_SAMPLERS[name](target),
            privacy=dpmcmc.Privacy(epsilon=epsilon, delta=problem.delta),
            metric=dpmcmc.PrivateMetric("gram", share=_SHARE, structure=problem.schema.structure),
            steps=_STEPS,
            burn_in=_STEPS // 2,
        )
        return outcome_of(dpmcmc.sample(plan, records_of(problem), progress=False))

    return run


METHODS = (
    Method("fit", "ours", ALL, _PROMISE, "`dpmcmc.fit(None, table, schema, epsilon)`", _fit, intervals=True),
    Method(
        "suggest", "ours", ALL, _PROMISE, "`dpmcmc.suggest(..., goal='prediction')`", _suggest, intervals=True
    ),
    Method(
        "noise_aware", "ours", ALL, _PROMISE, "`NoiseAware()` with the prior of `fit`", _noise_aware, intervals=True
    ),
    *(
        Method(
            name, "ours", ("binary", "classes", "count", "real"), _PROMISE, "shipped for Adult, in a private metric",
            _sampler(name), intervals=True,
        )
        for name in _SAMPLERS
    ),
)  # fmt: skip
