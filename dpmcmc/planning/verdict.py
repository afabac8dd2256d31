"""Permitted uses of draws: prediction, intervals, both or nothing, each with its reason.

``of_plan`` and ``of_one_shot`` decide from public facts, before a record is read. ``of_result`` adds what released
draws say of themselves, which is post-processing and costs nothing.

Prediction. All records together move a release of Gaussian budget μ by at most N·μ standard deviations of its noise
(group privacy, Dong, Roth and Su 2019), and the noise of d parameters is √d of them long. Where N·μ/√d is below 3, the
release holds little: simulated logistic regressions (d = 4 to 100) kept 4 to 32 % of the accuracy that there is to gain
at 3, and 43 to 91 % at 20. A chain is also refused where heat makes its draws more than 20 times as wide as the prior.
Both are necessary and not sufficient.

Intervals: ``interval_conditions.py``. A plan says intervals only where every condition is known to hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from dpmcmc.planning.interval_conditions import Obstacle, obstacles
from dpmcmc.privacy.accounting.gaussian import gaussian_mu

if TYPE_CHECKING:
    from dpmcmc.planning.plan import Plan
    from dpmcmc.privacy.accounting.guarantee import Guarantee

PREDICTION, INTERVALS = "prediction", "intervals"

#: Least N·μ/√d, and most standard deviations of the prior that draws may spread over, for prediction.
SIGNAL, SPREAD = 3.0, 20.0
#: Largest split R-hat and least effective sample size of released draws, over coordinates, for intervals.
RHAT, ESS = 1.1, 20.0


@dataclass(frozen=True)
class Verdict:
    """Permitted uses of draws.

    Attributes:
        usable_for: out of ``prediction`` and ``intervals``; empty for nothing.
        reasons: one sentence for each of the two.
    """

    usable_for: tuple[str, ...]
    reasons: dict[str, str] = field(hash=False)

    def to_json(self) -> dict[str, Any]:
        """The keys of plan.json and metrics.json."""
        return {"usable_for": list(self.usable_for), "usable_for_reasons": dict(self.reasons)}

    def lines(self) -> list[tuple[str, str]]:
        """(label, sentence) pairs for a person."""
        return [("usable for", " and ".join(self.usable_for) or "nothing"), *self.reasons.items()]


#: Verdict of a run that released no draws.
NO_DRAWS = Verdict((), dict.fromkeys((PREDICTION, INTERVALS), "No: the run diverged and released no draws."))


def of_plan(plan: Plan) -> Verdict:
    """Return the permitted uses of the draws of a sampler's plan, before a record is read."""
    return _verdict(_prediction(plan), _intervals(obstacles(plan)))


def of_result(plan: Plan, diagnostics: dict[str, float | None]) -> Verdict:
    """Return the permitted uses of released draws of a sampler's plan.

    Args:
        plan: that was run.
        diagnostics: ``ess`` and ``rhat`` of the released draws, as ``diagnostics.convergence.summary`` gives them.
    """
    found = list(obstacles(plan))
    ess, rhat = diagnostics["ess"], diagnostics["rhat"]
    shown: list[Obstacle] = []
    if ess is None or rhat is None:
        shown.append(Obstacle("the draws are too few, or move too little, for R-hat and ESS"))
    else:
        if not rhat <= RHAT:
            shown.append(Obstacle(f"split R-hat is {rhat:.3g}, where at most {RHAT:g} is needed"))
        if not ess >= ESS:
            shown.append(Obstacle(f"the effective sample size is {ess:.3g}, where {ESS:g} is needed"))
    if plan.privacy is None and plan.chains > 1 and not shown:
        # Draws of several chains that agree show the mixing that a plan could only bound.
        found = [one for one in found if not one.of_mixing]
    return _verdict(_prediction(plan), _intervals((*shown, *found), plan.privacy is None and plan.chains < 2))


def of_one_shot(guarantee: Guarantee, num_records: int, target: Any, intervals: tuple[bool, str]) -> Verdict:
    """Return the verdict on a one-shot release before a record is read; ``intervals``: whether it gives them, why."""
    return _verdict(_signal(guarantee, num_records, target), intervals)


def _verdict(prediction: tuple[bool, str], intervals: tuple[bool, str]) -> Verdict:
    both = {PREDICTION: prediction, INTERVALS: intervals}
    return Verdict(
        tuple(name for name, (usable, _) in both.items() if usable), {name: why for name, (_, why) in both.items()}
    )


def _intervals(found: tuple[Obstacle, ...], one_chain: bool = False) -> tuple[bool, str]:
    if not found:
        return True, (
            "Yes, if the model is right (a wrong one needs a sandwich variance): the draws have the posterior's "
            "temperature, clipping changes no gradient, and the chain mixes."
        )
    more = "; several chains would let R-hat show it" if one_chain and all(one.of_mixing for one in found) else ""
    return False, f"Do not report intervals: {'; '.join(one.clause for one in found)}{more}."


def _prediction(plan: Plan) -> tuple[bool, str]:
    """Judge predictions of a sampler's draws by the signal that privacy leaves, and by heat."""
    usable, why = True, "Yes: no noise is added for privacy."
    if plan.guarantee is not None:
        usable, why = _signal(plan.guarantee, plan.num_records, plan.target)
    spread = _spread(plan)
    if usable and spread is not None and not spread <= SPREAD:
        return False, (
            f"No: heat makes the draws {spread:.3g} times as wide as the prior, where at most {SPREAD:g} times is "
            "useful; take a smaller step or a larger epsilon."
        )
    return usable, why


def _signal(guarantee: Guarantee, num_records: int, target: Any) -> tuple[bool, str]:
    """Whether all records together can outweigh the noise of a guarantee."""
    if not math.isfinite(guarantee.epsilon):
        return True, "Yes: epsilon has no finite bound, so privacy limits nothing."
    size = _size(target)
    signal = num_records * gaussian_mu(guarantee.epsilon, guarantee.delta) / math.sqrt(size or 1)
    noise = "its noise" if size is not None else "its noise in one coordinate"
    said = f"all records together can move the release {signal:.3g} times as far as {noise}"
    if signal < SIGNAL:
        return False, f"No: {said}, where {SIGNAL:g} times is needed; take more records or a larger epsilon."
    return True, f"Yes: {said} (at least {SIGNAL:g} times is needed)."


def _size(target: Any) -> int | None:
    """Number of parameters d; None where only the data tell."""
    try:
        params = jax.eval_shape(target.init, jax.random.key(0))
    except Exception:  # shapes that only the data tell
        return None
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def _spread(plan: Plan) -> float | None:
    """Standard deviation of draws in directions left to the prior, over the prior's; None where it is unknown.

    √T where the chain has mixed; √(2τmT) within a shorter time τ, at prior precision m.
    """
    precision = getattr(plan.target, "prior_precision", None)
    if not precision or plan.in_metric:
        return None
    hottest = float(np.max(plan.temperatures[plan.burn_in :]))
    return math.sqrt(hottest * min(1.0, 2 * plan.time * precision))
