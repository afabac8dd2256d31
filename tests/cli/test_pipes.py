"""A command whose output nobody reads to its end does its work all the same, and ends with the code of that work."""

import json
import os
import subprocess
import sys

import pytest

import dpmcmc
from dpmcmc.privacy import account
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.report.privacy_json import guarantee_json

SMALL = ["--set", "run.passes=null", "--set", "run.steps=20", "--set", "run.thin=2"]


def unread(*arguments, both=False, unbuffered=False):
    """Exit code of a command, nobody reading its output (and its errors, if ``both``); and the errors."""
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, *(["-u"] * unbuffered), "-m", "dpmcmc", *map(str, arguments)],
        stdout=writer, stderr=writer if both else subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writer)
    return process.communicate()[1], process.returncode


def test_a_verdict_that_nobody_reads_keeps_its_exit_code(tmp_path):
    guarantee = account(2.0, steps=1, sampling=dpmcmc.Full(), num_records=100, delta=1e-5)
    stated = guarantee_json(guarantee)
    held, exceeded = tmp_path / "held.json", tmp_path / "exceeded.json"
    held.write_text(json.dumps(stated))
    exceeded.write_text(json.dumps(stated | {"epsilon": stated["epsilon"] / 2}))
    for unbuffered in (False, True):
        assert unread("verify", held, both=True, unbuffered=unbuffered)[1] == 0
    assert unread("verify", exceeded, both=True)[1] == 1
    assert unread("verify", tmp_path / "missing.json", both=True, unbuffered=True)[1] == 2
    assert unread("--help") == ("", 0)


@pytest.mark.slow
def test_a_run_whose_reader_has_gone_is_saved_and_settled(tmp_path):
    promise = {"adjacency": "replace_one", "epsilon": 3.0, "delta": 1e-4}
    ledger = Ledger.init(tmp_path / "people.ledger", name="data", num_records=1000, **promise)
    charged = ["--set", f"privacy.ledger={ledger.path}"]
    error, code = unread("run", "two_normals", "--out", tmp_path / "run", *SMALL, *charged)
    assert (error, code) == ("", 0)
    assert [run.outcome for run in ledger.state().runs] == ["released"]
    assert (tmp_path / "run/report.html").exists()
    assert not (tmp_path / "run/confidential/checkpoint").exists()
