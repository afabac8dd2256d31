"""Which of scikit-learn's tools keep the promise of a private estimator that they fit, and which break it.

A promise that is summed over fits holds where neighbouring tables, which differ in one record, lead to as many fits of
training sets of the same sizes, which differ in one row at most; and where all else that comes out is the same as long
as the releases are. Here every release is the same constant, whatever the records.
"""

import itertools
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import AdaBoostClassifier, StackingClassifier, VotingClassifier, VotingRegressor
from sklearn.feature_selection import SelectKBest, SequentialFeatureSelector
from sklearn.impute import SimpleImputer
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    GroupKFold,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    TunedThresholdClassifierCV,
    cross_val_score,
    cross_validate,
    train_test_split,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    StandardScaler,
)

from dpmcmc.errors import InputError
from dpmcmc.estimators import PrivateLinearRegression, PrivateLogisticRegression, PublicKFold, regressions
from dpmcmc.privacy.ledger import Ledger

N, K = 16, 3
FOLDS = PublicKFold(K, num_records=N)
PUBLIC = np.linspace(-1, 1, 14).reshape(7, 2)


def logistic(num_records=N, **settings):
    return PrivateLogisticRegression(1.0, num_records=num_records, ranges=(-1, 1), **settings)


def linear(num_records=N):
    return PrivateLinearRegression(1.0, num_records=num_records, ranges=(-1, 1), label_range=(-1, 1))


def neighbours():
    """Yield tables (rows, labels), each of which differs from the one before in one row.

    Labels follow one column at first, then the other one, and at last only one class is left.
    """
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, (N, 2))
    y = (x[:, 1] > 0).astype(int)
    yield x.copy(), y.copy()
    for step in range(2 * N):
        row = step % N
        x[row] = rng.uniform(-1, 1, 2)
        y[row] = step < N and x[row, 0] > 0
        yield x.copy(), y.copy()


@pytest.fixture
def fits(monkeypatch):
    """Encoded records of every fit, in the order of the fits; every release is the same."""
    seen = []

    def released(self, plan, records):
        seen.append(records)
        draws = np.tile(np.r_[np.linspace(1.0, 2.0, records["x"].shape[1] - 1), 0.1], (3, 1))
        return SimpleNamespace(flat_draws=lambda: draws, guarantee=None, usable_for=["prediction"])

    asked = SimpleNamespace(suggested=lambda goal: None, attempted=lambda goal, stacklevel: None)
    monkeypatch.setattr(regressions, "ask", lambda *_: asked)
    monkeypatch.setattr(regressions.PrivateRegression, "_released", released)
    return seen


def said(fitted):
    """What a fitted tool, or several of them, say of public rows, and the classes that they know."""
    if isinstance(fitted, list):
        return [said(one) for one in fitted]
    answer = getattr(fitted, "predict_proba", fitted.predict)(PUBLIC)
    return answer, fitted.predict(PUBLIC), getattr(fitted, "classes_", None)


def fitted(tool):
    return lambda x, y: said(clone(tool).fit(x, y))


def validated(tool, cv):
    settings = {"cv": cv, "return_estimator": True, "error_score": "raise"}
    return lambda x, y: said(list(cross_validate(tool, x, y, **settings)["estimator"]))


def three_classes(tool):
    return lambda x, y: said(clone(tool).fit(x, y + (x[:, 0] > 0.5)))


def split_by_labels(x, y):
    rows, _, labels, _ = train_test_split(x, y, stratify=y, random_state=0)
    return said(logistic(len(rows)).fit(rows, labels))


def by_groups(x, y):
    folds = GroupKFold(K).split(x, y, groups=np.rint(2 * x[:, 0]))
    return [said(logistic("observed").fit(x[rows], y[rows])) for rows, _ in folds]


def with_missing(x, y):
    x = np.where(np.arange(2 * N).reshape(N, 2) % 7 == 3, np.nan, x)
    return fitted(make_pipeline(SimpleImputer(), logistic()))(x, y)


def chosen(x, y):
    grid = {"ranges": [(-1, 1), (-0.1, 0.1), (-5, 5), (0, 1)]}
    return GridSearchCV(logistic(FOLDS.train_records), grid, cv=FOLDS, refit=False).fit(x, y).best_params_


