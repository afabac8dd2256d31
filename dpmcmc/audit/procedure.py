"""``audit``: run a plan on worst-case neighbours, and compare a lower bound on ε with its claim."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from dpmcmc import targets
from dpmcmc.audit import bounds
from dpmcmc.audit.neighbours import Neighbours, probe, strongest
from dpmcmc.audit.scores import Scores, source
from dpmcmc.errors import InputError, UnsupportedCombination, check_fields
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.charging import charged_guarantee
from dpmcmc.privacy.accounting.events import round_down, round_up
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.targets.base import Target

# ----------------------------------------------------------------------------------------------------
# Findings of an audit, as a table and as JSON.

_MEANING = {
    "consistent": "not contradicted, which proves nothing",
    "VIOLATED": "the claim is wrong, or the code is",
    "suspicious": "above the claim if scores are Gaussian: confirm with --method clopper_pearson or histogram",
}


@dataclass(frozen=True)
class AuditReport:
    """Findings of an audit. They can contradict a claim, and never certify one.

    Attributes:
        subject: the plan that was run, and its records.
        claimed: ε claimed at ``delta``.
        delta: δ of the claim.
        adjacency, release: of the claim.
        method: one of ``METHODS``.
        lower_bound: on ε at ``delta``; smaller than the truth with probability ``confidence``, or, for gdp, an estimate
            of such a bound.
        proved: whether it is a bound without assumptions on the scores.
        confidence: of the bound and of the verdict together; where nothing is proved, only if scores are Gaussian.
        runs: on one data set and on its neighbour (canaries in and out, for one_run).
        seconds: wall time.
        exceeded: whether the bound is above the claim, or shown to be above its curve.
        notes: sentences on what was found.

    Example:
        >>> import dpmcmc
        >>> from dpmcmc.mechanisms import OutputPerturbation
        >>> target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0)
        >>> plan = OutputPerturbation(regularisation=10.0).plan(target, num_records=100, epsilon=1.0, delta=1e-5)
        >>> report = dpmcmc.audit.audit(plan, runs=50, method="gdp")
        >>> report.method, report.adjacency, report.runs
        ('gdp', 'replace_one', (50, 50))
    """

    subject: str
    claimed: float
    delta: float
    adjacency: str
    release: str
    method: str
    lower_bound: float
    proved: bool
    confidence: float
    runs: tuple[int, int]
    seconds: float
    exceeded: bool
    notes: tuple[str, ...] = ()

    @property
    def violated(self) -> bool:
        """Whether the runs contradict the claim, with proof."""
        return self.exceeded and self.proved

    @property
    def verdict(self) -> str:
        """``consistent``, ``VIOLATED``, or ``suspicious`` (above the claim by an estimate, which proves nothing)."""
        if not self.exceeded:
            return "consistent"
        return "VIOLATED" if self.proved else "suspicious"

    def to_json(self) -> dict[str, object]:
        """Return a plain dict, for programs."""
        out = dataclasses.asdict(self)
        return out | {
            "violated": self.violated,
            "verdict": self.verdict,
            "runs": list(self.runs),
            "notes": list(self.notes),
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return (label, text) rows of a table."""
        certainty = f"confidence {self.confidence:g}"
        if not self.proved:
            certainty = f"an ESTIMATE, of {certainty} only if scores are Gaussian: not proved"
        units = "canaries in, out" if self.method == "one_run" else "runs on either side"
        rows = [
            ("audited", self.subject),
            (
                "claimed",
                f"epsilon {round_up(self.claimed)} at delta {self.delta:g}, {self.adjacency}, {self.release}",
            ),
            (
                "bound",
                f"epsilon {round_down(self.lower_bound):.4g} at the same delta; {certainty}",
            ),
            ("method", self.method),
            (
                "runs",
                f"{self.runs[0]:,} + {self.runs[1]:,} ({units}), {self.seconds:.1f} s",
            ),
        ]
        rows += [("", note) for note in self.notes]
        return [*rows, ("verdict", f"{self.verdict}: {_MEANING[self.verdict]}")]

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {text}".rstrip() for name, text in self.lines())


