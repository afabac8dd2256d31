"""The layout: few modules on top, one place that builds the query, light imports, one command."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import COMMANDS, main
from dpmcmc.config import file as config_file
from dpmcmc.config.shipped import find_config, list_shipped

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dpmcmc"


def test_few_modules_lie_on_top():
    assert len(list(PACKAGE.glob("*.py"))) <= 5


def test_only_the_engine_builds_a_query():
    """Building one is the only way to read records in a step."""
    builders = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and re.search(r"\bGradientQuery\b|\breads$", ast.unparse(node.func)):
                builders.add(path.relative_to(PACKAGE).parts[0])
    assert builders == {"engine"}


#: SciPy's take a second to import, and the others more. A lower bound on epsilon needs scipy.optimize.
REFUSED = {"jax", "jaxlib", "matplotlib", "xarray", "numpyro", "flax", "scipy.stats", "scipy.signal"}


def test_accounting_and_verify_run_without_jax_pictures_and_what_is_slow_to_import(tmp_path):
    """In a process of their own, in which importing any of these fails."""
    guarantee = dpmcmc.privacy.account(1.1, steps=20, sampling=dpmcmc.Poisson(10), num_records=100, delta=1e-5)
    file = tmp_path / "privacy.json"
    text = f"""
import json, sys
class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name in {REFUSED}:
            raise ImportError(name)
sys.meta_path.insert(0, Refusal())
import dpmcmc
found = dpmcmc.privacy.account(1.1, steps=20, sampling=dpmcmc.Poisson(10), num_records=100, delta=1e-5)
json.dump(found.to_json(), open({str(file)!r}, "w"))
from dpmcmc.cli.commands import main
assert main(["verify", {str(file)!r}]) == 0
print(found.epsilon)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) == guarantee.epsilon


def test_every_public_name_loads():
    for name in dpmcmc.__all__:
        assert getattr(dpmcmc, name) is not None
    for name in dpmcmc.privacy.__all__:
        assert getattr(dpmcmc.privacy, name) is not None
    assert dpmcmc.privacy.audit is dpmcmc.audit
    with pytest.raises(AttributeError):
        dpmcmc.nothing  # noqa: B018


def test_a_command_cannot_hide_a_public_function():
    for name in ("plan", "sample", "mesh"):
        assert callable(getattr(dpmcmc, name))
        assert not (PACKAGE / f"{name}.py").exists()
        assert not (PACKAGE / name).exists()


def test_the_command_lists_its_subcommands_and_its_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dpmcmc {dpmcmc.__version__}\n"
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    for name in COMMANDS:
        assert f" {name} " in printed
        assert main([name, "--help"]) == 0
        assert "Usage: dpmcmc " + name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bogus"], "no such command 'bogus'; see dpmcmc --help"),
        (["run", "--bogus"], "--bogus"),
        (["ledger"], "Missing command; see dpmcmc ledger --help"),
        (["plan"], "Missing argument 'CONFIG'; see dpmcmc plan --help"),
        (["run", "adult", "--every", "2"], "--every: belongs to --per-record"),
        (["run", "--per-record"], "config: give a YAML file"),
        (["run", "adult", "--per-record", "--distributed"], "--per-record: is one process's"),
        (["audit", "adult", "--method", "guess"], "'guess' is not one of"),
        (["plan", "nosuch"], "no such config file; give the path of a YAML file, or a name that dpmcmc configs lists"),
    ],
)
def test_an_odd_command_line_is_refused_in_one_sentence(words, said, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_bare_command_shows_its_help(capsys):
    assert main([]) == 2
    printed = capsys.readouterr()
    assert "Usage: dpmcmc" in printed.out
    assert printed.err == ""


def test_shipped_configs_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert set(list_shipped()) == {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    assert config_file.load("two_normals").name == "two_normals"
    (tmp_path / "two_normals").touch()  # a file of that name is the file
    assert find_config("two_normals") == Path("two_normals")


def test_the_way_of_one_minibatch_is_what_a_step_executes():
    """Files whose functions run while a step of the table's run is traced; rooms that it only asks for shapes aside."""
    sys.path.insert(0, str(ROOT))
    from scripts.architecture import PASSED, STEP

    rng = np.random.default_rng(0)
    records = {"x": rng.normal(size=(60, 3)).astype(np.float32), "y": rng.integers(0, 2, 60)}
    settings = {"num_records": 60, "sampler": dpmcmc.SGLD(step_size=0.5), "sampling": dpmcmc.Poisson(7.0), "steps": 3}
    plan = dpmcmc.plan(dpmcmc.targets.LogisticRegression(), privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-3), **settings)
    program = PACKAGE / "engine" / "program.py"
    rooms = ("engine", "privacy/query", "targets", "samplers")
    found = set()

    def seen(frame, event, argument):
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(str(PACKAGE)):
            return
        file = Path(path).relative_to(PACKAGE)
        above = frame
        while above and (above.f_code.co_filename, above.f_code.co_name) not in steps:
            above = above.f_back
        if above and str(file.parent) in rooms:
            found.add(str(file))

    steps = {(str(program), name) for name in ("draw", "advance")}
    sys.setprofile(seen)
    try:
        with pytest.warns(dpmcmc.NotForIntervals):
            dpmcmc.sample(plan, records)
    finally:
        sys.setprofile(None)
    assert found - PASSED == set(STEP)
    assert found >= PASSED
