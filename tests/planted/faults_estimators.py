"""Faults of estimators and their folds, and of refusals that come too late."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.model_selection import StratifiedKFold

from dpmcmc.estimators import PublicKFold, fitting, regressions, suggestion
from dpmcmc.mechanisms import certified_ops, one_shot
from tests.planted import Fault
from tests.planted import checks_estimators as checks

Patch = pytest.MonkeyPatch


def _folds_by_labels(patch: Patch) -> None:
    def split(self: PublicKFold, X: Any = None, y: Any = None, groups: Any = None) -> Any:
        return StratifiedKFold(self.n_splits).split(X, y)

    patch.setattr(PublicKFold, "split", split)


def _any_number_of_rows(patch: Patch) -> None:
    patch.setattr(regressions.PrivateRegression, "_check", lambda *_: None)


def _epsilon_of_one(patch: Patch) -> None:
    for room in (fitting, suggestion):
        patch.setattr(room, "asked_epsilon", lambda epsilon: 1.0 if epsilon is None else epsilon)


def _level_looked_at_when_it_is_used(patch: Patch) -> None:
    patch.setattr(regressions, "check_fields", lambda _: None)


def _numbers_counted_when_they_are_drawn(patch: Patch) -> None:
    for room in (one_shot, certified_ops):
        patch.setattr(room, "check_numbers", lambda _: None)


FAULTS = (
    Fault(
        "folds stratified by private labels",
        "Folds of a cross-validation are dealt so that each has as many rows of a class, and charged as plain ones.",
        _folds_by_labels,
        (checks.folds_are_the_same_for_all_labels,),
    ),
    Fault(
        "a private count taken for the number of records",
        "A meta-estimator hands the rows of two classes to a fit, whose plan makes their number public.",
        _any_number_of_rows,
        (checks.a_clone_takes_no_number_of_rows_that_it_was_not_told,),
    ),
    Fault(
        "an epsilon that nobody named",
        "A fit without epsilon spends 1.",
        _epsilon_of_one,
        (checks.no_fit_spends_an_epsilon_that_nobody_named,),
    ),
    Fault(
        "an estimator's level looked at after the release",
        "A level of 95 is charged, and fails when quantiles are taken.",
        _level_looked_at_when_it_is_used,
        (checks.an_impossible_level_costs_nothing,),
    ),
    Fault(
        "numbers of a release counted when noise is drawn",
        "A release of more numbers than integer noise is charged for is charged, and fails.",
        _numbers_counted_when_they_are_drawn,
        (checks.too_many_numbers_cost_nothing,),
    ),
)
