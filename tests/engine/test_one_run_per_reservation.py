"""A reservation is for one run: whoever copies it, voids it meanwhile or settles it for another, no run is free."""

import contextlib
import copy
import multiprocessing
import pickle
import shutil
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine.life import reserved
from dpmcmc.engine.reservation import Reservation
from dpmcmc.mechanisms import OutputPerturbation
from dpmcmc.privacy import Ledger, LedgerError
from dpmcmc.storage.checkpoint import Checkpoint, CheckpointError

N = 300
X = np.random.default_rng(0).normal(size=(N, 3)) / 8
DATA = {"x": X, "y": (X[:, 0] > 0).astype(int)}
TARGET = dpmcmc.targets.LogisticRegression(num_features=3, row_bound=1.0)
PLAN = OutputPerturbation(regularisation=10.0).plan(TARGET, num_records=N, epsilon=1.0, delta=1e-5)


@pytest.fixture
def ledger(tmp_path):
    """A budget for one run of the plan."""
    promise = {"adjacency": "replace_one", "epsilon": 1.2, "delta": 2e-5}
    return Ledger.init(tmp_path / "people.ledger", name="people", num_records=N, **promise)


def outcomes(ledger):
    ledger.check()
    return [run.outcome for run in ledger.state().runs]


def work(held):
    return dpmcmc.sample(PLAN, DATA, ledger=held).draws


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda held: pickle.loads(pickle.dumps(held))])
def test_twins_of_a_reservation_release_once(ledger, twin):
    held = Reservation(ledger, PLAN.guarantee, "one run")
    twins = [twin(held) for _ in range(3)]
    work(twins[0])
    for other in (held, *twins):
        with pytest.raises(LedgerError, match="one run"):
            work(other)
        other.settle()
    assert outcomes(ledger) == ["released"]


def test_whoever_has_reserved_settles_what_another_ran(ledger):
    """As a worker does that gets a copy; one that failed before it began costs nothing."""
    held = Reservation(ledger, PLAN.guarantee, "fails")
    with pytest.raises(ValueError, match="row"):
        dpmcmc.sample(PLAN, DATA | {"x": X * np.nan}, ledger=copy.copy(held))
    held.settle()
    assert outcomes(ledger) == ["void"]
    held = Reservation(ledger, PLAN.guarantee, "works")
    work(copy.copy(held))
    held.settle()
    assert outcomes(ledger) == ["void", "released"]
    with pytest.raises(LedgerError, match="refused"):
        Reservation(ledger, PLAN.guarantee, "third")


@pytest.mark.slow
def test_a_worker_in_another_process_is_charged(ledger):
    held = Reservation(ledger, PLAN.guarantee, "worker")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert np.all(np.isfinite(pool.submit(work, held).result()))
    held.settle()
    assert outcomes(ledger) == ["released"]


def test_a_run_that_was_voided_before_it_began_computes_nothing(ledger):
    with warnings.catch_warnings(), reserved(PLAN, ledger=ledger) as life:
        warnings.simplefilter("error")
        life.read(DATA)
        Ledger(ledger.path).settle(ledger.state().open[0].id, "void")
        with pytest.raises(LedgerError, match=r"settled as void.*one run"):
            life.carry_out()
    assert outcomes(ledger) == ["void"]


def test_a_run_that_has_begun_is_never_void(ledger, monkeypatch):
    """While it runs, and after a crash that left it open."""
    said = []

    def crash(*_, **__):
        (run,) = ledger.state().open
        with pytest.raises(LedgerError, match="has begun") as refused:
            Ledger(ledger.path).settle(run.id, "void")
        said.append(refused)
        raise MemoryError

    monkeypatch.setattr(OutputPerturbation, "draw", crash)
    with pytest.raises(MemoryError):
        dpmcmc.sample(PLAN, DATA, ledger=ledger)
    assert len(said) == 1
    with pytest.raises(LedgerError, match="has begun"):
        ledger.settle(ledger.state().runs[0].id, "void")
    assert outcomes(ledger) == ["open"]


def test_threads_begin_a_run_once(ledger):
    held, began, refused = Reservation(ledger, PLAN.guarantee, "threads"), [], []
    gate = threading.Barrier(4)

    def begin():
        gate.wait()
        try:
            held.start(PLAN.guarantee)
            began.append(1)
        except LedgerError:
            refused.append(1)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(began), len(refused)) == (1, 3)


def test_a_copy_of_a_checkpoint_that_has_not_begun_has_no_run_of_its_own(ledger, tmp_path):
    """Both know the reservation's name, and each would draw keys of its own; also where the copy is started again."""
    with reserved(PLAN, checkpoint=tmp_path / "a", ledger=ledger) as life:
        life.reservation._settles = False  # killed: nothing is settled
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with reserved(PLAN, checkpoint=tmp_path / "b", ledger=ledger) as other:
        other.read(DATA)
        first = dpmcmc.sample(PLAN, DATA, checkpoint=tmp_path / "a", ledger=ledger)
        with pytest.raises(LedgerError, match="one run"):
            other.carry_out()
    with pytest.raises(LedgerError, match="one run"):
        dpmcmc.sample(PLAN, DATA, checkpoint=tmp_path / "b", ledger=ledger)
    again = dpmcmc.sample(PLAN, DATA, checkpoint=tmp_path / "a", ledger=ledger)
    assert np.array_equal(first.draws, again.draws)
    assert outcomes(ledger) == ["released"]


def test_two_runs_with_one_open_checkpoint_begin_once(ledger, tmp_path):
    with contextlib.closing(Checkpoint(tmp_path / "c")) as kept, contextlib.ExitStack() as opened:
        lives = [opened.enter_context(reserved(PLAN, checkpoint=kept, ledger=ledger)) for _ in range(2)]
        for life in lives:
            life.read(DATA)
        lives[0].carry_out()
        with pytest.raises(CheckpointError, match="one run"):
            lives[1].carry_out()


def test_a_stopped_run_goes_on_under_the_same_reservation(ledger, tmp_path, monkeypatch):
    """Given by its caller, who settles it; with another checkpoint it would have other keys."""
    held = Reservation(ledger, PLAN.guarantee, "mine")

    def kill(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OutputPerturbation, "draw", kill)
        with pytest.raises(KeyboardInterrupt):
            dpmcmc.sample(PLAN, DATA, checkpoint=tmp_path / "c", ledger=held)
    with pytest.raises(LedgerError, match="one run"):
        dpmcmc.sample(PLAN, DATA, checkpoint=tmp_path / "d", ledger=held)
    dpmcmc.sample(PLAN, DATA, checkpoint=tmp_path / "c", ledger=held)
    held.settle()
    assert outcomes(ledger) == ["released"]


def test_a_run_that_was_settled_without_a_beginning_is_not_made_again(ledger, tmp_path, monkeypatch):
    """Older versions told the ledger nothing of a beginning."""
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "begin", lambda *_, **__: None)
        patch.setattr(Reservation, "settle", lambda self, *_: self.ledger.settle(self.receipt, "released"))
        dpmcmc.sample(PLAN, DATA, checkpoint=tmp_path / "c", ledger=ledger)
    assert [entry.kind for entry in ledger.history()] == ["init", "reserve", "data", "settle"]
    with pytest.raises(LedgerError, match="one run"):
        dpmcmc.sample(PLAN, DATA, checkpoint=tmp_path / "c", ledger=ledger)
    with pytest.raises(LedgerError, match="one run"):
        ledger.begin(ledger.state().runs[0].id)
    assert outcomes(ledger) == ["released"]
