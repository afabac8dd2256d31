"""Permitted uses of draws: prediction, intervals, both or nothing, each with its reason.

``of_plan`` and ``of_one_shot`` decide from public facts, before a record is read. ``of_result`` adds what released
draws say of themselves, which is post-processing and costs nothing.

Prediction. All records together move a release of Gaussian budget μ by at most N·μ standard deviations of its noise
(group privacy, Dong, Roth and Su 2019), and the noise of d parameters is √d of them long. Where N·μ/√d is below 3, the
release holds little: simulated logistic regressions (d = 4 to 100) kept 4 to 32 % of the accuracy that there is to gain
at 3, and 43 to 91 % at 20. A chain is also refused where heat makes its draws more than 20 times as wide as the prior.
Both are necessary and not sufficient.

Intervals: ``verdict.py``. A plan says intervals only where every condition is known to hold.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dpmcmc.errors import NotForIntervals, UnsupportedCombination
from dpmcmc.inference.normal_law import MOST_COEFFICIENTS
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.inference.scores import LabelBlind, score_of
from dpmcmc.planning.description import (
    FACTS,
    IF_TRUE,
    INTERVALS,
    PREDICTION,
    REFUSED,
    SPAN,
    Use,
    Verdict,
)
from dpmcmc.planning.forecast import Curvatures, bought, curvatures, predicted_width
from dpmcmc.planning.path import check_path
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.stages import AnyPlan
from dpmcmc.privacy.accounting.events import three_digits
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.base import Target, parameter_shapes
from dpmcmc.targets.numpyro.model import NumPyroTarget
from dpmcmc.targets.tempered import Tempered

# ----------------------------------------------------------------------------------------------------
# Obstacles between a sampler's plan and intervals that cover, told from public facts alone.
#
# A central 90 % interval of the draws covers about .9 of the truth where the draws are those of the model's posterior.
# Each function here is one condition for that. It returns an :class:`Obstacle`, or None where the condition holds. A
# condition that cannot be checked is an obstacle too.
#
# **Mixing.** A log-concave likelihood under a prior of precision m leaves no direction with less curvature than m, so
# every direction relaxes within a Langevin time of 1/m at temperature 1 (Bakry and Émery 1985). Draws that span n
# relaxation times of a Gaussian direction have a centre that is off by √(2/n) standard deviations, and miss 2/n of the
# variance, so the interval covers about 2Φ(1.645 √((1 − 2/n)/(1 + 2/n))) − 1, which is right for long runs. Quantiles
# of simulated Ornstein–Uhlenbeck paths cover .76 at n = 7, .77 at 8, .86 at 25 and .88 at 50, of the slowest direction.
#
# **Clipping.** A clip below the bound of a record's gradient changes the posterior that the chain samples. Measured
# with noise-aware intervals, clip .6 in place of 1 gives coverage .47 (N = 1e4, ε = 3) and .22 (N = 1e5). Label-blind
# weights leave the centre where it is, and make intervals too wide (``Curvatures.widening``): at clip .4, prior scale 2
# and 60 rows of norm 1 they covered .975. A width 1.14 times the right one covers .94.
#
# **Heat.** The noise s² keeps the temperature. Minibatches of rate q add a variance of at most N B² (1 − q)/q in any
# direction, for gradients of norm at most B.
#
# **Step.** On a quadratic of curvature w the variance of SGLD and SGHMC is 1/(1 − ηw/limit) times the right one, where
# ``limit`` is the sampler's stability limit.

#: Relaxation times of directions left to the prior before the first draw.
BURN_IN = 3.0
#: Largest relative error of the variance, from temperature and minibatches together, and from the step.
VARIANCE_ERROR = 0.05
#: Most that label-blind weights may widen intervals.
WIDENING = 1.14
#: Fewer draws place the ends of a 90 % interval too far inside: K exact draws cover .9 (K − 1)/(K + 1).
DRAWS = 100


#: Reasons in short that several obstacles share.
_UNMIXED, _BIASED = "the chain has not mixed", "clipping biases the posterior"


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
        return Obstacle(f"{unknown} {name} states no prior_precision", _UNMIXED, True)
    if not plan.target_offers.log_concave:
        return Obstacle(f"{unknown} {name} is not known to be log-concave", _UNMIXED, True)
    if found is None:
        return Obstacle(f"{unknown} the curvature in the units of the metric is", _UNMIXED, True)
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
    return Obstacle(clause, _UNMIXED, True)


def _kept(values: np.ndarray, plan: Plan) -> np.ndarray:
    return values[plan.burn_in :]


def _heat(plan: Plan) -> Obstacle | None:
    return _temperature(plan) or _minibatches(plan)


def _temperature(plan: Plan) -> Obstacle | None:
    kept = _kept(plan.temperatures, plan)
    low = float(kept.min())
    high = float(kept.max())
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
    return bool(np.any(_kept(plan.temperatures, plan) == _kept(twice, plan)) and np.any(noise > 0))


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
    kept = _kept(plan.temperatures, plan)
    noise = _kept(plan.noise_std.astype(np.float64), plan)
    variance = plan.num_records * bound**2 * (1 - rate) / rate
    with np.errstate(all="ignore"):
        hottest = float(np.max(kept * (1 + variance / noise**2)))
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
            _UNMIXED,
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
    worst = float(np.max(_kept(np.broadcast_to(share, t.shape), plan)))
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


#: Least N·μ/√d, and most standard deviations of the prior that draws may spread over, for prediction.
SIGNAL, SPREAD = 3.0, 20.0
#: Largest split R-hat and least effective sample size of released draws, over coordinates, for intervals.
RHAT, ESS = 1.1, 20.0
#: Draws of a mechanism that an interval is read from, at least.
FEWEST_DRAWS = 100


def of_plan(plan: Plan) -> Verdict:
    """Return the permitted uses of what a sampler's plan releases, before a record is read.

    Intervals are those of the draws, or of the posterior that follows from the path.
    """
    verdict = _with_costs(plan, _verdict(_prediction(plan), _intervals(obstacles(plan))))
    if INTERVALS in verdict.usable_for:
        return verdict
    try:
        check_path(plan)
    except UnsupportedCombination:
        return verdict
    return verdict.with_path()


def with_verdict(plan: Plan) -> Plan:
    """Return a sampler's plan that stores its verdict."""
    return replace(plan, verdict=of_plan(plan))


