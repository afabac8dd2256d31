r"""Noise-aware release: a posterior whose intervals hold, from noisy sums whose noise law is part of the model.

Claim: All that a noise-aware release reads of the records is Gaussian releases, each within its sensitivity.
Proof: bounded scores, and sums that rounding moves no further than is charged.
Held by: test_noise_that_is_added_is_noise_that_is_charged,
test_one_record_moves_the_whitened_gradient_by_at_most_its_clip_norm,
test_no_record_moves_a_sum_beyond_what_is_charged,
test_a_replaced_record_costs_no_more_than_a_plan_with_a_sandwich_charges, "half the leverage of a row",
"whitened rows without a bound", "a scale that is read from the data",
test_the_noise_of_a_path_is_at_least_what_is_charged,
test_one_record_moves_no_release_of_a_path_beyond_what_is_charged,
"a sampler's own noise in the place of that of privacy"

Everything that leaves is a Gaussian release, so the budget adds up, μ² = Σ μ_i², and draws are post-processing. The
strategy of a family (:func:`strategy_of`) says what is released: the Gram matrix, gradients, curvature and spread of
bounded scores (``regression.py``), or the sufficient statistics of a linear regression (:class:`Statistics`).

Sums over records are exact integers (``record_sums.py``), so that no rounding of a sum is charged; value and noise are
added on a grid (``gaussian_release.py``). A row beyond its bound is refused before anything is computed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference.count_score import Counts
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.scores import SCORES, score_of
from dpmcmc.inference.trace import Trace
from dpmcmc.mechanisms.noise_aware.chain_end import CLIP_RATIO, OF_MODEL, SANDWICH, EndOfChain
from dpmcmc.mechanisms.noise_aware.dispersion import Dispersion
from dpmcmc.mechanisms.noise_aware.model import ModelGradients
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.mechanisms.noise_aware.owners import row_model
from dpmcmc.mechanisms.noise_aware.regression import Regression
from dpmcmc.mechanisms.noise_aware.release import below, calibrated
from dpmcmc.mechanisms.noise_aware.residuals import Residuals
from dpmcmc.mechanisms.noise_aware.statistics import Statistics
from dpmcmc.mechanisms.noise_aware.strategy import Strategy
from dpmcmc.mechanisms.one_shot import OneShot, PrivacySpec, ReleasedDraws
from dpmcmc.planning.chain_end import ChainEnd
from dpmcmc.planning.permitted_uses import IF_TRUE, REFUSED, Use
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.private_metric import PlannedMetric
from dpmcmc.planning.verdict import FEWEST_DRAWS
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import Sampling
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, require_bound, target_offers
from dpmcmc.targets.counts import PoissonRegression
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.numpyro.model import NumPyroTarget
from dpmcmc.targets.ordinal import OrdinalRegression
from dpmcmc.targets.per_owner import PerOwner


@dataclass(frozen=True)
class NoiseAware(Options, OneShot):
    """Posterior draws whose intervals account for the noise of privacy.

    Args:
        draws: how many; they cost nothing.
        steps: K, gradients of all records; linear regression takes none.
        gram_share: part of μ² for the Gram matrix; None: the part that makes predicted intervals narrowest.
        prior_scale: ``target``: the target's; ``evidence``: chosen from the released numbers, with a log-normal
            hyperprior around the target's.
        covariance: ``model``: scores vary as the model says; ``sandwich``: as the records' scores do, which is
            released. Intervals then hold for the best-fitting coefficients where the model is wrong. A linear
            regression learns the scale of its residuals, and counts their dispersion.
        intercept_scale: prior standard deviation of the coefficient of the declared intercept; None: the target's.
        sampler: whose steps lead to the points where gradients are released; None: these are the posterior's means
            given the gradients so far. ``sgld``, ``sghmc``, ``sgnht`` or ``sgfs`` gets its settings from the releases.
            A :class:`dpmcmc.samplers.Sampler` keeps its own, without ``auto`` or ``matched``. Its step size is in units
            in which the mean potential has a curvature of about 1, and noise that it wants beyond that of privacy makes
            intervals wider. ε is the same, and the posterior follows from the gradients in the same way. NumPyro models
            and linear regressions with covariance ``model`` make no use of it.
        coefficients: a normal prior for each coefficient that has one of its own; it has no factor of ``evidence``.
        group_effects: columns of each effect that differs by group; they have a standard deviation of their own, which
            the releases tell.
        structure: what is declared of all rows; a wrong declaration makes intervals wrong, not less private.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc.mechanisms import NoiseAware
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(num_features=2, row_bound=1.0)
        >>> plan = NoiseAware(draws=200).plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    honours = frozenset({"offset", "weight"})

    def reads_sums(self, target: Target) -> bool:
        """Return whether all that is read of records is exact sums: of every target but a NumPyro model.

        The code of a NumPyro model is compiled for a block of records, and no proof says that a record's numbers do not
        depend on its place there.
        """
        return not isinstance(row_model(target)[0], NumPyroTarget)

    def calibrate(self, target: Target, spec: PrivacySpec) -> Plan:
        """Settle every noise.

        Raises:
            UnsupportedCombination: a target that nothing is derived for.
            ValueError: a public bound that is not given.
        """
        features = target_offers(target).num_features
        if self.structure is not None and features is not None:
            self.structure.check(features)
        if self.intercept_scale is not None and (self.structure is None or self.structure.constant is None):
            raise InputError(
                "intercept_scale: nothing declares which column is the intercept; give "
                "structure=RowStructure(constant=...) in Python, or data whose encoder declares it",
                "intercept_scale",
            )
        return self.planned(target, spec, *strategy_of(self, target).calibrate(spec))

    def check(self, plan: Plan, records: PyTree) -> None:
        """Refuse records that a way of a family has been planned for otherwise."""
        strategy = strategy_of(self, plan.target)
        if isinstance(strategy, ModelGradients):
            strategy.check(records)

    def draw(self, plan: Plan, records: PyTree, streams: Streams) -> PyTree:
        """Return posterior draws, leaves (draws, ...)."""
        return self.drawn(plan, records, streams).positions

    def drawn(self, plan: Plan, records: PyTree, streams: Streams) -> ReleasedDraws:
        """Return posterior draws with their evidence."""
        return strategy_of(self, plan.target).draw(plan, records, streams)

    def end_of_chain(
        self, target: Target, metric: PlannedMetric, sampling: Sampling, num_records: int, privacy: Privacy
    ) -> tuple[PlannedMetric, ChainEnd]:
        """Return a chain's metric, with a clip norm for its end, and the stage after the chain (``chain_end.py``)."""
        assert privacy.epsilon is not None  # a metric has a share of it
        if privacy.clipping == "residual":
            raise UnsupportedCombination(
                "end: clipping residual biases the path's gradients, which a posterior rests on; use label_blind.",
                "end",
            )
        if self.sampler is not None:
            raise InputError("end: the chain has its sampler; leave sampler of the end out", "end")
        facts = EndOfChain.of(self, target, metric, sampling)
        if facts.has_curvature and metric.asked.clip_ratio is None:
            metric = metric.clipped_at(CLIP_RATIO)
            facts = facts.clipped_at(CLIP_RATIO)
        spec = PrivacySpec(num_records, privacy.epsilon, privacy.delta, Adjacency(privacy.adjacency))
        releases = facts.releases(spec.most_records, spec.adjacency)
        events, settings = calibrated(releases, below(spec.mu), spec)
        share = sum(one.share for one in releases)
        numbers = sum(one.size for one in releases)
        return metric, ChainEnd(self, settings, share, events, numbers, facts.intervals())

    def conclude_chain(self, plan: Plan, records: Records, streams: Streams, trace: Trace) -> Evidence:
        """Return what a posterior rests on: a chain's path, and what is released where it ends."""
        assert plan.metric is not None
        facts = EndOfChain.of(self, plan.target, plan.metric, plan.sampling)
        return facts.concluded(plan, trace, records, streams.noise).evidence

    def intervals(self, plan: Plan) -> Use:
        """Return whether intervals of the draws hold, and why; planned from public facts."""
        if self.draws < FEWEST_DRAWS:
            why = f"{self.draws} draws are too few; take {FEWEST_DRAWS} or more."
            return Use(False, f"{REFUSED}: {why}", "too few draws")
        refusal = strategy_of(self, plan.target).refusal(plan)
        if refusal is not None:
            return Use(False, f"{REFUSED}: {refusal}", "not derived for this model")
        if self.covariance == "sandwich":
            return SANDWICH
        if isinstance(plan.target, PerOwner):
            return Use(
                True,
                f"Yes, {IF_TRUE} and records of one owner are independent given the parameters: the draws account for "
                "the noise of privacy, and for no effect of an owner.",
            )
        said = OF_MODEL
        if isinstance(plan.target, PoissonRegression):
            said += (
                "; counts that vary more than Poisson's make intervals too narrow, and at a small budget move their "
                "centre (covariance sandwich learns their dispersion)"
            )
        return Use(True, f"{said}.")


