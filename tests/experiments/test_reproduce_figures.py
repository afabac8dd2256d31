"""The script that makes every figure: a job that failed is started again, a finished one is not, and times add up."""

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "reproduce_figures.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("reproduce_figures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "NAMES", ("fig4_2",))
    return module


def folder(path):
    """Make the folder of a figure, as the figure would."""
    path.mkdir(parents=True, exist_ok=True)


def test_what_failed_is_made_again_and_what_is_finished_is_not(script, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(sys, "argv", ["reproduce_figures.py", "--quick", "--out", str(tmp_path)])
    monkeypatch.setattr(
        script, "command", lambda name, out: folder(out / name) or ["this" if name != "fig4_2" else "no_such_module"]
    )
    assert script.main() == 1
    assert "failed: fig4_2" in capfd.readouterr().err
    with (tmp_path / "quick" / "times.csv").open() as file:
        first = {row["figure"]: row["seconds"] for row in csv.DictReader(file)}
    monkeypatch.setattr(script, "command", lambda name, out: ["this"])
    assert script.main() == 0
    said = capfd.readouterr().out
    assert said.count("finished before") == 3
    assert "== fig4_2: finished before" not in said
    out = tmp_path / "quick"
    with (out / "times.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["figure"] for row in rows] == ["fig3_2_adult", "fig3_2_abalone", "fig4_2", "headline"]
    assert {row["exit_code"] for row in rows} == {"0"}
    took = {row["figure"]: float(row["seconds"]) for row in rows}
    assert took["fig4_2"] > float(first["fig4_2"]) > 0
    assert took["headline"] == float(first["headline"])
