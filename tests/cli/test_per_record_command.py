"""``dpmcmc run --per-record``: the account stays apart, is charged once, and covers a run that was stopped."""

import csv
import errno
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import xarray

from dpmcmc.cli.commands import main
from dpmcmc.diagnostics.per_record import account
from dpmcmc.engine import result
from dpmcmc.engine.kept_draws import KeptDraws
from dpmcmc.errors import InputError
from dpmcmc.privacy import Ledger
from dpmcmc.privacy.ledger import Receipt
from dpmcmc.storage import checkpoint
from dpmcmc.storage.run_folder import RunFolder
from experiments import fig_per_record
from tests.overlaps import no_overlaps


@pytest.fixture(scope="module", autouse=True)
def _no_text_on_another():
    with no_overlaps():
        yield


def table(confidential):
    return np.genfromtxt(confidential / "per_record.csv", delimiter=",", names=True)


@pytest.mark.slow
def test_the_command_keeps_the_account_apart_from_what_is_released(tmp_path, capsys):
    config = Path(__file__).parents[2] / "configs" / "breast_cancer.yaml"
    arguments = [str(config), "--set", "run={steps: 12, burn_in: 0.5, thin: 2}", "--out", str(tmp_path / "run")]
    assert main(["run", "--per-record", *arguments]) == 0
    folder, confidential = tmp_path / "run", tmp_path / "run" / "confidential"
    released = {"config.yaml", "draws.nc", "figures", "metrics.json", "plan.json", "privacy.json", "report.html"}
    assert {p.name for p in folder.iterdir()} == {*released, "confidential"}
    assert {p.name for p in confidential.iterdir()} == {"per_record.csv", "diagnostics.json"}
    assert stat.S_IMODE(confidential.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in confidential.iterdir())
    kept = table(confidential)
    worst = kept["worst_case"][0]
    assert kept["epsilon"].max() <= worst * (1 + 1e-9)
    # The worst case's own is public.
    numbers = {f"{e:.6f}" for e in kept["epsilon"] if e < 0.999 * worst}
    released = capsys.readouterr().out + "".join(p.read_text() for p in folder.glob("*.json"))
    assert len(numbers) > 100
    assert not any(number in released for number in numbers)
    with xarray.open_dataset(folder / "draws.nc", group="path") as draws:
        assert draws.sizes["draw"] == 3
    for wrong, said in (
        (arguments, "already holds a run that is done"),
        ([str(config), "--set", "privacy=null", "--out", str(tmp_path / "other")], "no guarantee"),
    ):
        assert main(["run", "--per-record", *wrong]) == 2
        assert said in capsys.readouterr().err


@pytest.fixture
def charged(tmp_path):
    """(arguments of a small run that is charged to a ledger, the ledger)."""
    config = Path(__file__).parents[2] / "configs" / "breast_cancer.yaml"
    terms = {"num_records": None, "adjacency": "replace_one", "epsilon": 5.0, "delta": 1e-3}
    ledger = Ledger.init(tmp_path / "budget.ledger", name="breast", **terms)
    run = ["--set", "run={steps: 12, burn_in: 0.5, thin: 2}", "--set", f"privacy.ledger={ledger.path}"]
    return [str(config), *run, "--out", str(tmp_path / "run")], ledger


def refused(capsys, arguments, code):
    capsys.readouterr()
    assert main(["run", *([] if "--resume" in arguments else ["--per-record"]), *arguments]) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_command_charges_nothing_of_a_run_that_it_refuses(charged, capsys, monkeypatch):
    arguments, ledger = charged
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "json", no_space)
        assert "No space left" in refused(capsys, arguments, 2)
    with monkeypatch.context() as patch:
        patch.setattr(account, "_norms_of", lambda *_: (_ for _ in ()).throw(InputError("target: has no norms")))
        assert "no norms" in refused(capsys, arguments, 2)
    assert [run.outcome for run in ledger.state().runs] == ["void"] * 2
    assert ledger.state().spent == 0
    assert not Path(arguments[-1]).exists()


@pytest.mark.slow
def test_a_command_that_is_stopped_goes_on_and_accounts_for_the_whole_run(charged, capsys, monkeypatch):
    arguments, ledger = charged
    folder = Path(arguments[-1])
    start, confidential = arguments, folder / "confidential"
    stops = [
        ((KeptDraws, "add"), KeyboardInterrupt(), 130),
        ((result, "content"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2),
        ((account, "_epsilon"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2),
    ]
    for (room, name), error, code in stops:
        with monkeypatch.context() as patch:
            patch.setattr(room, name, lambda *_, error=error: (_ for _ in ()).throw(error))
            assert f"go on with: dpmcmc run --resume {folder}" in refused(capsys, start, code).replace("goes", "go")
        start = ["--resume", str(folder)]
        (run,) = ledger.state().runs
        assert run.outcome == "open"
        ledger.confirm(Receipt(**json.loads((folder / "privacy.json").read_text())["ledger"], path=ledger.path))
        assert (folder / "draws.nc").exists() == (name == "_epsilon")
        assert not (confidential / "per_record.csv").exists()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "platform", lambda: "elsewhere")
        # The run is done: no step is taken twice.
        assert main(["run", *start]) == 0
    assert [run.outcome for run in ledger.state().runs] == ["released"]
    kept = table(confidential)
    assert np.all((kept["epsilon"] > 0) & (kept["epsilon"] <= kept["worst_case"] * (1 + 1e-9)))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_figure_of_adult(tmp_path):
    assert fig_per_record.main(["--quick", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "fig_per_record.png").stat().st_size > 10_000
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == fig_per_record.COLUMNS
    for row in rows:
        assert float(row["smallest"]) < float(row["mean"]) < float(row["worst_case"])
        assert float(row["largest"]) == pytest.approx(float(row["worst_case"]), rel=1e-5)
