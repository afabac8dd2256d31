"""The way in which a family's records are released and concluded from.

A new way is one file with a class of the protocol :class:`Way`, and one line of ``way_of`` in ``mechanism.py``.
"""

from __future__ import annotations

from typing import Protocol

from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.one_shot import Asked, Drawn
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree

#: Events and settings.
Settled = tuple[tuple[Event, ...], dict[str, float]]


class Way(Protocol):
    """How records of a family are released, and what follows from it."""

    def settle(self, asked: Asked) -> Settled:
        """Return what the releases cost, and public numbers that they rest on; reads no record."""

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> Drawn:
        """Release, and return posterior draws like the target's parameters, leaves (draws, ...)."""

    def refusal(self, plan: MechanismPlan) -> str | None:
        """Return why intervals of the draws do not hold, a clause, or None where they do."""