def strategy_of(options: Options, target: Target) -> Strategy:
    """Return how a target's records are released and concluded from.

    Raises:
        UnsupportedCombination: a target that nothing is derived for.
    """
    model, together = row_model(target)
    if isinstance(target, OrdinalRegression):
        if options.covariance != "sandwich":
            raise UnsupportedCombination(
                "noise_aware on an ordinal regression sums the scores of a record's questions, which depend on each "
                "other; take covariance sandwich"
            )
        if options.structure is not None:
            structure = dataclasses.replace(options.structure, unit_norm=False)
            options = dataclasses.replace(options, structure=structure)
    if type(model) is LinearRegression and options.covariance == "model":
        offers = target_offers(model)
        if offers.offset_bound is not None or offers.weight_scale is not None:
            raise UnsupportedCombination(
                "noise_aware with covariance model releases XᵀX and Xᵀy of a linear regression, and has no derivation "
                "for records with an offset or a weight; take covariance sandwich."
            )
        if options.sampler is not None:
            raise UnsupportedCombination(
                "sampler: noise_aware with covariance model releases XᵀX and Xᵀy of a linear regression, and no "
                "gradient that a sampler could follow; take covariance sandwich, or leave sampler out",
                "sampler",
            )
        return Statistics(options, model, together)
    if isinstance(model, NumPyroTarget):
        return ModelGradients(options, model)
    score = score_of(model)
    if score is not None and isinstance(model, GeneralisedLinear):
        scale: Residuals | Dispersion | None = None
        if options.covariance == "sandwich":
            if isinstance(model, LinearRegression):
                scale = Residuals(require_bound(model.label_bound, "label_bound", "LinearRegression"))
            elif isinstance(model, PoissonRegression) and isinstance(score, Counts):
                scale = Dispersion()
        if scale is not None:
            score = scale.first()
        return Regression(options, model, score, scale, together)
    *names, last = (family.__name__ for family in SCORES)
    raise UnsupportedCombination(
        f"noise_aware is derived for {', '.join(names)}, {last} and NumPyro models, and the target is "
        f"{type(model).__name__}; use a sampler, whose draws are for prediction."
    )
