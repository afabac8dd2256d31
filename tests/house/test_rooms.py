"""The layout: few modules on top, one place that builds the query, light imports, one command."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.config.shipped import find_config, list_shipped

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dpmcmc"


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bogus"], "no such command 'bogus'; see dpmcmc --help"),
        (["run", "--bogus"], "--bogus"),
        (["ledger"], "Missing command; see dpmcmc ledger --help"),
        (["plan"], "Missing argument 'CONFIG'; see dpmcmc plan --help"),
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


def test_shipped_configs_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert set(list_shipped()) == {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    assert config_file.load("two_normals").name == "two_normals"
    (tmp_path / "two_normals").touch()  # a file of that name is the file
    assert find_config("two_normals") == Path("two_normals")
