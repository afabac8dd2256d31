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
from dataclasses import dataclass

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting import (
    Adjacency,
    Event,
    accountant_for,
    base_epsilon,
    joined,
    noise_tables,
    query_events,
)
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.own import named
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import Poisson, Sampling

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
        return (noise_tables.draws_event(of_steps + before),)

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
        draws: events of ``noise_tables.draws_event``.

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
