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
weights leave the centre where it is, and make intervals too wide (``Curvatures.widening``): at clip .4, prior scale 2
and 60 rows of norm 1 they covered .975. A width 1.14 times the right one covers .94.

**Heat.** The noise s² keeps the temperature. Minibatches of rate q add a variance of at most N B² (1 − q)/q in any
direction, for gradients of norm at most B.

**Step.** On a quadratic of curvature w the variance of SGLD and SGHMC is 1/(1 − ηw/limit) times the right one, where
``limit`` is the sampler's stability limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.planning.forecast import Curvatures, bought, curvatures
from dpmcmc.planning.permitted_uses import SPAN
from dpmcmc.privacy.accounting.shown_numbers import three_digits
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
UNMIXED, _BIASED = "the chain has not mixed", "clipping biases the posterior"


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


def obstacles(plan: Plan, metric: ReleasedMetric | None = None) -> tuple[Obstacle, ...]:
    """All that stands between a plan and intervals that cover; empty where nothing does.

    Args:
        plan: of a sampler.
        metric: that its run has released; before that, what a private metric does is predicted (``forecast.py``).
    """
    if plan.optimises:
        return (_OPTIMISER,)
    known = curvatures(plan, metric)
    found = (
        _mixing(plan, known), _clipping(plan, known), _tempered(plan), _heat(plan), _step(plan, known), _draws(plan),
    )  # fmt: skip
    return tuple(one for one in found if one is not None)


def relaxations(plan: Plan, known: Curvatures) -> tuple[float, float] | None:
    """Relaxation times of the slowest direction: (of burn-in, that the draws of all chains span); None: unknown."""
    if not known.slowest:
        return None
    each = plan.times * known.slowest
    friction = plan.sampler_offers.damping
    if friction < 1:
        # Momentum forgets at a rate of at most a/2 per step, however short the relaxation time is.
        each = np.minimum(each, friction / 2)
    return float(each[: plan.burn_in].sum()), float(each[plan.burn_in :].sum()) * plan.chains


def _mixing(plan: Plan, known: Curvatures) -> Obstacle | None:
    unknown = "how long the chain takes to mix is unknown, since"
    name = type(plan.target).__name__
    found = relaxations(plan, known)
    if not (plan.target_offers.prior_precision or plan.in_metric):
        return Obstacle(f"{unknown} {name} states no prior_precision", UNMIXED, True)
    if not plan.target_offers.log_concave:
        return Obstacle(f"{unknown} {name} is not known to be log-concave", UNMIXED, True)
    if found is None:
        return Obstacle(f"{unknown} the curvature in the units of the metric is", UNMIXED, True)
    before, after = found
    if before >= BURN_IN and after >= SPAN:
        return None
    of = "the slowest direction" if plan.in_metric else "the prior"
    clause = (
        f"the run takes {three_digits(before)} relaxation times of {of} before its first draw and "
        f"{three_digits(after)} after it, where {BURN_IN:g} and {SPAN:g} are needed"
    )
    each = bought(plan, known)
    if each is not None:
        clause += f" (the budget buys {three_digits(each * plan.chains)} at temperature 1)"
    return Obstacle(clause, UNMIXED, True)


def _after_burn_in(values: np.ndarray, plan: Plan) -> np.ndarray:
    return values[plan.burn_in :]


def _heat(plan: Plan) -> Obstacle | None:
    return _temperature(plan) or _minibatches(plan)


def _temperature(plan: Plan) -> Obstacle | None:
    temperatures = _after_burn_in(plan.temperatures, plan)
    low = float(temperatures.min())
    high = float(temperatures.max())
    if not (low >= 1 - VARIANCE_ERROR and high <= 1 + VARIANCE_ERROR):
        heat = f"{low:.3g}" if high <= low * 1.001 else f"{low:.3g} to {high:.3g}"
        brief = "draws hotter than the posterior" if high > 1 else "draws colder than the posterior"
        return Obstacle(f"the draws have temperature {heat}, and the posterior has 1", brief)
    if _adapts(plan):
        return Obstacle(
            f"{type(plan.sampler).__name__} finds its temperature as it runs, and whether it has found it is unknown",
            "its temperature is not known",
        )
    return None


def _adapts(plan: Plan) -> bool:
    """Whether the sampler claims its temperature whatever the noise, by a thermostat or an estimated curvature."""
    noise = plan.noise_std.astype(np.float64)
    t = np.arange(plan.steps, dtype=np.float64)
    with np.errstate(all="ignore"):
        twice = np.broadcast_to(plan.sampler.temperature_at(2 * noise, t), t.shape)
    return bool(np.any(_after_burn_in(plan.temperatures, plan) == _after_burn_in(twice, plan)) and np.any(noise > 0))


