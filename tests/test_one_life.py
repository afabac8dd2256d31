"""One reservation is one life: of all copies of a run's checkpoint one goes on, whenever they were made."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.engine.chains import Chains
from dpmcmc.engine.kept_draws import KeptDraws
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import DivergedError
from dpmcmc.mechanisms import SufficientStatistics
from dpmcmc.privacy import Ledger, LedgerError
from dpmcmc.storage.checkpoint import Checkpoint, CheckpointError
from tests.test_life import HYBRID, LOGISTIC, ROUTES, Kill, _quick, after, before, promised, records, sampled, stop
from tests.test_life import scene as scene  # a fixture

assert _quick  # a fixture that every test here has

COPIED = "from another copy of its checkpoint"
PLANS = {
    "sampler": sampled,
    "mechanism": lambda: promised(SufficientStatistics()),
    "hybrid": lambda: promised(HYBRID, LOGISTIC),
}


def sample(plan, folder, ledger, **arguments):
    return dpmcmc.sample(PLANS[plan](), records(), checkpoint=folder, ledger=ledger, **arguments)


def killed(plan, folder, ledger, owner, name, how=before):
    """A run that is killed in place of a call, or right after it."""
    with pytest.MonkeyPatch.context() as patch:
        how(owner, name, Kill())(patch)
        patch.setattr(Reservation, "settle", lambda self, *_: None)
        with pytest.raises(Kill):
            sample(plan, folder, ledger)


#: Where a run is killed: after a commit, before and after it has its keys, between the three writes of its name.
MOMENTS = {
    "before its name is kept": (Checkpoint, "claiming", before),
    "before its name is in the ledger": (Checkpoint, "claiming", after),
    "before its name is its own": (Checkpoint, "claimed", before),
    "as it begins": (Checkpoint, "claimed", after),
    "at the end": (Reservation, "finish", before),
    "after the end": (Reservation, "finish", after),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("plan", PLANS)
def test_of_copies_of_a_stopped_run_the_first_goes_on(plan, moment, scene, tmp_path):
    killed(plan, tmp_path / "a", scene.ledger, *MOMENTS[moment])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    # Stopped once more at the same place, it goes on nevertheless.
    with pytest.MonkeyPatch.context() as patch:
        owner, name, how = MOMENTS[moment]
        how(owner, name, Kill())(patch)
        with pytest.raises(Kill):
            sample(plan, tmp_path / "b", scene.ledger)
    first = sample(plan, tmp_path / "b", scene.ledger)
    with pytest.raises(LedgerError, match="one run"):
        sample(plan, tmp_path / "a", scene.ledger)
    again = sample(plan, tmp_path / "b", scene.ledger)
    np.testing.assert_equal(again.draws, first.draws)
    scene.ledger.check()
    assert scene.runs == ["released"]


@pytest.mark.parametrize("name", ["run", "run of a mechanism", "run of a hybrid"])
def test_a_copied_run_folder_is_refused_in_a_sentence(name, scene, capsys):
    """As the issue has it: kill after a commit, ``cp -rp``, resume both."""
    stop(ROUTES[name], scene, before(Reservation, "finish", Kill()), "kill")
    copied = shutil.copytree(scene.out, scene.folder / "copied")
    assert main(["run", "--resume", str(scene.out)]) == 0
    capsys.readouterr()
    assert main(["run", "--resume", str(copied)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "one run" in said
    assert said.count("\n") == 1
    assert scene.runs == ["released"]
    assert not (copied / "draws.nc").exists()


def test_a_sampler_that_was_stopped_after_a_commit_has_one_life(scene, tmp_path):
    """Its copy would take other steps under other flags of the compiler, and release those too."""
    killed("sampler", tmp_path / "a", scene.ledger, Checkpoint, "commit", after)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    sample("sampler", tmp_path / "a", scene.ledger)
    with pytest.raises(LedgerError, match="one run"):
        sample("sampler", tmp_path / "b", scene.ledger)
    assert scene.runs == ["released"]


def copied_while_it_runs(patch, folder, then):
    """Copy a run's checkpoint while it computes, and do something with the copy."""
    real, seen = Checkpoint.commit_stage, []

    def keep(self, *given):
        if self.folder == folder / "a" and not seen:
            seen.append(shutil.copytree(folder / "a", folder / "b"))
            then()
        real(self, *given)

    patch.setattr(Checkpoint, "commit_stage", keep)


