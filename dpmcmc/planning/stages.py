"""Stages of a sampler's run before its chain, and all that a run has under privacy alone.

A plan is a list of stages. A sampler's run is a chain, before which it may release a metric (``private_metric.py``), or
a draw that every chain starts from (:class:`Start`). A mechanism's plan is one release alone. Every stage states
what it is charged for, and the guarantee of the plan is computed from the events of all of them. The engine carries
stages out in their order, and commits each (``engine/chains.py``).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.privacy.accounting.charging import Earlier
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.shown_numbers import round_up


class Stage(Protocol):
    """A release that a run begins with."""

    @property
    def charge(self) -> Earlier:
        """The charge for it in the guarantee of the run."""

    def lines(self) -> list[tuple[str, str]]:
        """(label, sentence) pairs that describe it to a person."""

    def stated(self, secret: bool) -> dict[str, object]:
        """Return its part of ``plan.json``, by key; ``secret`` as in ``Plan.to_json``."""

    def facts(self) -> dict[str, object]:
        """Return its part of ``privacy.json``, by key."""


@dataclass(frozen=True)
class GivenStarts:
    """Private starting points that ``sample`` is given: their release is another's, and the run's guarantee covers it.

    Attributes:
        guarantee: of their release.
    """

    guarantee: Guarantee

    @property
    def charge(self) -> Earlier:
        """All that their release cost."""
        return Earlier.of(self.guarantee)

    def lines(self) -> list[tuple[str, str]]:
        """(label, sentence) pairs that describe it to a person."""
        return [
            (
                "starts",
                f"private ones, which sample is given; the guarantee covers their {self.guarantee}",
            )
        ]

    def stated(self, secret: bool) -> dict[str, object]:
        """Return its part of ``plan.json``: none."""
        return {}

    def facts(self) -> dict[str, object]:
        """Return its part of ``privacy.json``: none, beside its events."""
        return {}


@dataclass(frozen=True, eq=False)
class Private:
    """All that a sampler's run has under privacy alone.

    Attributes:
        promise: what was asked for.
        guarantee: computed from the charged events of all stages.
        noise_multipliers: s_t·b/(N·C), (steps,) float64, nominal.
        required_multiplier: what the calibrator asked for; 0 where the sampler's own noise suffices.
        free_fraction: share of steps whose noise is the sampler's own.
        bits: grid exponent of the exact sum.
        second_bits: grid exponent of the sum of the second moment.
        levels: draws per coordinate of the integer noise, for the gradient and for the second moment.
        coordinates: of integer noise that a step is charged for; None: an audit's run, which may have any number.
        before: stages that the run begins with, in their order.
    """

    promise: Privacy
    guarantee: Guarantee
    noise_multipliers: np.ndarray
    required_multiplier: float
    free_fraction: float
    bits: int
    second_bits: int
    levels: tuple[int, int]
    coordinates: int | None
    before: tuple[Stage, ...] = ()

    def replaced(self, **facts: Any) -> Self:
        """Return it with other facts, by the names of the attributes."""
        return dataclasses.replace(self, **facts)


@dataclass(frozen=True)
class Start(GivenStarts):
    """A draw that every chain of a run starts from: a stage of the run.

    Attributes:
        release: plan of the draw.
        guarantee: of the draw.
    """

    release: AnyPlan

    def lines(self) -> list[tuple[str, str]]:
        """(label, sentence) pairs that describe it to a person."""
        epsilon = round_up(self.guarantee.epsilon)
        drawn = f"every chain starts at one draw of {self.release.label}, which alone has epsilon {epsilon}"
        settings = dict(self.release.lines()).get("settings", "none")
        return [("start", f"{drawn}; its settings: {settings}")]

    def stated(self, secret: bool) -> dict[str, object]:
        """Return its part of ``plan.json``."""
        return {"start": self.release.to_json(secret)}

    def facts(self) -> dict[str, object]:
        """Return its part of ``privacy.json``."""
        return self.release.facts()
