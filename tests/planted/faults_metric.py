"""Faults of a private metric."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.engine import metric_release
from dpmcmc.planning.chain_end import ChainEnd
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.charging import Earlier, Schedule
from dpmcmc.privacy.query.gram_release import RowFacts, gram_of
from dpmcmc.targets.linear_predictor import LinearPredictor
from dpmcmc.targets.whitened import WhitenedRows
from tests.planted import Fault
from tests.planted import checks_metric as checks

Patch = pytest.MonkeyPatch


def _moves_as_if_added(patch: Patch) -> None:
    real = RowFacts.moved
    patch.setattr(RowFacts, "moved", lambda rows, _: real(rows, Adjacency.ADD_REMOVE))


def _metric_of_the_records(patch: Patch) -> None:
    real = metric_release.MetricRelease.made

    def of_records(self: metric_release.MetricRelease, *given: Any) -> Any:
        metric = real(self, *given)
        gram = gram_of(np.asarray(self.records["x"]), 1.0).floats
        return dataclasses.replace(metric, noisy=metric.noisy._replace(gram=gram), root=None)

    patch.setattr(metric_release.MetricRelease, "made", of_records)


def _norms_of_rows_as_they_are(patch: Patch) -> None:
    real, prepared = WhitenedRows.records, LinearPredictor.prepared

    def with_own_norms(self: Any, records: Any) -> Any:
        return {**real(self, records), "own": jnp.linalg.norm(records["x"], axis=1)}

    def prepared_with_own_norms(self: Any, records: Any) -> Any:
        return {**prepared(self, records), **({"x_norm": records["own"]} if "own" in records else {})}

    patch.setattr(WhitenedRows, "records", with_own_norms)
    patch.setattr(LinearPredictor, "prepared", prepared_with_own_norms)


def _release_for_nothing(patch: Patch) -> None:
    patch.setattr(Schedule, "composed_with", property(lambda self: self.deviations))


def _end_for_nothing(patch: Patch) -> None:
    patch.setattr(ChainEnd, "charge", Earlier(()))


FAULTS = (
    Fault(
        "a replaced row counted as an added one",
        "The second moment of the rows is charged as if a record moved it by its own norm b², and a replaced one moves "
        "it by √2·b².",
        _moves_as_if_added,
        (checks.the_release_moves_by_no_more_than_is_charged,),
    ),
    Fault(
        "metric of the records themselves",
        "A noisy second moment is released and charged, and F is made of the exact one.",
        _metric_of_the_records,
        (checks.the_metric_is_a_function_of_its_release,),
    ),
    Fault(
        "clip in the identity metric",
        "Norms are those of the rows as they are, so that a gradient in the metric is longer than its clip.",
        _norms_of_rows_as_they_are,
        (checks.gradients_in_the_metric_stay_within_the_sensitivity,),
    ),
    Fault(
        "metric's release left out of the guarantee",
        "The release before the first step is no step, and the schedule's events are those of steps.",
        _release_for_nothing,
        (checks.the_guarantee_charges_the_release,),
    ),
    Fault(
        "the end of a chain left out of the guarantee",
        "Releases after the last step are no steps, and the schedule's events are those of what comes before it.",
        _end_for_nothing,
        (checks.the_guarantee_charges_the_end,),
    ),
)
