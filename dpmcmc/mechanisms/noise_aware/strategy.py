"""Strategy of a family: how its records are released, and how a posterior follows from the releases.

A new strategy is one file with a class of the protocol :class:`Strategy`, and one line of ``strategy_of`` in
``mechanism.py``.
"""

from __future__ import annotations

from typing import Protocol

from dpmcmc.mechanisms.one_shot import PrivacySpec, ReleasedDraws
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records

#: Events and settings.
Calibrated = tuple[tuple[Event, ...], dict[str, float]]


class Strategy(Protocol):
    """How records of a family are released, and what follows from it."""

    def calibrate(self, spec: PrivacySpec) -> Calibrated:
        """Return what the releases cost, and public numbers that they rest on; reads no record."""

    def draw(self, plan: Plan, records: Records, streams: Streams) -> ReleasedDraws:
        """Release, and return posterior draws like the target's parameters, leaves (draws, ...)."""

    def refusal(self, plan: Plan) -> str | None:
        """Return why intervals of the draws do not hold, a clause, or None where they do."""
