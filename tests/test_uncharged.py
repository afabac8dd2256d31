"""Runs without a ledger are counted for each process by public facts alone, and the count leaves with no file."""

import math
import pickle

import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine import uncharged
from dpmcmc.estimators import PrivateLinearRegression
from dpmcmc.mechanisms import OPS, Chain, Hybrid, PrivateSelection, SufficientStatistics
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.targets import LinearRegression, LogisticRegression

N = 80
X = np.random.default_rng(0).uniform(-0.5, 0.5, (N, 2)).astype(np.float32)
RECORDS = {"x": X, "y": X[:, 0]}
TARGET = LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
SGLD = dpmcmc.SGLD(step_size=0.1)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch):
    monkeypatch.setattr(uncharged, "_SEEN", {})


def plan(epsilon=1.0, adjacency="replace_one", num_records=N):
    promise = {"num_records": num_records, "epsilon": epsilon, "delta": 1e-6, "adjacency": adjacency}
    return SufficientStatistics().plan(TARGET, **promise)


def run(records=RECORDS, **options):
    promise = {name: options.pop(name) for name in ("epsilon", "adjacency") if name in options}
    return dpmcmc.sample(plan(num_records=len(records["x"]), **promise), records, **options)


def test_a_result_says_how_many_runs_there_were_on_as_many_records_and_what_they_add_up_to():
    first, second, third = run(), run(epsilon=0.5), run(epsilon=0.25)
    assert [result.uncharged.runs for result in (first, second, third)] == [1, 2, 3]
    total = sum(result.guarantee.epsilon for result in (first, second, third))
    assert math.isclose(third.uncharged.epsilon, total)
    assert math.isclose(third.uncharged.delta, 3e-6)
    assert "\ntogether" not in str(first.summary())
    assert "together     run 3 of this process on 80 records without a ledger" in str(third.summary())
    assert "epsilon adds up to 1.7" in str(third.summary())
    # Numbers under another adjacency, and of another number of records, are not added.
    assert run(adjacency="zero_out").uncharged.runs == 1
    assert run({name: leaf[1:] for name, leaf in RECORDS.items()}).uncharged.runs == 1
    assert run().uncharged.runs == 4


def test_runs_of_a_ledger_and_of_a_known_key_are_not_counted(tmp_path):
    terms = {"name": "people", "num_records": N, "adjacency": "replace_one", "epsilon": 4.0, "delta": 1e-4}
    ledger = Ledger.init(tmp_path / "people.ledger", **terms)
    assert run(ledger=ledger).uncharged is None
    assert run(key=1).uncharged is None
    assert run().uncharged.runs == 1


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(Hybrid(OPS(prior_precision=1.0), SGLD, steps=3), id="hybrid", marks=pytest.mark.slow),
        pytest.param(PrivateSelection([Chain(SGLD, steps=3)] * 2, loss_bound=1.0), id="selection"),
    ],
)
def test_a_mechanism_that_runs_chains_itself_is_one_run(mechanism):
    target = LogisticRegression(num_features=2, row_bound=1.0)
    made = mechanism.plan(target, num_records=N, epsilon=1.0, delta=1e-6)
    result = dpmcmc.sample(made, {"x": X, "y": (X[:, 0] > 0).astype(np.int32)})
    assert result.uncharged.runs == 1
    assert [seen.runs for seen in uncharged._SEEN.values()] == [1]


def test_plans_that_run_together_and_estimators_are_counted_too():
    made = dpmcmc.plan(
        LogisticRegression(num_features=2, row_bound=1.0), num_records=N, sampler=SGLD, steps=3,
        privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-6),
    )  # fmt: skip
    records = {"x": X, "y": (X[:, 0] > 0).astype(np.int32)}
    assert {result.uncharged.runs for result in dpmcmc.sample_all([made, made], records)} == {1, 2}
    model = PrivateLinearRegression(1.0, ranges=(-1, 1), label_range=(-1, 1)).fit(X, X[:, 0])
    assert model.result_.uncharged.runs == 3


def test_a_run_that_is_refused_counts_for_nothing():
    with pytest.raises(ValueError, match="finite"):
        run({"x": X * np.nan, "y": X[:, 0]})
    assert uncharged._SEEN == {}


def test_what_is_saved_or_pickled_holds_no_count(tmp_path):
    run()
    result = run(key=None)
    assert result.uncharged.runs == 2
    assert pickle.loads(pickle.dumps(result)).uncharged is None
    folder = result.save(tmp_path / "saved")
    assert dpmcmc.Result.load(folder).uncharged is None
    for file in folder.iterdir():
        assert b"without a ledger" not in file.read_bytes()
        assert b"of this process" not in file.read_bytes()
    assert "without a ledger" not in result.page()