def of_draws(plan: AnyPlan, diagnostics: dict[str, float | None], metric: ReleasedMetric | None) -> Verdict:
    """Return the permitted uses of the released draws of any plan; arguments are those of :func:`of_result`."""
    return of_result(plan, diagnostics, metric) if isinstance(plan, Plan) else plan.verdict


def of_result(plan: Plan, diagnostics: dict[str, float | None], metric: ReleasedMetric | None = None) -> Verdict:
    """Return the permitted uses of released draws of a sampler's plan.

    Args:
        plan: that was run.
        diagnostics: ``ess`` and ``rhat`` of the released draws, as ``diagnostics.convergence.summary`` gives them.
        metric: that the run released, or None.
    """
    found = list(obstacles(plan, metric))
    ess = diagnostics["ess"]
    rhat = diagnostics["rhat"]
    shown: list[Obstacle] = []
    if ess is None or rhat is None:
        shown.append(
            Obstacle(
                "the draws are too few, or move too little, for R-hat and ESS",
                "too few draws",
            )
        )
    else:
        if not rhat <= RHAT:
            shown.append(
                Obstacle(
                    f"split R-hat is {rhat:.3g}, where at most {RHAT:g} is needed",
                    _UNMIXED,
                )
            )
        if not ess >= ESS:
            shown.append(
                Obstacle(
                    f"the effective sample size is {ess:.3g}, where {ESS:g} is needed",
                    _UNMIXED,
                )
            )
    if plan.privacy is None and plan.chains > 1 and not shown:
        # Draws of several chains that agree show the mixing that a plan could only bound.
        found = [one for one in found if not one.of_mixing]
    if plan.optimises:
        shown = []  # it draws no posterior however well its iterates mix
    intervals = _intervals((*shown, *found), plan.privacy is None and plan.chains < 2)
    return _with_costs(plan, _verdict(_prediction(plan), intervals), metric)


def of_one_shot(
    guarantee: Guarantee,
    num_records: int,
    target: Target,
    intervals: Use,
    width: float | None = None,
) -> Verdict:
    """Return the verdict on a one-shot release before a record is read.

    Args:
        guarantee, num_records, target: of its plan.
        intervals: whether it gives them, and why.
        width: predicted, of its intervals over the non-private ones, or None.
    """
    inflation = None if width is None else width**2
    verdict = _verdict(_signal(guarantee, num_records, target), intervals)
    return replace(
        verdict,
        predicted_inflation=inflation,
        predicted_from=None if width is None else FACTS,
    )


def warn_unless_for_intervals(plan: AnyPlan) -> None:
    """Warn the caller of ``dpmcmc.sample`` of a private run whose draws are not for intervals, from public facts alone.

    A release of one draw has no spread that could be taken for one, and chains without privacy may show that they mix.
    """
    if plan.guarantee is None or plan.draws < 2 or INTERVALS in plan.usable_for:
        return
    score = score_of(plan.target)
    shapes = parameter_shapes(plan.target)
    refused = plan.verdict.reasons[INTERVALS]
    use = f"no private intervals of {type(plan.target).__name__} are offered yet"
    if score is not None and score.size > 1 and shapes is not None and size_of(shapes) > MOST_COEFFICIENTS:
        use += f" for more than {MOST_COEFFICIENTS:,} coefficients"
    elif score is not None:
        use = "for intervals use the mechanism noise_aware (dpmcmc.mechanisms.NoiseAware)"
        if isinstance(score, LabelBlind) and isinstance(plan, Plan) and plan.label_blind:
            use += _from_path(plan)
    elif isinstance(plan.target, NumPyroTarget):
        use = "for intervals plan it with the mechanism noise_aware, which says whether this model can have them"
    warnings.warn(
        f"{refused} Predict with its draws; {use}.",
        NotForIntervals,
        stacklevel=3,
    )


