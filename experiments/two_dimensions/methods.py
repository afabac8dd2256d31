"""The lines of Figure 3.1: a plan for each, and how often it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import dpmcmc
from dpmcmc.privacy.calibration import closed_form
from experiments.two_dimensions.problem import Problem
from experiments.two_dimensions.settings import Settings

#: The constant that the thesis prints in V; its own proof needs 256.
_PRINTED = 128.0
#: Points kept of a chain on the left.
_POINTS = 800

PRINTED = "DP-SGLD as printed"
SAME_STEP = "SGLD at the printed step"
SMALL_STEP = "SGLD at a smaller step"
SAMPLERS = ("SGLD", "SGHMC", "SGNHT")


@dataclass(frozen=True)
class Method:
    """One line of the figure: a plan, how often it runs, and what is kept of it.

    Attributes:
        name: as in the table.
        plan: of every run.
        repeats: how many.
        epsilon: asked for, or claimed; None without privacy.
        claimed: whether ε is the source's claim, which the guarantee is not.
        tail: share of the draws that count, the rest being the way there.
    """

    name: str
    plan: dpmcmc.Plan
    repeats: int
    epsilon: float | None
    claimed: bool = False
    tail: float | None = None

    @property
    def private(self) -> bool:
        """Whether its gradients are clipped and charged."""
        return self.plan.privacy is not None


def methods(settings: Settings, problem: Problem) -> list[Method]:
    """Every line of the figure, planned."""
    return [*_trajectories(settings, problem), *_samples(settings, problem)]


def _trajectories(settings: Settings, problem: Problem) -> list[Method]:
    promise = settings.privacy
    size = settings.trajectories
    records = problem.num_records
    batch = round(math.sqrt(records))
    clip = settings.clip_norm
    steps = int(records * size.passes / batch)
    printed = closed_form.formula(
        epsilon=promise.epsilon, delta=promise.delta, steps=steps, rate=batch / records, constant=_PRINTED
    )
    # η = 1/V, where V η² = η: the formula's z is √V·τ/(N·L).
    step_size = records / (printed * clip * records / batch) ** 2
    common: dict[str, Any] = {
        "num_records": records,
        "sampling": dpmcmc.FixedSize(batch),
        "steps": steps,
        "thin": max(1, steps // _POINTS),
    }
    free = dpmcmc.Privacy(
        delta=promise.delta, adjacency=promise.adjacency, accountant="rdp", calibrator="free", clip=clip
    )
    asked = dpmcmc.Privacy(
        epsilon=promise.epsilon, delta=promise.delta, adjacency=promise.adjacency, accountant="rdp", clip=clip
    )
    as_printed = dpmcmc.plan(problem.target, sampler=dpmcmc.SGLD(step_size, 0.5), privacy=free, **common)
    private = dpmcmc.plan(problem.target, sampler=dpmcmc.SGLD(step_size), privacy=asked, **common)
    plain = dpmcmc.plan(problem.target, sampler=dpmcmc.SGLD(step_size), privacy=None, **common)
    return [
        Method(PRINTED, as_printed, size.repeats, promise.epsilon, claimed=True, tail=size.tail),
        Method(SAME_STEP, private, size.repeats, promise.epsilon, tail=size.tail),
        Method(SAME_STEP, plain, size.plain_repeats, None, tail=size.tail),
    ]


def _samples(settings: Settings, problem: Problem) -> list[Method]:
    promise = settings.privacy
    size = settings.samples
    common: dict[str, Any] = {
        "num_records": problem.num_records,
        "sampling": dpmcmc.Poisson(size.batch_size),
        "steps": size.steps,
        "burn_in": int(size.burn_in * size.steps),
        "thin": size.thin,
    }
    privacy = dpmcmc.Privacy(
        epsilon=promise.epsilon, delta=promise.delta, adjacency=promise.adjacency, clip=settings.clip_norm
    )

    def pair(name: str, sampler: Any, plain_repeats: int, repeats: int) -> list[Method]:
        private = dpmcmc.plan(problem.target, sampler=sampler, privacy=privacy, **common)
        out = [Method(name, private, repeats, promise.epsilon)]
        if plain_repeats:
            plain = dpmcmc.plan(problem.target, sampler=private.sampler, privacy=None, **common)
            out.insert(0, Method(name, plain, plain_repeats, None))
        return out

    momentum = {"friction": size.friction}
    out = pair("SGLD", dpmcmc.SGLD("auto"), size.plain_repeats, size.repeats)
    out += pair("SGHMC", dpmcmc.SGHMC("auto", **momentum), size.plain_repeats, size.repeats)
    out += pair("SGNHT", dpmcmc.SGNHT("auto", **momentum), size.plain_repeats, size.repeats)
    smaller = size.small_step * out[0].plan.sampler.step_size  # type: ignore[attr-defined]
    return out + pair(SMALL_STEP, dpmcmc.SGLD(smaller), 0, size.small_repeats)
