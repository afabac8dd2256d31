"""``dpmcmc.fit`` and regressions with scikit-learn's interface."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.errors import InputError, NoGuarantee, NotForIntervals
from dpmcmc.estimators import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    expected_failed_checks,
)
from dpmcmc.inference.evidence import Evidence
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.privacy.ledger import Ledger, LedgerError
from dpmcmc.storage.fingerprint import fingerprint
from dpmcmc.targets import LogisticRegression

RANGES = [(0.0, 10.0), (-2.0, 2.0)]
COEFFICIENTS, INTERCEPT = np.array([0.15, -0.5]), -0.3


def table(n=20_000, seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.uniform(0, 10, n), rng.uniform(-2, 2, n)])
    return x, x @ COEFFICIENTS + INTERCEPT, rng


def test_logistic_coefficients_and_intervals_are_in_the_units_of_the_features():
    x, logit, rng = table()
    y = np.where(rng.random(len(x)) < expit(logit), "yes", "no")
    model = PrivateLogisticRegression(2.0, ranges=RANGES, classes=("no", "yes"), level=0.999).fit(x, y)
    assert model.guarantee_.epsilon <= 2
    low, high = model.intervals_.T
    assert ((low < COEFFICIENTS) & (high > COEFFICIENTS)).all()
    assert model.intercept_interval_[0] < INTERCEPT < model.intercept_interval_[1]
    assert model.coef_.shape == (1, 2)
    p = model.predict_proba(x[:50])
    np.testing.assert_allclose(p[:, 1], expit(x[:50] @ model.coef_[0] + model.intercept_[0]), atol=0.03)
    assert set(model.predict(x[:50])) <= {"no", "yes"}
    beyond = np.array([[99.0, 0.0], [10.0, 0.0]])
    assert np.ptp(model.predict_proba(beyond)[:, 1]) == 0  # clipped to the declared range


def test_linear_intervals_hold_where_nobody_declared_the_noise():
    x, mean, rng = table()
    model = PrivateLinearRegression(2.0, ranges=RANGES, label_range=(-6, 6), level=0.999)
    model.fit(x, mean + 0.4 * rng.normal(size=len(x)))
    low, high = model.intervals_.T
    assert ((low < COEFFICIENTS) & (high > COEFFICIENTS)).all()
    assert np.max(np.abs(model.predict(x[:50]) - mean[:50])) < 0.5
    assert isinstance(model.result_.plan.mechanism, NoiseAware)
    assert model.result_.plan.mechanism.covariance == "sandwich"
    # Labels are encoded on [-1, 1], and the noise has a twelfth of the range.
    assert model.result_.evidence.label_scale == pytest.approx(0.4 / 6, rel=0.2)
    assert Evidence.of(model.result_.evidence.content()).label_scale == model.result_.evidence.label_scale


@pytest.mark.filterwarnings("ignore::dpmcmc.NoGuarantee")
def test_nothing_is_learnt_from_data_beside_the_release():
    """A value beyond its range changes nothing, and a label outside the declared classes is refused, not learnt."""
    x, logit, rng = table(500)
    y = (rng.random(500) < expit(logit)).astype(int)
    model = PrivateLogisticRegression(5.0, num_records=500, ranges=RANGES, random_state=1)
    far = x.copy()
    x[0, 0], far[0, 0] = 10.0, 1e6
    np.testing.assert_array_equal(clone(model).fit(x, y).coef_, clone(model).fit(far, y).coef_)
    with pytest.raises(ValueError, match="classes"):
        clone(model).fit(x, y + 1)
    with pytest.raises(ValueError, match="ranges"):
        clone(model).set_params(ranges=[(0, 1)] * 3).fit(x, y)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epsilon": None}, "epsilon: say how much privacy"),
        ({"num_records": 399}, "num_records: 399 was declared, and fit was handed another number of rows"),
        ({"num_records": (10, 20)}, r"num_records: \(10, 20\) was declared"),
        ({"num_records": "seen"}, "num_records: seen was declared"),
        ({"num_records": 400.0}, "num_records must be a whole number"),
    ],
)
def test_an_estimator_has_no_default_for_epsilon_and_takes_no_number_of_rows_that_it_was_not_told(changes, said):
    x, _, _ = table(400)
    model = PrivateLinearRegression(**{"epsilon": 1.0, "ranges": RANGES, "label_range": (-1, 1)} | changes)
    with pytest.raises(InputError, match=said):
        model.fit(x, x[:, 1] / 2)


def test_ranges_that_nobody_declared_are_warned_of():
    with pytest.warns(UserWarning, match=r"ranges and label_range: nothing is declared, .* clipped to \(-1, 1\)"):
        PrivateLinearRegression(epsilon=20).fit(np.linspace(-1, 1, 200)[:, None], np.linspace(-1, 1, 200))


def test_a_known_seed_has_no_guarantee_and_a_hopeless_fit_says_so():
    x, logit, rng = table(100)
    y = (rng.random(100) < expit(logit)).astype(int)
    with pytest.warns(NotForIntervals, match="would do"), pytest.warns(NoGuarantee, match="NO privacy guarantee"):
        assert PrivateLogisticRegression(0.01, ranges=RANGES, random_state=0).fit(x, y).guarantee_ is None


def test_a_hopeless_fit_proposes_no_epsilon_beyond_the_proof_of_integer_noise():
    model = PrivateLinearRegression(1.0, num_records=1, ranges=(-1, 1), label_range=(-1, 1))
    with pytest.warns(NotForIntervals, match=r"num_records >= [\d,]+ (or epsilon >= [\d.]+ )?would do") as told:
        model.fit(np.zeros((1, 20)), np.zeros(1))
    proposed = re.findall(r"epsilon >= ([\d.]+)", " ".join(str(one.message) for one in told))
    assert all(float(epsilon) < 33 for epsilon in proposed)


def test_a_meta_estimator_that_seeds_its_members_is_told(tmp_path):
    x, logit, rng = table(900)
    y = (rng.random(900) < expit(logit)).astype(int)
    model = PrivateLogisticRegression(2.0, num_records=900, ranges=RANGES)
    with pytest.warns(NoGuarantee, match="BaggingClassifier"):
        assert BaggingClassifier(model, n_estimators=1).fit(x, y).estimators_[0].guarantee_ is None
    ledger = Ledger.init(tmp_path / "l", name="t", num_records=900, adjacency="replace_one", epsilon=4, delta=1e-4)
    with pytest.raises(ValueError, match="without a guarantee"), pytest.warns(NoGuarantee):
        clone(model).set_params(ledger=ledger.path, random_state=0).fit(x, y)


FRAME_SCHEMA = Schema({"a": Range(0, 10), "b": Range(-2, 2), "y": Levels(["no", "yes"])}, label="y")


def test_fit_goes_from_a_table_to_a_result(tmp_path):
    x, logit, rng = table(8000)
    frame = {"a": x[:, 0], "b": x[:, 1], "y": np.where(rng.random(len(x)) < expit(logit), "yes", "no")}
    ledger = tmp_path / "budget.json"
    with pytest.raises(LedgerError, match="no such ledger"):
        dpmcmc.fit("y ~ a + b", frame, FRAME_SCHEMA, epsilon=1.0, ledger=ledger)
    Ledger.init(ledger, name="table", num_records=8000, adjacency="replace_one", epsilon=2, delta=1e-4)
    steps = []

    def progress(done, total):
        steps.append((done, total))

    result = dpmcmc.fit("y ~ a + b", frame, FRAME_SCHEMA, epsilon=1.0, ledger=ledger, progress=progress)
    assert steps[-1][0] == steps[-1][1] > 1
    assert result.guarantee.epsilon <= 1
    assert result.receipt is not None
    assert "intervals" in result.usable_for
    assert result.plan.schema.names == ("a", "b", "intercept")
    assert dpmcmc.fit(["b"], frame, FRAME_SCHEMA, 1.0).plan.schema.names == ("b", "intercept")
    few = {k: v[:50] for k, v in frame.items()}
    with pytest.warns(NotForIntervals, match="would do"):
        assert dpmcmc.fit(None, few, FRAME_SCHEMA, epsilon=0.02).guarantee.epsilon <= 0.02
    with pytest.raises(ValueError, match="schema"):
        dpmcmc.fit(None, frame)


NOBODY = {"a": [1.0], "b": [1.0], "y": ["no"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((None, {}, FRAME_SCHEMA), "epsilon: say how much privacy the fit may spend.*1 or less is a strong promise"),
        ((None, {}, FRAME_SCHEMA, 0.0), r"epsilon: must be a number in \(0, 1e\+06\], got 0.0"),
        ((None, {}, FRAME_SCHEMA, "1"), "epsilon: must be a number"),
        ((None, {}, FRAME_SCHEMA, True), "epsilon: must be a number"),
        ((None, {}, FRAME_SCHEMA, float("nan")), "epsilon: must be a number"),
        ((pd.DataFrame({"a": [1.0]}), "y ~ a", FRAME_SCHEMA), "the table stands first; swap the two"),
        (({"a": [1.0]}, ["a"], FRAME_SCHEMA), "the table stands first; swap the two"),
        (("b ~ a", {}, FRAME_SCHEMA, 1.0), "its label is b, and the schema's is y"),
        (("y ~ .", {}, FRAME_SCHEMA, 1.0), r"leave the formula out \(None\)"),
        (([], NOBODY, FRAME_SCHEMA, 1.0), "the list of columns is empty"),
        ((["a + b"], NOBODY, FRAME_SCHEMA, 1.0), "'a \\+ b' is no column of the schema"),
        ((["a", 3], NOBODY, FRAME_SCHEMA, 1.0), "3 is no column of the schema"),
        ((["a", "y"], NOBODY, FRAME_SCHEMA, 1.0), "the label y is a feature too"),
        ((3, NOBODY, FRAME_SCHEMA, 1.0), "a formula, a list of columns or None stands first"),
        ((None, NOBODY, {"a": Range(0, 1)}, 1.0), "schema: must be a Schema"),
    ],
)
def test_a_fit_that_cannot_be_meant_is_one_sentence(arguments, said):
    with pytest.raises(InputError, match=said):
        dpmcmc.fit(*arguments)


def test_a_list_of_names_is_read_as_names():
    """In a formula these would be a difference, an interaction and a syntax error."""
    rng = np.random.default_rng(0)
    columns = {name: Range(0, 1) for name in ("x-1", "a:b", "my age")}
    frame = pd.DataFrame({name: rng.uniform(size=4000) for name in columns} | {"y": rng.integers(0, 2, 4000)})
    schema = Schema({**columns, "y": Levels([0, 1])}, label="y", intercept=False)
    result = dpmcmc.fit(["x-1", "a:b"], frame, schema, epsilon=3.0)
    assert result.plan.schema.names == ("x-1", "a:b")  # and the schema's own word on the intercept


SECRET = "31415926"


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (pd.DataFrame({"a": [1, 2, "x" + SECRET]}), [0, 1, 0], "X: a column holds text"),
        (np.array([float(SECRET), 1, 2]), [0, 1, 0], "Expected 2D array"),
        (np.array(float(SECRET)), [0, 1, 0], "Expected 2D array"),
        (np.full((3, 1), 1j * float(SECRET)), [0, 1, 0], "Complex data not supported"),
        (np.zeros((3, 1)), np.full(3, 1j * float(SECRET)), "Complex data not supported"),
        (np.ma.array(np.full((3, 1), float(SECRET)), mask=True), [0, 1, 0], "X is a masked array"),
        (np.zeros((3, 1)), np.ma.array([0, 1, int(SECRET)], mask=[0, 0, 1]), "y is a masked array"),
        (pd.DataFrame({"a": [1, 2, 10**400]}), [0, 1, 0], "X: a column holds text, or another value that is no number"),
    ],
)
def test_no_refusal_of_rows_quotes_them(x, y, said):
    """scikit-learn's own shows the array, or the text that is no number, and it drops a mask."""
    model = PrivateLogisticRegression(ranges=(0, 1))
    with pytest.raises(ValueError, match=said) as refusal:
        model.fit(x, y)
    assert SECRET[:4] not in str(refusal.value)


