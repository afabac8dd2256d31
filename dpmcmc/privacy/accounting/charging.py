"""From a plan's noise to the events it is charged for.

The only place where nominal quantities become charged ones, shared by ``account``, ``calibrate`` and the
plan, so that they cannot disagree:

* noise multiplier z → z / (1 + KAPPA): float32 clipping may exceed C by that much (``fixed_point.py``);
* rate → the generator's proved bound (``sampling.py``);
* a step with a second query → its combined z, or an event of its own (``second_moment.py``);
* batch overflow → an event of probability β a step, kept within ``OVERFLOW_SHARE`` of δ;
* a coordinate of integer noise → an approximate draw, kept within ``DRAW_SHARE`` of δ.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dpmcmc.privacy.accounting import (
    DEVIATIONS,
    Adjacency,
    Event,
    accountant_for,
    base_epsilon,
    discrete_gaussian,
    joined,
    query_events,
)
from dpmcmc.privacy.accounting.float_excess import KAPPA
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.sampling import Poisson, Sampling

#: Largest part of the user's δ that batch overflow may take. Where δ nearly covers the run, ε moves by more than a
#: percent with a percent of δ; a tenth of that share costs a few slots in a thousand.
OVERFLOW_SHARE = 1e-3
#: Largest part of δ that the deviation of integer noise may take.
DRAW_SHARE = 1e-4


class Charge(NamedTuple):
    """Events of a run and the batch slots that keep its overflow within them."""

    events: tuple[Event, ...]
    slots: int


def base_events(
    noise_multipliers: np.ndarray,
    sampling: Sampling,
    num_records: int,
    chains: int,
    multiples: tuple[float, ...] = (1.0,),
) -> tuple[Event, ...]:
    """Query events of a run, before overflow; one per minibatch of a step, ``multiples`` as in :func:`charge`."""
    charged = np.asarray(noise_multipliers, np.float64) / (1 + KAPPA)
    return query_events(
        sampling.mechanism(num_records),
        np.concatenate([charged * multiple for multiple in multiples]),
        sampling.charged_rate(num_records),
        repeats=chains,
        num_records=num_records,
    )


def charged_again(
    guarantee: Guarantee,
    noise_multipliers: np.ndarray,
    sampling: Sampling,
    num_records: int,
    chains: int,
    multiples: tuple[float, ...] = (1.0,),
) -> tuple[Event, ...]:
    """Events of some steps of a run that are taken a second time, with fresh keys.

    Args:
        guarantee: of the run, whose deviations (overflow) are charged again in full.
        noise_multipliers: nominal z of the steps taken again.
        sampling: scheme.
        num_records: N.
        chains: that take them again.
        multiples: as in :func:`charge`.
    """
    deviations = tuple(e for e in guarantee.events if e.mechanism in DEVIATIONS)
    return (*base_events(noise_multipliers, sampling, num_records, chains, multiples), *deviations)


def draw_events(coordinates: int, steps: int, chains: int) -> tuple[Event, ...]:
    """Return the charge for integer noise that is not exactly what its proof is about (``discrete_gaussian.py``).

    Args:
        coordinates: noisy numbers in a step.
        steps: per chain.
        chains: each is charged.
    """
    each = discrete_gaussian.deviation(discrete_gaussian.LEVELS[-1])
    return (Event("approximate_draw", 0.0, each, coordinates * steps * chains),)


def delta_of_queries(delta: float, sampling: Sampling, num_records: int) -> float:
    """The part of δ left to the queries."""
    can_overflow = isinstance(sampling, Poisson) and sampling.rate(num_records) < 1
    return delta * (1 - OVERFLOW_SHARE) if can_overflow else delta


def charge(
    noise_multipliers: np.ndarray,
    sampling: Sampling,
    num_records: int,
    chains: int,
    *,
    delta: float,
    adjacency: str,
    accountant: str,
    release: str,
    epsilon: float | None = None,
    multiples: tuple[float, ...] = (1.0,),
    beside: tuple[Event, ...] = (),
) -> Charge:
    """Events of a run, overflow included, and the batch slots it needs.

    Args:
        noise_multipliers: nominal z per step, (steps,).
        sampling: scheme.
        num_records: N.
        chains: each is charged.
        delta: total δ.
        adjacency: see ``accounting``.
        accountant: see ``accounting``.
        release: see ``accounting``.
        epsilon: an upper bound on the run's ε if known; otherwise it is computed.
        multiples: noise multiplier of each minibatch of a step, as multiples of z (``second_moment.multiples``).
        beside: events of other releases that the same guarantee covers.
    """
    events = (*beside, *base_events(noise_multipliers, sampling, num_records, chains, multiples))
    accountant_for(accountant, events, Adjacency(adjacency), release)
    steps = len(noise_multipliers) * chains * len(multiples)
    share = delta - delta_of_queries(delta, sampling, num_records)
    if share == 0 or not steps:
        return Charge(events, sampling.capacity(num_records, 0.0)[0])
    if epsilon is None:
        epsilon = base_epsilon(accountant, events, Adjacency(adjacency), delta - share)
    # Where e^ε overflows no truncation is cheap enough, and there is room for every record.
    allowed = share / (1 + math.exp(epsilon)) / steps if epsilon < 600 else 0.0
    slots, beta = sampling.capacity(num_records, allowed)
    if beta > 0:
        events = (*events, Event("batch_overflow", 0.0, beta, steps))
    return Charge(events, slots)


def charged_guarantee(
    noise_multipliers: np.ndarray,
    sampling: Sampling,
    num_records: int,
    chains: int,
    *,
    delta: float,
    adjacency: str,
    accountant: str,
    release: str,
    epsilon: float | None = None,
    multiples: tuple[float, ...] = (1.0,),
    after: Guarantee | None = None,
    deviations: tuple[Event, ...] = (),
) -> tuple[Guarantee, int]:
    """(guarantee, batch slots) of a run: :func:`charge`, whose arguments these are, and its accounting.

    ``after`` is the guarantee of releases before the run; the guarantee covers them too. ``deviations`` are those of
    the run's own noise (:func:`draw_events`).
    """
    beside = deviations if after is None else (*after.events, *deviations)
    if after is not None:
        release = joined(after.release, release)
    promise: dict[str, Any] = {"delta": delta, "adjacency": adjacency, "accountant": accountant, "release": release}
    charged = charge(
        noise_multipliers,
        sampling,
        num_records,
        chains,
        epsilon=epsilon,
        multiples=multiples,
        beside=beside,
        **promise,
    )
    assumptions = () if after is None else after.assumptions
    return Guarantee.from_events(charged.events, assumptions=assumptions, **promise), charged.slots
