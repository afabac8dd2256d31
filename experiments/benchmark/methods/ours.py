"""The library's methods whose draws may be for intervals: ``fit``, ``suggest`` and the four samplers.

``dpmcmc.fit`` is called as a user calls it. A sampler runs by its shipped configuration for UCI Adult, with the prior
that ``fit`` would take, on all records in a private metric; the planner follows N, d, ε and δ. Adult is no table of the
benchmark.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import dpmcmc
from dpmcmc.errors import InputError
from dpmcmc.estimators.fitting import model_of
from dpmcmc.estimators.suggestion import ask
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.samplers.base import Sampler
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.base import parameter_shapes
from experiments.benchmark.methods.contract import ALL, Method, Outcome, Refused
from experiments.benchmark.problem import Problem
from experiments.intervals.measure import predicted_width

_PROMISE = "(ε, δ), one record replaced"


class _Shipped(NamedTuple):
    """A sampler as shipped for Adult.

    Attributes:
        step: learning rate on the mean loss in units of the metric.
        made: target and step -> the sampler.
        auto: target and temperature -> the sampler with the longest step that its path may take.
    """

    step: float
    made: Callable[[Any, float], Sampler]
    auto: Callable[[Any, float], Sampler]


#: The sampler is that of the Adult configuration, with its step or the longest at which its path says anything: the
#: thermostat settles at one half, and the others are no hotter than N/(8d). The logits of a path of temperature T vary
#: by about 4Td/N about their means, so that is a standard deviation of .7, of the 1.5 that are allowed.
_SAMPLERS: dict[str, _Shipped] = {
    "sgld": _Shipped(
        12.0,
        lambda target, step: dpmcmc.SGLD(step_size=step),
        lambda target, hottest: dpmcmc.SGLD(step_size="auto", temperature=hottest),
    ),
    "sghmc": _Shipped(
        4.0,
        lambda target, step: dpmcmc.SGHMC(step_size=step, friction=0.4),
        lambda target, hottest: dpmcmc.SGHMC(step_size="auto", friction=0.4, temperature=hottest),
    ),
    "sgnht": _Shipped(
        1.75,
        lambda target, step: dpmcmc.SGNHT(step_size=step, friction=0.1, temperature=2.0),
        lambda target, hottest: dpmcmc.SGNHT(step_size="auto", friction=0.5, temperature=2.0),
    ),
    "sgfs": _Shipped(
        48.0,
        lambda target, step: dpmcmc.SGFS(
            step_size=step, temperature=8.0, fisher="gradients", prior_precision=target.prior_precision
        ),
        lambda target, hottest: dpmcmc.SGFS(
            step_size="auto", temperature=hottest, fisher="gradients", prior_precision=target.prior_precision
        ),
    ),
}
_AS_SHIPPED = "shipped for Adult, in a private metric; the step at most what noise allows"
#: Steps, half of them burn-in; share of the budget for the metric.
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
    shipped = _SAMPLERS[name]

    @refusing
    def run(problem: Problem, epsilon: float) -> Outcome:
        target = bound_model(problem)
        count = len(problem.y)

        def planned(sampler: Sampler) -> Any:
            return dpmcmc.plan(
                target,
                num_records=count,
                sampler=sampler,
                privacy=dpmcmc.Privacy(epsilon=epsilon, delta=problem.delta),
                metric=dpmcmc.PrivateMetric("gram", share=_SHARE, structure=problem.schema.structure),
                steps=_STEPS,
                burn_in=_STEPS // 2,
            )

        longest = planned(shipped.auto(target, count / (8 * size_of(parameter_shapes(target))))).sampler.step_size
        plan = planned(shipped.made(target, min(shipped.step, longest)))
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
            name, "ours", ("binary", "classes", "count", "real"), _PROMISE, _AS_SHIPPED,
            _sampler(name), intervals=True,
        )
        for name in _SAMPLERS
    ),
)  # fmt: skip
