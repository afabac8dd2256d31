"""What draws may be used for, against plans of which exactly one condition for intervals fails."""

from __future__ import annotations

from typing import Any

import dpmcmc
from dpmcmc.targets import LogisticRegression
from tests.planted import Scene, require

_N, _PRECISION = 20, 4.0
_TARGET = LogisticRegression(prior_scale=_PRECISION**-0.5, num_features=3, row_bound=1.0)


def _plan(steps: int = 1400, clip: float = 1.0) -> Any:
    """A run at temperature 1 of short steps, long and unclipped unless told otherwise."""
    privacy = dpmcmc.Privacy(epsilon=45.0, delta=1e-3, accountant="rdp", clip=clip, clipping="residual")
    sampler = dpmcmc.SGLD(0.09 * _N / (_N / 4 + _PRECISION))
    return dpmcmc.plan(
        _TARGET, num_records=_N, sampler=sampler, steps=steps, burn_in=90, thin=1, privacy=privacy,
    )  # fmt: skip


def a_short_run_is_not_for_intervals(scene: Scene) -> None:
    """A chain that takes fewer relaxation times of the prior than it needs has not seen the posterior."""
    require("intervals" in _plan().usable_for, "a run of 56 relaxation times is long enough, and is refused")
    made = _plan(steps=400)
    require(
        "intervals" not in made.usable_for, f"a run of {made.time * _PRECISION:.3g} relaxation times says intervals"
    )


def a_clipped_run_is_not_for_intervals(scene: Scene) -> None:
    """Clipping below the bound of a record's gradient samples another posterior."""
    require("intervals" in _plan().usable_for, "a run that clips nothing is refused")
    require("intervals" not in _plan(clip=0.9).usable_for, "a run that clips gradients of norm 1 at 0.9 says intervals")
