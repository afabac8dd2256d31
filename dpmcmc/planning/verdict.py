"""Permitted uses of draws: prediction, intervals, both or nothing, each with its reason.

``of_plan`` decides from public facts, before a record is read. ``of_result`` adds what released
draws say of themselves, which is post-processing and costs nothing.

Prediction. All records together move a release of Gaussian budget μ by at most N·μ standard deviations of its noise
(group privacy, Dong, Roth and Su 2019), and the noise of d parameters is √d of them long. Where N·μ/√d is below 3, the
release holds little: simulated logistic regressions (d = 4 to 100) kept 4 to 32 % of the accuracy that there is to gain
at 3, and 43 to 91 % at 20. A chain is also refused where heat makes its draws more than 20 times as wide as the prior.
Both are necessary and not sufficient.

Intervals: ``obstacles.py``. A plan says intervals only where every condition is known to hold.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.errors import NotForIntervals
from dpmcmc.inference.bounded_score import LabelBlind
from dpmcmc.inference.normal_law import MOST_COEFFICIENTS
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.inference.scores import score_of
from dpmcmc.planning.forecast import Curvatures, bought, curvatures, predicted_width
from dpmcmc.planning.obstacles import UNMIXED, Obstacle, clip_bias, obstacles
from dpmcmc.planning.path import equal_steps
from dpmcmc.planning.permitted_uses import FACTS, IF_TRUE, INTERVALS, REFUSED, Use, Verdict
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import three_digits
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.base import Target, parameter_shapes
from dpmcmc.targets.numpyro.model import NumPyroTarget

if TYPE_CHECKING:
    from dpmcmc.planning.mechanism_release import MechanismRelease
    from dpmcmc.planning.plan import Plan

#: Least N·μ/√d, and most standard deviations of the prior that draws may spread over, for prediction.
SIGNAL, SPREAD = 3.0, 20.0
#: Largest split R-hat and least effective sample size of released draws, over coordinates, for intervals.
RHAT, ESS = 1.1, 20.0
#: Steps of equal weight that a path identifies a posterior by, at least.
FEWEST_STEPS = 32
#: Draws of a mechanism that an interval is read from, at least.
FEWEST_DRAWS = 100


def of_plan(plan: Plan) -> Verdict:
    """Return the permitted uses of what a plan releases, before a record is read.

    Intervals are those of the draws, or of the posterior that follows from the path.
    """
    if plan.release is not None:
        return _of_release(plan, plan.release)
    known = curvatures(plan)
    verdict = _of_run(plan, _intervals(obstacles(plan, known)), known)
    return verdict if plan.end is None else verdict.with_path(_of_path(plan, plan.end.intervals))


def _of_path(plan: Plan, derived: Use) -> Use:
    """Judge intervals of the posterior that follows from a path, given whether they are derived."""
    steps = equal_steps(plan)
    if not derived.usable or steps > FEWEST_STEPS * (1 - 1e-6):
        return derived
    why = f"the kept part of the path has {steps:.3g} steps of equal weight, and fewer than {FEWEST_STEPS} do not"
    return Use(False, f"{REFUSED}: {why} identify the posterior; take more steps or a shorter burn_in.", "a short path")


def with_verdict(plan: Plan) -> Plan:
    """Return a plan that stores its verdict."""
    return replace(plan, verdict=of_plan(plan))


def of_result(plan: Plan, diagnostics: dict[str, float | None], metric: ReleasedMetric | None = None) -> Verdict:
    """Return the permitted uses of released draws; those of a mechanism are what its plan says.

    Args:
        plan: that was run.
        diagnostics: ``ess`` and ``rhat`` of the released draws, as ``diagnostics.convergence.summary`` gives them.
        metric: that the run released, or None.
    """
    if plan.run is None:
        return plan.verdict
    known = curvatures(plan, metric)
    found = obstacles(plan, known)
    if not plan.run.offers.optimises:  # it draws no posterior however well its iterates mix
        shown = _unmixed(diagnostics["ess"], diagnostics["rhat"])
        if plan.privacy is None and plan.chains > 1 and not shown:
            # Draws of several chains that agree show the mixing that a plan could only bound.
            found = tuple(one for one in found if not one.of_mixing)
        found = (*shown, *found)
    return _of_run(plan, _intervals(found, plan.privacy is None and plan.chains < 2), known, metric)


def _unmixed(ess: float | None, rhat: float | None) -> tuple[Obstacle, ...]:
    """Return what released chains say against themselves; nothing where they mix."""
    if ess is None or rhat is None:
        return (Obstacle("the draws are too few, or move too little, for R-hat and ESS", "too few draws"),)
    clauses = {
        f"split R-hat is {rhat:.3g}, where at most {RHAT:g} is needed": rhat <= RHAT,
        f"the effective sample size is {ess:.3g}, where {ESS:g} is needed": ess >= ESS,
    }
    return tuple(Obstacle(clause, UNMIXED) for clause, holds in clauses.items() if not holds)


@on_one_blas_thread
def _of_release(plan: Plan, release: MechanismRelease) -> Verdict:
    """Return the verdict on a mechanism's release: one whose draws account for its noise says so itself."""
    own = release.mechanism.intervals
    width = release.settings.get("predicted_width")
    return Verdict(
        _signal(release.guarantee, plan.num_records, plan.target),
        _of_few_draws(release) if own is None else own(plan),
        predicted_inflation=None if width is None else width**2,
        predicted_from=None if width is None else FACTS,
    )


