"""Mechanisms that read all records once: perturbed optima, posterior draws, certified draws, and the hybrid.

Common parts of trials are computed once: an optimum for all noise that is added to it, a program for all last
iterates of one length, a batch of chains for all posterior draws.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpmcmc
from dpmcmc.mechanisms.certified_ops import CertifiedOPS, last_iterates
from dpmcmc.mechanisms.hybrid import Hybrid
from dpmcmc.mechanisms.objective_perturbation import ObjectivePerturbation
from dpmcmc.mechanisms.ops import OPS
from dpmcmc.mechanisms.output_perturbation import OutputPerturbation
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.stages import GivenStarts
from dpmcmc.targets.tempered import Tempered
from experiments.nuts import draws_for_many
from experiments.panel.config import Settings
from experiments.panel.samplers import length_of, plans, run_plans, sampling_of
from experiments.panel.trial import Outcome, Site, Trial, clock

Run = Callable[[Sequence[Trial], Site], list[Outcome]]
#: For each trial its plan, or a sentence where there is none.
Found = Sequence[Plan | str]


def plan_of(mechanism: Any, epsilon: float, site: Site) -> Plan:
    """The plan of a mechanism on the site's model."""
    return mechanism.plan(
        site.target(), num_records=site.num_records, epsilon=epsilon, delta=site.delta, adjacency=site.adjacency
    )


def objective(calibration: str) -> Run:
    """Objective perturbation; its settings are ``regularisation`` and, for the Huberised loss, ``clip``."""

    def make(settings: Settings, epsilon: float, site: Site) -> Plan:
        return plan_of(
            ObjectivePerturbation(
                clip=settings.get("clip"), regularisation=settings["regularisation"], calibration=calibration
            ),
            epsilon,
            site,
        )  # type: ignore[arg-type]

    return lambda trials, site: released(plans(make, trials, site), trials, site)


def output(trials: Sequence[Trial], site: Site) -> list[Outcome]:
    """Output perturbation; its settings are ``regularisation``."""

    def make(settings: Settings, epsilon: float, site: Site) -> Plan:
        return plan_of(OutputPerturbation(settings["regularisation"]), epsilon, site)

    return released(plans(make, trials, site), trials, site)


def released(found: Found, trials: Sequence[Trial], site: Site) -> list[Outcome]:
    """Return what each plan releases."""
    outcomes = []
    for plan, trial in zip(found, trials, strict=True):
        elapsed = clock()
        if isinstance(plan, str):
            outcomes.append(Outcome(None, None, 0.0, plan))
        else:
            done = dpmcmc.sample(plan, site.records, key=trial.key)
            outcomes.append(Outcome(np.asarray(done.flat_draws()), plan.guarantee, elapsed()))
    return outcomes


def certified(trials: Sequence[Trial], site: Site) -> list[Outcome]:
    """Certified OPS; its settings are ``steps``, ``prior_precision`` and ``step_fraction``."""

    def make(settings: Settings, epsilon: float, site: Site) -> Plan:
        return plan_of(CertifiedOPS(**settings), epsilon, site)

    found = plans(make, trials, site)

    def draw(at: list[int]) -> list[np.ndarray]:
        keys = jax.vmap(jax.random.key)(np.array([trials[i].seed for i in at]))
        drawn = last_iterates([found[i] for i in at], site.in_double, keys)  # type: ignore[misc]
        return list(np.asarray(drawn)[:, None])

    return _by_group(found, lambda plan: plan.mechanism.steps, draw)


def ops(form: str) -> Run:
    """One posterior draw; its settings are the fields of :class:`OPS` beside ``form``."""

    def make(settings: Settings, epsilon: float, site: Site) -> Plan:
        return plan_of(OPS(form, **settings), epsilon, site)  # type: ignore[arg-type]

    def run(trials: Sequence[Trial], site: Site) -> list[Outcome]:
        return run_ops(plans(make, trials, site), trials, site)

    return run


