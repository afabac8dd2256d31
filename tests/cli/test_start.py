"""A command loads what it needs, when it needs it: libraries that take long to import wait for their first use.

A page of help waits for none, and says what the libraries say.
"""

import subprocess
import sys
import textwrap
from typing import get_args

import pytest
import typer

from dpmcmc.audit import procedure
from dpmcmc.cli import commands, options
from dpmcmc.config.shipped import list_shipped
from dpmcmc.diagnostics import receipt
from dpmcmc.mechanisms.noise_aware.options import SamplerName
from dpmcmc.planning.permitted_uses import INTERVALS, PREDICTION
from dpmcmc.privacy.accounting import ADJACENCIES
from dpmcmc.privacy.ledger.filters import FILTERS

MODEL_LIBRARIES = {"flax", "numpyro"}
#: Each takes from 0.1 to 1 s.
SLOW = MODEL_LIBRARIES | {
    *("arviz", "formulaic", "h5netcdf", "h5py", "matplotlib", "pandas", "pyarrow", "pytest", "sklearn", "xarray"),
    *("scipy.interpolate", "scipy.optimize", "scipy.stats"),
}

PROGRAM = """
    import importlib, sys, warnings
    from pathlib import Path

    def check(place, *slow):
        found = sorted(set(slow) & set(sys.modules))
        assert not found, f"{place}: {found}"

    SLOW, NETCDF = @SLOW, {"h5netcdf", "h5py", "pandas", "pyarrow", "xarray"}
    for room in "dpmcmc", "dpmcmc.cli.commands", "dpmcmc.cli.verify", "dpmcmc.privacy.accounting":
        importlib.import_module(room)
        check(room, "jax", "optax", *SLOW)
    for room in "dpmcmc.mechanisms", "dpmcmc.samplers", "dpmcmc.targets", "dpmcmc.config.plans", "dpmcmc.cli.run":
        importlib.import_module(room)
        check(room, *SLOW)

    from dpmcmc.storage.run_folder import RunFolder
    write = RunFolder.write

    def written(folder, name, content):
        if name == "draws.nc":
            check("before the draws are saved", *SLOW - NETCDF)
        if name == "metrics.json":
            assert (folder.folder / "draws.nc").exists()
        if name.startswith("figures/"):
            assert {"draws.nc", "metrics.json", "privacy.json"} <= {path.name for path in folder.folder.iterdir()}
        write(folder, name, content)

    RunFolder.write = written
    from dpmcmc.cli.commands import main
    code = main(["run", "two_normals", "--quiet", "--out", sys.argv[1]])
    check("run", "flax", "numpyro", "scipy.stats", "sklearn")
    assert "matplotlib" in sys.modules, "the check looks for names that no library has"
    sys.exit(code)
"""


def test_libraries_wait_for_their_first_use(tmp_path):
    """The draws are saved before a library for pictures is imported."""
    assert "two_normals" in list_shipped()
    program = textwrap.dedent(PROGRAM).replace("@SLOW", repr(SLOW))
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")], check=True)


def test_importing_the_estimators_imports_no_model_library():
    code = f"import sys, dpmcmc.estimators; assert not {MODEL_LIBRARIES} & set(sys.modules), 'slow import'"
    subprocess.run([sys.executable, "-c", code], check=True)


#: Libraries of the commands; each takes a tenth of a second or more to import.
WAITS = ("jax", "numpy", "yaml", "scipy", "optax", "matplotlib", "pandas")
#: Run as ``python -m dpmcmc`` is, so that what this imports before the command counts too.
HELP = f"""
import runpy, sys
try:
    runpy.run_module("dpmcmc", run_name="__main__", alter_sys=True)
except SystemExit as ended:
    code = ended.code
found = sorted(set({WAITS}) & set(sys.modules))
sys.exit(f"imported: {{found}}" if found else code)
"""


def started(*words):
    """A process of its own that does the command and then looks at what it has imported."""
    return subprocess.run([sys.executable, "-c", HELP, *words], capture_output=True, text=True, check=False)


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
    assert "imported: ['numpy'" in started("verify", "nowhere").stderr, "the check finds a library"


def test_names_and_defaults_of_help_are_those_of_the_libraries():
    assert options.GOALS == (INTERVALS, PREDICTION)
    assert options.ADJACENCIES == ADJACENCIES
    assert options.FILTERS == FILTERS
    assert get_args(SamplerName) == options.SAMPLERS
    assert options.METHODS == procedure.METHODS
    assert options.RUNS == procedure.RUNS
    assert options.CANARIES == procedure.CANARIES
    assert options.CONFIDENCE == procedure.CONFIDENCE
    assert options.FAILURE == receipt.FAILURE
