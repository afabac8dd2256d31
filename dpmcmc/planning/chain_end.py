"""The stage that may follow a chain: releases where its path ends, and the posterior that follows from both.

The chain's gradients say where the posterior is. A posterior also needs the curvature there, and how scores vary. Both
are released at one public position, in the same guarantee. The mechanism that does it (``mechanisms/noise_aware``) is
asked before the chain is planned, so that the noise of both keeps one promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpmcmc.planning.description import Description
from dpmcmc.planning.permitted_uses import Use
from dpmcmc.planning.settings_json import section
from dpmcmc.planning.stages import Stage
from dpmcmc.planning.whole_plan import WholePlan
from dpmcmc.privacy.accounting.charging import Earlier
from dpmcmc.privacy.accounting.events import Event


@dataclass(frozen=True, eq=False)
class ChainEnd(Stage):
    """Releases where a chain ends; the chain charges for them in its own guarantee.

    Attributes:
        mechanism: what is released, and how the posterior is concluded.
        settings: public numbers, such as noise stds, by name.
        share: part of μ² of the releases.
        events: what they cost.
        numbers: that have integer noise.
        intervals: whether intervals of the posterior hold, from public facts.
    """

    mechanism: Any
    settings: dict[str, float]
    share: float
    events: tuple[Event, ...]
    numbers: int
    intervals: Use

    guarantee = None

    @property
    def label(self) -> str:
        """Name of the mechanism; empty where nothing is released, so that the run is the sampler's alone."""
        return type(self.mechanism).__name__ if self.share else ""

    @property
    def parts(self) -> tuple[object, ...]:
        """The mechanism."""
        return (self.mechanism,)

    @property
    def charge(self) -> Earlier:
        """The charge of the releases: events, and how many numbers have integer noise."""
        return Earlier(self.events, self.numbers)

    def describe(self, plan: WholePlan, secret: bool) -> Description:
        """Return what is released; nothing of it depends on the run's keys."""
        stated = {
            "end": {
                "mechanism": repr(self.mechanism),
                "share": self.share,
                "settings": self.settings,
                "releases": sum(event.count for event in self.events),
                "numbers": self.numbers,
            }
        }
        said = "the posterior follows from the path and from the metric, at no further cost"
        if self.share:
            said = (
                f"curvature and spread of scores are released where the path ends, with {100 * self.share:.3g} % of "
                "the squared budget; the posterior follows from them and from the path"
            )
        return Description(
            {"end": section(self.mechanism)}, stated, stated, [("end", f"{type(self.mechanism).__name__}: {said}")]
        )
