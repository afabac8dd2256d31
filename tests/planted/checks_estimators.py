"""Estimators, folds and refusals: what is fitted, what is told beside it, and what is charged for nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.errors import InputError
from dpmcmc.estimators import PrivateLinearRegression, PublicKFold
from dpmcmc.mechanisms import SufficientStatistics
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.privacy.query import integer_noise
from dpmcmc.targets import LinearRegression
from tests.planted import Caught, Scene, require

_N = 40
_X = np.random.default_rng(0).uniform(-0.5, 0.5, (_N, 2)).astype(np.float32)
_TARGET = LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _model(**settings: Any) -> PrivateLinearRegression:
    return PrivateLinearRegression(**{"epsilon": 2.0, "ranges": (-1, 1), "label_range": (-1, 1)} | settings)


def _refused(act: Callable[[], object], sentence: str) -> None:
    """Require that an act is refused; an error that nobody meant is none."""
    with _quiet():
        try:
            act()
        except InputError:
            return
        except Exception as error:
            raise Caught(f"{sentence} ({type(error).__name__})") from error
    raise Caught(sentence)


def _refused_unspent(scene: Scene, name: str, act: Callable[[Ledger], object]) -> None:
    """Require that an act is refused, and that the ledger which it names holds no charge."""
    path = scene.folder / f"{name}.ledger"
    path.unlink(missing_ok=True)
    terms = {"num_records": _N, "adjacency": "replace_one", "epsilon": 4.0, "delta": 2e-3}
    ledger = Ledger.init(path, name="people", **terms)
    with _quiet(), pytest.raises(Exception):  # noqa: B017  # whatever it is: the ledger is looked at
        act(ledger)
    require(ledger.state().spent == 0, "a run that was refused stays charged")


def folds_are_the_same_for_all_labels(scene: Scene) -> None:
    """One changed label changes no fold, so that training sets of neighbours differ in one row at most."""
    folds, y = PublicKFold(4, num_records=_N), (_X[:, 0] > 0).astype(int)
    first = [train.tolist() for train, _ in folds.split(_X, y)]
    for row in range(_N):
        changed = np.where(np.arange(_N) == row, 1 - y, y)
        now = [train.tolist() for train, _ in folds.split(_X, changed)]
        require(now == first, "a changed label moves other records from one fold to another")


def a_clone_takes_no_number_of_rows_that_it_was_not_told(scene: Scene) -> None:
    """A clone, as meta-estimators fit, refuses rows whose number may be a count of private labels."""
    for told in (None, _N):
        model = clone(_model(num_records=told))
        _refused(lambda model=model: model.fit(_X[1:], _X[1:, 0]), "a private count of rows is taken for public")


def no_fit_spends_an_epsilon_that_nobody_named(scene: Scene) -> None:
    """``fit`` and estimators refuse to choose ε."""
    schema = Schema({"a": Range(-1, 1), "y": Levels([0, 1])}, label="y")
    table = {"a": _X[:, 0], "y": (_X[:, 0] > 0).astype(int)}
    _refused(lambda: dpmcmc.fit(None, table, schema, goal="prediction"), "a fit spends an epsilon that nobody named")
    _refused(lambda: _model(epsilon=None).fit(_X, _X[:, 0]), "an estimator spends an epsilon that nobody named")


def an_impossible_level_costs_nothing(scene: Scene) -> None:
    """Arguments of an estimator are looked at before the budget is spent."""
    _refused_unspent(scene, "level", lambda ledger: _model(level=95, ledger=ledger.path).fit(_X, _X[:, 0]))


def too_many_numbers_cost_nothing(scene: Scene) -> None:
    """A release of more numbers than integer noise is charged for is refused by its plan."""

    def act(ledger: Ledger) -> None:
        plan = SufficientStatistics().plan(_TARGET, num_records=_N, epsilon=2.0, delta=1e-6)
        dpmcmc.sample(plan, {"x": _X, "y": _X[:, 0]}, ledger=ledger)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_noise, "MOST_NUMBERS", 2)
        _refused_unspent(scene, "numbers", act)
