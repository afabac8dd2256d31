r"""High-confidence boosting: several private candidates on disjoint parts, the best by a private vote of another part.

(Thesis, Theorem 2.25.) Records are dealt by a secret permutation, which does not depend on them, into a parts of
⌊N/(a + 1)⌋ and one with the rest. Candidate j reads part j alone, the choice among the a releases is the exponential
mechanism on the last part (``vote.py``). The record in which two neighbours differ is in one part: everything else is
the same or post-processing, so (ε, δ)-DP of every candidate and ε-DP of the choice make the whole (ε, δ)-DP (parallel
composition), not (2ε, δ). Choosing by the plain least validation error would have no guarantee.

An (ε, δ)-DP pair is within total variation δ/(1 + e^ε) of an ε-DP pair, on both sides (Dwork and Roth 2014, Lemma
3.17); so the whole is charged as ``pure`` ε and ``approximate_draw`` δ/(1 + e^ε). Every pair of neighbours has its own
such pair, so a group pays this for each of its records (``accounting/deviations.py``).

Utility, for losses in [0, B] (corrected: the source takes n for the n_v = N/(a + 1) records that vote). With
candidates of excess risk at most ξ on average, Markov's inequality leaves all a of them above e·ξ with probability at
most e^{−a}; Hoeffding for a candidates and the tail of the exponential mechanism give, except with probability
``failure``,

    R(chosen) − R* <= e·ξ + 2B√(log(6a/failure)/(2 n_v)) + (2B/(ε n_v))·log(3a/failure),      a = ⌈log(3/failure)⌉.

Claim: The best of several private candidates on disjoint parts costs one of them.
Proof: parallel composition.
Held by: test_the_exact_law_on_neighbours_is_within_one_epsilon, test_a_record_reaches_its_own_part_alone,
"a pair's deviation paid once by a group"
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from dpmcmc.engine.work import Within
from dpmcmc.engine.work_table import work_of
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.mechanisms import chain, vote
from dpmcmc.mechanisms.one_shot import OneShot, PrivacySpec
from dpmcmc.mechanisms.sums_in_blocks import Loss, check_loss
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import Full, Sampling
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.samplers.base import Sampler
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive, Target


def excess_of_choice(candidates: int, validation: int, *, epsilon: float, loss_bound: float, failure: float) -> float:
    """Return how far the chosen candidate's risk may exceed the best one's, except with probability 2/3 of ``failure``.

    Args:
        candidates: a.
        validation: n_v, records that vote.
        epsilon: of the choice.
        loss_bound: B.
        failure: probability, of which a third is for Hoeffding and a third for the choice.
    """
    hoeffding = 2 * loss_bound * math.sqrt(math.log(6 * candidates / failure) / (2 * validation))
    return hoeffding + 2 * loss_bound / (epsilon * validation) * math.log(3 * candidates / failure)


@dataclass(frozen=True)
class Chain:
    """A sampler's run as a candidate; its last kept draw is compared.

    Args:
        sampler: for example ``dpmcmc.SGLD(step_size=16.0)``.
        steps: of the run.
        sampling: ``Poisson(b)`` | ``FixedSize(b)`` | ``Full()``, b for the part.
        clip: C.

    Example:
        >>> import dpmcmc
        >>> from dpmcmc.mechanisms import Chain, PrivateSelection
        >>> target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0)
        >>> chains = [Chain(dpmcmc.SGLD(step_size=s), steps=10) for s in (1.0, 4.0)]
        >>> plan = PrivateSelection(chains, loss_bound=5.0).plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    sampler: Sampler
    steps: int
    sampling: Sampling = field(default_factory=Full)
    clip: float = 1.0

    def plan(
        self,
        target: Target,
        *,
        num_records: int,
        epsilon: float,
        delta: float,
        adjacency: str = "replace_one",
    ) -> Plan:
        """Return the run's plan on ``num_records`` records."""
        return chain.plan(
            target,
            num_records=num_records,
            sampler=self.sampler,
            sampling=self.sampling,
            steps=self.steps,
            burn_in=self.steps - 1,
            privacy=Privacy(
                epsilon=epsilon,
                delta=delta,
                adjacency=adjacency,  # type: ignore[arg-type]
                clip=self.clip,
            ),
        )


