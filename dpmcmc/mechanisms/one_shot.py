"""The shape that one-shot mechanisms share: how they are asked, and how what they settle becomes a plan.

A mechanism is a frozen dataclass; its fields are what a YAML says about it. It has these methods of its own:

``calibrate(target, spec)``          the plan: public numbers, and the events that they cost, from public facts alone
``check(plan, records)``           refusals that are not the target's own, before anything is charged
``draw(plan, records, streams)``   the release, from one reading of the records
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpmcmc.data.schema import Schema
from dpmcmc.errors import Checked, InputError, UnsupportedCombination
from dpmcmc.inference.evidence import Evidence
from dpmcmc.mechanisms.base import MechanismOffers
from dpmcmc.planning.mechanism_release import MechanismRelease
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.verdict import with_verdict
from dpmcmc.privacy.accounting import Adjacency, noise_tables
from dpmcmc.privacy.accounting.charging import DRAW_SHARE, check_proved
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.promise import check_delta, refuse_floats
from dpmcmc.privacy.query.gaussian_release import gaussian_event
from dpmcmc.privacy.query.gram_release import GramRelease
from dpmcmc.privacy.query.integer_noise import check_numbers
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.absent_records import check_absent
from dpmcmc.targets.base import Target, target_offers

#: Integer noise of more releases than a mechanism has, which leaves room for its own in δ.
_MANY = noise_tables.draws_event(noise_tables.MOST_NUMBERS << 20)


@dataclass(frozen=True)
class PrivacySpec:
    """Privacy that a release must give, and its number of records.

    Args:
        num_records: N, public.
        epsilon: ε.
        delta: δ, below 1/N; 0 of a pure release alone.
        adjacency: which data sets are neighbours.

    Raises:
        ValueError: numbers outside these, named by the argument first.
    """

    num_records: int
    epsilon: float
    delta: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        if self.num_records < 1:
            raise InputError(f"num_records: must be at least 1, got {self.num_records}", "num_records")
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InputError(f"epsilon: must be a finite number > 0, got {self.epsilon}", "epsilon")
        if self.delta != 0:
            check_delta(self.delta, self.num_records)

    @property
    def moved(self) -> float:
        """Largest distance of two neighbours' sums of vectors of norm at most 1."""
        return self.adjacency.sensitivity

    @property
    def mu(self) -> float:
        """Largest μ whose Gaussian mechanism keeps the promise."""
        return gaussian_mu(self.epsilon, self.delta)

    @property
    def of_events(self) -> PrivacySpec:
        """Return the promise that the events alone have to keep: integer noise may take a small share of δ besides."""
        spent = noise_tables.price(_MANY, self.epsilon)
        return dataclasses.replace(self, delta=self.delta - min(spent, DRAW_SHARE * self.delta))

    @property
    def most_records(self) -> int:
        """The larger number of records of two neighbours."""
        return self.num_records + (self.adjacency == Adjacency.ADD_REMOVE)

    def gaussian(self, noise_std: float, sensitivity: float, size: int) -> Event:
        """Return the charge of one ``gaussian_release``; arguments as of :func:`gaussian_event`.

        Raises:
            InputError: integer noise of more numbers than are charged for.
        """
        check_numbers(size)
        return gaussian_event(noise_std, sensitivity, size, self.adjacency)

    def gram(self, release: GramRelease) -> tuple[Event, ...]:
        """Return the charge of one release of a second moment; raises as :meth:`gaussian`."""
        check_numbers(release.numbers)
        return release.events(self.adjacency)


def check_leaves(mechanism: MechanismOffers, target: Target) -> None:
    """Refuse a target whose records have an offset or a weight that the mechanism does not take.

    Raises:
        UnsupportedCombination: naming the array.
    """
    offers = target_offers(target)
    declared = {"offset": offers.offset_bound, "weight": offers.weight_scale}
    for leaf, fact in declared.items():
        if fact is not None and leaf not in mechanism.honours:
            raise UnsupportedCombination(
                f"{leaf}: {type(mechanism).__name__} has no derivation for records with {_A_LEAF[leaf]}; use a sampler "
                f"(dpmcmc.plan) or OPS, or leave {leaf} out.",
                leaf,
            )


_A_LEAF = {"offset": "an offset", "weight": "a weight"}


class ReleasedDraws(NamedTuple):
    """Draws of a mechanism, with what else it released.

    Attributes:
        positions: a pytree like the target's parameters, leaves (draws, ...), NumPy.
        evidence: that the draws rest on, with its own doubts; None where none is derived.
        doubts: why intervals of draws without evidence may not hold, clauses that the release gave.
    """

    positions: PyTree
    evidence: Evidence | None = None
    doubts: tuple[str, ...] = ()


