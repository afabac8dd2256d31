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
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dpmcmc.errors import NotForIntervals
from dpmcmc.inference.metric import ReleasedMetric
from dpmcmc.inference.noise_aware import MOST_COEFFICIENTS
from dpmcmc.inference.scores import LabelBlind, score_of
from dpmcmc.planning.forecast import bought, curvatures, inflation
from dpmcmc.planning.interval_conditions import SPAN, Obstacle, clip_bias, obstacles
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.rounding import three_digits
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.base import Target, parameter_shapes
from dpmcmc.targets.numpyro.model import NumPyroTarget

if TYPE_CHECKING:
    from dpmcmc.planning.any_plan import AnyPlan
    from dpmcmc.planning.plan import Plan
    from dpmcmc.privacy.accounting.guarantee import Guarantee

PREDICTION, INTERVALS = "prediction", "intervals"
#: How the reason against intervals of draws begins, and where they come from if a path gives them.
REFUSED = "Do not report intervals"
FROM_PATH = "Intervals come from result.noise_aware(), not from the chain's draws."

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
        relaxations: that the budget buys each chain in its slowest direction at temperature 1; None where unknown.
        predicted_inflation: predicted_width squared; None where unknown.
        clip_bias: ``none``, ``likely`` or ``unknown``; None without clipping, and for every one-shot release.
        predicted_from: ``public_facts`` or, once it has been released, ``metric``; None without a prediction.
    """

    usable_for: tuple[str, ...]
    reasons: dict[str, str] = field(hash=False)
    relaxations: float | None = None
    predicted_inflation: float | None = None
    clip_bias: str | None = None
    predicted_from: str | None = None

    @property
    def predicted_width(self) -> float | None:
        """Width of an interval that accounts for the noise of privacy over that of the non-private posterior.

        A chain's is that of an ideal answer from the run's gradients, and a real answer is wider. Before the run it is
        that in a typical direction (``forecast.py``). Once a metric of rows is released it is an average over
        coefficients. The mechanism ``noise_aware`` predicts its own intervals, for rows with a stand-in spectrum. The
        two are not comparable.
        """
        return None if self.predicted_inflation is None else math.sqrt(self.predicted_inflation)

    def to_json(self) -> dict[str, Any]:
        """The keys of plan.json and metrics.json."""
        return {
            "usable_for": list(self.usable_for),
            "usable_for_reasons": dict(self.reasons),
            "relaxations": self.relaxations,
            "predicted_inflation": self.predicted_inflation,
            "predicted_width": self.predicted_width,
            "clip_bias": self.clip_bias,
            "predicted_from": self.predicted_from,
        }

    def with_path(self) -> Verdict:
        """Return the verdict on draws whose run has a path that gives intervals, which the draws themselves do not."""
        told = self.reasons[INTERVALS]
        if told.startswith(FROM_PATH):
            return self
        why = f"{FROM_PATH} {told.replace(REFUSED, f'{REFUSED} of the draws', 1)}"
        return replace(self, reasons=self.reasons | {INTERVALS: why})

    @classmethod
    def of_json(cls, said: dict[str, Any]) -> Self:
        """Return the verdict that plan.json or metrics.json holds."""
        facts = {name: said[name] for name in ("relaxations", "predicted_inflation", "clip_bias")}
        # Files of version 0.2.0 and before do not say what a prediction is from.
        return cls(tuple(said["usable_for"]), said["usable_for_reasons"], **facts, predicted_from=said.get(_FROM))

    def lines(self) -> list[tuple[str, str]]:
        """(label, sentence) pairs for a person."""
        out = [("usable for", " and ".join(self.usable_for) or "nothing"), *self.reasons.items()]
        if self.relaxations is not None:
            buys = (
                f"the budget buys each chain {three_digits(self.relaxations)} relaxation times of its slowest direction"
            )
            out.append(("relaxations", f"{buys} at temperature 1; for intervals, all chains together need {SPAN:g}"))
        if self.predicted_inflation is not None:
            width = f"about {three_digits(math.sqrt(self.predicted_inflation))} times as wide as without privacy"
            more = f"(variance {three_digits(self.predicted_inflation)} times)"
            if self.clip_bias is None:
                wide = f"intervals are {width} {more}, for simulated rows"
            else:
                wide = f"an ideal answer from the run's gradients has intervals {width} {more}, and a real one wider"
            facts = "the released metric" if self.predicted_from == "metric" else "public facts"
            out.append(("width", f"predicted from {facts}, not observed: {wide}, if the model is true"))
        if self.clip_bias is not None:
            out.append(("clip bias", _CLIP_BIAS[self.clip_bias]))
        return out


#: A key of plan.json, and its value before a run has released a metric.
_FROM, _FACTS = "predicted_from", "public_facts"
_CLIP_BIAS = {
    "none": "none: clipping leaves the centre of the draws where it is",
    "likely": "likely: records with large gradients count for less than the model says",
    "unknown": "unknown: gradients of records have no public bound",
}
#: Verdict of a run that released no draws.
NO_DRAWS = Verdict((), dict.fromkeys((PREDICTION, INTERVALS), "No: the run diverged and released no draws."))


def of_plan(plan: Plan) -> Verdict:
    """Return the permitted uses of the draws of a sampler's plan, before a record is read."""
    return _with_costs(plan, _verdict(_prediction(plan), _intervals(obstacles(plan))))


