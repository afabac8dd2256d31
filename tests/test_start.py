"""A command loads what it needs, when it needs it: libraries that take long to import wait for their first use."""

import runpy
import subprocess
import sys
import textwrap

import pytest

import dpmcmc.__main__ as installed
from dpmcmc.config.shipped import list_shipped

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

    SLOW = @SLOW
    for room in "dpmcmc", "dpmcmc.cli.commands", "dpmcmc.cli.verify", "dpmcmc.privacy.accounting":
        importlib.import_module(room)
        check(room, "jax", "optax", *SLOW)
    for room in "dpmcmc.mechanisms", "dpmcmc.samplers", "dpmcmc.targets", "dpmcmc.cli.plan", "dpmcmc.cli.run":
        importlib.import_module(room)
        check(room, *SLOW)

    from dpmcmc.storage.run_folder import RunFolder
    write = RunFolder.write

    def written(folder, name, content):
        if name == "draws.nc":
            check("before the draws are saved", *SLOW - {"h5netcdf", "h5py"})
        if name == "metrics.json":
            assert (folder.folder / "draws.nc").exists()
        if name.startswith("figures/"):
            assert {"draws.nc", "metrics.json", "privacy.json"} <= {path.name for path in folder.folder.iterdir()}
        write(folder, name, content)

    RunFolder.write = written
    from dpmcmc.cli.commands import main
    code = main(["run", "two_normals", "--quiet", "--out", sys.argv[1]])
    check("run", "flax", "numpyro", "pandas", "scipy.optimize", "scipy.stats", "sklearn", "xarray")
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


def test_the_module_s_own_command_starts_as_the_installed_one_does(monkeypatch):
    """So that its pictures are drawn beside the run too; it took twice the time."""
    monkeypatch.setattr(installed, "main", lambda: list(sys.argv[1:]))
    monkeypatch.setattr(sys, "argv", ["run.py", "adult.yaml", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("dpmcmc.run", run_name="__main__")
    assert ended.value.code == ["run", "adult.yaml", "--quiet"]


@pytest.mark.slow
def test_commands_need_no_docstrings(tmp_path):
    """``python -OO`` drops docstrings and asserts; sections of a config are made of classes without them."""
    program = """
        from dpmcmc.cli.commands import COMMANDS, main
        from dpmcmc.config import file
        from dpmcmc.config.shipped import list_shipped
        codes = {name: main([name, "--help"]) for name in COMMANDS}
        codes |= {name: main(["plan", name]) for name in ("two_normals", "diabetes_noise_aware", "numpyro_poisson")}
        codes["ledger"] = main(["ledger", "init", "people.ledger", "--epsilon", "1", "--delta", "1e-6"])
        for name in list_shipped():
            file.load(name)
        raise SystemExit(str(codes) if any(codes.values()) else 0)
    """
    done = subprocess.run(
        [sys.executable, "-OO", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
