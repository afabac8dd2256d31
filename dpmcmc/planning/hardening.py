"""Noise in integers wherever it is proved, for plans that leave ``hardened`` open.

Noise in integers is within a charged distance of a Gaussian (``accounting/discrete_gaussian.py``). The distance costs
e^ε times itself in δ, so beyond an ε of 30 to 50 nothing is proved. A plan there takes noise from floats and says so.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np

from dpmcmc.errors import CalibrationError, InputError
from dpmcmc.planning.plan import Plan

if TYPE_CHECKING:
    from dpmcmc.mechanisms.base import MechanismPlan

_Arguments = ParamSpec("_Arguments")
_AnyPlan = TypeVar("_AnyPlan", Plan, "MechanismPlan")


def where_proved(plan: Callable[..., _AnyPlan]) -> _AnyPlan:
    """Return the hardened plan, or the one with noise from floats where the promise is beyond what integers prove.

    Args:
        plan: ``plan(hardened=...)`` makes the plan.
    """
    try:
        made = plan(hardened=True)
        if not made.note:
            return made
        why = made.note
    except InputError as refusal:
        # Noise in integers takes a share of δ, without which a calibration may succeed; no other refusal is about it.
        if refusal.about != "hardened" and not isinstance(refusal, CalibrationError):
            raise
        made, why = None, str(refusal).removeprefix("hardened: ").partition("; ")[0]
    floats = plan(hardened=False)
    if isinstance(made, Plan) and isinstance(floats, Plan) and np.array_equal(made.noise_std, floats.noise_std):
        return dataclasses.replace(made, note="")  # the sampler's own noise is enough either way
    return dataclasses.replace(floats, note=why)


def of_privacy(plan: Callable[_Arguments, Plan]) -> Callable[_Arguments, Plan]:
    """Return a planner that settles a ``privacy`` which leaves ``hardened`` open."""

    @functools.wraps(plan)
    def planned(*args: _Arguments.args, **settings: _Arguments.kwargs) -> Plan:
        privacy = settings.get("privacy")
        if getattr(privacy, "hardened", True) is not None:
            return plan(*args, **settings)

        def choose(hardened: bool) -> Plan:
            chosen = dataclasses.replace(privacy, hardened=hardened)  # type: ignore[type-var]
            return plan(*args, **(settings | {"privacy": chosen}))  # type: ignore[arg-type]

        return where_proved(choose)

    return planned


def of_argument(plan: Callable[_Arguments, _AnyPlan]) -> Callable[_Arguments, _AnyPlan]:
    """Return a planner that settles an argument ``hardened`` which is left open."""

    @functools.wraps(plan)
    def planned(*args: _Arguments.args, **settings: _Arguments.kwargs) -> _AnyPlan:
        if settings.get("hardened") is not None:
            return plan(*args, **settings)
        return where_proved(lambda hardened: plan(*args, **(settings | {"hardened": hardened})))  # type: ignore[arg-type]

    return planned
