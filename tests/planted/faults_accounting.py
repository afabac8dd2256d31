"""Faults of accounting: what is charged, at which sensitivity, and what is remembered or composed wrongly."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from dpmcmc.cli import sweep
from dpmcmc.engine import checked_records
from dpmcmc.mechanisms import OPS, chain
from dpmcmc.mechanisms.one_shot import PrivacySpec
from dpmcmc.planning import noise
from dpmcmc.privacy import Guarantee
from dpmcmc.privacy.accounting import Event, group, grouping, objective, pld, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.charging import Schedule
from dpmcmc.privacy.accounting.group import GroupGuarantee
from dpmcmc.privacy.calibration import numeric, remembered
from tests.planted import Fault
from tests.planted import checks_accounting as accounting
from tests.planted import checks_query as checks

Patch = pytest.MonkeyPatch


def _charged_as(patch: Patch, change: Any) -> None:
    """Charges ``change(noise multipliers, chains)`` in place of a run's own, in plans and in calibrations."""
    real = Schedule.queries.fget
    assert real is not None

    def queries(self: Schedule) -> tuple[Event, ...]:
        z, chains = change(self.noise_multipliers, self.chains)
        return real(dataclasses.replace(self, noise_multipliers=z, chains=chains))

    patch.setattr(Schedule, "queries", property(queries))


def _one_chain(patch: Patch) -> None:
    _charged_as(patch, lambda z, chains: (z, 1))


