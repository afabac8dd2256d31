"""The thesis's private samplers as printed: its calibrator, its constants, its step sizes' noise.

The gradient is that of the whole potential, from minibatches of τ = √N records without replacement, for √N passes. Its
noise has variance

    V = 128 (N T L² / (τ ε²)) log(2.5 N T/(τ δ)) log(2/δ),     L = 1: rows have norm at most 1,

* DP-SGLD: θ' = θ − η g + N(0, max(V η², η)): the pair (η, η) keeps temperature 1/2, not 1;
* DP-SGNHT: friction a and step η with 2a/η >= V;
* OPS (Algorithm 2): one draw from exp(−ρΣℓ_i)·π^ρ on ‖θ‖ <= R, |ℓ| <= B there. Replacing a record moves ρΣℓ by at most
  2ρB at every θ, so the density by e^{2ρB} and its normaliser by as much: 4ρB-DP. The prior is tempered too;
* hybrid: one OPS draw at ε/2, then DP-SGNHT from there with ε/2.

Noise, batches and number of steps are as printed; the dynamics of DP-SGNHT, alone and in the hybrid, are the library's
(``dpmcmc.samplers.sgnht``), which are correct: the position moves with the new momentum, and the thermostat holds
(1 − α/2) v·v/d at η. As printed it moves with the old momentum and holds v·v/d at η, whose variance is .95, .82 and NaN
at a = .1, .3, .6 where 1 is right.

ε and δ are the source's claim. The constant that its proof gives is 256, so the claim is not proved; what our
accountant proves for the noise that is really added is the guarantee, and it is far below the claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import dpmcmc
from dpmcmc.mechanisms.ops import OPS
from dpmcmc.mechanisms.output_perturbation import OutputPerturbation
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.verdict import with_verdict
from dpmcmc.privacy import Event, Guarantee
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.calibration import closed_form
from dpmcmc.privacy.query.gaussian_release import gaussian_event
from dpmcmc.targets import Target
from experiments.panel import one_shot
from experiments.panel.config import Settings
from experiments.panel.samplers import plans, runner
from experiments.panel.trial import Outcome, Site, Trial

_CONSTANT = 128.0
#: Draws kept of a chain, at most.
_DRAWS = 100


def variance(epsilon: float, site: Site) -> float:
    """V, of the noise on the whole potential's gradient."""
    batch, steps = length(site)
    z = closed_form.formula(
        epsilon=epsilon, delta=site.delta, steps=steps, rate=batch / site.num_records, constant=_CONSTANT
    )
    return (z * site.num_records / batch) ** 2


def length(site: Site) -> tuple[int, int]:
    """(τ, steps)."""
    batch = round(math.sqrt(site.num_records))
    return batch, math.ceil(site.printed_passes * site.num_records / batch)


