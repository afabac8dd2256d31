"""The library's methods whose draws may be for intervals: ``fit``, by itself and with each sampler, and ``suggest``.

``dpmcmc.fit`` is called as a user calls it.
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
from experiments.benchmark.methods.contract import ALL, Method, Outcome, Refused
from experiments.benchmark.problem import Problem
from experiments.intervals.measure import predicted_width

_PROMISE = "(ε, δ), one record replaced"


#: Samplers that ``fit`` chooses the settings of.
_SAMPLERS = ("sgld", "sghmc", "sgnht", "sgfs")
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
    claims = "intervals" in result.usable_for
    learnt = None if result.evidence is None else result.evidence.label_scale
    return Outcome(draws[keep], claims, str(result.guarantee), predicted_width(result), learnt)


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
        settings: dict[str, Any] = {"delta": problem.delta, "sampler": name, "progress": False}
        return outcome_of(dpmcmc.fit(None, problem.frame, problem.schema, epsilon, **settings))

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
        Method(name, "ours", ALL, _PROMISE, f"`dpmcmc.fit(..., sampler={name!r})`", _sampler(name), intervals=True)
        for name in _SAMPLERS
    ),
)  # fmt: skip
