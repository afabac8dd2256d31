"""``audit``: run a plan on worst-case neighbours, and compare a lower bound on ε with its claim."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_args

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from dpmcmc import targets
from dpmcmc.audit import bounds
from dpmcmc.audit.neighbours import Neighbours, probe, strongest
from dpmcmc.audit.scores import Scores, source
from dpmcmc.errors import InputError, UnsupportedCombination, check_fields
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.charging import charged_guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_down, round_up
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.targets.base import Target

#: Function that is called with the cost of an audit before it runs.
Say: TypeAlias = Callable[[str], None]

Method = Literal["clopper_pearson", "one_run"]
METHODS = get_args(Method)
#: Default number of runs on each data set, and of canaries of ``one_run``.
RUNS = 1000
CANARIES = 500
#: Default confidence. If a true claim is tight, one audit in 1/(1 - confidence) contradicts it.
CONFIDENCE = 0.999
#: Most runs of each data set, or chains of one device program.
MOST_RUNS = 200_000
_AT_ONCE = 20_000


@dataclass(frozen=True)
class AuditReport:
    """Findings of an audit. They can contradict a claim, and never certify one.

    Attributes:
        subject: the plan that was run, and its records.
        claimed: ε claimed at ``delta``.
        delta: δ of the claim.
        adjacency, release: of the claim.
        method: one of ``METHODS``.
        lower_bound: on ε at ``delta``; larger than the truth with probability 1 − ``confidence`` at most.
        confidence: of the bound and of the verdict together.
        runs: on one data set and on its neighbour (canaries in and out, for one_run).
        seconds: wall time.
        violated: whether the runs contradict the claim.
        notes: sentences on what was found.

    Example:
        >>> import dpmcmc
        >>> from dpmcmc.mechanisms import OutputPerturbation
        >>> target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0)
        >>> plan = OutputPerturbation(regularisation=10.0).plan(target, num_records=100, epsilon=1.0, delta=1e-5)
        >>> report = dpmcmc.audit.audit(plan, runs=50)
        >>> report.method, report.adjacency, report.runs
        ('clopper_pearson', 'replace_one', (50, 50))
    """

    subject: str
    claimed: float
    delta: float
    adjacency: str
    release: str
    method: str
    lower_bound: float
    confidence: float
    runs: tuple[int, int]
    seconds: float
    violated: bool
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """``consistent`` or ``VIOLATED``."""
        return "VIOLATED" if self.violated else "consistent"

    def to_json(self) -> dict[str, object]:
        """Return a plain dict, for programs."""
        out = dataclasses.asdict(self)
        return out | {"verdict": self.verdict, "runs": list(self.runs), "notes": list(self.notes)}

    def lines(self) -> list[tuple[str, str]]:
        """Return (label, text) rows of a table."""
        units = "canaries in, out" if self.method == "one_run" else "runs on either side"
        claim = f"epsilon {round_up(self.claimed)} at delta {self.delta:g}, {self.adjacency}, {self.release}"
        bound = f"epsilon {round_down(self.lower_bound):.4g} at the same delta; confidence {self.confidence:g}"
        meaning = "the claim is wrong, or the code is" if self.violated else "not contradicted, which proves nothing"
        return [
            ("audited", self.subject),
            ("claimed", claim),
            ("bound", bound),
            ("method", self.method),
            ("runs", f"{self.runs[0]:,} + {self.runs[1]:,} ({units}), {self.seconds:.1f} s"),
            *(("", note) for note in self.notes),
            ("verdict", f"{self.verdict}: {meaning}"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {text}".rstrip() for name, text in self.lines())


@dataclass(frozen=True)
class _AuditSettings:
    """Checked arguments of :func:`audit`: the method, its size, and its confidence."""

    method: Method
    runs: Annotated[int, Ge(4), Le(MOST_RUNS)] | None
    confidence: Annotated[float, Gt(0.5), Lt(1)]
    seed: Annotated[int, Ge(0), Lt(2**32)] | None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.runs is not None and self.method == "one_run":
            raise InputError("runs: method one_run makes one run; leave it out", "runs")


@on_one_blas_thread
def audit(
    plan: Plan,
    *,
    method: Method = "clopper_pearson",
    runs: int | None = None,
    confidence: float = CONFIDENCE,
    steps: int | None = None,
    neighbours: Neighbours | None = None,
    canaries: int | None = None,
    seed: int | None = None,
    say: Say | None = None,
) -> AuditReport:
    """Bound from below the ε of what a plan really releases.

    A sampler's plan is run as it is: its noise, batches, room, grid and engine. Only its target is replaced, by one
    whose records move every step as far as the clip allows. A one-shot mechanism is run on its own target. All records
    are synthetic; no training record is read.

    Args:
        plan: from ``dpmcmc.plan`` or a mechanism's ``plan``. its ``guarantee`` is compared with the runs.
        method: see ``bounds.py``.
        runs: of each of the two data sets.
        confidence: of bound and verdict, in (0.5, 1).
        steps: audits only the first steps of a sampler's run, at the noise it has, against what those cost.
        neighbours: your own, in place of the strongest that this library knows; they must differ as the plan's
            adjacency says. A sampler is then run on the plan's own target.
        canaries: m of ``one_run``.
        seed: makes an audit reproducible. Records are synthetic, so this costs no privacy.
        say: called with the cost of the audit before it runs.

    Returns:
        AuditReport.

    Raises:
        ValueError: a plan without guarantee, or arguments outside their range.
        UnsupportedCombination: a target whose strongest records are not known.
    """
    _check_claim(plan)
    _AuditSettings(method, runs, confidence, seed)
    plan = plan if steps is None else shortened(plan, steps)
    claim = plan.guarantee
    assert claim is not None
    many = 1
    if method == "one_run":
        many = min(CANARIES, plan.num_records) if canaries is None else canaries
    model, data, subject = _subject(plan, neighbours, many)
    started = time.perf_counter()
    scores = source(plan, model, data, seed)
    say = say or (lambda text: None)
    significance = 1 - confidence
    if method == "one_run":
        coins = np.random.default_rng(None if seed is None else [seed, 1]).random(data.canaries) < 0.5
        say(f"one run with {data.canaries} canaries")
        found = bounds.one_run(scores(coins, 1)[0], coins, claim.delta, significance)
        sizes = (int(coins.sum()), int((~coins).sum()))
        violated = found > claim.epsilon
        notes = []
    else:
        count = RUNS if runs is None else runs
        say(f"{count:,} runs on each of two neighbours")
        inside, outside = (_runs(scores, side, count) for side in (True, False))
        # Both bounds together hold at the confidence asked for.
        found = bounds.clopper_pearson(inside, outside, claim.delta, significance / 2)
        shown = bounds.advantage(inside, outside, significance / 2)
        variation = claim.delta_at(0.0)
        sizes = (count, count)
        violated = found > claim.epsilon or shown > variation
        notes = [f"total variation: claimed {round_up(variation)}, shown to be at least {round_down(shown):.4g}"]
    return AuditReport(
        subject=subject,
        claimed=claim.epsilon,
        delta=claim.delta,
        adjacency=claim.adjacency,
        release=claim.release,
        method=method,
        lower_bound=found,
        confidence=confidence,
        runs=sizes,
        seconds=time.perf_counter() - started,
        violated=violated,
        notes=(*notes, *(f"claimed assuming: {sentence}" for sentence in claim.assumptions)),
    )


def _runs(scores: Scores, side: bool, count: int) -> np.ndarray:
    """Return scores of ``count`` runs on one of two neighbours, (count,)."""
    sizes = [_AT_ONCE] * (count // _AT_ONCE) + [count % _AT_ONCE] * (count % _AT_ONCE > 0)
    return np.concatenate([scores(np.full(1, side), size)[:, 0] for size in sizes])


def shortened(plan: Plan, steps: int) -> Plan:
    """Return the first ``steps`` of a sampler's plan, at their own noise, with the guarantee that those alone have.

    Raises:
        ValueError: not a sampler's plan, or more steps than it has.
    """
    if plan.run is None:
        raise InputError("steps: only a sampler's plan can be shortened; leave it out")
    if not 1 <= steps <= plan.steps:
        raise InputError(f"steps: must lie in 1..{plan.steps}, the plan's, got {steps}")
    if plan.privacy is None or plan.noise_multipliers is None:
        raise InputError("privacy: the plan claims no guarantee, so there is nothing to audit")
    # The shorter run costs less than the planned ε, and the room of its batches follows from its own cost.
    promise = dataclasses.replace(plan.privacy, epsilon=None, calibrator="free")
    guarantee, slots = charged_guarantee(plan.schedule.part(0, steps), promise)
    return plan.with_last(
        steps=steps,
        burn_in=0,
        thin=1,
        noise=dataclasses.replace(
            plan.noise,
            noise_std=plan.noise_std[:steps],
            slots=slots,
            noise_multipliers=plan.noise_multipliers[:steps],
            guarantee=guarantee,
        ),
    )


def _check_claim(plan: Plan) -> None:
    if plan.guarantee is None:
        raise InputError("privacy: the plan claims no guarantee, so there is nothing to audit")
    if plan.guarantee.release == "labels":
        raise UnsupportedCombination(
            "adjacency: randomised labels are not audited by runs, since their probabilities are whole numbers of "
            "2^-64: the table of one label is exactly what the plan says (dpmcmc.targets.RandomisedLabels.table)",
            "adjacency",
        )
    if not math.isfinite(plan.guarantee.epsilon):
        raise InputError("privacy: the plan claims an infinite epsilon, which nothing contradicts")


def _subject(plan: Plan, neighbours: Neighbours | None, canaries: int) -> tuple[Target, Neighbours, str]:
    """Return (target that the run evaluates, neighbours, a sentence)."""
    if plan.run is not None:
        name = f"{plan.steps} steps of {type(plan.sampler).__name__}, {plan.sampling!r}, {plan.chains} chain"
        name += "s" * (plan.chains > 1)
        if plan.starts is not None:
            raise InputError(
                "plan: it covers private starts too; audit its sampler and its starts as plans of their own"
            )
        if plan.metric is not None:
            raise InputError("plan: it releases a metric too, which no attack here is for; audit it without metric")
        if neighbours is None:
            return *probe(plan, canaries), f"{name}, on a probe; synthetic records only"
    else:
        name = f"{type(plan.mechanism).__name__} on {plan.num_records} records"
        neighbours = neighbours or strongest(plan, canaries)
    shapes = targets.record_shapes(neighbours.data(np.ones(neighbours.canaries, bool)))
    return (
        targets.bind(plan.target, shapes),
        neighbours,
        f"{name}, on {type(plan.target).__name__}; synthetic records only",
    )
