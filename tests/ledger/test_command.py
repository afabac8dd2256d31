"""``dpmcmc ledger``: init, show and history."""

import json
import re
import shutil

import yaml

from dpmcmc.privacy import Ledger
from tests.ledger.ledgers import ROOT, call, edited, refused


def test_the_command_makes_shows_and_lists_a_ledger(path, capsys, fifth, tmp_path):
    path = tmp_path / "adult.ledger"
    assert call("init", path, "--epsilon", 1, "--delta", "1e-6", "--num-records", 32561) == 0
    assert "ε 1, δ 1e-06, replace_one; 32,561 records" in capsys.readouterr().out
    ledger = Ledger(path)
    assert ledger.terms.name == "adult"
    receipt = ledger.reserve(fifth, "first run")
    assert call("show", path) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^run .*running or crashed  first run$", shown, re.MULTILINE)
    assert re.search(r"^spent .*next run up to ε [\d.]+$", shown, re.MULTILINE)
    assert call("show", path, "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["spent"] == ledger.state().spent
    assert body["epsilon_left"] < body["epsilon"] == 1.0
    assert call("history", path) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert call("history", path, "--json") == 0
    (init, entry) = json.loads(capsys.readouterr().out)
    assert init["kind"] == "init"
    assert entry["hash"] == receipt.hash
    assert entry["body"]["events"] == [e.to_json() for e in fifth.events]


def test_the_command_checks_receipts(ledger, path, capsys, tmp_path, fifth):
    shutil.copy(path, tmp_path / "old")
    receipt = ledger.reserve(fifth, "run")
    assert "path" not in receipt.to_json()
    alone, folder = tmp_path / "receipt.json", tmp_path / "privacy.json"
    alone.write_text(json.dumps(receipt.to_json()))
    folder.write_text(json.dumps({"epsilon": 1.0, "ledger": receipt.to_json()}))
    assert call("history", path, "--receipt", alone, "--receipt", folder) == 0
    capsys.readouterr()
    shutil.copy(tmp_path / "old", path)
    assert "old copy" in refused(capsys, 1, "show", path, "--receipt", folder)
    folder.write_text("{}")
    assert "no receipt" in refused(capsys, 2, "show", path, "--receipt", folder)
    assert "cannot be read" in refused(capsys, 2, "show", path, "--receipt", tmp_path / "none.json")


def test_the_command_refuses_in_one_sentence(ledger, path, capsys, tmp_path):
    assert "no such ledger" in refused(capsys, 2, "show", tmp_path / "none")
    (tmp_path / "text").write_text("hello" * 1000)
    assert "not a ledger" in refused(capsys, 2, "history", tmp_path / "text")
    assert "exists" in refused(capsys, 2, "init", path, "--epsilon", 1, "--delta", "1e-6")
    assert "order" in refused(capsys, 2, "init", tmp_path / "a", "--epsilon", 0.1, "--delta", "1e-6", "--order", 2)
    edited(path, lambda first, entries: first.update(hash="x"))
    assert "do not spend" in refused(capsys, 1, "show", path)


def test_the_command_plans_a_programme_from_configs(tmp_path, capsys):
    body = yaml.safe_load((ROOT / "configs" / "breast_cancer.yaml").read_text())
    body["run"] = {"steps": 40, "chains": 1, "burn_in": 0.5, "thin": 2}
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(body))
    path = tmp_path / "programme"
    terms = ["--epsilon", 3, "--delta", body["privacy"]["delta"], "--programme", config, "--programme", config]
    assert call("init", path, *terms, "--set", "privacy.epsilon=1.0") == 0
    assert "0 of 2 runs" in capsys.readouterr().out
    assert len(Ledger(path).terms.items) == 2
    assert 1.0 < Ledger(path).terms.joint_epsilon < 2.0
    missing = refused(capsys, 2, "init", tmp_path / "b", *terms, "--set", "privacy=null")
    assert "no guarantee" in missing
    assert not (tmp_path / "b").exists()
    typical = ["--epsilon", 3, "--delta", 1e-4, "--typical", config]
    assert call("init", tmp_path / "typical", *typical) == 0