def warn_of_release(plan: AnyPlan, verdict: Verdict) -> None:
    """Warn the caller of ``dpmcmc.sample`` where a release says of itself that its intervals may not hold."""
    if INTERVALS in plan.usable_for and INTERVALS not in verdict.usable_for:
        warnings.warn(verdict.reasons[INTERVALS], NotForIntervals, stacklevel=3)


def _from_path(plan: Plan) -> str:
    """Return how the path of a regression with label-blind weights leads to intervals, to stand after another way."""
    if not plan.in_metric:
        return " or a private metric (metric=dpmcmc.PrivateMetric())"
    if plan.metric is None or not plan.metric.asked.of_rows:
        return " or this run's result.noise_aware(gram=...) with a public second moment of the rows"
    return ""


def _verdict(prediction: Use, intervals: Use) -> Verdict:
    both = {PREDICTION: prediction, INTERVALS: intervals}
    return Verdict(
        tuple(name for name, use in both.items() if use.usable),
        {name: use.why for name, use in both.items()},
        briefly={name: use.briefly for name, use in both.items() if not use.usable},
    )


def _with_costs(plan: Plan, verdict: Verdict, metric: ReleasedMetric | None = None) -> Verdict:
    """Return a verdict with what privacy costs and buys."""
    known = curvatures(plan, metric)
    times = None if plan.optimises else bought(plan, known)
    width = predicted_width(plan, known, metric)
    if times is not None and not math.isfinite(times):
        times = None  # epsilon has no bound, and JSON no infinity
    source = None if width is None else FACTS if metric is None else "metric"
    inflation = None if width is None else width**2
    predicted = replace(verdict, predicted_inflation=inflation, predicted_from=source)
    return replace(predicted, relaxations=times, clip_bias=clip_bias(plan))


def _intervals(found: tuple[Obstacle, ...], one_chain: bool = False) -> Use:
    if not found:
        return Use(
            True,
            f"Yes, {IF_TRUE}: the draws have the posterior's temperature, clipping does not bias them, and the chain "
            "mixes; a wrong model needs a sandwich variance.",
        )
    more = "; several chains would let R-hat show it" if one_chain and all(one.of_mixing for one in found) else ""
    why = f"{REFUSED}: {'; '.join(one.clause for one in found)}{more}."
    return Use(False, why, found[0].briefly)


def _prediction(plan: Plan) -> Use:
    """Judge predictions of a sampler's draws by the signal that privacy leaves, and by heat."""
    found = Use(True, "Yes: no noise is added for privacy.")
    if plan.guarantee is not None:
        found = _signal(plan.guarantee, plan.num_records, plan.target)
    spread = _spread(plan)
    if found.usable and spread is not None and not spread <= SPREAD:
        return Use(
            False,
            f"No: heat is predicted to make the draws {three_digits(spread)} times as wide as the prior, where at most "
            f"{SPREAD:g} times is useful; take a smaller step or a larger epsilon.",
            "heat hides what they say",
        )
    return found


def _signal(guarantee: Guarantee, num_records: int, target: Target) -> Use:
    """Whether all records together can outweigh the noise of a guarantee."""
    if not math.isfinite(guarantee.epsilon):
        return Use(True, "Yes: epsilon has no finite bound, so privacy limits nothing.")
    size = _size(target)
    # N records against one noise; N labels against the noise of each, whose std one label moves by 2·sinh(ε/2).
    if guarantee.release == "labels":
        apart = math.sqrt(num_records) * 2 * math.sinh(guarantee.epsilon / 2)
    elif guarantee.delta == 0:
        apart = num_records * guarantee.gdp().mu
    else:
        apart = num_records * gaussian_mu(guarantee.epsilon, guarantee.delta)
    signal = apart / math.sqrt(size or 1)
    noise = "its noise" if size is not None else "its noise in one coordinate"
    if signal < SIGNAL:
        return Use(
            False,
            f"No: all records together can move the release at most {three_digits(signal)} times as far as {noise}, "
            f"where {SIGNAL:g} times is needed; take more records or a larger epsilon.",
            "noise hides what they say",
        )
    return Use(
        True,
        "Yes: the noise of privacy leaves room for a signal; only test rows show how well the draws predict.",
    )


def _size(target: Target) -> int | None:
    """Number of parameters d; None where only the data tell."""
    params = parameter_shapes(target)
    return None if params is None else size_of(params)


def _spread(plan: Plan) -> float | None:
    """Standard deviation of draws in directions left to the prior, over the prior's; None where it is unknown.

    √T where the chain has mixed; √(2τmT) within a shorter time τ, at prior precision m.
    """
    precision = plan.target_offers.prior_precision
    if not precision or plan.in_metric or plan.optimises:
        return None
    hottest = float(np.max(plan.temperatures[plan.burn_in :]))
    return math.sqrt(hottest * min(1.0, 2 * plan.time * precision))
