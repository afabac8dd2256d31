"""Obstacles between a sampler's plan and intervals that cover, told from public facts alone.

A central 90 % interval of the draws covers about .9 of the truth where the draws are those of the model's posterior.
Each function here is one condition for that. It returns an :class:`Obstacle`, or None where the condition holds. A
condition that cannot be checked is an obstacle too.

**Mixing.** A log-concave likelihood under a prior of precision m leaves no direction with less curvature than m, so
every direction relaxes within a Langevin time of 1/m at temperature 1 (Bakry and Émery 1985). Draws that span n
relaxation times of a Gaussian direction have a centre that is off by √(2/n) standard deviations, and miss 2/n of the
variance, so the interval covers about 2Φ(1.645 √((1 − 2/n)/(1 + 2/n))) − 1, which is right for long runs. Quantiles
of simulated Ornstein–Uhlenbeck paths cover .76 at n = 7, .77 at 8, .86 at 25 and .88 at 50, of the slowest direction.

**Clipping.** A clip below the bound of a record's gradient changes the posterior that the chain samples. Measured
with noise-aware intervals, clip .6 in place of 1 gives coverage .47 (N = 1e4, ε = 3) and .22 (N = 1e5). Label-blind
weights leave the centre where it is, and make intervals too wide (``Law.widening``): at clip .4, prior scale 2
and 60 rows of norm 1 they covered .975. A width 1.14 times the right one covers .94.

**Heat.** The noise s² keeps the temperature. Minibatches of rate q add a variance of at most N B² (1 − q)/q in any
direction, for gradients of norm at most B.

**Step.** On a quadratic of curvature w the variance of SGLD and SGHMC is 1/(1 − ηw/limit) times the right one, where
``limit`` is the sampler's stability limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmcmc.planning.forecast import Curvatures, bought, gradient_bound
from dpmcmc.planning.permitted_uses import SPAN
from dpmcmc.planning.sampler_run import SamplerRun, low_to_high
from dpmcmc.privacy.accounting.shown_numbers import three_digits
from dpmcmc.targets.base import Target
from dpmcmc.targets.tempered import Tempered

if TYPE_CHECKING:
    from dpmcmc.planning.plan import Plan

#: Relaxation times of directions left to the prior before the first draw.
BURN_IN = 3.0
#: Largest relative error of the variance, from temperature and minibatches together, and from the step.
VARIANCE_ERROR = 0.05
#: Most that label-blind weights may widen intervals.
WIDENING = 1.14
#: Fewer draws place the ends of a 90 % interval too far inside: K exact draws cover .9 (K − 1)/(K + 1).
DRAWS = 100


#: Reasons in short that several obstacles share.
UNMIXED = "the chain has not mixed"
_NO_TEMPERATURE, _HEATED = "its temperature is not known", "minibatches heat the chain"


class Obstacle(NamedTuple):
    """Why intervals may not cover.

    Attributes:
        clause: what is the case, to stand after a colon.
        briefly: the same in about five words.
        of_mixing: whether it is about mixing alone, which the released draws show.
    """

    clause: str
    briefly: str
    of_mixing: bool = False


#: Alone, since conditions on temperature and time are about samplers.
_OPTIMISER = Obstacle(
    "the iterates of an optimiser gather near the mode, and are no draws of the posterior",
    "an optimiser draws no posterior",
)


def obstacles(plan: Plan, known: Curvatures) -> tuple[Obstacle, ...]:
    """All that stands between a plan and intervals that cover; empty where nothing does.

    Args:
        plan: of a sampler.
        known: its curvatures; before a private metric is released, what it does is predicted (``forecast.py``).
    """
    run = plan.sampler_run
    if run.offers.optimises:
        return (_OPTIMISER,)
    found = (
        _mixing(plan, known),
        _clipping(plan, known),
        _tempered(plan.target),
        _temperature(run) or _minibatches(plan),
        _step(run, known.largest),
        _draws(run.draws),
    )
    return tuple(one for one in found if one is not None)


def _mixing(plan: Plan, known: Curvatures) -> Obstacle | None:
    name = type(plan.target).__name__
    unknown = None
    if not (plan.target_offers.prior_precision or plan.in_metric):
        unknown = f"{name} states no prior_precision"
    elif not plan.target_offers.log_concave:
        unknown = f"{name} is not known to be log-concave"
    elif not known.slowest:
        unknown = "the curvature in the units of the metric is"
    if unknown or not known.slowest:
        return Obstacle(f"how long the chain takes to mix is unknown, since {unknown}", UNMIXED, True)
    run = plan.sampler_run
    times = run.times * known.slowest
    if run.offers.damping < 1:
        # Momentum forgets at a rate of at most a/2 per step, however short the relaxation time is.
        times = np.minimum(times, run.offers.damping / 2)
    before = float(times[: run.burn_in].sum())
    after = float(times[run.burn_in :].sum()) * run.chains
    if before >= BURN_IN and after >= SPAN:
        return None
    of = "the slowest direction" if plan.in_metric else "the prior"
    clause = (
        f"the run takes {three_digits(before)} relaxation times of {of} before its first draw and "
        f"{three_digits(after)} after it, where {BURN_IN:g} and {SPAN:g} are needed"
    )
    each = bought(plan, known)
    if each is not None:
        clause += f" (the budget buys {three_digits(each * run.chains)} at temperature 1)"
    return Obstacle(clause, UNMIXED, True)


def _temperature(run: SamplerRun) -> Obstacle | None:
    kept = run.temperatures[run.burn_in :]
    high = float(kept.max())
    if not (float(kept.min()) >= 1 - VARIANCE_ERROR and high <= 1 + VARIANCE_ERROR):
        brief = "draws hotter than the posterior" if high > 1 else "draws colder than the posterior"
        return Obstacle(f"the draws have temperature {low_to_high(kept)}, and the posterior has 1", brief)
    noise = run.noise.noise_std.astype(np.float64)
    with np.errstate(all="ignore"):
        twice = run.temperatures_at(2 * noise)[run.burn_in :]
    # It claims its temperature whatever the noise, by a thermostat or an estimated curvature.
    if np.any(kept == twice) and np.any(noise > 0):
        return Obstacle(
            f"{type(run.sampler).__name__} finds its temperature as it runs, and whether it has found it is unknown",
            _NO_TEMPERATURE,
        )
    return None


def _minibatches(plan: Plan) -> Obstacle | None:
    run = plan.sampler_run
    if run.offers.minibatch_variance:
        return Obstacle("minibatch_variance is an estimate, and whether it is right is unknown", _NO_TEMPERATURE)
    rate = run.sampling.rate(plan.num_records)
    if rate >= 1:
        return None
    # The norm of one record's gradient, as the query uses it.
    bounds = [gradient_bound(plan), None if plan.privacy is None else plan.privacy.clip]
    known = [float(bound) for bound in bounds if bound is not None]
    if not known:
        return Obstacle("the noise of minibatches heats the chain by an unknown amount", _HEATED)
    noise = run.noise.noise_std[run.burn_in :].astype(np.float64)
    variance = plan.num_records * min(known) ** 2 * (1 - rate) / rate
    with np.errstate(all="ignore"):
        hottest = float(np.max(run.temperatures[run.burn_in :] * (1 + variance / noise**2)))
    if hottest <= 1 + VARIANCE_ERROR:
        return None
    return Obstacle(f"the noise of minibatches may heat the chain to {hottest:.3g}", _HEATED)


def clip_bias(plan: Plan) -> str | None:
    """Whether clipping moves the centre of the draws: ``none``, ``likely``, ``unknown``; None without clipping."""
    if plan.privacy is None:
        return None
    bound = gradient_bound(plan)
    if plan.label_blind or (bound is not None and plan.privacy.clip >= bound):
        return "none"
    return "unknown" if bound is None and plan.metric is None else "likely"


def _clipping(plan: Plan, known: Curvatures) -> Obstacle | None:
    if plan.privacy is None:
        return None
    clip = plan.privacy.clip
    bound = gradient_bound(plan)
    if clip_bias(plan) == "none":
        if known.law.widening > WIDENING:
            return Obstacle(
                f"label-blind weights at this clip make intervals about {known.law.widening:.3g} times too wide",
                "clipping widens the posterior",
            )
        if (bound is not None and clip >= bound) or plan.target_offers.linear_predictor:
            return None
        said = "how label-blind weights of several classes change the time to mix is unknown"
        return Obstacle(said, UNMIXED, True)
    if plan.metric is not None:
        said = f"{plan.metric.asked.ratio:g} times the typical norm biases the posterior"
    elif plan.in_metric:
        said = f"{clip:g} in the norm of a metric may bias the posterior"
    elif bound is None:
        said = f"{clip:g} may bias the posterior, since the target states no gradient_bound"
    else:
        said = f"{clip:g} biases the posterior, since gradients of records may reach {bound:g}"
    return Obstacle(f"clipping at {said}", "clipping biases the posterior")


def _tempered(target: Target) -> Obstacle | None:
    while isinstance(target, Tempered):
        if target.temper != 1 or target.prior_temper != 1:
            return Obstacle(
                f"the posterior is tempered (likelihood to the power {target.temper:g}) and not the model's",
                "the posterior is tempered",
            )
        target = target.target
    return None


def _step(run: SamplerRun, curvature: float | None) -> Obstacle | None:
    limit = run.offers.stability_limit
    eta = run.offers.eta
    if curvature is None or limit is None or eta is None:
        unknown = f"{type(run.sampler).__name__} states no stability_limit"
        if curvature is None:
            unknown = "that needs a bound on the curvature (curvature)"
        return Obstacle(f"the error of the step is unknown, since {unknown}", "the step's error is unknown")
    t = run.steps_taken
    with np.errstate(all="ignore"):
        share = np.asarray(eta(t)) * curvature / np.asarray(limit(run.noise.noise_std.astype(np.float64), t))
    worst = float(np.max(np.broadcast_to(share, t.shape)[run.burn_in :]))
    if worst <= VARIANCE_ERROR:
        return None
    return Obstacle(
        f"the step may reach {worst:.3g} of its stability limit, where at most {VARIANCE_ERROR:g} is needed",
        "the step is too long",
    )


def _draws(count: int) -> Obstacle | None:
    enough = count >= DRAWS
    return None if enough else Obstacle(f"the run keeps {count} draws, where {DRAWS} are needed", "too few draws")
