"""``dpmcmc.suggest``: from a model, public facts and an ε to a plan, without data."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypedDict, Unpack, cast

import numpy as np

from dpmcmc.data.schema import Schema
from dpmcmc.data.structure import RowStructure
from dpmcmc.errors import InputError, NotForIntervals
from dpmcmc.estimators.outlook import Outlook, OutlookFacts, ReleaseNoise, accuracy_line, mean_width, width_line
from dpmcmc.estimators.own_units import prior_lines
from dpmcmc.estimators.simulated_rows import REAL
from dpmcmc.estimators.suggested_chain import suggested_chain
from dpmcmc.inference.scores import score_of
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.noise_aware.mechanism import strategy_of
from dpmcmc.mechanisms.noise_aware.prior import Prior
from dpmcmc.mechanisms.noise_aware.regression_plan import RegressionPlan, releases_curvature
from dpmcmc.mechanisms.one_shot import OneShot
from dpmcmc.planning.permitted_uses import BEST_FIT, INTERVALS, PREDICTION
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.private_metric import PrivateMetric
from dpmcmc.planning.verdict import SIGNAL, with_verdict
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.promise import AdjacencyName, Clipping, Privacy
from dpmcmc.privacy.accounting.sampling import Sampling
from dpmcmc.samplers.base import Sampler
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.base import Target, parameter_shapes, require_bound, target_offers
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.ordinal import OrdinalRegression

Goal = Literal["intervals", "prediction"]
#: Share of the prior's variance that a release must remove: with less, intervals are the prior's.
_LEAST_LEARNED = 0.1
#: Candidates for the second moment's share of μ².
_GRAM_SHARES = (0.2, 0.3, 0.4, 0.5)
#: How good a chain's settings were on public tables (docs/figures.md).
_MEASURED = "; on five public tables settings tuned on the data predicted at most a point better"
_UNMEASURED = "; its settings were measured on public tables of logistic regression alone, and not for this model"
#: Factor of the scales under ``evidence`` that widths are predicted with: about a draw's where there is little signal.
_USUAL_FACTOR = 4.0
#: Bound on rows where none is declared.
_ROW_BOUND = 1.0
#: Largest ε that a plan is made for.
_MOST_EPSILON = 1e6
#: Largest N and ε that a refusal proposes.
_MOST_RECORDS, _LARGEST_EPSILON = 1e9, 100.0


class NotAchievable(InputError):
    """No plan reaches the goal at this N and ε; the message says which N or ε would do.

    Example:
        >>> import dpmcmc
        >>> target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0)
        >>> dpmcmc.suggest(target, num_records=20, epsilon=0.01, goal="intervals")
        Traceback (most recent call last):
            ...
        dpmcmc.estimators.suggestion.NotAchievable: goal intervals is not achievable at num_records 20 and...
    """


class Given(TypedDict, total=False):
    """Settings that a user chose. They are kept.

    ``adjacency`` and, of a mechanism, ``mechanism``; of a sampler's run those of :func:`dpmcmc.plan` and ``clip`` and
    ``clipping`` of its promise.
    """

    adjacency: AdjacencyName
    mechanism: OneShot
    sampler: Sampler
    sampling: Sampling
    steps: int
    chains: int
    burn_in: int
    thin: int
    metric: PrivateMetric
    clip: float
    clipping: Clipping


def default_delta(num_records: int) -> float:
    """Return the δ of a plan that names none: the least of 1e-5 and N^-1.2, which is below 1/N.

    Raises:
        InputError: N is less than 1.
    """
    if num_records < 1:
        raise InputError(f"num_records: must be at least 1, got {num_records}", "num_records")
    return min(1e-5, num_records**-1.2)


def suggest(
    target: Target,
    *,
    num_records: int,
    epsilon: float,
    delta: float | None = None,
    schema: Schema | None = None,
    num_features: int | None = None,
    goal: Goal = "intervals",
    **given: Unpack[Given],
) -> Plan:
    """Return a plan for a model, chosen from public facts alone; ``print`` says why it is this one.

    No record is read. Where a formula is not enough, rows and labels are simulated from the schema and the prior.

    Args:
        target: the model. Facts that it lacks come from the schema, or from ``num_features`` and a row bound of 1.
        num_records: N.
        epsilon: ε.
        delta: δ; None: the least of 1e-5 and N^-1.2.
        schema: public ranges and levels of the columns.
        num_features: d, where neither target nor schema says it; the last column is taken for the intercept.
        goal: ``intervals``: draws whose intervals account for the noise of privacy; ``prediction``: draws that predict.
        given: settings that are kept: ``adjacency``; ``mechanism``; or ``sampler``, ``sampling``, ``steps``,
            ``chains``, ``burn_in``, ``thin``, ``metric``, ``clip`` and ``clipping`` of a sampler's run.

    Returns:
        A plan that :func:`dpmcmc.sample` runs. ``plan.reasons`` holds the lines that ``print`` adds.

    Raises:
        NotAchievable: the goal is out of reach; the message says which N or which ε would do.
        UnsupportedCombination: no intervals are derived for the model.
        ValueError: impossible numbers, or a public bound that is not given.
    """
    asked = ask(target, num_records, epsilon, delta, schema, num_features, given)
    found = asked.suggested(goal)
    asked.require(found, goal)
    return found


def asked_epsilon(epsilon: float | None) -> float:
    """Return ε as a float.

    Raises:
        InputError: it is missing or out of range.
    """
    if epsilon is None:
        raise InputError(
            "epsilon: say how much privacy the fit may spend, for it spends nothing unasked: 1 or less is a strong "
            "promise, 2 to 4 a usual one, and at 8 or more it is weak",
            "epsilon",
        )
    if isinstance(epsilon, bool) or not isinstance(epsilon, Real) or not 0 < epsilon <= _MOST_EPSILON:
        raise InputError(
            f"epsilon: must be a number in (0, {_MOST_EPSILON:g}], got {epsilon!r}",
            "epsilon",
        )
    return float(epsilon)


def ask(
    target: Target,
    num_records: int,
    epsilon: float | None,
    delta: float | None,
    schema: Schema | None,
    num_features: int | None,
    given: Given,
) -> Request:
    """Return the request that :func:`suggest` answers; its target has the public facts of the schema, and defaults."""
    epsilon = asked_epsilon(epsilon)
    structure = None
    reasons = []
    if isinstance(target, str | type):
        said = f"target: {target!r} is no target; give an object, for example dpmcmc.targets.LogisticRegression()"
        raise InputError(said, "target")
    if schema is not None:
        target = schema.with_public_facts(target)
        structure = None if target_offers(target).features is not None else schema.structure
    offers = target_offers(target)
    facts = {
        "num_features": (offers.num_features, num_features),
        "row_bound": (offers.row_bound, _ROW_BOUND),
    }
    names = {f.name for f in dataclasses.fields(target)} if dataclasses.is_dataclass(target) else set[str]()
    missing = {key: usual for key, (own, usual) in facts.items() if key in names and own is None}
    if "num_features" in missing and num_features is None:
        raise InputError(
            "num_features: neither target nor schema says how many columns a row has; give it",
            "num_features",
        )
    if "row_bound" in missing:
        reasons.append(f"row_bound: none was declared, so rows are taken to have norm at most {_ROW_BOUND:g}")
    if missing:
        target = dataclasses.replace(target, **missing)  # type: ignore[type-var]
    declared = target_offers(target).num_features
    if num_features is not None and declared not in (None, num_features):
        raise InputError(f"num_features: {num_features}, and the target has {declared}; give one")
    if delta is None:
        delta = default_delta(num_records)
        reasons.append(f"delta {delta:.3g}: the least of 1e-5 and N^-1.2, since none was given")
    return Request(target, num_records, epsilon, delta, structure, schema, given, tuple(reasons))


@dataclass(frozen=True, eq=False)
class Request:
    """Public facts that a suggestion rests on.

    Attributes:
        target: bound to its public facts.
        num_records, epsilon, delta: N, ε and δ.
        structure: of the rows, or None.
        schema: of a table's columns, or None.
        given: settings of the user.
        reasons: lines that hold for every plan.
    """

    target: Target
    num_records: int
    epsilon: float
    delta: float
    structure: RowStructure | None
    schema: Schema | None
    given: Given
    reasons: tuple[str, ...]

    @on_one_blas_thread
    def suggested(self, goal: Goal) -> Plan:
        """Return the plan, whether or not it reaches the goal."""
        if goal not in (INTERVALS, PREDICTION):
            raise InputError(f"goal: must be intervals or prediction, got {goal!r}", "goal")
        of_chain = [key for key in self.given if key not in ("adjacency", "mechanism")]
        if "mechanism" in self.given and of_chain:
            raise InputError(
                f"mechanism: takes no {', '.join(of_chain)}; leave one of the two out",
                "mechanism",
            )
        # A chain clips residuals of labels that have no bound, which biases it.
        unbounded = score_of(self.target) is not None and not target_offers(self.target).bounded_labels
        one_shot = "mechanism" in self.given or (not of_chain and (goal == INTERVALS or unbounded))
        plan, reasons = self._release(goal) if one_shot else self._chain(goal)
        return dataclasses.replace(plan, reasons=(*self.reasons, *reasons), schema=self.schema)

    def attempted(self, goal: Goal, stacklevel: int) -> Plan:
        """Return the plan; where it does not reach the goal, warn and say what would.

        A weaker claim is better than none: the release is made, and its verdict says what it is for.

        Args:
            goal: use of the draws.
            stacklevel: of the warning, counted from the caller.
        """
        plan = self.suggested(goal)
        try:
            self.require(plan, goal)
        except NotAchievable as error:
            warnings.warn(str(error), NotForIntervals, stacklevel=stacklevel + 1)
        return plan

    def _release(self, goal: Goal) -> tuple[Plan, list[str]]:
        """Return the plan of a one-shot release, and why."""
        mechanism = self._mechanism
        why = "mechanism: as given"
        if isinstance(mechanism, NoiseAware) and mechanism.covariance == "sandwich":
            why = f"method: noise_aware with a sandwich variance, made of released scores: intervals are {BEST_FIT}"
        if mechanism is None:
            # A prior that is too wide or too narrow costs predictions more than the search for its scale.
            scale: Literal["target", "evidence"] = "target" if goal == INTERVALS else "evidence"
            mechanism = NoiseAware(prior_scale=scale, structure=self.structure)
            if isinstance(self.target, OrdinalRegression):
                mechanism = dataclasses.replace(mechanism, covariance="sandwich")
            why = (
                "method: noise_aware, since only its draws account for the noise of privacy"
                if goal == INTERVALS
                else "method: noise_aware, since a chain clips residuals of labels that have no bound, which biases it"
            )
        plan = self._planned(mechanism)
        if not isinstance(mechanism, NoiseAware):
            return plan, [why]
        prior = (
            prior_lines(self.schema, self.target, mechanism)
            if self.schema is not None and isinstance(self.target, GeneralisedLinear)
            else []
        )
        if self.facts is None:
            return plan, [why, *prior]
        if mechanism.gram_share is None and _normal_rows(plan):
            plans = [self._planned(dataclasses.replace(mechanism, gram_share=share)) for share in _GRAM_SHARES]
            plan = min(plans, key=self._rough_width)
            share = plan.settings["gram_share"]
            why += f"; {share:.0%} of the squared budget goes to the second moment, which makes intervals narrowest"
        assert self._width_facts is not None
        noise = self.noise(plan)
        outlooks = self._width_facts.outlooks(self.num_records, noise)
        strong = self._width_facts.strong_width(self.num_records, noise)
        plan = with_verdict(plan.with_last(settings=plan.settings | {"predicted_width": mean_width(outlooks)}))
        return plan, [
            why,
            *prior,
            width_line(outlooks, strong),
            *self._expected(outlooks),
        ]

    def _chain(self, goal: Goal) -> tuple[Plan, list[str]]:
        """Return the plan of a sampler's run, and why."""
        given: dict[str, Any] = {k: v for k, v in self.given.items() if k not in ("adjacency", "clip", "clipping")}
        promised: dict[str, Any] = {k: v for k, v in self.given.items() if k not in (*given, "mechanism")}
        promise = Privacy(epsilon=self.epsilon, delta=self.delta, **promised)
        plan, reasons = suggested_chain(self.target, self.num_records, promise, self.structure, given)
        method = f"method: {plan.label}" + " in a private metric" * (plan.metric is not None)
        if goal == PREDICTION and not given:
            measured = isinstance(self.target, LogisticRegression)
            method += _MEASURED if measured else _UNMEASURED
        if self.facts is not None and plan.metric is not None and plan.metric.asked.of_rows:
            share = plan.metric.asked.share
            # Only the gradients after burn-in, half of them, make the draws.
            noise = ReleaseNoise(plan.metric.release.noise_std, self._gradient(1 - share) * math.sqrt(2))
            outlooks = self.facts.outlooks(self.num_records, noise)
            reasons = [*reasons, *self._expected(outlooks)]
        return plan, [method, *reasons]

    @functools.cached_property
    def _mechanism(self) -> OneShot | None:
        """The given mechanism, with the structure of the rows."""
        given = self.given.get("mechanism")
        if isinstance(given, NoiseAware) and given.structure is None:
            return dataclasses.replace(given, structure=self.structure)
        return given

    def _planned(self, mechanism: OneShot) -> Plan:
        return mechanism.plan(
            self.target,
            num_records=self.num_records,
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=self.given.get("adjacency", "replace_one"),
        )

    @functools.cached_property
    def facts(self) -> OutlookFacts | None:
        """Public facts that an outlook rests on.

        None where the model has no bounded score of one predictor. Offsets are taken for 0 and weights for 1.
        """
        return self._facts_with(1.0)

    @functools.cached_property
    def _width_facts(self) -> OutlookFacts | None:
        """Public facts that a predicted width rests on: scales that ``evidence`` chooses are as large as usual."""
        return self._facts_with(_USUAL_FACTOR)

    def _facts_with(self, factor: float) -> OutlookFacts | None:
        """Return the facts, with the scales that ``evidence`` chooses multiplied."""
        score = score_of(self.target)
        offers = target_offers(self.target)
        size = offers.num_features
        if score is None or score.size != 1 or size is None:
            return None
        options = self._mechanism if isinstance(self._mechanism, NoiseAware) else NoiseAware()
        target = cast(GeneralisedLinear, self.target)
        bound = require_bound(target.row_bound, "row_bound", type(target).__name__)
        prior = Prior.of(options, target)
        scales = np.where(prior.free, factor * prior.scales, prior.scales)
        # An intercept's wide prior is not where truths are expected.
        truths = np.full(prior.size, target.prior_scale) if prior.free.any() else prior.scales
        return OutlookFacts(score, scales, bound, self.structure, truths)

    def _gradient(self, share: float) -> float:
        """Return the std of a gradient with this share of μ², over the clip norm."""
        moved = Adjacency(self.given.get("adjacency", "replace_one")).sensitivity
        return moved / (gaussian_mu(self.epsilon, self.delta) * math.sqrt(share))

    def noise(self, plan: Plan) -> ReleaseNoise:
        """Return the noise of a noise-aware release."""
        settings = plan.settings
        if "label_noise_std" in settings:
            variance = self.target.noise_scale**2  # type: ignore[attr-defined]
            gradient = settings["label_noise_std"] / variance
            return ReleaseNoise(settings["noise_std"], gradient)
        return ReleaseNoise(
            settings["gram_noise_std"],
            cast(RegressionPlan, strategy_of(plan.mechanism, plan.target)).last_gradients(settings),
            settings.get("clip_ratio"),
            released=None if _normal_rows(plan) else (settings["whitened_noise_std"], settings["curvature_noise_std"]),
            learnt=settings.get("bound_deviations"),
        )

    def _rough_width(self, plan: Plan) -> float:
        assert self.facts is not None
        return self.facts.outlook(REAL[2], self.num_records, self.noise(plan), rough=True).width

    def _expected(self, outlooks: list[Outlook]) -> list[str]:
        """Return the line of accuracy, predicted over simulated designs, where labels are binary."""
        assert self.facts is not None
        if target_offers(self.target).num_classes != 2:
            return []
        return [accuracy_line(outlooks, self.facts.score)]

    @on_one_blas_thread
    def require(self, plan: Plan, goal: Goal) -> None:
        """Refuse a plan that does not reach the goal.

        Raises:
            NotAchievable: with the N or the ε that would do.
        """
        if goal in plan.usable_for and (goal == PREDICTION or self._beats_prior()):
            return
        reason = plan.verdict.reasons[goal]
        if goal == INTERVALS:
            if goal not in plan.usable_for:  # the given settings prevent it, at any N and ε
                raise NotAchievable(
                    f"goal intervals is not achievable with these settings: {reason}",
                    "goal",
                )
            lowered = f"the release would lower by less than {_LEAST_LEARNED:.0%}"
            reason = f"intervals would be the prior's, whose variance {lowered}"
        records = _least(lambda n: self.at(n)._reaches(goal), self.num_records, _MOST_RECORDS)

        def would_do(epsilon: float) -> bool:
            try:
                return self.at(epsilon=epsilon)._reaches(goal)
            except InputError as refused:
                if refused.about == "epsilon":  # it is beyond the proof of integer noise
                    return False
                raise

        budget = _least(would_do, self.epsilon, _LARGEST_EPSILON)
        enough = [] if records is None else [f"num_records >= {math.ceil(records):,}"]
        enough += [] if budget is None else [f"epsilon >= {budget:.3g}"]
        more = f"; {' or '.join(enough)} would do" if enough else ""
        raise NotAchievable(
            f"goal {goal} is not achievable at num_records {self.num_records:,} and epsilon {self.epsilon:g}: "
            f"{reason.removesuffix('.')}{more}",
            "goal",
        )

    def rough(self) -> Outlook | None:
        """Return a quick outlook of a noise-aware release for one design; None for other models."""
        if self.facts is None:
            return None
        return self.facts.outlook(REAL[2], self.num_records, self._usual_noise(), rough=True)

    @on_one_blas_thread
    def width(self) -> float:
        """Return the predicted width of intervals over that without privacy; ``facts`` must not be None."""
        assert self._width_facts is not None
        return mean_width(self._width_facts.outlooks(self.num_records, self._usual_noise(), rough=True))

    def _usual_noise(self) -> ReleaseNoise:
        """Return the noise of a noise-aware release with a usual share for the second moment."""
        given = self._mechanism
        mechanism = given if isinstance(given, NoiseAware) else NoiseAware()
        mechanism = dataclasses.replace(mechanism, structure=self.structure)
        plan = self._planned(mechanism)
        if mechanism.gram_share is None and _normal_rows(plan):
            share = _GRAM_SHARES[1]
            plan = self._planned(dataclasses.replace(mechanism, gram_share=share))
        return self.noise(plan)

    def at(self, num_records: float | None = None, epsilon: float | None = None) -> Request:
        """Return the request at another N or ε; δ stays below 1/N."""
        n = self.num_records if num_records is None else math.ceil(num_records)
        other = dataclasses.replace(self, num_records=n, delta=min(self.delta, default_delta(n)))
        return other if epsilon is None else dataclasses.replace(other, epsilon=epsilon)

    def _beats_prior(self) -> bool:
        """Whether a release narrows the prior enough."""
        found = self.rough()
        return found is None or found.learned >= _LEAST_LEARNED

    def _reaches(self, goal: Goal) -> bool:
        """Whether N and ε alone would let a plan reach the goal."""
        if goal == INTERVALS:
            return self._beats_prior()
        shapes = parameter_shapes(self.target)
        size = 1 if shapes is None else size_of(shapes)
        return self.num_records * gaussian_mu(self.epsilon, self.delta) >= SIGNAL * math.sqrt(size)


def _normal_rows(plan: Plan) -> bool:
    """Whether a noise-aware plan takes rows for normal, and releases no curvature."""
    return "gram_share" in plan.settings and not releases_curvature(plan.settings)


def _least(reaches: Callable[[float], bool], start: float, most: float) -> float | None:
    """Return the least value from ``start`` on that reaches a goal, within 5 %; None where ``most`` does not."""
    low = float(start)
    high = float(start)
    while not reaches(high):
        low = high
        high = 3 * high
        if low >= most:
            return None
    while high > 1.05 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high
