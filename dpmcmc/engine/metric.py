"""A metric is released before a run's first step: refusals, the reading of the records, and the run in its units.

The program of a run in a metric takes F as an argument, so it is compiled and tested before the budget is
spent, as any other; the released F is then one of its arguments. A released metric is committed to the checkpoint, so
that a run that goes on has the same one. Only where a kill came before that, and the run goes on on another platform,
is it released again, with fresh keys and a second charge.
"""

from __future__ import annotations

import json
import math

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine.blocks import BoundPlan
from dpmcmc.errors import InputError
from dpmcmc.inference.metric import ReleasedMetric
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.gradient_rows import gradient_rows
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.checkpoint import Checkpoint
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.row_blocks import on_disk
from dpmcmc.targets.base import Target, check_bound
from dpmcmc.targets.whitened import Whitened, WhitenedRows, in_metric, metric_of_rows

#: A chain that no run has: its first noise key is the metric's.
_CHAIN = 0xFFFFFFFF


def check_metric(plan: Plan, records: PyTree, mesh: Mesh | None) -> None:
    """Refuse what a metric is not released from; nothing is computed that could leave.

    Raises:
        ValueError: records on disk, several processes, or a row beyond the public bound.
    """
    if plan.metric is None:
        return
    if on_disk(records):
        raise InputError("metric: memory-mapped records are not whitened; use arrays in memory, or leave metric out")
    if mesh is not None and jax.process_count() > 1:
        raise InputError("metric: is released by one process alone; use one process, or leave metric out")
    if not plan.metric.asked.of_rows:
        return
    check_bound(records["x"], plan.metric.release.rows.row_bound, "the metric's guarantee")


def stand_in(plan: Plan, target: Target) -> WhitenedRows | Whitened:
    """Return the bound target in a stand-in for the metric that the run will release."""
    assert plan.metric is not None
    return in_metric(target, plan.metric.asked.of_rows or metric_of_rows(target))


def released(plan: Plan, target: Target, records: PyTree, streams: Streams, kept: Checkpoint | None) -> ReleasedMetric:
    """Release the metric of a run that has begun, and commit it; or take what was committed.

    Args:
        plan: with a metric.
        target: bound, in its own coordinates.
        records: checked.
        streams: keys of the run.
        kept: its checkpoint, or None.
    """
    assert plan.metric is not None
    assert plan.privacy is not None
    before = None if kept is None else kept.metric()
    if before is not None:
        return ReleasedMetric.of(before, json.loads(before.pop("facts").tobytes()))
    asked, release = plan.metric.asked, plan.metric.release
    key = streams.at(_CHAIN, 0).noise
    if asked.of_rows:
        noisy = release.release(np.asarray(records["x"]), key)
    else:
        noisy = release.release(gradient_rows(target, target.init(jax.random.key(0)), records), key)
        std = noisy.noise_std * math.sqrt(len(noisy.gram))
        trace = float(np.clip(np.trace(noisy.gram), std, release.rows.largest_trace))
        noisy = noisy._replace(trace=trace, trace_std=std)
    metric = ReleasedMetric(
        asked.name,
        noisy,
        num_records=plan.num_records,
        bound=release.rows.row_bound,
        clip=plan.privacy.clip,
        clip_ratio=asked.ratio,
        structure=asked.structure if asked.of_rows else None,
    )
    if kept is not None:
        facts = np.frombuffer(json.dumps(metric.facts()).encode(), np.uint8)
        kept.keep_metric({"facts": facts, **metric.arrays()})
    return metric


def run_in(run: BoundPlan, metric: ReleasedMetric, records: PyTree) -> tuple[BoundPlan, PyTree]:
    """Return a run in the units of its released metric, and its records as it takes them."""
    assert isinstance(run.target, WhitenedRows | Whitened)
    target = run.target.at(metric.root, metric.inverse)
    return run._replace(target=target, metric=metric), target.records(records)
