"""The library's one-shot mechanisms: estimates, or a few draws, that say nothing of intervals.

Each plans with its defaults for the model and the prior of ``fit``. OPS that is pure needs a public radius: three prior
standard deviations times √d. AdaOPS is that of ``experiments/sources/adaops.py``. Not here is ``PrivateSelection``,
which chooses among runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import dpmcmc
from dpmcmc.mechanisms import (
    OPS,
    AdaSSP,
    CertifiedOPS,
    Hybrid,
    ObjectivePerturbation,
    OutputPerturbation,
    SufficientStatistics,
)
from dpmcmc.privacy.query.randomness import streams_of
from experiments.benchmark.methods.contract import Method, Outcome
from experiments.benchmark.methods.ours import bound_model, outcome_of, records_of, refusing
from experiments.benchmark.problem import Problem
from experiments.sources import adaops

_PROMISE = "(ε, δ), one record replaced"
#: Radius of the ball over √d, in prior standard deviations; share of the budget of a hybrid's first draw.
_RADIUS, _SHARE = 3.0, 0.25


def _released(make: Callable[[Any, float], Any]) -> Callable[[Problem, float], Outcome]:
    @refusing
    def run(problem: Problem, epsilon: float) -> Outcome:
        target = bound_model(problem)
        plan = make(target, epsilon).plan(
            target, num_records=len(problem.y), epsilon=epsilon, delta=problem.delta, adjacency="replace_one"
        )
        return outcome_of(dpmcmc.sample(plan, records_of(problem), progress=False))

    return run


def _pure(target: Any, epsilon: float) -> OPS:
    return OPS("range", radius=_RADIUS * target.prior_scale * math.sqrt(target.num_features))


def _hybrid(target: Any, epsilon: float) -> Hybrid:
    return Hybrid(OPS("gdp"), dpmcmc.SGLD(step_size=1.0), steps=80, burn_in=40, clip=1.0, share=_SHARE)


@refusing
def _adaops(problem: Problem, epsilon: float) -> Outcome:
    made = adaops.adaops(bound_model(problem), len(problem.y), epsilon, problem.delta)
    records = records_of(problem)
    _, theta = adaops.draw(made, records["x"], records["y"], streams_of(None)[0])
    return Outcome(theta[np.newaxis], False, str(made.guarantee))


_CONVEX, _LINEAR = ("binary", "classes"), ("real",)

METHODS = (
    Method("objective", "ours", ("binary",), _PROMISE, "defaults", _released(lambda t, e: ObjectivePerturbation())),
    Method("output", "ours", _CONVEX, _PROMISE, "defaults", _released(lambda t, e: OutputPerturbation())),
    Method("ops", "ours", _CONVEX, _PROMISE + "; the chain is taken to converge", "defaults",
           _released(lambda t, e: OPS())),
    Method("ops_pure", "ours", ("binary",), "pure ε, one record replaced; the chain is taken to converge",
           "radius 3 prior standard deviations · √d", _released(_pure)),
    Method("certified_ops", "ours", _CONVEX, _PROMISE, "defaults", _released(lambda t, e: CertifiedOPS())),
    Method("hybrid", "ours", _CONVEX, _PROMISE + "; the chain is taken to converge",
           "OPS with a quarter of the budget, then SGLD", _released(_hybrid)),
    Method("adassp", "ours", _LINEAR, _PROMISE, "defaults (Wang 2018)", _released(lambda t, e: AdaSSP())),
    Method("sufficient", "ours", _LINEAR, _PROMISE, "defaults", _released(lambda t, e: SufficientStatistics())),
    Method("adaops", "ours", _LINEAR, _PROMISE, "defaults (Wang 2018)", _adaops),
)  # fmt: skip