def of_result(plan: Plan, diagnostics: dict[str, float | None], metric: ReleasedMetric | None = None) -> Verdict:
    """Return the permitted uses of released draws of a sampler's plan.

    Args:
        plan: that was run.
        diagnostics: ``ess`` and ``rhat`` of the released draws, as ``diagnostics.convergence.summary`` gives them.
        metric: that the run released, or None.
    """
    found = list(obstacles(plan, metric))
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
    intervals = _intervals((*shown, *found), plan.privacy is None and plan.chains < 2)
    return _with_costs(plan, _verdict(_prediction(plan), intervals), metric)


def of_one_shot(
    guarantee: Guarantee, num_records: int, target: Target, intervals: tuple[bool, str], width: float | None = None
) -> Verdict:
    """Return the verdict on a one-shot release before a record is read.

    Args:
        guarantee, num_records, target: of its plan.
        intervals: whether it gives them, and why.
        width: predicted, of its intervals over the non-private ones, or None.
    """
    inflation = None if width is None else width**2
    verdict = _verdict(_signal(guarantee, num_records, target), intervals)
    return replace(verdict, predicted_inflation=inflation, predicted_from=None if width is None else _FACTS)


def warn_unless_for_intervals(plan: AnyPlan) -> None:
    """Warn the caller of ``dpmcmc.sample`` of a private run whose draws are not for intervals, from public facts alone.

    A release of one draw has no spread that could be taken for one, and chains without privacy may show that they mix.
    """
    if plan.guarantee is None or plan.draws < 2 or INTERVALS in plan.usable_for:
        return
    score, shapes = score_of(plan.target), parameter_shapes(plan.target)
    refused = plan.verdict.reasons[INTERVALS]
    use = f"no private intervals of {type(plan.target).__name__} are offered yet"
    if score is not None and score.size > 1 and shapes is not None and size_of(shapes) > MOST_COEFFICIENTS:
        use += f" for more than {MOST_COEFFICIENTS:,} coefficients"
    elif score is not None:
        use = "for intervals use the mechanism noise_aware (dpmcmc.mechanisms.NoiseAware)"
        if isinstance(score, LabelBlind) and plan.trace is plan and plan.trace.label_blind:
            use += _from_path(plan.trace)
            if _gives_path(plan.trace):
                refused = refused.replace(REFUSED, f"{REFUSED} of the chain's draws", 1)
    elif isinstance(plan.target, NumPyroTarget):
        use = "for intervals plan it with the mechanism noise_aware, which says whether this model can have them"
    warnings.warn(
        f"{refused} Predict with its draws; {use}.",
        NotForIntervals,
        stacklevel=3,
    )


