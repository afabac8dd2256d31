"""From a plan's noise to the events it is charged for.

The only place where nominal quantities become charged ones, shared by ``account``, ``calibrate`` and the
plan, so that they cannot disagree:

* noise multiplier z → z / (1 + KAPPA): float32 clipping may exceed C by that much (``exact_sums.py``);
* rate → the generator's proved bound (``sampling.py``);
* a step with a second query → its combined z, or an event of its own (``metric.py``);
* batch overflow → an event of probability β a step, kept within ``OVERFLOW_SHARE`` of δ;
* a coordinate of integer noise → an approximate draw, kept within ``DRAW_SHARE`` of δ.

Claim: Every query of a run is charged, those of burn-in and of each chain too.
Proof: the events are made of the schedule that the engine runs, in one place.
Held by: test_no_config_has_a_finite_epsilon_and_a_query_beyond_its_sensitivity,
test_what_a_config_promises_is_what_its_events_cost, test_planning.py::test_events_hold_charged_values,
"a chain not charged", "burn-in not charged", "noise rounded down to float32", "batch overflow not charged"
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, overload

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.errors import InputError, UnsupportedCombination, check_fields
from dpmcmc.privacy.accounting import (
    DEVIATIONS,
    TRACE_ACCOUNTANTS,
    Adjacency,
    Event,
    accountant_for,
    base_epsilon,
    gaussian,
    joined,
    noisy_descent,
    query_events,
)
from dpmcmc.privacy.accounting.conversions import Bracket
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.own import OwnAccountant, is_ones_own, named
from dpmcmc.privacy.accounting.sampling import Full, Poisson, Sampling

# ----------------------------------------------------------------------------------------------------
# Promise that a run is asked for: the ``privacy:`` section of a configuration.

AdjacencyName = Literal["replace_one", "add_remove", "zero_out"]
#: Accountants of a sampler's trace.
TraceAccountant = Literal["pld", "rdp", "advanced"]
#: A name; or a function (events, adjacency, delta) -> ε, or its name ``module:attribute`` (``own.py``).
Accountant = TraceAccountant | str | Callable[..., float]
CalibratorName = Literal["numeric", "closed_form", "free"]
#: A name; or a function (queries, promise) -> noise multiplier, a number or one a step.
Calibrator = CalibratorName | Callable[..., Any]
Clipping = Literal["residual", "label_blind"]


@dataclass(frozen=True)
class Privacy:
    """Promised guarantee, and how it is computed.

    Args:
        epsilon: target ε; left out with calibrator free, which reports it.
        delta: total δ, below 1/N; 0 with a mechanism whose release is pure ε-DP (ops of form range), and refused
            elsewhere.
        adjacency: definition of a neighbour: one record replaced, present or absent, or zeroed.
        release: all that may be published: trace, every iterate. Leave it out with a mechanism, which has a release of
            its own: certified_ops a last iterate, ops posterior draws.
        accountant: how ε is computed. A function (events, adjacency, delta) -> float at the top of a module serves too,
            as ``module:attribute`` in a YAML. Its ε is your word: the guarantee says so among its assumptions, and one
            below a lower bound of the library's is refused.
        calibrator: how the noise is chosen. A function (queries, promise) -> noise multiplier, a number or one a step,
            serves too; in a YAML its name is ``module:attribute``. No proof rests on it: what is added is charged, and
            what exceeds ε is refused.
        clip: C, the l2 norm each record's gradient is clipped to. Beyond its bounds float32 has no grid for exact sums.
        clipping: residual shrinks each gradient by its own norm, which biases the draws; label_blind by the largest
            norm that any label would give it, which does not. Label_blind is the default of targets with bounded
            labels (logistic and softmax regression), and other targets refuse it.
        hardened: true, or left out: keys are ChaCha20's, and noise is drawn in integers, proved bit by bit. An ε above
            the largest that is proved (30 to 50) is refused, and so is false.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc import Privacy
        >>> privacy = Privacy(epsilon=1.0, delta=1e-5, clip=0.5)
        >>> privacy.adjacency, privacy.accountant
        ('replace_one', 'pld')
    """

    epsilon: Annotated[float, Gt(0), Le(1e6)] | None = None
    delta: Annotated[float, Ge(0), Lt(1)] = 1e-6
    adjacency: AdjacencyName = "replace_one"
    release: Literal["trace"] = "trace"
    accountant: Accountant = "pld"
    calibrator: Calibrator = "numeric"
    clip: Annotated[float, Ge(1e-9), Le(1e9)] = 1.0
    clipping: Clipping | None = None
    hardened: bool | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "accountant", checked_accountant(self.accountant))
        refuse_floats(self.hardened)
        if self.calibrator != "free" and self.epsilon is None:
            raise InputError(
                f"calibrator {named(self.calibrator)} needs epsilon; only free reports it instead of taking it",
                "epsilon",
            )
        if self.calibrator == "free" and self.epsilon is not None:
            raise InputError(
                "calibrator free adds no noise for privacy and reports epsilon: leave epsilon out",
                "epsilon",
            )


def checked_accountant(accountant: Accountant) -> str:
    """Return the name of an accountant of a trace.

    Raises:
        UnsupportedCombination: there is no such name, or the function cannot be found by its own.
    """
    name = named(accountant)
    if not isinstance(accountant, str):
        OwnAccountant(name)
    elif not is_ones_own(name) and name not in TRACE_ACCOUNTANTS:
        raise UnsupportedCombination(
            f"unknown accountant {name!r}; known: {', '.join(TRACE_ACCOUNTANTS)}, or a function at the top of a module "
            "of yours, which a YAML names as module:attribute.",
            "accountant",
        )
    return name


def refuse_floats(hardened: bool | None) -> None:
    """Refuse ``hardened: false``; true and None, which mean the same, are accepted."""
    if hardened is False:
        raise InputError(
            "hardened: false asks for noise from floats, and a private run always takes noise in integers; leave the "
            "key out, or set privacy to null for a run without a guarantee",
            "hardened",
        )


def check_delta(delta: float, num_records: int) -> None:
    """Refuse a δ outside (0, 1/N)."""
    if not 0 < delta < 1 / num_records:
        raise InputError(
            f"delta {delta:g} does not lie strictly between 0 and 1/num_records = {1 / num_records:.3g}, at which "
            "publishing one random record outright would meet it",
            "delta",
        )


#: Largest part of the user's δ that batch overflow may take. Where δ nearly covers the run, ε moves by more than a
#: percent with a percent of δ; a tenth of that share costs a few slots in a thousand.
OVERFLOW_SHARE = 1e-3
#: Largest part of δ that the deviation of integer noise may take.
DRAW_SHARE = 1e-4
#: Numbers that a step is charged for where the target has its shape from the data alone; a run with more is refused.
UNKNOWN_COORDINATES = 10**6


@dataclass(frozen=True)
class Earlier:
    """Charge of a release that a run begins with, and that the run's guarantee covers too.

    Attributes:
        events: of the release.
        numbers: that it adds integer noise to, where ``events`` do not charge for that.
        release: its kind, as a Guarantee says it; None of a part of the run's own trace.
        assumptions: of its guarantee.
    """

    events: tuple[Event, ...]
    numbers: int = 0
    release: str | None = None
    assumptions: tuple[str, ...] = ()

    @classmethod
    def of(cls, guarantee: Guarantee) -> Earlier:
        """Return the charge of a release that has a guarantee of its own."""
        return cls(guarantee.events, 0, guarantee.release, guarantee.assumptions)

    @property
    def again(self) -> tuple[Event, ...]:
        """Events of the release where it is made again; :func:`charged_again` charges deviations again itself."""
        return tuple(event for event in self.events if event.mechanism not in DEVIATIONS)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Noisy queries of a run: the noise of every step, and what the run's guarantee covers beside them.

    Args:
        noise_multipliers: nominal z of each step, (steps,); a calibrator takes it for the least that each step has.
        sampling: which records a step reads.
        num_records: N.
        chains: each is charged.
        multiples: noise multiplier of each minibatch of a step, as multiples of z (``second_moment.multiples``).
        every: steps from one with these multiples to the next; the steps between release a gradient alone, at z.
        first: number, in the run, of the first step.
        coordinates: numbers that a step adds integer noise to; None without privacy.
        earlier: charges of the releases that the run begins with.
    """

    noise_multipliers: np.ndarray
    sampling: Sampling
    num_records: int
    chains: int = 1
    multiples: tuple[float, ...] = (1.0,)
    coordinates: int | None = None
    earlier: tuple[Earlier, ...] = ()
    every: int = 1
    first: int = 0

    @property
    def asks(self) -> np.ndarray:
        """Whether a step has the noise of ``multiples``, (steps,) bool."""
        return (self.first + np.arange(len(self.noise_multipliers))) % self.every == 0

    @property
    def minibatches(self) -> int:
        """Queries of all steps and chains that are charged."""
        return len(self.charged) * self.chains

    @property
    def charged(self) -> np.ndarray:
        """Noise multiplier that each minibatch of a chain is charged for, (minibatches,)."""
        z = np.asarray(self.noise_multipliers, np.float64) / (1 + KAPPA)
        asks = self.asks
        return np.concatenate([*(z[asks] * multiple for multiple in self.multiples), z[~asks]])

    @property
    def queries(self) -> tuple[Event, ...]:
        """Events of the queries, one for each minibatch of a step, before overflow."""
        return query_events(
            self.sampling.mechanism(self.num_records),
            self.charged,
            self.sampling.charged_rate(self.num_records),
            repeats=self.chains,
            num_records=self.num_records,
        )

    @property
    def deviations(self) -> tuple[Event, ...]:
        """Event of integer noise that is not exactly what its proof is about (``gaussian.py``)."""
        if self.coordinates is None:
            return ()
        of_steps = self.coordinates * len(self.noise_multipliers) * self.chains
        before = sum(release.numbers for release in self.earlier)
        return (gaussian.draws_event(of_steps + before),)

    @property
    def composed_with(self) -> tuple[Event, ...]:
        """Events that the guarantee covers beside the queries."""
        before = tuple(event for release in self.earlier for event in release.events)
        return (*before, *self.deviations)

    @property
    def release(self) -> str:
        """The kind of all that leaves, as a Guarantee says it."""
        return joined(
            *(release.release for release in self.earlier if release.release is not None),
            "trace",
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the releases that the run begins with."""
        return tuple(sentence for release in self.earlier for sentence in release.assumptions)

    def with_noise(self, noise_multipliers: np.ndarray) -> Schedule:
        """Return the same queries with this noise, (steps,)."""
        return dataclasses.replace(self, noise_multipliers=noise_multipliers)

    def part(self, first: int, until: int) -> Schedule:
        """Return the queries of the steps from ``first`` to before ``until``."""
        part = self.noise_multipliers[first:until]
        return dataclasses.replace(self, noise_multipliers=part, first=self.first + first)

    def delta_left(self, delta: float) -> float:
        """Return the part of a total δ that batch overflow leaves to everything else."""
        can_overflow = isinstance(self.sampling, Poisson) and self.sampling.rate(self.num_records) < 1
        return delta * (1 - OVERFLOW_SHARE) if can_overflow else delta


def charged_guarantee(schedule: Schedule, privacy: Privacy) -> tuple[Guarantee, int]:
    """Guarantee of a run, and the slots of a batch that keep its overflow within it.

    Args:
        schedule: noisy queries of the run.
        privacy: δ, adjacency and accountant. Its ε, where it has one, is taken for an upper bound of the run's
            in settling the slots; otherwise the run's own is computed.
    """
    adjacency = Adjacency(privacy.adjacency)
    release = schedule.release
    events = (*schedule.composed_with, *schedule.queries)
    accountant = named(privacy.accountant)
    accountant_for(accountant, events, adjacency, release)
    share = privacy.delta - schedule.delta_left(privacy.delta)
    allowed = 0.0
    if share and schedule.minibatches:
        epsilon = privacy.epsilon
        if epsilon is None:
            epsilon = base_epsilon(accountant, events, adjacency, privacy.delta - share)
        # Where e^ε overflows no truncation is cheap enough, and there is room for every record.
        allowed = share / (1 + math.exp(epsilon)) / schedule.minibatches if epsilon < 600 else 0.0
    slots, beta = schedule.sampling.capacity(schedule.num_records, allowed)
    if beta > 0:
        events = (*events, Event("batch_overflow", 0.0, beta, schedule.minibatches))
    guarantee = Guarantee.from_events(
        events,
        delta=privacy.delta,
        adjacency=adjacency,
        accountant=accountant,
        release=release,
        assumptions=schedule.assumptions,
    )
    return guarantee, slots


def check_proved(epsilon: float, delta: float, draws: tuple[Event, ...]) -> None:
    """Refuse an ε at which integer noise costs more than its share of δ.

    Args:
        epsilon, delta: of the whole promise.
        draws: events of ``gaussian.draws_event``.

    Raises:
        ValueError: a larger ε than integer noise is proved for; or a δ so small that it is proved for none.
    """
    distance = sum(e.rate * e.count for e in draws)
    if not distance:
        return
    room = DRAW_SHARE * delta / distance - 1
    if room <= 1:
        raise InputError(
            f"delta: integer noise is at a distance {distance:.2g} from a Gaussian's, which costs more than "
            f"{DRAW_SHARE:g} of delta {delta:g} at any epsilon; take a larger delta",
            "delta",
        )
    largest = math.log(room) * (1 - 1e-12)
    if epsilon > largest:
        raise InputError(
            f"epsilon: {epsilon:.6g} is more than noise in integers is proved for, {math.floor(100 * largest) / 100:g} "
            f"at delta {delta:g}; take an epsilon of at most that, or, for a sampler's run without a guarantee, set "
            "privacy to null",
            "epsilon",
        )


def charged_again(guarantee: Guarantee, again: Schedule) -> tuple[Event, ...]:
    """Events of some steps of a run that are taken a second time, with fresh keys.

    Args:
        guarantee: of the run, whose deviations (overflow) are charged again in full.
        again: queries that are asked again.
    """
    return (*again.queries, *(e for e in guarantee.events if e.mechanism in DEVIATIONS))


# ----------------------------------------------------------------------------------------------------
# ``account``: what a run of noisy queries costs.


@dataclass(frozen=True)
class Problem:
    """Public constants that bound the last iterate of a noisy descent on F = Σ losses − log prior.

    Args:
        step_size: learning rate on the MEAN loss, constant; the step on F is step_size / N.
        strong_convexity: m > 0 of F, for instance the prior's precision.
        smoothness: M of F: N times the largest curvature of a record's loss, and the prior's.
        lipschitz: L, bound on the norm of a record's gradient.
        clip: C of the query that adds the noise, whose multiplier is noise std / C.

    Raises:
        UnsupportedCombination: a clip below L, which can be active: clipped gradients are those of no convex function.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import Problem, account
        >>> problem = Problem(step_size=0.1, strong_convexity=1.0, smoothness=251.0, lipschitz=1.0, clip=1.0)
        >>> last = {"accountant": "last_iterate", "release": "last_iterate", "problem": problem}
        >>> guarantee = account(100.0, steps=1000, sampling=Full(), num_records=1000, delta=1e-5, **last)
        >>> round(guarantee.epsilon, 2)
        2.59
    """

    step_size: float
    strong_convexity: float
    smoothness: float
    lipschitz: float
    clip: float

    def __post_init__(self) -> None:
        if not 0 < self.lipschitz <= self.clip:
            raise UnsupportedCombination(
                f"release last_iterate needs clipping that is never active: clip {self.clip:g} must be at least the "
                f"gradient bound {self.lipschitz:g} > 0."
            )


@overload
def account(
    noise_multiplier: float | Sequence[float] | np.ndarray,
    *,
    steps: int,
    sampling: Sampling,
    num_records: int,
    delta: float,
    chains: int = 1,
    adjacency: AdjacencyName = "replace_one",
    accountant: Accountant | Literal["last_iterate"] = "pld",
    release: Literal["trace", "last_iterate"] = "trace",
    problem: Problem | None = None,
    bracket: Literal[False] = False,
) -> Guarantee: ...


@overload
def account(
    noise_multiplier: float | Sequence[float] | np.ndarray,
    *,
    steps: int,
    sampling: Sampling,
    num_records: int,
    delta: float,
    chains: int = 1,
    adjacency: AdjacencyName = "replace_one",
    accountant: Accountant | Literal["last_iterate"] = "pld",
    release: Literal["trace", "last_iterate"] = "trace",
    problem: Problem | None = None,
    bracket: Literal[True],
) -> Bracket: ...


def account(
    noise_multiplier: float | Sequence[float] | np.ndarray,
    *,
    steps: int,
    sampling: Sampling,
    num_records: int,
    delta: float,
    chains: int = 1,
    adjacency: AdjacencyName = "replace_one",
    accountant: Accountant | Literal["last_iterate"] = "pld",
    release: Literal["trace", "last_iterate"] = "trace",
    problem: Problem | None = None,
    bracket: bool = False,
) -> Guarantee | Bracket:
    """The guarantee of ``steps`` noisy gradient queries per chain.

    Charges what the library's own query and generator would be charged (``charging.py``), so the result is
    that of a plan with these settings; for release ``last_iterate``, of ``mechanisms.CertifiedOPS``, whose float64
    steps keep the theorem's contraction up to what is charged.

    Args:
        noise_multiplier: std of the noise on the clipped sum / clip norm, for every adjacency; a number, or one
            per step.
        steps: per chain.
        sampling: ``Poisson(b)``, ``FixedSize(b)`` or ``Full()``.
        num_records: N, public.
        delta: total δ in (0, 1).
        chains: independent chains on the same data; each is charged.
        adjacency: ``replace_one`` | ``add_remove`` | ``zero_out``.
        accountant: ``pld`` | ``rdp`` | ``advanced`` | ``last_iterate``, or a function as for :class:`Privacy`.
        release: ``trace``, or ``last_iterate``: only the last step of each chain leaves.
        problem: what release ``last_iterate`` rests on.
        bracket: return ``Guarantee.bracket()``, the pair (lower, upper) of bounds on ε.

    Returns:
        Guarantee, or with ``bracket`` its bounds on ε; ε is infinite for a step without noise.

    Raises:
        UnsupportedCombination: no derivation for the combination.
        ValueError: wrong lengths or ranges.
    """
    check_counts(steps, chains)
    sampling.validate(num_records)
    schedule = Schedule(
        per_step(noise_multiplier, steps, "noise_multiplier"),
        sampling,
        num_records,
        chains,
    )
    if release == "last_iterate" or accountant == "last_iterate":
        if release != "last_iterate":
            raise UnsupportedCombination(
                f"accountant last_iterate covers release last_iterate, not {release}: use accountant pld."
            )
        guarantee = Guarantee.from_events(
            (_last_iterate(schedule, problem),),
            delta=delta,
            adjacency=adjacency,
            accountant="last_iterate",
            release=release,
        )
        return guarantee.bracket() if bracket else guarantee
    if release != "trace":
        raise UnsupportedCombination(
            f"release {release!r} is not that of noisy queries; account covers trace and last_iterate, and the room "
            "mechanisms the others."
        )
    Adjacency(adjacency)  # refuses an unknown one as a combination, as the accountant is
    promise = Privacy(delta=delta, adjacency=adjacency, accountant=accountant, calibrator="free")
    guarantee = charged_guarantee(schedule, promise)[0]
    return guarantee.bracket() if bracket else guarantee


def _last_iterate(schedule: Schedule, problem: Problem | None) -> Event:
    """Event of a noisy descent (``noisy_descent.py``); every condition of the theorem that fails is named."""
    if not isinstance(schedule.sampling, Full):
        raise UnsupportedCombination(
            "release last_iterate needs full batches (sampling full): no theorem here covers the last iterate of "
            "minibatch steps."
        )
    if problem is None:
        raise UnsupportedCombination(
            "release last_iterate rests on a strongly convex, smooth potential with bounded gradients: give problem="
            "Problem(step_size, strong_convexity, smoothness, lipschitz, clip)."
        )
    z = schedule.noise_multipliers
    if np.ptp(z) > 0:
        raise UnsupportedCombination("release last_iterate needs the same noise multiplier at every step.")
    eta = problem.step_size / schedule.num_records
    c = noisy_descent.contraction(eta, problem.strong_convexity, problem.smoothness)
    return Event(
        "noisy_descent",
        float(z[0]) / (1 + KAPPA),
        1.0,
        schedule.chains,
        steps=len(z),
        contraction=c,
    )


def per_step(values: float | Sequence[float] | np.ndarray, steps: int, name: str) -> np.ndarray:
    """(steps,) float64 from a number or an array of that length.

    Raises:
        ValueError: another length, negative or not finite.
    """
    array = np.asarray(values, np.float64)
    if array.ndim == 0:
        array = np.full(steps, float(array))
    if array.shape != (steps,):
        raise InputError(f"{name} must be a number or have one entry per step ({steps}), got {array.shape}")
    if not np.all(np.isfinite(array)) or np.any(array < 0):
        raise InputError(f"{name} must be finite and >= 0")
    return array


def check_counts(steps: int, chains: int) -> None:
    """Raise ValueError unless steps >= 1 and chains >= 1."""
    if steps < 1 or chains < 1:
        raise InputError(f"steps and chains must be at least 1, got {steps} and {chains}")
