"""Shared by the tests of ledgers: releases of a known cost, edits of a ledger's file, the command."""

import json
from pathlib import Path

from dpmcmc.cli.commands import main
from dpmcmc.privacy import Event, Guarantee

ROOT = Path(__file__).resolve().parents[2]


def release(mu, adjacency="replace_one", **terms):
    """A guarantee of one Gaussian release that spends μ."""
    z = (2.0 if adjacency == "replace_one" else 1.0) / mu
    return Guarantee.from_events(
        (Event("gaussian", z, 1.0, 1),), delta=1e-6, adjacency=adjacency, accountant="pld", **terms
    )


TERMS = {"name": "test", "num_records": None, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-6}


def edited(path, edit):
    """Rewrite a ledger's file as somebody with an editor does.

    Args:
        path: of the ledger.
        edit: takes the first line, and a list of the others, as what their JSON says; it changes them.
    """
    first, *entries = [json.loads(line) for line in path.read_text().splitlines()]
    edit(first, entries)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [first, *entries]))


def call(*arguments):
    """Run ``dpmcmc ledger ...`` in this process; returns the exit code."""
    return main(["ledger", *map(str, arguments)])


def refused(capsys, code, *arguments):
    assert call(*arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error
