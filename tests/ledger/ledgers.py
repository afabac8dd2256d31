"""Shared by the tests of ledgers: releases of a known cost, SQL around the triggers, the command."""

import contextlib
import sqlite3
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


def raw(path, *statements, keep_schema=True):
    """Run SQL around the triggers, which are put back."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
        for _, sql in triggers if keep_schema else []:
            db.execute(sql)


def call(*arguments):
    """Run ``dpmcmc ledger ...`` in this process; returns the exit code."""
    return main(["ledger", *map(str, arguments)])


def refused(capsys, code, *arguments):
    assert call(*arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error