@dataclass(frozen=True, eq=False)
class PrivateSelection(OneShot):
    """The best of several private candidates, each on a part of the records, by a private vote of the last part.

    Args:
        candidates: mechanisms of one draw, or :class:`Chain`: one configuration several times (boosting), or several.
        loss_bound: B; losses of the vote are clipped to [0, B].
        loss: (params, record) -> loss of the vote; left out: −log p(record|θ).

    Raises:
        ValueError: fewer than two candidates, or a bound that is not positive.

    Example:
        >>> from dpmcmc.mechanisms import ObjectivePerturbation, PrivateSelection
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(num_features=2, row_bound=1.0)
        >>> candidates = [ObjectivePerturbation(regularisation=r) for r in (1.0, 10.0)]
        >>> plan = PrivateSelection(candidates, loss_bound=5.0).plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    candidates: Sequence[OneShot | Chain]
    loss_bound: Positive
    loss: Loss | None = None

    # Every candidate's own plan refuses what it does not take.
    honours = frozenset({"offset", "weight"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.candidates) < 2:
            raise InputError(
                f"candidates: a choice needs at least 2, got {len(self.candidates)}",
                "candidates",
            )
        for one in self.candidates:
            if not hasattr(one, "plan"):
                raise InputError(
                    f"candidates: must be mechanisms or Chains, and one is {one!r}",
                    "candidates",
                )

    @property
    def in_floats(self) -> str:
        """Name what a candidate draws so."""
        said = (one.in_floats for one in self.candidates if isinstance(one, OneShot) and one.in_floats)
        return next(said, "")

    def calibrate(self, target: Target, spec: PrivacySpec) -> Plan:
        """Plan every candidate on its part, and the vote on the last.

        Raises:
            UnsupportedCombination: an adjacency under which the parts' sizes would differ, or a candidate without plan.
            ValueError: fewer records than parts, or a candidate that costs more than was asked.
        """
        if spec.adjacency == Adjacency.ADD_REMOVE:
            raise UnsupportedCombination(
                f"private selection deals a public number of records into parts, and {spec.adjacency} changes it; use "
                "replace_one or zero_out."
            )
        part = spec.num_records // (len(self.candidates) + 1)
        if part < 1:
            raise InputError(
                f"num_records: {spec.num_records} records make no {len(self.candidates) + 1} parts",
                "num_records",
            )
        plans, guarantees = self._parts(target, spec, part)
        voters = spec.num_records - part * len(plans)
        spent = max(spec.epsilon, *(guarantee.epsilon for guarantee in guarantees))
        failure = spec.delta / (1 + math.exp(min(spent, 700.0))) * (1 - 1e-9)
        events = (
            Event("pure", 0.0, 1.0, 1, epsilon=spent),
            Event("approximate_draw", 0.0, failure, 1),
        )
        assumptions = tuple(dict.fromkeys(said for guarantee in guarantees for said in guarantee.assumptions))
        settings = {
            "candidates": float(len(plans)),
            "records_of_a_candidate": float(part),
            "records_that_vote": float(voters),
            "coefficient": vote.coefficient_of(spec.epsilon, self.loss_bound, spec.moved),
        }
        return self.planned(target, spec, events, settings, assumptions).with_last(candidates=plans)

    def check(self, plan: Plan, records: PyTree) -> None:
        """Refuse what a candidate refuses, and a loss of the vote that fails."""
        for one in plan.main.candidates:
            if one.release is not None:
                one.mechanism.check(one, jax.tree.map(lambda leaf, n=one.num_records: leaf[:n], records))
        check_loss(self._loss(plan.target), plan.target, records)

    def draw(self, plan: Plan, records: PyTree, streams: Streams) -> PyTree:
        """Return the chosen candidate's release, leaves (1, ...)."""
        found, index = self.candidates_and_choice(plan, records, streams)
        return jax.tree.map(lambda leaf: leaf[index : index + 1], found)

    def candidates_and_choice(self, plan: Plan, records: PyTree, streams: Streams) -> tuple[PyTree, int]:
        """Return (every candidate's release, leaves (a, ...); which was chosen); one guarantee covers both.

        Args:
            plan: made by :meth:`OneShot.plan`.
            records: pytree, leaves (N, ...).
            streams: secret keys.
        """
        candidates = plan.main.candidates
        order = np.asarray(jax.random.permutation(streams.batch, plan.num_records))
        part = candidates[0].num_records
        found = []
        for j, one in enumerate(candidates):
            own = jax.tree.map(
                lambda leaf, j=j: np.asarray(leaf)[order[j * part : (j + 1) * part]],
                records,
            )
            found.append(_released(one, own, Streams(*(jax.random.fold_in(key, j) for key in streams))))
        together = jax.tree.map(lambda *leaves: np.concatenate(leaves), *found)
        last = jax.tree.map(lambda leaf: np.asarray(leaf)[order[part * len(candidates) :]], records)
        key = jax.random.fold_in(streams.noise, len(candidates))
        loss = self._loss(plan.target)
        weights = vote.weights_of_losses(loss, together, last, self.loss_bound, plan.settings["coefficient"])
        return together, vote.choice(weights, key)

    def _parts(self, target: Target, spec: PrivacySpec, part: int) -> tuple[tuple[Plan, ...], list[Guarantee]]:
        """Return plans and guarantees of the candidates. Each has to keep the whole promise, for one draw."""
        promise = dataclasses.replace(spec, num_records=part)
        plans = tuple(candidate.plan(target, **vars(promise)) for candidate in self.candidates)
        guarantees = []
        for one in plans:
            cost = one.guarantee
            # The parts are composed as (ε, δ)-DP: each has to be that.
            if cost is None or not (cost.epsilon <= spec.epsilon * (1 + 1e-9) and cost.delta <= spec.delta):
                raise InputError(
                    f"candidates: one costs {cost}, more than epsilon {spec.epsilon:g} was asked for",
                    "candidates",
                )
            if one.release is not None and one.release.charged_draws > 1:
                raise InputError("candidates: each must release one draw; set draws to 1", "candidates")
            guarantees.append(cost)
        return plans, guarantees

    def _loss(self, target: Target) -> Loss:
        return self.loss or (lambda params, record: -target.log_likelihood(params, record))


def _released(plan: Plan, records: PyTree, streams: Streams) -> PyTree:
    """Return one candidate's release, leaves (1, ...) float64."""
    if plan.run is not None:
        work = work_of(plan)
        work.read(records, None, None)
        draws = work.carry_out(Within(streams, plan.guarantee), None).flat_draws()
        drawn = jax.tree.map(lambda leaf: leaf[-1:], draws)
    else:
        drawn = plan.mechanism.draw(plan, records, streams)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), drawn)