def test_no_refusal_of_labels_quotes_them():
    with pytest.raises(ValueError, match="y: a column holds text") as refusal:
        PrivateLinearRegression(ranges=(0, 1)).fit(np.zeros((3, 1)), np.array(["x" + SECRET] * 3, object))
    assert SECRET[:4] not in str(refusal.value)


@pytest.mark.parametrize("ranges", [[(0, 10**400)], [(0, 1), (2,)], "ab", [(0, None)]])
def test_ranges_that_are_no_numbers_are_one_sentence(ranges):
    with pytest.raises(InputError, match=r"ranges: |range: "):
        PrivateLinearRegression(ranges=ranges, label_range=(0, 1)).fit(np.zeros((3, 1)), np.zeros(3))


def test_a_ledger_knows_a_table_under_any_formula_and_from_any_source(tmp_path):
    x, _, rng = table(500)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.where(rng.random(500) < 0.5, "yes", "no")})
    frame.to_csv(tmp_path / "people.csv", index=False)
    init = {"name": "table", "num_records": 500, "adjacency": "replace_one", "epsilon": 9, "delta": 1e-4}
    ledger = Ledger.init(tmp_path / "ledger", **init)

    def use(formula, people):
        schema = FRAME_SCHEMA.with_formula(formula)
        plan = NoiseAware().plan(LogisticRegression(), num_records=500, epsilon=1.0, delta=1e-6, schema=schema)
        dpmcmc.sample(plan, people, ledger=ledger.path)

    dpmcmc.fit("y ~ a + b", frame, FRAME_SCHEMA, 3.0, ledger=ledger.path)
    use("y ~ a", frame)
    use("y ~ a:b", tmp_path / "people.csv")
    spent = ledger.state().spent
    for other in (frame[::-1], frame.assign(a=1.0), frame.assign(a=frame["a"].where(frame.index != 7, 1.0))):
        with pytest.raises(LedgerError, match="not the data"):
            use("y ~ a - 1", other)
    assert ledger.state().spent == spent
    # Planted: a ledger that knows encoded rows alone sends the same people to a second budget.
    with pytest.raises(LedgerError, match="not the data"):
        ledger.identify(lambda key: fingerprint(key, FRAME_SCHEMA.with_formula("y ~ b").encode(frame)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [PrivateLogisticRegression(1.0, num_records="observed"), PrivateLinearRegression(1.0, num_records="observed")],
    expected_failed_checks=expected_failed_checks,
)
def test_scikit_learn_checks(estimator, check):
    """Those that privacy rules out fail: what noise makes of one label alone, the check finds right in some fits."""
    for _ in range(20 if check.func.__name__ == "check_classifiers_one_label" else 1):
        check(estimator)
