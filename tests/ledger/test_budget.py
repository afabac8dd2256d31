"""A ledger's budget: what is reserved is spent until it is void, and nothing beyond the budget is admitted."""

import json
import math
import random
import stat

import pytest

from dpmcmc.privacy import Event, Full, Guarantee, Ledger, LedgerError, OverBudget, Poisson
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.ledger import file as store
from dpmcmc.privacy.ledger.book import _Sum
from tests.ledger.ledgers import TERMS, release


def test_a_reservation_is_spent_until_it_is_void(ledger, fifth):
    cost = ledger.terms.additive.cost(fifth.events, ledger.terms.adjacency)
    first, second = ledger.reserve(fifth, "first"), ledger.reserve(fifth, "second")
    state = ledger.state()
    assert state.spent == pytest.approx(2 * cost)
    assert state.spent + state.left == pytest.approx(ledger.terms.budget)
    assert [run.label for run in state.open] == ["first", "second"]
    ledger.settle(first, "released")
    assert ledger.state().spent == state.spent
    ledger.settle(second.id, "void")
    assert ledger.state().spent == pytest.approx(cost)
    assert ledger.state().open == ()
    assert [e.kind for e in ledger.history()] == ["init", "reserve", "reserve", "settle", "settle"]


def test_runs_are_admitted_until_the_budget_is_spent(ledger, fifth):
    for k in range(5):
        assert ledger.fits(fifth)
        ledger.reserve(fifth, f"run {k}")
    assert not ledger.fits(fifth)
    before = ledger.history()
    with pytest.raises(OverBudget, match="is left"):
        ledger.reserve(fifth, "run 5")
    assert ledger.history() == before
    state = ledger.state()
    assert state.spent <= ledger.terms.budget
    assert 0.8 < state.epsilon <= 1.0
    assert 0 < state.epsilon_left < fifth.epsilon


def test_settling_twice_or_an_unknown_run_is_refused(ledger, fifth):
    receipt = ledger.reserve(fifth, "run")
    ledger.settle(receipt, "released")
    for call in (
        lambda: ledger.settle(receipt, "void"),
        lambda: ledger.settle(receipt, "released"),
        lambda: ledger.settle("nobody", "void"),
        lambda: ledger.settle(ledger.reserve(fifth, "other"), "lost"),
    ):
        with pytest.raises(LedgerError):
            call()


def test_a_run_of_one_name_begins_and_is_not_void_after(ledger, fifth):
    receipt = ledger.reserve(fifth, "run")
    ledger.begin(receipt, "its name")
    for other in (None, "another", ""):
        with pytest.raises(LedgerError, match=r"has begun already, from another copy .* a reservation is for one run"):
            ledger.begin(receipt, other)
    with pytest.raises(LedgerError, match="cannot be void"):
        ledger.settle(receipt, "void")
    ledger.begin(receipt.id, "its name")
    ledger.settle(receipt)
    ledger.begin(receipt, "its name")
    assert [e.kind for e in ledger.history()] == ["init", "reserve", "begin", "settle"]
    with pytest.raises(LedgerError, match="is settled as released already"):
        ledger.begin(receipt, "another")
    unused = ledger.reserve(fifth, "unused")
    ledger.settle(unused)
    ledger.settle(unused)
    with pytest.raises(LedgerError, match=r"settled as void already, .* a reservation is for one run"):
        ledger.begin(unused)
    assert [run.outcome for run in ledger.state().runs] == ["released", "void"]
    with pytest.raises(LedgerError, match="no run"):
        ledger.begin("nobody")


def test_another_adjacency_another_size_and_no_noise_are_refused(path, tmp_path, ledger):
    with pytest.raises(LedgerError, match="adjacency=replace_one"):
        ledger.reserve(release(0.01, "zero_out"), "run")
    silent = Guarantee.from_events(
        (Event("gaussian", 0.0, 1.0, 1),), delta=1e-6, adjacency="replace_one", accountant="pld"
    )
    with pytest.raises(LedgerError, match="without noise") as refusal:
        ledger.reserve(silent, "run")
    assert not isinstance(refusal.value, OverBudget)
    sized = Ledger.init(tmp_path / "sized", **TERMS | {"num_records": 1000})
    other = Event("fixed_size_gaussian", 100.0, 0.01, 1, num_records=2000)
    with pytest.raises(LedgerError, match="1000"):
        sized.reserve(Guarantee.from_events((other,), delta=1e-6, adjacency="replace_one", accountant="rdp"), "run")
    assert len(ledger.history()) == len(sized.history()) == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"num_records": 10**7}, "1/N"),
        ({"adjacency": "both"}, "adjacency"),
        ({"filter": "sum"}, "filter"),
        ({"filter": "programme"}, "programme"),
        ({"filter": "gdp", "order": 8}, "order"),
        ({"order": 2, "epsilon": 0.1}, "order 2"),
        ({"overflow_share": 1.0}, "overflow_share"),
    ],
)
def test_terms_that_make_no_budget_are_refused_and_leave_no_file(path, wrong, words):
    with pytest.raises(LedgerError, match=words):
        Ledger.init(path, **TERMS | wrong)
    assert list(path.parent.iterdir()) == []


