"""Faults of the verdict: draws said to be good for more than they are."""

from __future__ import annotations

import pytest

from dpmcmc.planning import obstacles
from tests.planted import Fault
from tests.planted import checks_verdict as checks

Patch = pytest.MonkeyPatch


def _ignores_time(patch: Patch) -> None:
    patch.setattr(obstacles, "_mixing", lambda plan, known: None)


def _ignores_clipping(patch: Patch) -> None:
    patch.setattr(obstacles, "_clipping", lambda plan, known: None)


FAULTS = (
    Fault(
        "verdict ignores private time",
        "A plan at temperature 1 is said to be for intervals however short its budget makes it.",
        _ignores_time,
        (checks.a_short_run_is_not_for_intervals,),
    ),
    Fault(
        "verdict ignores clipping",
        "A plan is said to be for intervals though it clips gradients, which biases the posterior.",
        _ignores_clipping,
        (checks.a_clipped_run_is_not_for_intervals,),
    ),
)