def _from_path(plan: Plan) -> str:
    """Return how the path of a regression with label-blind weights leads to intervals, to stand after another way.

    Clipping of residuals, the only one of linear regression, is refused there (``path.py``).
    """
    if not plan.in_metric:
        return " or a private metric (metric=dpmcmc.PrivateMetric()) and then result.noise_aware()"
    if _gives_path(plan):
        return " or this run's result.noise_aware()"
    return " or this run's result.noise_aware(gram=...) with a public second moment of the rows"


def _gives_path(plan: Plan) -> bool:
    """Whether the path of a regression with label-blind weights may give intervals without a further fact."""
    return plan.metric is not None and plan.metric.asked.of_rows


def _verdict(prediction: tuple[bool, str], intervals: tuple[bool, str]) -> Verdict:
    both = {PREDICTION: prediction, INTERVALS: intervals}
    return Verdict(
        tuple(name for name, (usable, _) in both.items() if usable), {name: why for name, (_, why) in both.items()}
    )


def _with_costs(plan: Plan, verdict: Verdict, metric: ReleasedMetric | None = None) -> Verdict:
    """Return a verdict with what privacy costs and buys."""
    known = curvatures(plan, metric)
    times, variance = bought(plan, known), inflation(plan, known, metric)
    if times is not None and not math.isfinite(times):
        times = None  # epsilon has no bound, and JSON no infinity
    source = None if variance is None else _FACTS if metric is None else "metric"
    predicted = replace(verdict, predicted_inflation=variance, predicted_from=source)
    return replace(predicted, relaxations=times, clip_bias=clip_bias(plan))


def _intervals(found: tuple[Obstacle, ...], one_chain: bool = False) -> tuple[bool, str]:
    if not found:
        return True, (
            "Yes, if the model is right (a wrong one needs a sandwich variance): the draws have the posterior's "
            "temperature, clipping does not bias them, and the chain mixes."
        )
    more = "; several chains would let R-hat show it" if one_chain and all(one.of_mixing for one in found) else ""
    return False, f"{REFUSED}: {'; '.join(one.clause for one in found)}{more}."


def _prediction(plan: Plan) -> tuple[bool, str]:
    """Judge predictions of a sampler's draws by the signal that privacy leaves, and by heat."""
    usable, why = True, "Yes: no noise is added for privacy."
    if plan.guarantee is not None:
        usable, why = _signal(plan.guarantee, plan.num_records, plan.target)
    spread = _spread(plan)
    if usable and spread is not None and not spread <= SPREAD:
        return False, (
            f"No: heat is predicted to make the draws {three_digits(spread)} times as wide as the prior, where at most "
            f"{SPREAD:g} times is useful; take a smaller step or a larger epsilon."
        )
    return usable, why


def _signal(guarantee: Guarantee, num_records: int, target: Target) -> tuple[bool, str]:
    """Whether all records together can outweigh the noise of a guarantee."""
    if not math.isfinite(guarantee.epsilon):
        return True, "Yes: epsilon has no finite bound, so privacy limits nothing."
    size = _size(target)
    signal = num_records * gaussian_mu(guarantee.epsilon, guarantee.delta) / math.sqrt(size or 1)
    noise = "its noise" if size is not None else "its noise in one coordinate"
    if signal < SIGNAL:
        return False, (
            f"No: all records together can move the release at most {three_digits(signal)} times as far as {noise}, "
            f"where {SIGNAL:g} times is needed; take more records or a larger epsilon."
        )
    return True, "Yes: the noise of privacy leaves room for a signal; only test rows show how well the draws predict."


def _size(target: Target) -> int | None:
    """Number of parameters d; None where only the data tell."""
    params = parameter_shapes(target)
    return None if params is None else size_of(params)


def _spread(plan: Plan) -> float | None:
    """Standard deviation of draws in directions left to the prior, over the prior's; None where it is unknown.

    √T where the chain has mixed; √(2τmT) within a shorter time τ, at prior precision m.
    """
    precision = getattr(plan.target, "prior_precision", None)
    if not precision or plan.in_metric:
        return None
    hottest = float(np.max(plan.temperatures[plan.burn_in :]))
    return math.sqrt(hottest * min(1.0, 2 * plan.time * precision))
