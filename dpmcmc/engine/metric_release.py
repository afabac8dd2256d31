"""Work on the release of a private metric, in whose units the chain after it runs."""

from __future__ import annotations

import json
import math
from threading import Thread

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine.steps import BoundPlan
from dpmcmc.engine.work import Given, MovingChains
from dpmcmc.errors import InputError
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.private_metric import PlannedMetric
from dpmcmc.planning.stages import Stage
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.gradient_rows import gradient_rows
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets.base import Target, check_bound
from dpmcmc.targets.whitened import Whitened, WhitenedRows, in_metric, metric_of_rows

#: A chain that no run has: its first noise key is the metric's.
_CHAIN = 0xFFFFFFFF


class MetricRelease:
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
        self.records: PyTree = None

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None) -> None:
        """Refuse records on disk; see :class:`ReleaseWork`."""
        if on_disk(data):
            raise InputError(
                "metric: memory-mapped records are not whitened; use arrays in memory, or leave metric out"
            )
        self.records = data

    def stand_in(self, chains: MovingChains) -> None:
        """Put a metric in the place of the one that will be released; see :class:`ReleaseWork`.

        Raises:
            ValueError: a row beyond the public bound.
        """
        of_rows = self._metric.asked.of_rows
        self._target = chains.model
        self.records = chains.records
        if of_rows:
            check_bound(
                self.records["x"],
                self._metric.release.rows.row_bound,
                "the metric's guarantee",
            )
        whitened = in_metric(self._target, of_rows or metric_of_rows(self._target))
        chains.target = whitened
        chains.records = whitened.before(self.records)

    def streams(self, streams: Streams) -> Streams:
        """The run's own keys, of which no chain has the metric's; see :class:`ReleaseWork`."""
        return streams

    def made(self, streams: Streams, guarantee: Guarantee | None) -> ReleasedMetric:
        """Release the metric; see :class:`ReleaseWork`."""
        asked = self._metric.asked
        release = self._metric.release
        records = self.records
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
        """Return its arrays and its facts; see :class:`ReleaseWork`."""
        return {
            "facts": np.frombuffer(json.dumps(made.facts()).encode(), np.uint8),
            **made.arrays(),
        }

    def of(self, arrays: dict[str, np.ndarray]) -> ReleasedMetric:
        """Return the metric; see :class:`ReleaseWork`."""
        return ReleasedMetric.of(arrays, json.loads(arrays.pop("facts").tobytes()))

    def given(self, made: ReleasedMetric, run: BoundPlan, records: PyTree) -> Given:
        """Return the run in the units of the metric, and its records; see :class:`ReleaseWork`."""
        assert isinstance(run.target, WhitenedRows | Whitened)
        target = run.target.at(made.root, made.inverse)
        if self._plan.end is not None:
            # The posterior asks for the error of the second moment, which is computed beside the chain.
            ahead = (np.zeros_like(made.root),)
            Thread(target=made.denoised.error, args=ahead, daemon=True).start()
        return run._replace(target=target, metric=made), target.records(records)
