"""Settings of a chain for prediction, chosen from public facts.

The second moment of the rows is released with 30 % of the squared budget, and SGLD runs in its metric on full
batches: at a fixed budget the number of steps costs no privacy. A direction of typical curvature h relaxes 6 times
before the first kept draw, so η·h·(burn-in steps) = 6. On public tables accuracy did not change between 4 and 16
relaxations at ε = 1. At ε = 0.3 it fell beyond 8 where columns are many. The step stays below 1.5 over the largest
curvature of simulated designs, and the number of steps grows to keep the 6 relaxations.

Noise of privacy beyond the step's own makes the draws hot. The logits of draws of temperature T vary by about 4Td/N,
so a step is at most the one at which this is a half. On 22 public tables (docs/benchmark.md) log scores at ε = 0.1 were
far below those of no fit at all without it, and as good as those of settings made for one table with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from dpmcmc.data.structure import RowStructure
from dpmcmc.errors import InputError
from dpmcmc.estimators.simulated_rows import DESIGNS, simulated_rows
from dpmcmc.inference.released_metric import MetricName, metric_floor
from dpmcmc.mechanisms.chain import plan
from dpmcmc.planning.forecast import curvatures
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.private_metric import PrivateMetric
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import Full
from dpmcmc.samplers import SGLD
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.base import Target, parameter_shapes, target_offers

#: Part of μ² for the metric, relaxations before the first draw that is kept, and numbers of steps.
_SHARE, _RELAXATIONS, _STEPS, _MOST_STEPS = 0.3, 6.0, 160, 640
#: Largest η times curvature; the stability limit is 2. Largest variance of draws' logits.
_STEEPEST, _HOTTEST = 1.5, 0.5


@on_one_blas_thread
def suggested_chain(
    target: Target,
    num_records: int,
    privacy: Privacy,
    structure: RowStructure | None,
    given: Mapping[str, Any],
) -> tuple[Plan, list[str]]:
    """Return the plan, and the reasons for its settings.

    Args:
        target: model, bound to its public facts.
        num_records: N.
        privacy: promise.
        structure: of the rows, or None.
        given: settings of :func:`dpmcmc.plan` that the user chose; they are kept.

    Raises:
        InputError: a model without public facts that a step size could rest on.
    """
    offers = target_offers(target)
    of_rows = offers.row_bound is not None and offers.num_features is not None
    name: MetricName = "gram" if of_rows else "second_moment"
    settings: dict[str, Any] = {
        "metric": PrivateMetric(name, share=_SHARE, structure=structure if of_rows else None),
        "sampling": Full(),
        "steps": _STEPS,
        "sampler": SGLD(step_size=1.0),
        "end": None,  # predictions have no use of it
    }
    settings |= {key: value for key, value in given.items() if value is not None}
    settings.setdefault("burn_in", settings["steps"] // 2)
    settings |= {"num_records": num_records, "privacy": privacy}
    rough = plan(target, **settings)
    asked = settings["metric"]
    reasons = [
        f"metric: {asked.name} takes {asked.share:.0%} of the squared budget; clip and noise follow it",
        "batch: all records, since at a fixed budget few noisy batches are worth no more than full ones",
    ]
    if "sampler" in given:
        return rough, [*reasons, "step size: as given"]
    typical = _typical(rough, target)
    steepest = _steepest(rough, typical)
    steps = settings["steps"]
    burn_in = settings["burn_in"]
    if "steps" not in given and "burn_in" not in given:
        steps = min(
            _MOST_STEPS,
            max(steps, math.ceil(2 * _RELAXATIONS * steepest / (typical * _STEEPEST))),
        )
        burn_in = steps // 2
    step_size = min(_RELAXATIONS / (max(burn_in, 1) * typical), _STEEPEST / steepest)
    settings |= {"steps": steps, "burn_in": burn_in}
    longest = _longest_cool_step(target, settings)
    reason = "times before the first draw that is kept"
    if longest < step_size:
        step_size = longest
        reason += "; a longer one would make the draws too hot, at this noise"
    settings["sampler"] = SGLD(step_size=float(f"{step_size:.3g}"))
    reasons.append(
        f"step size {step_size:.3g}, {steps} steps: a typical direction relaxes {step_size * burn_in * typical:.3g} "
        f"{reason}"
    )
    return plan(target, **settings), reasons


def _longest_cool_step(target: Target, settings: Mapping[str, Any]) -> float:
    """Return the longest step whose draws are cool at the noise of privacy; infinite where no size is known."""
    shapes = parameter_shapes(target)
    if shapes is None:
        return math.inf
    # The posterior's own temperature is never too hot.
    hottest = max(1.0, _HOTTEST * settings["num_records"] / (4 * size_of(shapes)))
    auto = SGLD(step_size="auto", temperature=hottest)
    found = plan(target, **{**settings, "sampler": auto}).sampler
    return cast(float, cast(SGLD, found).step_size)


def _typical(rough: Plan, target: Target) -> float:
    """Return the curvature of the mean loss in a typical direction, in the units of the run."""
    known = curvatures(rough).records
    if known is not None:
        return known / rough.num_records
    bound = target_offers(target).curvature_bound
    if rough.metric is None or bound is None:
        raise InputError(
            f"sampler: no public fact of {type(target).__name__} tells a step size without a metric; give sampler",
            "sampler",
        )
    # A record's typical curvature is about half of the largest.
    bound *= target_offers(target).weight_scale or 1.0
    return bound / 2 * rough.metric.typical_norm**2 / rough.metric.release.rows.size


def _steepest(rough: Plan, typical: float) -> float:
    """Return the largest curvature of the mean loss in the metric, over simulated designs
    (``inference/normal_law.py``)."""
    metric = rough.metric
    assert metric is not None
    release = metric.release
    asked = metric.asked
    size = release.rows.size
    bound = release.rows.row_bound
    if not asked.of_rows:  # all of it in one direction
        return typical * size
    n = rough.num_records
    floor = metric_floor(bound**2, release.noise_std, n, size)
    most = rough.target.curvature_bound  # type: ignore[attr-defined]
    most *= rough.target_offers.weight_scale or 1.0
    prior = (rough.target_offers.prior_precision or 0.0) / n
    found = []
    for design in DESIGNS:
        rows = simulated_rows(design, size, bound, asked.structure, np.random.default_rng(0))
        values = np.linalg.eigvalsh(rows.T @ rows / len(rows)).clip(min=0.0)
        scale = metric.typical_norm**2 / float(np.sum(values / (values + floor)))
        found.append(float(np.max((most * values + prior) / (values + floor))) * scale)
    return max(found)