def run_ops(found: Found, trials: Sequence[Trial], site: Site) -> list[Outcome]:
    """One draw for each trial, those of one ball in one batch of NUTS chains.

    Trials of one posterior and one repeat, which differ in what follows the draw, share it.
    """

    def draw(at: list[int]) -> list[np.ndarray]:
        posteriors: dict[tuple[float, float, float], list[int]] = {}
        for i in at:
            posteriors.setdefault(_posterior(found[i]), []).append(i)  # type: ignore[arg-type]
        repeats = sorted({trials[i].repeat for i in at})
        target = site.target()
        drawn = draws_for_many(
            [Tempered(target, temper, power, precision) for temper, precision, power in posteriors],
            site.records,
            len(repeats),
            trials[at[0]].key,
            radius=found[at[0]].mechanism.radius,  # type: ignore[union-attr]
            steps=site.transitions,
        )
        by_trial = {
            i: np.asarray(each)[repeats.index(trials[i].repeat)][None]
            for each, members in zip(drawn, posteriors.values(), strict=True)
            for i in members
        }
        return [by_trial[i] for i in at]

    return _by_group(found, lambda plan: plan.mechanism.radius, draw)


def _posterior(plan: Plan) -> tuple[float, float, float]:
    """(temper, prior precision, power of the prior)."""
    own = plan.mechanism.prior_precision
    precision = plan.target.prior_precision if own is None else own
    return plan.settings["temper"], precision, plan.settings.get("prior_temper", 1.0)


def hybrid(trials: Sequence[Trial], site: Site) -> list[Outcome]:
    """OPS under Gaussian DP, then SGLD; settings are SGLD's, ``share`` and ``start_precision``."""

    def make(settings: Settings, epsilon: float, site: Site) -> dpmcmc.Plan:
        mechanism = Hybrid(
            OPS("gdp", prior_precision=settings["start_precision"]),
            dpmcmc.SGLD(settings["step_size"]),
            sampling=sampling_of(settings),
            clip=settings["clip"],
            clipping="residual",
            share=settings["share"],
            **length_of(settings, site),
        )
        return mechanism.plan(
            site.target(), num_records=site.num_records, epsilon=epsilon, delta=site.delta, adjacency=site.adjacency
        )

    return run_hybrids(plans(make, trials, site), trials, site)


def run_hybrids(found: Sequence[dpmcmc.Plan | str], trials: Sequence[Trial], site: Site) -> list[Outcome]:
    """All posterior draws, then all runs from there."""
    firsts = [plan if isinstance(plan, str) else plan.alone(plan.stages[0]) for plan in found]
    drawn = run_ops(firsts, trials, site)
    runs = [plan if isinstance(plan, str) else _from_given(plan) for plan in found]
    starts = [jnp.asarray(o.draws) for o in drawn if o.draws is not None]
    outcomes = run_plans(runs, trials, site, starts)  # type: ignore[arg-type]
    return [
        Outcome(run.draws, run.guarantee, run.seconds + first.seconds, run.problem or first.problem)
        for run, first in zip(outcomes, drawn, strict=True)
    ]


def _from_given(plan: Plan) -> Plan:
    """Return the plan of a hybrid's run alone, which is given the draws that it starts from."""
    draw, run = plan.stages
    assert draw.guarantee is not None
    return dataclasses.replace(plan, stages=(GivenStarts(draw.guarantee), run))


def _by_group(
    found: Found,
    group: Callable[[Plan], Hashable],
    draw: Callable[[list[int]], list[np.ndarray]],
) -> list[Outcome]:
    """Draws, (1, d) each, of trials that are alike in ``group``, one group after the other."""
    outcomes = [Outcome(None, None, 0.0, str(plan)) for plan in found]
    groups: dict[Hashable, list[int]] = {}
    for i, plan in enumerate(found):
        if not isinstance(plan, str):
            groups.setdefault(group(plan), []).append(i)
    for at in groups.values():
        elapsed = clock()
        drawn = draw(at)
        share = elapsed() / len(at)
        for i, draws in zip(at, drawn, strict=True):
            outcomes[i] = Outcome(draws, found[i].guarantee, share)  # type: ignore[union-attr]
    return outcomes
