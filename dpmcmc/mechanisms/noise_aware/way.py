"""The way in which a family's records are released and concluded from, and what all ways share.

A new way is one file with a class of the protocol :class:`Way`, and one line of ``way_of`` in ``mechanism.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.inference.noise_aware import Gaussian
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.noise_aware.prior import Prior
from dpmcmc.mechanisms.one_shot import Asked, Drawn
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.query.gaussian_release import standard_normal
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.glm.base import GeneralisedLinear

if TYPE_CHECKING:
    from dpmcmc.mechanisms.noise_aware.mechanism import NoiseAware

#: Events and settings.
Settled = tuple[tuple[Event, ...], dict[str, float]]


class Way(Protocol):
    """How records of a family are released, and what follows from it."""

    def settle(self, asked: Asked) -> Settled:
        """Return what the releases cost, and public numbers that they rest on; reads no record."""

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> PyTree | Drawn:
        """Release, and return posterior draws like the target's parameters, leaves (draws, ...), or with evidence."""

    def refusal(self, plan: MechanismPlan) -> str | None:
        """Return why intervals of the draws do not hold, a clause, or None where they do."""


def prior_of(options: NoiseAware, target: GeneralisedLinear, predictors: int = 1) -> Prior:
    """Return the prior of a regression with K predictors whose num_features is known."""
    features = target.num_features
    if features is None:
        raise InputError(f"num_features: {type(target).__name__} needs it before a plan; give it", "num_features")
    intercept = None
    if options.intercept_scale is not None and options.structure is not None and options.structure.constant is not None:
        intercept = options.structure.constant, options.intercept_scale
    return Prior.of((features, predictors), target.prior_scale, intercept, options.prior_scale == "evidence")


def posterior_draws(found: Gaussian, count: int, streams: Streams) -> np.ndarray:
    """Return draws (draws, d) of a normal posterior."""
    return found.draws(standard_normal(streams.dynamics, (count, len(found.mean))))
