"""A page of help waits for no library, and says what the libraries say."""

import json
import subprocess
import sys

import pytest
import typer

from dpmcmc.audit import procedure
from dpmcmc.cli import audit as audit_command
from dpmcmc.cli import commands, options
from dpmcmc.planning.description import INTERVALS, PREDICTION
from dpmcmc.privacy.accounting import ADJACENCIES
from dpmcmc.privacy.ledger.filters import FILTERS

#: Import in 0.1 s or more; ``attrs`` and Pygments come with the libraries that print.
SLOW = ("jax", "numpy", "yaml", "scipy", "optax", "matplotlib", "pandas")
#: Run as ``python -m dpmcmc`` is, so that what this imports before the command counts too.
PROGRAM = f"""
import runpy, sys
try:
    runpy.run_module("dpmcmc", run_name="__main__", alter_sys=True)
except SystemExit as ended:
    assert not ended.code, ended.code
found = sorted(set({SLOW}) & set(sys.modules))
assert not found, found
"""


def pages():
    """Words of every command that has a page of help."""
    program = typer.main.get_command(commands.app)
    for name, command in program.commands.items():
        yield (name,)
        yield from ((name, inner) for inner in getattr(command, "commands", ()))


@pytest.mark.parametrize("words", [(), *pages()], ids=" ".join)
def test_help_imports_neither_jax_nor_numpy(words):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: " + " ".join(("dpmcmc", *words)) in done.stdout


def test_a_misspelt_command_and_a_shell_s_completion_import_neither():
    done = subprocess.run([sys.executable, "-c", PROGRAM, "rn"], capture_output=True, text=True, check=False)
    assert "did you mean run?" in done.stderr
    assert "AssertionError: 2" in done.stderr, "no library is found, since the exit code is looked at first"


def test_names_and_defaults_of_help_are_those_of_the_libraries():
    assert options.GOALS == (INTERVALS, PREDICTION)
    assert options.ADJACENCIES == ADJACENCIES
    assert options.FILTERS == FILTERS
    assert options.METHODS == procedure.METHODS
    assert options.AUDIT_TARGETS == procedure.TARGETS
    said = (procedure.RUNS, procedure.CANARIES, procedure.CONFIDENCE)
    assert (options.RUNS, options.CANARIES, options.CONFIDENCE) == said
