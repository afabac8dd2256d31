"""An engine of posterior draws: how it is asked, and how it fails."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target
from dpmcmc.targets.tempered import Tempered


class Wanted(NamedTuple):
    """Draws that are asked for.

    Attributes:
        draws: how many; they are independent.
        radius: of the ball that they lie in, or None.
        steps: transitions before each draw; None for the engine's own number.
    """

    draws: int
    radius: float | None = None
    steps: int | None = None


class Engine(Protocol):
    """A module with these names."""

    #: Whether its draws are exact, up to rounding.
    EXACT: bool
    #: The sentence that a guarantee of its draws carries.
    ASSUMES: str

    def check(self, target: Target) -> None:
        """Refuse, from public facts, a target that the engine is not for."""

    def draw(self, target: Tempered, records: PyTree, wanted: Wanted, streams: Streams) -> PyTree:
        """Return draws from the bound target, leaves (draws, ...), as a function of secret keys."""


class DrawError(RuntimeError):
    """A message to the data holder: nothing was released.

    The failure is a function of the records, which no guarantee covers: keep it from others.

    Example:
        >>> from dpmcmc.mechanisms import DrawError
        >>> raise DrawError("NUTS diverged in every transition: restrict the parameters to a smaller radius")
        Traceback (most recent call last):
            ...
        dpmcmc.mechanisms.engines.protocol.DrawError: NUTS diverged in every transition: restrict the...
    """