#: Function that is called with the cost of an audit before it runs.
Say: TypeAlias = Callable[[str], None]

Method = Literal["gdp", "clopper_pearson", "one_run", "histogram"]
AuditTarget = Literal["probe", "config"]
METHODS = get_args(Method)
TARGETS = get_args(AuditTarget)
#: Default number of runs on each data set, and of canaries of ``one_run``.
RUNS = 1000
CANARIES = 500
#: Default confidence. If a true claim is tight, one audit in 1/(1 - confidence) contradicts it.
CONFIDENCE = 0.999
#: Most runs of each data set, or chains of one device program.
MOST_RUNS = 200_000
_AT_ONCE = 20_000
#: Runs on each data set that fix the bins of a histogram and are not tested.
_PILOT = 500
#: Values of ε at which a claimed curve is tested, relative to the claimed ε.
_CLAIMS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)


@dataclass(frozen=True)
class _AuditSettings:
    """Checked arguments of :func:`audit`: the method, its size, and its confidence."""

    method: Method
    runs: Annotated[int, Ge(4), Le(MOST_RUNS)] | None
    confidence: Annotated[float, Gt(0.5), Lt(1)]
    target: AuditTarget
    canaries: int | None
    bins: int
    alpha: float
    at_epsilon: float | None
    seed: Annotated[int, Ge(0), Lt(2**32)] | None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.runs is not None and self.method in ("one_run", "histogram"):
            raise InputError(f"runs: method {self.method} settles this itself; leave it out", "runs")
        if self.method in ("clopper_pearson", "one_run"):
            bounds.auditing(self.method)

    @property
    def significance(self) -> float:
        """Probability of a wrong verdict."""
        return 1 - self.confidence

    def canaries_of(self, plan: Plan | MechanismPlan) -> int:
        """Return the number of records that differ."""
        if self.method != "one_run":
            return 1
        return min(CANARIES, plan.num_records) if self.canaries is None else self.canaries


