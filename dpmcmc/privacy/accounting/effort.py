"""How much work an accountant may do: the events of a stranger's file can ask for any amount.

Work is counted in points: one entry of a spectrum that is raised to a power, some 0.1 µs. It is counted and not timed,
so that an answer does not depend on the machine.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from dpmcmc.errors import InputError


class TooMuchWork(InputError):
    """The events ask for more work than was allowed."""


class Allowance:
    """So many points, and how many of them are spent."""

    def __init__(self, points: float) -> None:
        self.points, self.spent = points, 0.0


_current: contextvars.ContextVar[Allowance | None] = contextvars.ContextVar("allowance", default=None)


@contextlib.contextmanager
def at_most(points: float) -> Iterator[Allowance]:
    """Limit the work inside: accountants raise TooMuchWork before they go beyond so many points."""
    allowance = Allowance(points)
    token = _current.set(allowance)
    try:
        yield allowance
    finally:
        _current.reset(token)


def spend(points: float) -> None:
    """Count work before it is done; without an allowance nothing is counted.

    Raises:
        TooMuchWork: it is more than is left.
    """
    allowance = _current.get()
    if allowance is None:
        return
    if allowance.spent + points > allowance.points:
        raise TooMuchWork(f"the events need more than the {allowance.points:.3g} points of work that are allowed")
    allowance.spent += points