class OneShot(Checked, MechanismOffers):
    """Base of one-shot mechanisms.

    Example:
        >>> from dpmcmc.mechanisms import OutputPerturbation
        >>> from dpmcmc.mechanisms.one_shot import OneShot
        >>> isinstance(OutputPerturbation(), OneShot)
        True
    """

    #: The kind of release, as a Guarantee says it; its accountant; how many draws it is.
    release = "estimate"
    accountant = "one_sample"
    draws = 1

    @on_one_blas_thread
    def plan(
        self,
        target: Target,
        *,
        num_records: int,
        epsilon: float,
        delta: float,
        adjacency: str = "replace_one",
        schema: Schema | None = None,
        hardened: bool | None = None,
    ) -> Plan:
        """Settle the guarantee and every number that it rests on; reads no record.

        Args:
            target: the model, with the public bounds that the mechanism rests on.
            num_records: N.
            epsilon: ε that the release may cost.
            delta: δ, below 1/N; 0 of a release that is pure ε-DP.
            adjacency: ``replace_one`` | ``add_remove`` | ``zero_out``.
            schema: public ranges and levels of a table's columns; see :func:`dpmcmc.plan`.
            hardened: as of :class:`dpmcmc.Privacy`; false is refused. Draws from a posterior are computed in floating
                point.

        Raises:
            UnsupportedCombination: no derivation for this target or adjacency.
            CalibrationError: (ε, δ) is out of reach.
            ValueError: impossible numbers, named by the argument first; a public bound that is not given.
        """
        refuse_floats(hardened)
        spec = PrivacySpec(num_records, epsilon, delta, Adjacency(adjacency))
        if delta == 0 and not self.pure:
            raise InputError(
                f"delta: 0 is for a release that is pure ε-DP, and that of {type(self).__name__}, as set, is not; "
                f"give a delta strictly between 0 and 1/num_records = {1 / num_records:.3g}",
                "delta",
            )
        target, informed = (
            (target, self)
            if schema is None
            else (
                schema.with_public_facts(target),
                schema.with_public_facts(self, target),
            )
        )
        check_absent(target, spec.adjacency, schema is not None)
        check_leaves(informed, target)
        plan = informed.calibrate(target, spec.of_events)
        charged = plan.guarantee
        assert charged is not None
        check_proved(epsilon, delta, noise_tables.releases_event(charged.events))
        return with_verdict(dataclasses.replace(plan, schema=schema).with_last(guarantee=_of_all(charged, spec)))

    def calibrate(self, target: Target, spec: PrivacySpec) -> Plan:
        """Return the plan that keeps the promise; raises as :meth:`OneShot.plan`."""
        raise NotImplementedError

    def draw(self, plan: Plan, records: Any, streams: Streams) -> PyTree:
        """Return the release: a pytree like the target's parameters, leaves (draws, ...), NumPy.

        Args:
            plan: made by :meth:`OneShot.plan`.
            records: pytree of NumPy arrays, leaves (N, ...), checked against the target and its public bounds; of a
                mechanism that ``reads_sums``, the same as :class:`~dpmcmc.privacy.query.record_sums.Records`.
            streams: secret keys of this run, one stream for each purpose.

        Raises:
            DrawError: nothing could be released. The error depends on the records and is for the data holder alone.
        """
        raise NotImplementedError

    def planned(
        self,
        target: Target,
        spec: PrivacySpec,
        events: tuple[Event, ...],
        settings: dict[str, float],
        assumptions: tuple[str, ...] = (),
    ) -> Plan:
        """Return the plan of what was settled, with the guarantee of its events."""
        guarantee = Guarantee.from_events(
            events,
            delta=spec.delta,
            adjacency=spec.adjacency,
            accountant=self.accountant,
            release=self.release,
            assumptions=assumptions,
        )
        release = MechanismRelease(self, guarantee, settings, max(1, self.draws))
        return Plan(target, spec.num_records, (release,))


def _of_all(guarantee: Guarantee, spec: PrivacySpec) -> Guarantee:
    """Return the guarantee of a mechanism's events and of its integer noise, at the whole δ.

    Each release is charged for ``MOST_NUMBERS`` numbers, and one of more is refused (``integer_noise.py``).
    """
    return Guarantee.from_events(
        (*guarantee.events, *noise_tables.releases_event(guarantee.events)),
        delta=spec.delta,
        adjacency=guarantee.adjacency,
        accountant=guarantee.accountant,
        release=guarantee.release,
        assumptions=guarantee.assumptions,
    )