@dataclass(frozen=True)
class _Trial:
    """One audit: scores of releases, and the claim that they are compared with."""

    scores: Scores
    claim: Guarantee
    asked: _AuditSettings
    canaries: int
    say: Say

    def rng(self) -> np.random.Generator:
        """Return the randomness of coins and sample sizes."""
        return np.random.default_rng(None if self.asked.seed is None else [self.asked.seed, 1])

    def run(self, side: bool, count: int) -> np.ndarray:
        """Return scores of ``count`` runs on one of two neighbours, (count,)."""
        sizes = [_AT_ONCE] * (count // _AT_ONCE) + [count % _AT_ONCE] * (count % _AT_ONCE > 0)
        return np.concatenate([self.scores(np.full(1, side), size)[:, 0] for size in sizes])

    def run_both(self) -> tuple[np.ndarray, np.ndarray]:
        """Return scores of as many runs as were asked for on each of two neighbours."""
        count = RUNS if self.asked.runs is None else self.asked.runs
        self.say(f"{count:,} runs on each of two neighbours")
        return self.run(True, count), self.run(False, count)


class _Finding(NamedTuple):
    """Return a lower bound on ε at the claim's δ, whether it or the curve exceeds the claim, the runs on each side, and
    notes."""

    lower_bound: float
    exceeded: bool
    runs: tuple[int, int]
    notes: tuple[str, ...] = ()


def _gdp(trial: _Trial) -> _Finding:
    inside, outside = trial.run_both()
    found = bounds.gdp(inside, outside, trial.claim.delta, trial.asked.significance)
    return _Finding(found, found > trial.claim.epsilon, (len(inside), len(outside)))


def _clopper_pearson(trial: _Trial) -> _Finding:
    inside, outside = trial.run_both()
    # The bound and the curve together hold at the confidence asked for.
    each = trial.asked.significance / 2
    found = bounds.clopper_pearson(inside, outside, trial.claim.delta, each)
    curve = bounds.claimed_curve(inside, outside, claims_of(trial.claim), each)
    note = (
        f"of the claimed curve, closest at epsilon {curve.epsilon:.4g}: delta claimed {round_up(curve.claimed)}, shown "
        f"to be at least {round_down(curve.shown):.4g}"
    )
    exceeded = found > trial.claim.epsilon or curve.violated
    return _Finding(found, exceeded, (len(inside), len(outside)), (note,))


def _one_run(trial: _Trial) -> _Finding:
    coins = trial.rng().random(trial.canaries) < 0.5
    trial.say(f"one run with {trial.canaries} canaries")
    found = bounds.one_run(trial.scores(coins, 1)[0], coins, trial.claim.delta, trial.asked.significance)
    return _Finding(found, found > trial.claim.epsilon, (int(coins.sum()), int((~coins).sum())))


def _histogram(trial: _Trial) -> _Finding:
    asked = trial.asked
    claim = trial.claim
    tester = bounds.Tester(
        claim.epsilon if asked.at_epsilon is None else asked.at_epsilon,
        asked.bins,
        asked.alpha,
    )
    expected = tester.expected
    if expected > MOST_RUNS:
        raise InputError(
            f"method: histogram needs about {expected:.3g} runs of each data set at epsilon {tester.epsilon:.4g}, and "
            f"at most {MOST_RUNS:,} are made; take fewer --bins, a larger --alpha, or a smaller --at-epsilon"
        )
    trial.say(f"about {expected:,.0f} runs on each of two neighbours, after {_PILOT} that settle the bins")
    edges = bounds.edges_of(np.concatenate([trial.run(side, _PILOT) for side in (True, False)]), asked.bins)
    sizes = trial.rng().poisson(expected, 2)
    # Both sides run equally often, so that one program serves both; runs beyond the size of a sample are dropped.
    counts = [
        bounds.bin_counts(trial.run(side, int(sizes.max()))[:size], edges)
        for side, size in zip((True, False), sizes, strict=True)
    ]
    delta = claim.delta if asked.at_epsilon is None else claim.delta_at(asked.at_epsilon)
    result = tester.judge(counts[0], counts[1], delta=delta, significance=asked.significance)
    found = result.epsilon_lower(claim.delta)
    notes = (
        f"at epsilon {tester.epsilon:.4g}: delta claimed {round_up(delta)}, shown to be at least "
        f"{round_down(result.delta_lower):.4g} at confidence {asked.confidence:g}",
        f"the tester of resolution {asked.alpha:g} on {asked.bins} bins {'ACCEPTS' if result.accepted else 'REJECTS'} "
        f"(z = {result.statistic:.4g}, error at most 1/3)",
    )
    exceeded = result.delta_lower > delta or found > claim.epsilon
    return _Finding(found, exceeded, result.runs, notes)


_FINDERS: dict[Method, Callable[[_Trial], _Finding]] = {
    "gdp": _gdp,
    "clopper_pearson": _clopper_pearson,
    "one_run": _one_run,
    "histogram": _histogram,
}


@on_one_blas_thread
def audit(
    plan: Plan | MechanismPlan,
    *,
    method: Method = "gdp",
    runs: int | None = None,
    confidence: float = CONFIDENCE,
    target: AuditTarget = "probe",
    steps: int | None = None,
    neighbours: Neighbours | None = None,
    canaries: int | None = None,
    bins: int = 10,
    alpha: float = 0.05,
    at_epsilon: float | None = None,
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
        runs: of each of the two data sets; for ``histogram`` they follow from bins, alpha and ε.
        confidence: of bound and verdict, in (0.5, 1).
        target: of a sampler: ``probe``, or ``config``, its own with the strongest records it admits.
        steps: audits only the first steps of a sampler's run, at the noise it has, against what those cost.
        neighbours: your own, in place of the strongest that this library knows; they must differ as the plan's
            adjacency says, in records of the target that ``target`` names.
        canaries: m of ``one_run``.
        bins, alpha: of ``histogram``: outcomes and resolution in δ.
        at_epsilon: tests the claimed curve at another ε than the claimed one, for ``histogram``; smaller is cheaper.
        seed: makes an audit reproducible. Records are synthetic, so this costs no privacy.
        say: called with the cost of the audit before it runs.

    Returns:
        AuditReport.

    Raises:
        ValueError: a plan without guarantee, or arguments outside their range.
        UnsupportedCombination: a target whose strongest records are not known.
        MissingExtra: jax-privacy is not installed.
        NotGaussian: gdp, and the scores are not.
    """
    _check_claim(plan)
    asked = _AuditSettings(method, runs, confidence, target, canaries, bins, alpha, at_epsilon, seed)
    plan = plan if steps is None else shortened(plan, steps)
    claim = plan.guarantee
    assert claim is not None
    model, data, subject = _subject(plan, target, neighbours, asked.canaries_of(plan))
    started = time.perf_counter()
    trial = _Trial(
        source(plan, model, data, seed),
        claim,
        asked,
        data.canaries,
        say or (lambda text: None),
    )
    found = _FINDERS[method](trial)
    return AuditReport(
        subject=subject,
        claimed=claim.epsilon,
        delta=claim.delta,
        adjacency=claim.adjacency,
        release=claim.release,
        method=method,
        lower_bound=float(found.lower_bound),
        proved=method != "gdp",
        confidence=confidence,
        runs=found.runs,
        seconds=time.perf_counter() - started,
        exceeded=bool(found.exceeded),
        notes=(
            *found.notes,
            *(f"claimed assuming: {sentence}" for sentence in claim.assumptions),
        ),
    )


def shortened(plan: Plan | MechanismPlan, steps: int) -> Plan:
    """Return the first ``steps`` of a sampler's plan, at their own noise, with the guarantee that those alone have.

    Raises:
        ValueError: not a sampler's plan, or more steps than it has.
    """
    if not isinstance(plan, Plan):
        raise InputError("steps: only a sampler's plan can be shortened; leave it out")
    if not 1 <= steps <= plan.steps:
        raise InputError(f"steps: must lie in 1..{plan.steps}, the plan's, got {steps}")
    private = plan.private
    if private is None:
        raise InputError("privacy: the plan claims no guarantee, so there is nothing to audit")
    # The shorter run costs less than the planned ε, and the room of its batches follows from its own cost.
    promise = dataclasses.replace(private.promise, epsilon=None, calibrator="free")
    guarantee, slots = charged_guarantee(plan.schedule.part(0, steps), promise)
    return dataclasses.replace(
        plan,
        steps=steps,
        burn_in=0,
        thin=1,
        noise_std=plan.noise_std[:steps],
        slots=slots,
        private=private.replaced(noise_multipliers=private.noise_multipliers[:steps], guarantee=guarantee),
    )


def claims_of(claim: Guarantee) -> list[tuple[float, float]]:
    """Return (ε, δ) pairs that a guarantee claims: its own, and its curve's at smaller ε."""
    curve = [(share * claim.epsilon, claim.delta_at(share * claim.epsilon)) for share in _CLAIMS]
    return [(claim.epsilon, claim.delta), *curve]


def _check_claim(plan: Plan | MechanismPlan) -> None:
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


def _subject(
    plan: Plan | MechanismPlan, target: str, neighbours: Neighbours | None, canaries: int
) -> tuple[Target, Neighbours, str]:
    """Return (target that the run evaluates, neighbours, a sentence)."""
    if isinstance(plan, Plan):
        name = f"{plan.steps} steps of {type(plan.sampler).__name__}, {plan.sampling!r}, {plan.chains} chain"
        name += "s" * (plan.chains > 1)
        if plan.starts is not None and plan.start is None:
            raise InputError("plan: it covers private starts too; audit a plan that draws them (after=their plan)")
        if plan.metric is not None:
            raise InputError("plan: it releases a metric too, which no attack here is for; audit it without metric")
    else:
        name = f"{type(plan.mechanism).__name__} on {plan.num_records} records"
    # A draw is scored on the model that it is of.
    if isinstance(plan, Plan) and plan.start is None and target == "probe":
        model, strong = probe(plan, canaries)
        return model, neighbours or strong, f"{name}, on a probe; synthetic records only"
    data = strongest(plan, plan.target, canaries) if neighbours is None else neighbours
    shapes = targets.record_shapes(data.data(np.ones(data.canaries, bool)))
    return (
        targets.bind(plan.target, shapes),
        data,
        f"{name}, on {type(plan.target).__name__}; synthetic records only",
    )