def _kept_steps_alone(patch: Patch) -> None:
    _charged_as(patch, lambda z, chains: (z[len(z) // 3 :], chains))


def _charged_before_rounding(patch: Patch) -> None:
    real = noise.charge_noise

    def charged(noise_std: np.ndarray, *more: Any) -> Any:
        return real(np.nextafter(noise_std, np.float32(np.inf)), *more)

    patch.setattr(noise, "charge_noise", charged)


def _second_for_free(patch: Patch) -> None:
    patch.setattr(chain, "multiples", lambda second: (1.0,))


def _second_as_another_batch(patch: Patch) -> None:
    patch.setattr(chain, "multiples", lambda second: (1.0,) if second is None else (1.0, second.ratio))


def _half_the_sensitivity(patch: Patch) -> None:
    real = pld.gaussian_parameter
    patch.setattr(pld, "gaussian_parameter", lambda parts, adjacency: real(parts, Adjacency.ADD_REMOVE))


def _replacement_as_removal(patch: Patch) -> None:
    real = pld._composed_on.__wrapped__
    patch.setattr(pld, "_composed_on", lambda parts, adjacency, *grid: real(parts, Adjacency.ADD_REMOVE, *grid))


def _stale_accountant(patch: Patch) -> None:
    real, kept = rdp._one_step.__wrapped__, {}

    def one_step(mechanism: str, z: float, rate: float, n: Any, adjacency: str, orders: tuple) -> Any:
        key = (mechanism, z, rate, n, orders)
        if key not in kept:
            kept[key] = real(mechanism, z, rate, n, adjacency, orders)
        return kept[key]

    patch.setattr(rdp, "_one_step", one_step)


def _stale_calibration(patch: Patch) -> None:
    real = remembered._full
    patch.setattr(remembered, "_full", lambda inputs: real({k: v for k, v in inputs.items() if k != "adjacency"}))
    own = numeric.noise_multiplier

    def trusting(*settings: Any) -> float:
        with pytest.MonkeyPatch.context() as inner:
            if any(remembered.cache_folder().rglob("*.json")):
                # Without accounting the remembered number again.
                inner.setattr(numeric, "base_epsilon", lambda *_: 0.0)
            return own(*settings)

    patch.setattr(numeric, "noise_multiplier", trusting)


def _costs_its_largest_config(patch: Patch) -> None:
    patch.setattr(sweep, "composed", lambda guarantees: max(guarantees, key=lambda one: one.epsilon))


def _composes_anything(patch: Patch) -> None:
    real = Guarantee.compose

    def compose(self: Guarantee, other: Guarantee, delta: float | None = None) -> Guarantee:
        return real(self, dataclasses.replace(other, adjacency=self.adjacency), delta)

    patch.setattr(Guarantee, "compose", compose)


def _group_at_the_same_delta(patch: Patch) -> None:
    def for_group(self: Guarantee, size: int, delta: float | None = None) -> GroupGuarantee:
        return GroupGuarantee(size, size * self.epsilon, self.delta, self, "")

    patch.setattr(Guarantee, "for_group", for_group)


def _pairs_paid_once(patch: Patch) -> None:
    patch.setattr(group, "of_pairs", lambda events: False)


def _no_determinant(patch: Patch) -> None:
    patch.setattr(objective, "_loss", lambda m, kappa: np.maximum(0.0, m))


def _draws_pass_for_exact(patch: Patch) -> None:
    real = OPS.planned

    def planned(self: OPS, target: Any, spec: PrivacySpec, events: tuple[Event, ...], *rest: Any) -> Any:
        return real(self, target, spec, events[:1], *rest)

    patch.setattr(OPS, "planned", planned)
    patch.setattr(OPS, "_delta_left", lambda self, spec: spec.delta)


def _any_row(patch: Patch) -> None:
    patch.setattr(checked_records, "check_bound", lambda x, row_bound, resting: None)
    patch.setattr(checked_records, "within", lambda x, row_bound: np.asarray(x, np.float64))


def _groups_at_their_most_noise(patch: Patch) -> None:
    real = grouping.bucket_down

    def upwards(z: Any, counts: Any, **more: Any) -> Any:
        values, totals = real(z, counts, **more)
        return np.append(values[1:], np.max(z)), totals

    patch.setattr(grouping, "bucket_down", upwards)


FAULTS = (
    Fault(
        "a chain not charged",
        "Several chains are released and one is charged, as if they were one run looked at several times.",
        _one_chain,
        (checks.events_cover_every_query, accounting.saved_guarantees_are_verified),
    ),
    Fault(
        "burn-in not charged",
        "Steps whose draws are thrown away are left out, though every later draw depends on them.",
        _kept_steps_alone,
        (checks.events_cover_every_query, accounting.saved_guarantees_are_verified),
    ),
    Fault(
        "noise rounded down to float32",
        "The accountant has the float64 noise, and the device a float32 below it.",
        _charged_before_rounding,
        (checks.events_cover_every_query,),
    ),
    Fault(
        "second moment not charged",
        "A preconditioner's second query of the same minibatch goes for free.",
        _second_for_free,
        (checks.events_cover_every_query, accounting.saved_guarantees_are_verified),
    ),
    Fault(
        "two queries of one batch composed as independent",
        "Gradient and second moment see the same records and are charged as if each had drawn its own: 2.96 for 5.29.",
        _second_as_another_batch,
        (checks.one_batch_is_one_event,),
    ),
    Fault(
        "sensitivity C where 2C is right",
        "Under replace_one one gradient leaves the sum and another enters, and one of them is charged.",
        _half_the_sensitivity,
        (accounting.full_batch_runs_cost_their_closed_form,),
    ),
    Fault(
        "replacement accounted as removal",
        "The subsampled pair of add_remove is used under replace_one.",
        _replacement_as_removal,
        (accounting.minibatch_runs_cost_what_an_independent_accountant_says,),
    ),
    Fault(
        "accountant's cache without the adjacency",
        "A memoised step cost is keyed by noise and rate alone, and the first adjacency that asks decides for all.",
        _stale_accountant,
        (accounting.full_batch_runs_cost_their_closed_form,),
    ),
    Fault(
        "calibrations remembered without the adjacency",
        "Noise found for another promise is read from disk and trusted.",
        _stale_calibration,
        (accounting.a_plan_meets_its_epsilon_whatever_was_planned_before,),
    ),
    Fault(
        "a sweep costs its largest config",
        "The page of a sweep states the largest of the epsilons, as if nobody saw more than one config.",
        _costs_its_largest_config,
        (accounting.configs_of_a_sweep_cost_all_together,),
    ),
    Fault(
        "adjacencies mixed in a composition",
        "Two guarantees about different neighbours are added up under the label of one of them.",
        _composes_anything,
        (accounting.guarantees_of_different_adjacency_do_not_compose,),
    ),
    Fault(
        "a group charged kε at the same δ",
        "The group property of pure privacy is used where δ > 0.",
        _group_at_the_same_delta,
        (accounting.a_group_costs_its_closed_form,),
    ),
    Fault(
        "a pair's deviation paid once by a group",
        "An ideal law that is made for two neighbours is taken for one that each data set has, so that only the ends "
        "of a path pay for being near it.",
        _pairs_paid_once,
        (accounting.a_selection_keeps_its_promise_for_two_records,),
    ),
    Fault(
        "objective perturbation without the determinant",
        "The density of a minimiser has the Hessian's determinant as a factor, and a proof that forgets it says the "
        "Gaussian mechanism's ε.",
        _no_determinant,
        (accounting.minimisers_stay_within_their_profile,),
    ),
    Fault(
        "draws of an unconverged chain charged as exact",
        "OPS is told that its draws are within τ of the posterior, and does not charge it.",
        _draws_pass_for_exact,
        (accounting.draws_that_are_not_exact_are_charged,),
    ),
    Fault(
        "public row bound not enforced",
        "The proof rests on ‖x‖ <= R, and the records are taken as they come.",
        _any_row,
        (accounting.rows_beyond_their_public_bound_are_refused,),
    ),
    Fault(
        "groups charged at their most noise",
        "Many kinds of query are charged as a few, each at its group's largest noise multiplier in place of the least.",
        _groups_at_their_most_noise,
        (accounting.many_kinds_in_groups_cost_at_least_what_each_does,),
    ),
)