def _minibatches(plan: Plan) -> Obstacle | None:
    if plan.sampler_offers.minibatch_variance:
        return Obstacle(
            "minibatch_variance is an estimate, and whether it is right is unknown",
            "its temperature is not known",
        )
    rate = plan.sampling.rate(plan.num_records)
    if rate >= 1:
        return None
    bound = _largest_gradient(plan)
    if bound is None:
        return Obstacle(
            "the noise of minibatches heats the chain by an unknown amount",
            "minibatches heat the chain",
        )
    temperatures = _after_burn_in(plan.temperatures, plan)
    noise = _after_burn_in(plan.noise_std.astype(np.float64), plan)
    variance = plan.num_records * bound**2 * (1 - rate) / rate
    with np.errstate(all="ignore"):
        hottest = float(np.max(temperatures * (1 + variance / noise**2)))
    if hottest <= 1 + VARIANCE_ERROR:
        return None
    return Obstacle(
        f"the noise of minibatches may heat the chain to {hottest:.3g}",
        "minibatches heat the chain",
    )


def _largest_gradient(plan: Plan) -> float | None:
    """Public bound on the norm of one record's gradient, as the query uses it; None where there is none."""
    # In a metric the target's bound is that of another norm.
    own = None if plan.in_metric else plan.target_offers.gradient_bound
    bounds = [own, None if plan.privacy is None else plan.privacy.clip]
    known = [float(bound) for bound in bounds if bound is not None]
    return min(known) if known else None


def clip_bias(plan: Plan) -> str | None:
    """Whether clipping moves the centre of the draws: ``none``, ``likely``, ``unknown``; None without clipping."""
    if plan.privacy is None:
        return None
    bound = None if plan.in_metric else plan.target_offers.gradient_bound
    if plan.label_blind or (bound is not None and plan.privacy.clip >= bound):
        return "none"
    return "unknown" if bound is None and plan.metric is None else "likely"


def _clipping(plan: Plan, known: Curvatures) -> Obstacle | None:
    bias = clip_bias(plan)
    bound = plan.target_offers.gradient_bound
    if bias is None or plan.privacy is None:
        return None
    clip = plan.privacy.clip
    if bias == "none":
        never = bound is not None and clip >= bound and not plan.in_metric
        if known.widening > WIDENING:
            return Obstacle(
                f"label-blind weights at this clip make intervals about {known.widening:.3g} times too wide",
                "clipping widens the posterior",
            )
        if never or plan.target_offers.linear_predictor:
            return None
        return Obstacle(
            "how label-blind weights of several classes change the time to mix is unknown",
            UNMIXED,
            True,
        )
    if plan.metric is not None:
        return Obstacle(
            f"clipping at {plan.metric.asked.ratio:g} times the typical norm biases the posterior",
            _BIASED,
        )
    if plan.in_metric:
        return Obstacle(
            f"clipping at {clip:g} in the norm of a metric may bias the posterior",
            _BIASED,
        )
    if bias == "unknown":
        return Obstacle(
            f"clipping at {clip:g} may bias the posterior, since the target states no gradient_bound",
            _BIASED,
        )
    return Obstacle(
        f"clipping at {clip:g} biases the posterior, since gradients of records may reach {bound:g}",
        _BIASED,
    )


def _tempered(plan: Plan) -> Obstacle | None:
    target = plan.target
    while isinstance(target, Tempered):
        if target.temper != 1 or target.prior_temper != 1:
            return Obstacle(
                f"the posterior is tempered (likelihood to the power {target.temper:g}) and not the model's",
                "the posterior is tempered",
            )
        target = target.target
    return None


def _step(plan: Plan, known: Curvatures) -> Obstacle | None:
    curvature = known.largest
    offers = plan.sampler_offers
    limit = offers.stability_limit
    eta = offers.eta
    if curvature is None:
        return Obstacle(
            "the error of the step is unknown, since that needs a bound on the curvature (curvature)",
            "the step's error is unknown",
        )
    if limit is None or eta is None:
        return Obstacle(
            f"the error of the step is unknown, since {type(plan.sampler).__name__} states no stability_limit",
            "the step's error is unknown",
        )
    t = np.arange(plan.steps, dtype=np.float64)
    with np.errstate(all="ignore"):
        share = np.asarray(eta(t)) * curvature / np.asarray(limit(plan.noise_std.astype(np.float64), t))
    worst = float(np.max(_after_burn_in(np.broadcast_to(share, t.shape), plan)))
    if worst <= VARIANCE_ERROR:
        return None
    return Obstacle(
        f"the step may reach {worst:.3g} of its stability limit, where at most {VARIANCE_ERROR:g} is needed",
        "the step is too long",
    )


def _draws(plan: Plan) -> Obstacle | None:
    count = plan.num_draws * plan.chains
    return (
        None if count >= DRAWS else Obstacle(f"the run keeps {count} draws, where {DRAWS} are needed", "too few draws")
    )
