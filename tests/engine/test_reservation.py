"""A run takes its budget before it reads a record, keeps it over a crash, and gives it back only if it read nothing."""

import json
import os

import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.engine import chains, sizes
from dpmcmc.engine.kept_draws import KeptDraws
from dpmcmc.engine.life import Life
from dpmcmc.engine.reservation import Reservation
from dpmcmc.mechanisms import OutputPerturbation
from dpmcmc.privacy import Ledger, LedgerError, OverBudget
from dpmcmc.storage import checkpoint
from dpmcmc.storage.checkpoint import CheckpointError
from dpmcmc.storage.run_folder import RunFolder
from tests.engine.test_checkpoint import Stop, stopped
from tests.engine.test_engine import DATA, make

PLAN = make()


@pytest.fixture
def ledger(tmp_path):
    promise = {"adjacency": "replace_one", "epsilon": 3.0, "delta": 1e-4}
    return Ledger.init(tmp_path / "budget.db", name="data", num_records=400, **promise)


@pytest.fixture
def config(tmp_path):
    """A small private run on a file of one's own, charged to a ledger beside it."""
    np.savez(tmp_path / "mine.npz", x=DATA["x"], y=DATA["y"])
    body = {
        "name": "mine",
        "data": {"path": "mine.npz", "num_records": 400, "row_bound": 1.0},
        "target": {"name": "logistic_regression", "prior_scale": 1.0},
        "sampler": {"name": "sgld", "step_size": 8.0},
        "sampling": {"scheme": "poisson", "batch_size": 40},
        "privacy": {"epsilon": 1.0, "delta": 1e-4, "ledger": "budget.db"},
        "run": {"steps": 60, "burn_in": 0.5, "thin": 2},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def call(*arguments):
    """The command, in this process; its exit code."""
    return main(["run", *map(str, arguments)])


def refused(capsys, *arguments):
    """The one sentence of a refused command."""
    capsys.readouterr()
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def outcomes(ledger):
    return [run.outcome for run in ledger.state().runs]


@pytest.mark.slow
def test_runs_are_admitted_until_the_budget_is_spent(ledger):
    spent = []
    while ledger.fits(PLAN.guarantee):
        dpmcmc.sample(PLAN, DATA, ledger=ledger)
        spent.append(ledger.state().spent)
    assert 3 <= len(spent) < 20
    with pytest.raises(OverBudget, match=r"would fit: set privacy\.epsilon"):
        dpmcmc.sample(PLAN, DATA, ledger=ledger)
    np.testing.assert_allclose(np.diff(spent), spent[0], rtol=1e-9)
    assert outcomes(ledger) == ["released"] * len(spent)


def test_the_budget_is_taken_before_a_record_is_looked_at(ledger, monkeypatch):
    looked = []
    real = chains.check_records
    monkeypatch.setattr(chains, "check_records", lambda *a, **k: (looked.append(outcomes(ledger)), real(*a, **k))[1])
    dpmcmc.sample(PLAN, DATA, ledger=ledger)
    assert looked == [["open"]]


def test_bad_records_give_it_back_and_a_crash_does_not(ledger, monkeypatch):
    bad = DATA["x"].copy()
    bad[3, 0] = np.nan
    with pytest.raises(ValueError, match="row"):
        dpmcmc.sample(PLAN, DATA | {"x": bad}, ledger=ledger)
    assert outcomes(ledger) == ["void"]

    def crash(*_):
        raise MemoryError

    monkeypatch.setattr(KeptDraws, "add", crash)
    with pytest.raises(MemoryError):
        dpmcmc.sample(PLAN, DATA, ledger=ledger)
    assert outcomes(ledger) == ["void", "open"]
    assert ledger.state().spent > 0


def test_known_noise_another_data_set_and_another_size_are_refused(ledger):
    with pytest.raises(ValueError, match="without a guarantee"):
        dpmcmc.sample(PLAN, DATA, key=1, ledger=ledger)
    dpmcmc.sample(PLAN, DATA, ledger=ledger)
    with pytest.raises(LedgerError, match="not the data"):
        dpmcmc.sample(PLAN, DATA | {"x": -DATA["x"]}, ledger=ledger)
    with pytest.raises(LedgerError, match="planned for 300 records"):
        dpmcmc.sample(make(num_records=300), {name: leaf[:300] for name, leaf in DATA.items()}, ledger=ledger)
    assert outcomes(ledger) == ["released", "void"]


@pytest.mark.optimised
@pytest.mark.slow
def test_a_resumed_run_is_charged_once_and_elsewhere_it_is_refused(ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 7)
    monkeypatch.setattr(checkpoint, "_OVERHEAD", 1e9)
    stopped(tmp_path / "c", 3, plan=PLAN, ledger=ledger)
    once = ledger.state().spent
    stopped(tmp_path / "c", 3, plan=PLAN, ledger=ledger)
    assert ledger.state().spent == once
    monkeypatch.setattr(checkpoint, "platform", lambda: "elsewhere")
    with pytest.raises(CheckpointError, match="another platform"):
        dpmcmc.sample(PLAN, DATA, checkpoint=tmp_path / "c", ledger=ledger)
    assert outcomes(ledger) == ["open"]
    assert ledger.state().spent == once


def test_a_reservation_is_for_its_own_run_and_once(ledger):
    held = Reservation(ledger, PLAN.guarantee, "mine")
    with pytest.raises(LedgerError, match="not the one that was reserved"):
        dpmcmc.sample(make(steps=100), DATA, ledger=held)
    dpmcmc.sample(PLAN, DATA, ledger=held)
    with pytest.raises(LedgerError, match="one run"):
        dpmcmc.sample(PLAN, DATA, ledger=held)
    void = Reservation(ledger, PLAN.guarantee, "void")
    void.settle()
    with pytest.raises(LedgerError, match="one run"):
        dpmcmc.sample(PLAN, DATA, ledger=void)


def test_a_ledger_that_cannot_be_settled_costs_no_result(ledger, monkeypatch):
    def broken(*_):
        raise LedgerError("the disk is full.")

    monkeypatch.setattr(Ledger, "settle", broken)
    with pytest.warns(UserWarning, match="stays spent"):
        assert dpmcmc.sample(PLAN, DATA, ledger=ledger).guarantee == PLAN.guarantee
    assert outcomes(ledger) == ["open"]


@pytest.mark.slow
def test_a_result_made_in_python_carries_its_receipt(ledger, tmp_path):
    """Into privacy.json, which is written before the draws, with ``out`` and without."""
    result = dpmcmc.sample(PLAN, DATA, ledger=ledger, out=tmp_path / "out")
    result.save(tmp_path / "saved")
    for folder in ("out", "saved"):
        body = json.loads((tmp_path / folder / "privacy.json").read_text())
        assert body["ledger"] == result.receipt.to_json()
        assert body["ledger"]["id"] == ledger.state().runs[0].id
    ledger.confirm(result.receipt)
    assert dpmcmc.sample(PLAN, DATA).receipt is None


def test_a_result_that_cannot_be_saved_is_not_lost(ledger, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        dpmcmc.sample(PLAN, DATA, ledger=ledger, out=tmp_path / "file" / "run")
    assert outcomes(ledger) == []

    write = RunFolder.write

    def full(folder, name, content):
        if name == "draws.nc":
            raise OSError(28, "No space left on device")
        write(folder, name, content)

    monkeypatch.setattr(RunFolder, "write", full)
    with pytest.warns(UserWarning, match="No space left.*result.save"):
        result = dpmcmc.sample(PLAN, DATA, ledger=ledger, out=tmp_path / "run")
    assert outcomes(ledger) == ["released"]
    assert np.all(np.isfinite(result.draws))
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["ledger"] == result.receipt.to_json()


def test_a_one_shot_release_is_charged(ledger):
    target = dpmcmc.targets.LogisticRegression(prior_scale=1.0, num_features=3, row_bound=1.0)
    plan = OutputPerturbation().plan(target, num_records=400, epsilon=1.0, delta=1e-4)
    drawn = dpmcmc.sample(plan, DATA, ledger=ledger)
    assert outcomes(ledger) == ["released"]
    assert drawn.receipt.id == ledger.state().runs[0].id


@pytest.mark.slow
def test_the_command_charges_keeps_a_receipt_and_refuses_what_does_not_fit(ledger, config, tmp_path, capsys):
    for at in range(2):
        assert call(config, "--out", tmp_path / f"run-{at}", "--quiet") == 0
    receipt = json.loads((tmp_path / "run-1" / "privacy.json").read_text())["ledger"]
    assert ledger.state().runs[1].id == receipt["id"]
    assert str(tmp_path) not in json.dumps(receipt)
    capsys.readouterr()
    said = refused(capsys, config, "--out", tmp_path / "big", "--set", "privacy.epsilon=2.9")
    assert "would fit: set privacy.epsilon" in said
    assert not (tmp_path / "big").exists()
    assert outcomes(ledger) == ["released"] * 2


def test_the_command_is_refused_before_it_opens_the_data(ledger, config, tmp_path, capsys):
    os.remove(tmp_path / "mine.npz")
    said = refused(capsys, config, "--out", tmp_path / "run", "--set", "privacy.epsilon=9")
    assert "budget.db" in said
    (tmp_path / "link.db").hardlink_to(tmp_path / "budget.db")
    assert "2 names" in refused(capsys, config, "--out", tmp_path / "run")
    (tmp_path / "link.db").unlink()
    assert outcomes(ledger) == []
    assert "mine.npz" in refused(capsys, config, "--out", tmp_path / "run")
    assert outcomes(ledger) == ["void"]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_resuming_with_another_config_or_into_another_folder_is_refused(ledger, config, tmp_path, monkeypatch, capsys):
    def kill(*_):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(Life, "carry_out", kill)
        with pytest.raises(Stop):
            call(config, "--out", tmp_path / "run")
    resume = ("--resume", tmp_path / "run")
    assert "another config" in refused(capsys, config, *resume, "--set", "sampler.step_size=0.25")
    assert "leave --out" in refused(capsys, *resume, "--out", tmp_path / "other")
    assert "no config.yaml" in refused(capsys, "--resume", tmp_path / "nothing")
    assert "no checkpoint" in refused(capsys, *resume, "--confidential", tmp_path / "nothing")
    assert call(config, *resume) == 0


def test_interruption_says_how_to_go_on(config, ledger, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Life, "carry_out", interrupt)
        assert call(config, "--out", tmp_path / "run") == 130
    said = capsys.readouterr().err
    assert f"--resume {tmp_path / 'run'}" in said
    assert "nothing is spent" in said
    assert outcomes(ledger) == ["void"]
    assert call("--resume", tmp_path / "run") == 0
    assert outcomes(ledger) == ["void", "released"]
