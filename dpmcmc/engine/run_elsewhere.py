"""The guarantee of a run that went on elsewhere, where some of its steps were taken a second time.

With fixed dominating pairs for every step, taken once or twice, a transcript is a randomised function of one draw
from their product, whatever the order. The events do not cover a decision to stop that looked at the records, so the
guarantee then states that assumption.
"""

from __future__ import annotations

from dpmcmc.engine.agreement import Kept
from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.storage.checkpoint import CheckpointError

#: The assumption of a guarantee whose steps were charged again.
INTERRUPTED = "the run was interrupted, and resumed on another platform, for reasons that do not depend on the records."


def with_charged_again(planned: Guarantee, kept: Kept, more: tuple[Event, ...] = ()) -> Guarantee:
    """The plan's guarantee, with what the checkpoint says was charged again, and with what is about to be.

    Args:
        planned: of the plan.
        kept: the run's checkpoint.
        more: events about to be charged.

    Raises:
        CheckpointError: no accountant covers both, so the run cannot go on here; or the checkpoint's events are none.
    """
    try:
        again = (*(Event(**event) for event in kept.again), *more)
    except (TypeError, ValueError):
        raise CheckpointError(
            f"{kept.folder}: holds charges that cannot be read; what it charged stays charged, start a new run"
        ) from None
    if not again:
        return planned
    try:
        return Guarantee.from_events(
            (*planned.events, *again),
            delta=planned.delta,
            adjacency=planned.adjacency,
            accountant=planned.accountant,
            release=planned.release,
            assumptions=planned.assumptions,
        ).assuming(INTERRUPTED)
    except UnsupportedCombination as error:
        raise CheckpointError(
            f"{kept.folder}: cannot be made again on another platform, for nothing covers both: {error} Go on "
            "where it was begun, or start a new run"
        ) from None
