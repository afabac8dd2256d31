"""Keys and all else that is kept for a run lie apart from the folder that is published."""

import os

import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine.reservation import Reservation
from dpmcmc.privacy import Ledger
from dpmcmc.storage.checkpoint import Checkpoint, CheckpointError
from tests.engine.test_one_run_per_reservation import DATA, PLAN, N


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def made(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    return Ledger.init(path, name="people", num_records=N, adjacency="replace_one", epsilon=1.2, delta=2e-5)


@pytest.mark.parametrize(
    "checkpoint",
    [
        *("run/ck", "run", "./run/a/../ck", "run/confidential", "run/confidential/../ck", "link/ck", "run/away/ck"),
        *("run/away", "run/confidential/back/ck", "other/in", "."),
    ],
)
def test_a_checkpoint_in_the_folder_that_is_published_is_refused(tmp_path, checkpoint):
    """By its name, by what a link of it leads to, and where the folder lies in it; before anything is charged."""
    for folder in ("run/confidential", "elsewhere", "other"):
        (tmp_path / folder).mkdir(parents=True)
    for link, to in {"link": "run", "run/away": "elsewhere", "run/confidential/back": "run", "other/in": "run"}.items():
        os.symlink(tmp_path / to, tmp_path / link)
    ledger = made(tmp_path / "people.ledger")
    with pytest.raises(ValueError, match=r"^checkpoint: .*published.*confidential"):
        dpmcmc.sample(PLAN, DATA, out="run", checkpoint=checkpoint, ledger=ledger)
    assert ledger.state().runs == ()
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize("give", [str, Ledger, lambda path: Reservation(path, PLAN.guarantee, "mine")])
def test_a_ledger_in_the_folder_that_is_published_is_refused(tmp_path, give):
    made(tmp_path / "run" / "x.ledger")
    with pytest.raises(ValueError, match=r"^ledger: .*published.*confidential"):
        dpmcmc.sample(PLAN, DATA, out=tmp_path / "run", ledger=give(tmp_path / "run" / "x.ledger"))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"x.ledger"}


def test_an_open_checkpoint_in_the_folder_that_is_published_is_refused():
    kept = Checkpoint("run/ck")
    with pytest.raises(ValueError, match="published"):
        dpmcmc.sample(PLAN, DATA, out="run", checkpoint=kept)
    kept.close()


def test_beside_the_folder_and_below_its_confidential_both_may_lie(tmp_path):
    for at, (checkpoint, ledger) in enumerate((("ck", "x.ledger"), ("{}/confidential/ck", "{}/confidential/x.ledger"))):
        out = f"run-{at}"
        book = made(tmp_path / ledger.format(out))
        dpmcmc.sample(PLAN, DATA, out=out, checkpoint=checkpoint.format(out), ledger=book)
        published = [path for path in (tmp_path / out).rglob("*") if "confidential" not in path.parts]
        assert "draws.nc" in {path.name for path in published}
        assert not {"run.json", "x.ledger", "ck.lock"} & {path.name for path in published}


def test_a_finished_checkpoint_does_not_answer_for_other_records():
    """So its digest of the records outlives its keys."""
    dpmcmc.sample(PLAN, DATA, checkpoint="ck")
    with pytest.raises(CheckpointError, match="other records"):
        dpmcmc.sample(PLAN, DATA | {"y": np.roll(DATA["y"], 1)}, checkpoint="ck")