def _plan(sampler: dpmcmc.samplers.base.Sampler, site: Site, burn_in: float, after: Plan | None = None) -> dpmcmc.Plan:
    """A run that adds the noise its sampler has, and accounts for it."""
    batch, steps = length(site)
    first = int(burn_in * steps)
    return dpmcmc.plan(
        site.target(),
        num_records=site.num_records,
        sampler=sampler,
        sampling=dpmcmc.FixedSize(batch),
        steps=steps,
        burn_in=first,
        thin=max(1, (steps - first) // _DRAWS),
        privacy=dpmcmc.Privacy(
            delta=site.delta, adjacency=site.adjacency, accountant="rdp", calibrator="free", clip=site.row_bound
        ),
        after=after,
    )


def _sgld(settings: Settings, epsilon: float, site: Site) -> dpmcmc.Plan:
    """DP-SGLD; its settings are ``step_size``."""
    eta = settings["step_size"] / site.num_records
    temperature = max(variance(epsilon, site) * eta / 2, 0.5)
    return _plan(dpmcmc.SGLD(settings["step_size"], temperature), site, settings.get("burn_in", 0.5))


def _sgnht_sampler(settings: Settings, epsilon: float, site: Site) -> dpmcmc.SGNHT:
    """DP-SGNHT at temperature 1: the longest step at which 2a/η >= V, and at most ``step_size``."""
    longest = site.num_records * 2 * settings["friction"] / variance(epsilon, site)
    return dpmcmc.SGNHT(min(settings["step_size"], longest), 1.0, settings["friction"])


def _sgnht(settings: Settings, epsilon: float, site: Site) -> dpmcmc.Plan:
    """DP-SGNHT; its settings are ``friction`` and the largest ``step_size``."""
    return _plan(_sgnht_sampler(settings, epsilon, site), site, settings.get("burn_in", 0.5))


sgld = runner(_sgld)
sgnht = runner(_sgnht)


def ops_plan(radius: float, target: Target, epsilon: float, **promise: Any) -> Plan:
    """OPS as printed on ‖θ‖ <= radius, ``promise`` as of ``OPS.plan``: form ``range`` at the printed temper and price.

    Without a replaced record the potential changes by one record's loss, and the price is that of form ``range``.
    """
    plan = OPS("range", radius=radius).plan(target, epsilon=epsilon, **promise)
    given = plan.guarantee
    unit = plan.settings["epsilon_per_draw"] / plan.settings["temper"]
    if given.adjacency == Adjacency.REPLACE_ONE:
        unit = 4.0 * plan.settings["loss_bound"]
    temper = min(1.0, epsilon / unit)
    guarantee = Guarantee.from_events(
        (Event("pure", 0.0, 1.0, 1, epsilon=unit * temper),),
        delta=given.delta,
        adjacency=given.adjacency,
        accountant=given.accountant,
        release=given.release,
        assumptions=given.assumptions,
    )
    found = {"temper": temper, "prior_temper": temper, "epsilon_per_draw": unit * temper}
    return with_verdict(plan.with_last(guarantee=guarantee, settings=plan.settings | found))


def _ops(settings: Settings, epsilon: float, site: Site) -> Plan:
    """OPS; its settings are ``radius``."""
    return ops_plan(
        settings["radius"],
        site.target(),
        epsilon,
        num_records=site.num_records,
        delta=site.delta,
        adjacency=site.adjacency,
    )


def ops(trials: Sequence[Trial], site: Site) -> list[Outcome]:
    """One draw of OPS as printed."""
    return one_shot.run_ops(plans(_ops, trials, site), trials, site)


def _hybrid(settings: Settings, epsilon: float, site: Site) -> dpmcmc.Plan:
    """The draw and the run, each at ε/2; settings are ``radius`` and those of DP-SGNHT."""
    first = _ops(settings, epsilon / 2, site)
    return _plan(_sgnht_sampler(settings, epsilon / 2, site), site, burn_in=0.0, after=first)


def hybrid(trials: Sequence[Trial], site: Site) -> list[Outcome]:
    """One OPS draw at ε/2, then DP-SGNHT with ε/2."""
    return one_shot.run_hybrids(plans(_hybrid, trials, site), trials, site)


def _output(settings: Settings, epsilon: float, site: Site) -> Plan:
    """The classic Gaussian noise, at any ε; its formula is proved for ε < 1 alone, the guarantee is computed."""
    tight = one_shot.plan_of(OutputPerturbation(settings["regularisation"]), epsilon, site)
    sensitivity = tight.settings["sensitivity"]
    noise_std = sensitivity * math.sqrt(2 * math.log(1.25 / site.delta)) / epsilon
    event = gaussian_event(noise_std, sensitivity, site.records["x"].shape[1], Adjacency(site.adjacency))
    guarantee = Guarantee.from_events(
        (event,),
        delta=site.delta,
        adjacency=site.adjacency,
        accountant=tight.guarantee.accountant,
        release=tight.guarantee.release,
    )
    return with_verdict(tight.with_last(guarantee=guarantee, settings={**tight.settings, "noise_std": noise_std}))


def output(trials: Sequence[Trial], site: Site) -> list[Outcome]:
    """Output perturbation with the classic Gaussian noise; its settings are ``regularisation``."""
    return one_shot.released(plans(_output, trials, site), trials, site)
