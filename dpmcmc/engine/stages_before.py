"""Stages before a chain: releases whose outcome the chain's program takes as arguments.

The program is compiled and tested before the budget is spent, with numbers that stand for what will be released.
Then each stage is released and committed to the checkpoint, so that a run that goes on has the same. Only where a
kill came before that, and the run goes on on another platform, is it released again, with fresh keys and a second
charge.
"""

from __future__ import annotations

import json
import math
from threading import Thread
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.engine.steps import BoundPlan
from dpmcmc.engine.work import Release, Within, work_of
from dpmcmc.errors import InputError
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.private_metric import PlannedMetric
from dpmcmc.planning.stages import Stage, Start
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.gradient_rows import gradient_rows
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets.base import Target, check_bound
from dpmcmc.targets.whitened import Whitened, WhitenedRows, in_metric, metric_of_rows

#: A chain's run in the units and from the starts that were released, and its records.
Given = tuple[BoundPlan, PyTree]


class MovingChains(Protocol):
    """Parts of a plan's chains that a stage before them may put another in the place of (``chains.py``)."""

    model: Target
    target: Target
    records: PyTree
    starts: PyTree


class Before(Release[Any], Protocol):
    """Work on a stage before a chain.

    Attributes:
        stage: what it is about.
    """

    stage: Stage

    def read(self, data: PyTree, mesh: Mesh | None) -> PyTree:
        """Refuse records that the stage is not released from; return them as the chain takes them."""

    def stand_in(self, chains: MovingChains) -> None:
        """Put numbers in the place of what will be released, so that the chain's program can be compiled."""

    def streams(self, streams: Streams) -> Streams:
        """Return the keys of the stage, of those of the run."""

    def given(self, made: Any, run: BoundPlan, records: PyTree) -> Given:
        """Return the chain's run with what was released, and its records."""


#: A chain that no run has: its first noise key is the metric's.
_CHAIN = 0xFFFFFFFF


class Metric:
    """Work on the release of a private metric, which the chain then runs in the units of.

    Args:
        plan: of the run.
        metric: the stage.
    """

    def __init__(self, plan: Plan, metric: PlannedMetric) -> None:
        self.stage: Stage = metric
        self._plan = plan
        self._metric = metric
        self._target: Target = plan.target
        self._records: PyTree = None

    def read(self, data: PyTree, mesh: Mesh | None) -> PyTree:
        """Refuse records on disk; see :class:`Before`."""
        if on_disk(data):
            raise InputError(
                "metric: memory-mapped records are not whitened; use arrays in memory, or leave metric out"
            )
        return data

    def stand_in(self, chains: MovingChains) -> None:
        """Put a metric in the place of the one that will be released; see :class:`Before`.

        Raises:
            ValueError: a row beyond the public bound.
        """
        of_rows = self._metric.asked.of_rows
        self._target = chains.model
        self._records = chains.records
        if of_rows:
            check_bound(
                self._records["x"],
                self._metric.release.rows.row_bound,
                "the metric's guarantee",
            )
        whitened = in_metric(self._target, of_rows or metric_of_rows(self._target))
        chains.target = whitened
        chains.records = whitened.before(self._records)

    def streams(self, streams: Streams) -> Streams:
        """The run's own keys, of which no chain has the metric's; see :class:`Before`."""
        return streams

    def made(self, streams: Streams, guarantee: Guarantee | None) -> ReleasedMetric:
        """Release the metric; see :class:`Release`."""
        asked = self._metric.asked
        release = self._metric.release
        records = self._records
        target = self._target
        key = streams.at(_CHAIN, 0).noise
        if asked.of_rows:
            noisy = release.release(np.asarray(records["x"]), key)
        else:
            noisy = release.release(gradient_rows(target, target.init(jax.random.key(0)), records), key)
            std = noisy.noise_std * math.sqrt(len(noisy.gram))
            trace = float(np.clip(np.trace(noisy.gram), std, release.rows.largest_trace))
            noisy = noisy._replace(trace=trace, trace_std=std)
        return ReleasedMetric(
            asked.name,
            noisy,
            num_records=self._plan.num_records,
            bound=release.rows.row_bound,
            clip=self._metric.clip,
            clip_ratio=asked.ratio,
            structure=asked.structure if asked.of_rows else None,
        )

    def arrays(self, made: ReleasedMetric) -> dict[str, np.ndarray]:
        """Return its arrays and its facts; see :class:`Release`."""
        return {
            "facts": np.frombuffer(json.dumps(made.facts()).encode(), np.uint8),
            **made.arrays(),
        }

    def of(self, arrays: dict[str, np.ndarray]) -> ReleasedMetric:
        """Return the metric; see :class:`Release`."""
        return ReleasedMetric.of(arrays, json.loads(arrays.pop("facts").tobytes()))

    def given(self, made: ReleasedMetric, run: BoundPlan, records: PyTree) -> Given:
        """Return the run in the units of the metric, and its records; see :class:`Before`."""
        assert isinstance(run.target, WhitenedRows | Whitened)
        target = run.target.at(made.root, made.inverse)
        if self._plan.verdict.from_path:
            # The posterior asks for the error of the second moment, which is computed beside the chain.
            ahead = (np.zeros_like(made.root),)
            Thread(target=made.denoised.error, args=ahead, daemon=True).start()
        return run._replace(target=target, metric=made), target.records(records)


