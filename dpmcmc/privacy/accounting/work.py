"""How much work an accountant may do: the events of a stranger's file can ask for any amount. A cap on their number is
not enough, because eleven pure releases beside one sampled query already take many minutes.

Work is counted in points: one entry of a spectrum that is raised to a power, some 0.1 µs. It is counted and not
timed, so that an answer does not depend on the machine.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator

from dpmcmc.errors import InputError


class TooMuchWork(InputError):
    """The events ask for more work than was allowed."""


#: Points that are left; unlimited outside of :func:`at_most`.
_left: contextvars.ContextVar[float] = contextvars.ContextVar("points of work left", default=math.inf)


@contextlib.contextmanager
def at_most(points: float) -> Iterator[None]:
    """Limit the work inside: accountants raise TooMuchWork before they go beyond so many points."""
    token = _left.set(points)
    try:
        yield
    finally:
        _left.reset(token)


def spend(points: float) -> None:
    """Count work before it is done.

    Raises:
        TooMuchWork: it is more than is left.
    """
    left = _left.get() - points
    if left < 0:
        raise TooMuchWork("the events need more work than is allowed")
    _left.set(left)