def selected(x, y):
    selector = SequentialFeatureSelector(logistic(FOLDS.train_records), n_features_to_select=1, cv=FOLDS)
    return selector.fit(x, y).support_


TRAIN, BOTH = FOLDS.train_records, (FOLDS.train_records, N)
KEPT = {
    "PublicKFold": validated(logistic(TRAIN), FOLDS),
    "KFold": validated(logistic((10, 11)), KFold(K)),
    "ShuffleSplit": validated(logistic("observed"), ShuffleSplit(K, random_state=0)),
    "FunctionTransformer": fitted(make_pipeline(FunctionTransformer(np.tanh), logistic())),
    "Normalizer": fitted(make_pipeline(Normalizer(), logistic())),
    "PolynomialFeatures": validated(make_pipeline(PolynomialFeatures(2, include_bias=False), logistic(TRAIN)), FOLDS),
    "TransformedTargetRegressor": fitted(TransformedTargetRegressor(linear(), func=np.tanh, inverse_func=np.arctanh)),
    "MultiOutputRegressor": lambda x, y: said(MultiOutputRegressor(linear()).fit(x, np.column_stack([y, x[:, 0]]))),
    "VotingRegressor": fitted(VotingRegressor([("a", linear()), ("b", linear())])),
    "FixedThresholdClassifier": fitted(FixedThresholdClassifier(logistic(), threshold=0.3)),
}
ROWS = {
    "StratifiedKFold": validated(logistic("observed"), StratifiedKFold(K, shuffle=True, random_state=0)),
    "cv=5": validated(logistic("observed"), 5),
    "train_test_split(stratify=y)": split_by_labels,
    "GroupKFold": by_groups,
    "OneVsOneClassifier": three_classes(OneVsOneClassifier(logistic("observed"))),
    "OneVsRestClassifier": three_classes(OneVsRestClassifier(logistic())),
    "StandardScaler": fitted(make_pipeline(StandardScaler(), logistic())),
    "MinMaxScaler": fitted(make_pipeline(MinMaxScaler((-1, 1)), logistic())),
    "SimpleImputer": with_missing,
    "PCA": fitted(make_pipeline(PCA(1), logistic())),
    "SelectKBest": fitted(make_pipeline(SelectKBest(k=1), logistic())),
}
BESIDE = {
    "CalibratedClassifierCV": fitted(CalibratedClassifierCV(logistic(TRAIN), cv=FOLDS)),
    "TunedThresholdClassifierCV": fitted(TunedThresholdClassifierCV(logistic(BOTH), cv=FOLDS, thresholds=3)),
    "StackingClassifier": fitted(StackingClassifier([("a", logistic(BOTH))], cv=FOLDS)),
    "VotingClassifier": fitted(VotingClassifier([("a", logistic())])),
    "cross_val_score": lambda x, y: cross_val_score(logistic(TRAIN), x, y, cv=FOLDS),
    "GridSearchCV": chosen,
    "SequentialFeatureSelector": selected,
}


def leaks(run, fits):
    """Yield by what a tool tells neighbours apart: ``rows`` of the fits, or what it says ``beside`` them; or None."""
    before = None
    for x, y in neighbours():
        fits.clear()
        try:
            now = run(x, y), list(fits)
        except (ValueError, IndexError) as error:  # scikit-learn's own, of a class that is too rare
            now = type(error), list(fits)
        if before is not None:
            yield _apart(before, now)
        before = now


def _apart(one, other):
    (said_of_one, fits_of_one), (said_of_other, fits_of_other) = one, other
    if len(fits_of_one) != len(fits_of_other) or any(map(_rows_apart, fits_of_one, fits_of_other)):
        return "rows"
    return "beside" if pickle.dumps(said_of_one) != pickle.dumps(said_of_other) else None


def _rows_apart(one, other):
    """Whether two training sets differ in their sizes, or in more than one row."""
    if one["x"].shape != other["x"].shape:
        return True
    return np.sum(np.any(one["x"] != other["x"], axis=1) | (one["y"] != other["y"])) > 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KEPT)
def test_these_keep_the_promise(name, fits):
    assert not any(leaks(KEPT[name], fits))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ROWS)
def test_these_hand_neighbours_to_fit_that_are_none(name, fits):
    assert "rows" in leaks(ROWS[name], fits)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BESIDE)
def test_these_tell_of_private_rows_beside_the_releases(name, fits):
    assert "beside" in leaks(BESIDE[name], fits)


