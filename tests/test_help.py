"""A page of help waits for no library, and says what the libraries say."""

import subprocess
import sys

import pytest
import typer

from dpmcmc.audit import procedure
from dpmcmc.cli import commands, options
from dpmcmc.diagnostics import receipt
from dpmcmc.planning.description import INTERVALS, PREDICTION
from dpmcmc.privacy.accounting import ADJACENCIES
from dpmcmc.privacy.ledger.filters import FILTERS

#: Libraries of the commands; each takes a tenth of a second or more to import.
SLOW = ("jax", "numpy", "yaml", "scipy", "optax", "matplotlib", "pandas")
#: Run as ``python -m dpmcmc`` is, so that what this imports before the command counts too.
PROGRAM = f"""
import runpy, sys
try:
    runpy.run_module("dpmcmc", run_name="__main__", alter_sys=True)
except SystemExit as ended:
    code = ended.code
found = sorted(set({SLOW}) & set(sys.modules))
sys.exit(f"imported: {{found}}" if found else code)
"""


def started(*words):
    """A process of its own that does the command and then looks at what it has imported."""
    return subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)


def pages():
    """Words of every command that has a page of help."""
    program = typer.main.get_command(commands.app)
    for name, command in program.commands.items():
        yield (name,)
        yield from ((name, inner) for inner in getattr(command, "commands", ()))


@pytest.mark.parametrize("words", [(), *pages()], ids=" ".join)
def test_help_imports_neither_jax_nor_numpy(words):
    done = started(*words, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage: " + " ".join(("dpmcmc", *words)) in done.stdout


def test_a_command_that_is_misspelt_is_refused_without_a_library():
    done = started("rn")
    assert done.returncode == 2, done.stderr
    assert "did you mean run?" in done.stderr


def test_the_check_finds_a_library():
    assert "imported: ['numpy'" in started("verify", "nowhere").stderr


def test_a_shell_completes_names_of_configs(monkeypatch):
    monkeypatch.setenv("_DPMCMC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "dpmcmc run breast")
    monkeypatch.setenv("COMP_CWORD", "2")
    done = started()
    assert (done.returncode, done.stdout.split()) == (0, ["breast_cancer"]), done.stderr


def test_names_and_defaults_of_help_are_those_of_the_libraries():
    assert options.GOALS == (INTERVALS, PREDICTION)
    assert options.ADJACENCIES == ADJACENCIES
    assert options.FILTERS == FILTERS
    assert options.METHODS == procedure.METHODS
    assert options.RUNS == procedure.RUNS
    assert options.CANARIES == procedure.CANARIES
    assert options.CONFIDENCE == procedure.CONFIDENCE
    assert options.FAILURE == receipt.FAILURE
