"""Every Gaussian release of a one-shot mechanism on two data sets, the second of which is given the first's releases.

Releases steer those after them, so what one record moves is compared where all earlier numbers are the same.
"""

import contextlib
import math

import numpy as np
import pytest

from dpmcmc.engine.checked_records import checked
from dpmcmc.mechanisms import adassp, statistics
from dpmcmc.mechanisms.noise_aware import model
from dpmcmc.mechanisms.noise_aware import release as noise_aware_release
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query import gram_release
from dpmcmc.privacy.query.integer_rows import Exact
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.storage.pytree import PyTree

_MODULES = (noise_aware_release, statistics, adassp, gram_release)


def distance(one: np.ndarray | Exact, two: np.ndarray | Exact) -> float:
    """Return the l2 distance of two values that noise is added to; exact ones are subtracted exactly."""
    if isinstance(one, Exact) and isinstance(two, Exact):
        return float(np.linalg.norm(Exact(one.steps - two.steps, one.unit).floats))
    return float(np.linalg.norm(np.asarray(one) - np.asarray(two)))


class _Stop(Exception):
    """Nothing that is released is left: what follows is post-processing."""


def _stopped(*_: object) -> None:
    raise _Stop


#: A value that noise is added to, its noise std, and what left.
_Seen = tuple[np.ndarray | Exact, float, np.ndarray]


def _run(plan: Plan, records: PyTree, given: list[np.ndarray] | None) -> list[_Seen]:
    """Return (value, its noise std, what left) of each release; ``given`` leaves in place of what was drawn."""
    seen: list[_Seen] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in _MODULES:
            whole = module.gaussian_release

            def release(value, std, key, whole=whole):
                left = whole(value, std, key) if given is None else given[len(seen)]
                seen.append((value, std, left))
                return left

            patch.setattr(module, "gaussian_release", release)
        patch.setattr(model, "draws", _stopped)
        records = checked(records, plan.target, plan.num_records, plan.mechanism.reads_sums(plan.target))
        with np.errstate(all="ignore"), contextlib.suppress(_Stop):
            plan.mechanism.draw(plan, records, streams_of(0, plan.guarantee is not None)[0])
    return seen


def moves(plan: Plan, records: PyTree, neighbour: PyTree) -> np.ndarray:
    """Return how far each exact sum of a neighbour lies from that of records, (releases,)."""
    first = _run(plan, records, None)
    second = _run(plan, neighbour, [left for *_, left in first])
    return np.array([distance(one[0], two[0]) for one, two in zip(first, second, strict=True)])


def measured(plan: Plan, records: PyTree, *neighbours: PyTree) -> float:
    """Return the largest μ at which neighbours' releases differ from those of records; NaN where one is not finite."""
    first = _run(plan, records, None)
    worst = 0.0
    for neighbour in neighbours:
        second = _run(plan, neighbour, [left for *_, left in first])
        apart = [distance(one[0], two[0]) / one[1] for one, two in zip(first, second, strict=True)]
        worst = float(np.maximum(worst, np.linalg.norm(apart)))
    return worst


def charged(plan: Plan) -> float:
    """Return the μ that a plan's Gaussian events cost together."""
    moved = plan.guarantee.adjacency.sensitivity
    noisy = [event for event in plan.guarantee.events if event.mechanism != "approximate_draw"]
    return math.sqrt(sum(event.count * (moved / event.noise_multiplier) ** 2 for event in noisy))
