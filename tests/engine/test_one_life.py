"""A copy of a run's checkpoint makes the bits that were paid for, or it is refused."""

import shutil

import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.engine.chains import Chains
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import DivergedError
from dpmcmc.mechanisms import SufficientStatistics
from dpmcmc.privacy import Ledger, LedgerError
from dpmcmc.storage.checkpoint import Checkpoint
from tests.engine.test_life import (
    HYBRID,
    LOGISTIC,
    ROUTES,
    Kill,
    _quick,
    after,
    before,
    promised,
    records,
    sampled,
    stop,
)
from tests.engine.test_life import scene as scene  # a fixture

assert _quick  # a fixture that every test here has

PLANS = {
    "sampler": sampled,
    "mechanism": lambda: promised(SufficientStatistics()),
    "hybrid": lambda: promised(HYBRID, LOGISTIC),
}


def sample(plan, folder, ledger, **arguments):
    return dpmcmc.sample(PLANS[plan](), records(), checkpoint=folder, ledger=ledger, **arguments)


def killed(plan, folder, ledger, kill):
    """A run that is killed, so that nobody settles it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reservation, "settle", lambda self, *_: None)
        kill(patch)
        with pytest.raises(Kill):
            sample(plan, folder, ledger)


#: Where a run is killed: as it begins, before and after the ledger knows it, after a commit, before it is settled.
MOMENTS = {
    "before its name is in the ledger": lambda plan: after(Checkpoint, "begin", Kill()),
    "as it begins": lambda plan: after(Reservation, "start", Kill()),
    "after a commit": lambda plan: committed(plan != "sampler"),
    "at the end": lambda plan: before(Reservation, "settle", Kill()),
}


def committed(stage):
    """A kill after a commit, of a stage or of a chain."""
    return after(Checkpoint, "commit_stage" if stage else "commit", Kill())


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("plan", PLANS)
def test_copies_of_a_run_that_has_begun_make_the_same_bits_under_one_charge(plan, moment, scene, tmp_path):
    killed(plan, tmp_path / "a", scene.ledger, MOMENTS[moment](plan))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first, second, again = (sample(plan, tmp_path / folder, scene.ledger).draws for folder in "aba")
    for other in (second, again):
        np.testing.assert_equal(other, first)
    scene.ledger.check()
    assert scene.runs == ["released"]
    assert [entry.kind for entry in scene.ledger.history()].count("begin") == 1


@pytest.mark.parametrize("plan", PLANS)
def test_of_copies_from_before_a_run_has_begun_one_begins(plan, scene, tmp_path):
    """Each would draw keys of its own."""
    killed(plan, tmp_path / "a", scene.ledger, before(Checkpoint, "begin", Kill()))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first = sample(plan, tmp_path / "b", scene.ledger)
    with pytest.raises(LedgerError, match="has not begun here: this is a copy of a run that is done"):
        sample(plan, tmp_path / "a", scene.ledger)
    np.testing.assert_equal(sample(plan, tmp_path / "b", scene.ledger).draws, first.draws)
    assert scene.runs == ["released"]


@pytest.mark.parametrize("name", ["run", "run of a mechanism", "run of a hybrid"])
def test_a_copied_run_folder_is_paid_for(name, scene):
    """Kill after a commit, ``cp -rp``, resume both."""
    stop(ROUTES[name], scene, committed(name != "run"), "kill")
    copied = shutil.copytree(scene.out, scene.folder / "copied")
    for folder in (scene.out, copied):
        assert main(["run", "--resume", str(folder)]) == 0
    assert (scene.out / "draws.nc").read_bytes() == (copied / "draws.nc").read_bytes()
    assert scene.runs == ["released"]


def test_records_of_another_data_set_are_refused_under_a_reservation_of_the_callers(scene):
    """A fold has a part of the records, and whoever reserves for one says so."""
    plan, given = PLANS["mechanism"](), records()
    other = given | {"x": -given["x"]}
    dpmcmc.sample(plan, given, ledger=scene.ledger)
    held = Reservation(scene.ledger, plan.guarantee, "mine")
    with pytest.raises(LedgerError, match="not the data"):
        dpmcmc.sample(plan, other, ledger=held)
    held.settle()
    assert scene.runs == ["released", "void"]
    fold = Reservation(scene.ledger, plan.guarantee, "fold", parts=True)
    dpmcmc.sample(plan, other, ledger=fold)
    fold.settle()
    assert scene.runs == ["released", "void", "released"]
    assert sum(entry.kind == "data" for entry in Ledger(scene.ledger.path).history()) == 1


def test_a_run_that_diverged_and_was_killed_after_it_was_settled_keeps_its_whole_folder(scene, capsys, monkeypatch):
    def diverge(self, life, progress):
        life.begin()
        raise DivergedError(3, 0.0, life.guarantee)

    monkeypatch.setattr(Chains, "carry_out", diverge)
    with pytest.MonkeyPatch.context() as patch:
        before(Checkpoint, "remove", Kill())(patch)
        with pytest.raises(Kill):
            ROUTES["run"].start(scene)
    assert scene.runs == ["released"]
    for stopped in (before(Reservation, "start", Kill()), None):  # killed once more before it begins, then not
        with pytest.MonkeyPatch.context() as patch:
            if stopped is None:
                assert main(["run", "--resume", str(scene.out)]) == 1
            else:
                stopped(patch)
                with pytest.raises(Kill):
                    main(["run", "--resume", str(scene.out)])
        assert main(["verify", str(scene.out / "privacy.json")]) == 0
    assert "diverged" in capsys.readouterr().err
    assert scene.runs == ["released"]