class DrawnRandomness:
    """Work on a draw that every chain starts from.

    Args:
        plan: of the run.
        start: the stage.
    """

    def __init__(self, plan: Plan, start: Start) -> None:
        self.stage: Stage = start
        self._plan = plan
        self._work = work_of(start.release)

    def read(self, data: PyTree, mesh: Mesh | None) -> PyTree:
        """Refuse what the draw refuses, which reads all records whatever the mesh; see :class:`Before`."""
        self._work.read(data, None, None, None)
        return self._work.records

    def stand_in(self, chains: MovingChains) -> None:
        """Put zeros in the place of the start; see :class:`Before`."""
        shapes = jax.eval_shape(chains.model.init, jax.random.key(0))
        chains.starts = jax.tree.map(lambda leaf: jnp.zeros((self._plan.chains, *leaf.shape), jnp.float32), shapes)

    def streams(self, streams: Streams) -> Streams:
        """Return keys of the draw, which are none of the chain's; see :class:`Before`."""
        return part_of(streams, 0)

    def made(self, streams: Streams, guarantee: Guarantee | None) -> PyTree:
        """Draw; leaves (1, ...); see :class:`Release`."""
        result = self._work.carry_out(Within(streams, guarantee), None)
        return result.flat_draws()

    def arrays(self, made: PyTree) -> dict[str, np.ndarray]:
        """Return the leaves of the draw; see :class:`Release`."""
        return {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(made))}

    def of(self, arrays: dict[str, np.ndarray]) -> PyTree:
        """Return the draw; see :class:`Release`."""
        target = targets.bind(self._plan.target, targets.record_shapes(self._work.records))
        structure = jax.tree.structure(jax.eval_shape(target.init, jax.random.key(0)))
        return jax.tree.unflatten(structure, [arrays[str(i)] for i in range(len(arrays))])

    def given(self, made: PyTree, run: BoundPlan, records: PyTree) -> Given:
        """Return the run from the draw; see :class:`Before`."""
        chains = self._plan.chains
        starts = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf, jnp.float32), chains, axis=0), made)
        return run._replace(starts=starts), records


def part_of(streams: Streams, stage: int) -> Streams:
    """Return keys for one stage of a run whose stages draw from all of its streams."""
    return Streams(*(jax.random.fold_in(key, stage) for key in streams))


def works_before(plan: Plan) -> tuple[Before, ...]:
    """Return the work on each stage before a plan's chain that the run itself carries out."""
    found: list[Before] = []
    for stage in plan.before:
        if isinstance(stage, PlannedMetric):
            found.append(Metric(plan, stage))
        if isinstance(stage, Start):
            found.append(DrawnRandomness(plan, stage))
    return tuple(found)