def test_a_ledger_is_never_made_twice(ledger, path):
    with pytest.raises(LedgerError, match="exists"):
        Ledger.init(path, **TERMS | {"epsilon": 100.0})
    assert Ledger(path).terms.epsilon == 1.0
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_file_is_its_owners_alone(ledger, path):
    with store.change(path):
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        # A journal or a lock beside it would go by a name, and a file may have several.
        assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_only_the_data_that_came_first_are_accepted(ledger, path):
    keys = []

    def of(text):
        return lambda key: keys.append(key) or text

    ledger.identify(of("aa"))
    Ledger(path).identify(of("aa"))
    with pytest.raises(LedgerError, match="not the data"):
        ledger.identify(of("bb"))
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32
    assert keys[0].hex() not in json.dumps([e.to_json() for e in ledger.history()])
    assert ledger.state().identified


def test_a_table_is_known_by_the_columns_that_are_there_again(ledger, path):
    def use(records, **columns):
        Ledger(path).identify(lambda key: records, lambda key: columns)

    use("aa", age="1", job="2", y="3")
    use("bb", age="1", y="3")  # another formula
    use("cc", age="1", pay="4")  # one more column
    use("dd", pay="4")
    use("bb")  # arrays that were encoded before
    for other in ({"age": "1", "job": "5"}, {"height": "1"}, {"pay": "1", "y": "3"}, {}):
        with pytest.raises(LedgerError, match="whole table with its schema"):
            use("ee", **other)
    known = [entry for entry in ledger.history() if entry.kind == "data"]
    assert [sorted(entry.body.get("columns", ())) for entry in known] == [["age", "job", "y"], [], ["pay"], []]


def test_a_stopped_run_finds_its_reservation_only_unchanged(ledger, fifth):
    assert ledger.find("run 1") is None
    receipt = ledger.reserve(fifth, "run 1")
    assert ledger.find("run 1", fifth) == receipt
    assert ledger.is_open(receipt)
    with pytest.raises(LedgerError, match="unchanged"):
        ledger.find("run 1", release(0.01))
    ledger.settle(receipt, "void")
    assert not ledger.is_open(receipt)
    assert ledger.find("run 1") is None


def programme():
    run = {"num_records": 10_000, "delta": 1e-6}
    return [
        account(2.5, steps=100, sampling=Poisson(100), **run),
        account(2.5, steps=100, sampling=Poisson(100), **run),
        account(30.0, steps=4, sampling=Full(), **run),
    ]


def test_a_programme_admits_each_of_its_runs_once_in_any_order(path):
    items = programme()
    ledger = Ledger.init(path, **TERMS | {"epsilon": 4.0}, filter="programme", programme=items)
    joint = ledger.terms.joint_epsilon
    assert joint < math.fsum(g.epsilon for g in items)
    whole = Guarantee.from_events(
        tuple(e for g in items for e in g.events), delta=1e-6, adjacency="replace_one", accountant="pld"
    )
    assert joint == whole.epsilon
    with pytest.raises(OverBudget, match="none of the 3"):
        ledger.reserve(account(2.6, steps=100, sampling=Poisson(100), num_records=10_000, delta=1e-6), "quieter")
    void = ledger.reserve(items[2], "full")
    ledger.settle(void, "void")
    for k in (2, 0, 1):
        assert ledger.fitting_epsilon(items[k]) == items[k].epsilon
        ledger.reserve(items[k], str(k))
    for item in items:
        with pytest.raises(OverBudget, match="none of the 0 of 3"):
            ledger.reserve(item, "again")
    assert ledger.state().epsilon == joint


def test_a_programme_beyond_its_promise_is_refused(path):
    with pytest.raises(LedgerError, match="cost epsilon"):
        Ledger.init(path, **TERMS | {"epsilon": 0.5}, filter="programme", programme=programme())
    assert not path.exists()


def test_sums_that_grow_and_shrink_are_those_of_fsum():
    source, total, kept = random.Random(0), _Sum(), []
    for _ in range(300):
        if kept and source.random() < 0.4:
            total.add(kept.pop(source.randrange(len(kept))), -1)
        else:
            kept.append(source.random() * 10.0 ** source.randint(-320, 300))
            total.add(kept[-1], 1)
        assert float(total) == math.fsum(kept)
    for value in (math.inf, math.nan):
        with pytest.raises((OverflowError, ValueError)):
            total.add(value, 1)