REFUSED = {
    "StratifiedKFold": validated(logistic(TRAIN), StratifiedKFold(K)),
    "cv=5": validated(logistic(TRAIN), 5),
    "cv=5 of a clone that was told nothing": validated(logistic(None), 5),
    "groups": lambda x, y: list(FOLDS.split(x, y, groups=y)),
    "OneVsOneClassifier": three_classes(OneVsOneClassifier(logistic())),
    "CalibratedClassifierCV": fitted(CalibratedClassifierCV(logistic())),
    "StackingClassifier": fitted(StackingClassifier([("a", logistic(TRAIN))])),
    "AdaBoostClassifier": fitted(AdaBoostClassifier(logistic())),
    "sample_weight": lambda x, y: logistic().fit(x, y, sample_weight=np.ones(N)),
    "class_weight": lambda x, y: logistic(class_weight="balanced"),
    "refit": lambda x, y: logistic(TRAIN).fit(x, y),
    "folds of another table": lambda x, y: list(FOLDS.split(x[1:])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_these_are_refused_before_a_row_is_fitted_and_no_count_is_said(name, fits):
    x, y = next(neighbours())
    with pytest.raises((InputError, ValueError, TypeError), match=r"num_records|weight|groups") as refusal:
        REFUSED[name](x, y)
    assert not fits
    # Numbers of rows of a fit are private counts here.
    assert {int(number) for number in re.findall(r"\d+", str(refusal.value))} <= {TRAIN, N, 5}


def test_folds_depend_on_the_number_of_rows_and_the_seed_alone():
    first = [(train.tolist(), test.tolist()) for train, test in FOLDS.split()]
    for x, y in itertools.islice(neighbours(), 5):
        assert [(train.tolist(), test.tolist()) for train, test in FOLDS.split(x, y)] == first
    assert first != [(train.tolist(), test.tolist()) for train, test in PublicKFold(K, num_records=N, seed=1).split()]
    assert FOLDS.get_n_splits() == K
    assert repr(FOLDS) == f"PublicKFold(n_splits={K}, num_records={N}, seed=0)"


@pytest.mark.parametrize("k", [2, 3, 5, 10])
def test_a_record_is_in_fewer_training_sets_than_there_are_and_sizes_are_no_other_folds_own(k):
    for n in range(2 * k + 2, 60):
        folds = list(PublicKFold(k, num_records=n).split())
        assert np.sort(np.concatenate([test for _, test in folds])).tolist() == list(range(n))
        assert all(len(train) == PublicKFold(k, num_records=n).train_records for train, _ in folds)
        assert not any(set(train) & set(test) for train, test in folds)
        times = np.bincount(np.concatenate([train for train, _ in folds]), minlength=n)
        assert times.max() <= k - 1
        assert folds[0][0].size not in {len(train) for train, _ in KFold(k).split(np.zeros(n))}


@pytest.mark.parametrize(
    ("name", "value"), [("n_splits", 1), ("n_splits", 40), ("num_records", 0), ("seed", -1), ("n_splits", 2.0)]
)
def test_folds_that_cannot_be_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        PublicKFold(**{"num_records": N} | {name: value})


@pytest.mark.filterwarnings("ignore")
def test_a_grid_charges_each_candidate_and_fold_once_and_stratified_folds_nothing(tmp_path):
    rng = np.random.default_rng(0)
    n = 600
    x = rng.uniform(-1, 1, (n, 2))
    y = (x[:, 0] > 0).astype(int)
    folds = PublicKFold(2, num_records=n)
    ledger = Ledger.init(tmp_path / "l", name="t", num_records=n, adjacency="replace_one", epsilon=9, delta=1e-4)
    model = logistic(folds.train_records).set_params(ledger=str(ledger.path))
    grid = GridSearchCV(model, {"epsilon": [0.5, 1.0]}, cv=folds, refit=False).fit(x, y)
    assert len(grid.cv_results_["params"]) == 2
    assert [run.outcome for run in ledger.state().runs] == ["released"] * 4
    spent = ledger.state().spent
    with pytest.raises(InputError, match=f"num_records: {folds.train_records} was declared"):
        cross_val_score(model, x, y, cv=3, error_score="raise")
    assert ledger.state().spent == spent
    assert len(ledger.state().runs) == 4