def _of_few_draws(release: MechanismRelease) -> Use:
    """Refuse intervals of draws that account for no noise."""
    if release.draws == 1:
        brief = "one release has no spread"
        return Use(False, f"{REFUSED}: {brief}.", brief)
    temper = release.settings.get("temper", 1.0)
    what = "the posterior" if temper >= 1 else f"a posterior whose likelihood has the power {temper:.3g}"
    why = f"{REFUSED}: nothing shows that intervals of {release.draws} draws of {what} cover."
    return Use(False, why, "nothing shows that they cover")


def warn_unless_for_intervals(plan: Plan) -> None:
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
        if isinstance(score, LabelBlind) and plan.run is not None and plan.label_blind:
            offers = plan.target_offers
            if not plan.in_metric and offers.offset_bound is None and offers.weight_scale is None:
                use += " or a private metric (metric=dpmcmc.PrivateMetric())"
    elif isinstance(plan.target, NumPyroTarget):
        use = "for intervals plan it with the mechanism noise_aware, which says whether this model can have them"
    warnings.warn(
        f"{refused} Predict with its draws; {use}.",
        NotForIntervals,
        stacklevel=3,
    )


def warn_of_release(plan: Plan, verdict: Verdict) -> None:
    """Warn the caller of ``dpmcmc.sample`` where a release says of itself that its intervals may not hold."""
    if INTERVALS in plan.usable_for and INTERVALS not in verdict.usable_for:
        warnings.warn(verdict.reasons[INTERVALS], NotForIntervals, stacklevel=3)


def _of_run(plan: Plan, intervals: Use, known: Curvatures, metric: ReleasedMetric | None = None) -> Verdict:
    """Return the verdict on a sampler's draws, with what privacy costs and buys."""
    times = None if plan.sampler_run.offers.optimises else bought(plan, known)
    width = predicted_width(plan, known, metric)
    return Verdict(
        _prediction(plan),
        intervals,
        # Where epsilon has no bound, neither have they, and JSON has no infinity.
        relaxations=None if times is None or not math.isfinite(times) else times,
        predicted_inflation=None if width is None else width**2,
        clip_bias=clip_bias(plan),
        predicted_from=None if width is None else FACTS if metric is None else "metric",
    )


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
    if not precision or plan.in_metric or plan.sampler_run.offers.optimises:
        return None
    hottest = float(np.max(plan.temperatures[plan.burn_in :]))
    return math.sqrt(hottest * min(1.0, 2 * plan.time * precision))