def test_a_run_releases_nothing_where_a_copy_went_on_meanwhile(scene, tmp_path, monkeypatch):
    copied_while_it_runs(monkeypatch, tmp_path, lambda: sample("mechanism", tmp_path / "b", scene.ledger))
    with pytest.raises(LedgerError, match="one run"):
        sample("mechanism", tmp_path / "a", scene.ledger, out=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(LedgerError, match="one run"):
        sample("mechanism", tmp_path / "a", scene.ledger)
    assert scene.runs == ["released"]


def test_a_chain_that_diverges_is_not_told_of_where_a_copy_went_on(scene, tmp_path, monkeypatch):
    """At which step depends on the records as much as draws do."""

    def diverge(*_):
        monkeypatch.undo()
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        sample("sampler", tmp_path / "b", scene.ledger)
        raise dpmcmc.DivergedError(3, 9.0, None)

    monkeypatch.setattr(KeptDraws, "add", diverge)
    with pytest.raises(LedgerError, match="one run") as refused:
        sample("sampler", tmp_path / "a", scene.ledger)
    assert refused.value.__context__ is None


def test_a_copy_of_a_run_that_has_ended_since_is_refused(scene, tmp_path, monkeypatch):
    """Whoever reserved has not settled yet, so the ledger has the run open."""
    plan = PLANS["mechanism"]()
    held = Reservation(scene.ledger, plan.guarantee, "mine")
    copied_while_it_runs(monkeypatch, tmp_path, lambda: None)
    dpmcmc.sample(plan, records(), checkpoint=tmp_path / "a", ledger=held)
    with pytest.raises(LedgerError, match=COPIED):
        dpmcmc.sample(plan, records(), checkpoint=tmp_path / "b", ledger=held)
    held.settle()
    with pytest.raises(LedgerError, match="one run"):
        dpmcmc.sample(plan, records(), checkpoint=tmp_path / "b", ledger=held)
    assert scene.runs == ["released"]


def test_a_full_disk_at_the_end_loses_nothing_and_tells_nothing(scene, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        before(Checkpoint, "claiming", OSError(28, "No space left on device"), nth=1)(patch)
        with pytest.raises(OSError, match="No space"):
            sample("mechanism", tmp_path / "a", scene.ledger, out=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    sample("mechanism", tmp_path / "a", scene.ledger, out=tmp_path / "out")
    assert scene.runs == ["released"]


RACE = """
import os, sys, time
from pathlib import Path
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import DivergedError
from dpmcmc.privacy import LedgerError
from tests.test_one_life import sample
folder, mine = Path(sys.argv[1]), sys.argv[2]
start = Reservation.start
def together(self, *given):
    (folder / f"{mine}.ready").touch()
    while len(list(folder.glob("*.ready"))) < 2:
        time.sleep(0.001)
    start(self, *given)
Reservation.start = together
try:
    sample("mechanism", folder / mine, folder / "budget.db")
except LedgerError as error:
    assert "one run" in str(error)
    sys.exit(7)
"""


@pytest.mark.slow
def test_of_two_processes_that_resume_at_once_one_goes_on(scene, tmp_path):
    killed("mechanism", tmp_path / "a", scene.ledger, Checkpoint, "commit_stage")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    racers = [subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path), mine]) for mine in "ab"]
    assert sorted(racer.wait() for racer in racers) == [0, 7]
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


def test_a_run_that_was_begun_under_a_ledger_does_not_go_on_without_one(scene, tmp_path):
    """Without it nothing would know of the copies of its checkpoint."""
    killed("mechanism", tmp_path / "a", scene.ledger, Checkpoint, "claimed", after)
    with pytest.raises(CheckpointError, match="begun under a ledger, which is not given; give that ledger"):
        sample("mechanism", tmp_path / "a", None)
    assert sample("mechanism", tmp_path / "a", scene.ledger).receipt is not None


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
