"""What a release promises: its names, its locked packages, its documents, and a wheel that needs no repository."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import dpmcmc
from tests import public_names

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = CONFIGURATION["project"]


def test_public_names_are_those_that_the_list_says():
    known = public_names.FILE.read_text(encoding="utf-8").split()
    gone, new = sorted(set(known) - set(public_names.names())), sorted(set(public_names.names()) - set(known))
    assert not gone, f"public names are gone: {gone}; docs/stability.md asks for a deprecation first"
    assert not new, f"new public names: {new}; `python -m tests.public_names` writes the list"


def test_the_stability_page_names_the_modules_whose_names_are_public():
    rows = [line for line in (ROOT / "docs/stability.md").read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    assert sorted(re.findall(r"`(dpmcmc[.\w]*)`", "".join(rows))) == sorted(public_names.MODULES)


def locked(name):
    """Return name -> lines of the lock file, a list of (version, marker, hashes)."""
    text = (ROOT / "scripts" / "locked" / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    packages = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        wanted, *hashes = line.split("--hash=")
        requirement = Requirement(wanted)
        (pin,) = requirement.specifier
        assert pin.operator == "==", line
        assert hashes, f"{wanted} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each.strip()) for each in hashes), line
        packages.setdefault(canonicalize_name(requirement.name), []).append(Version(pin.version))
    return packages


EXTRAS = PROJECT["optional-dependencies"]
LOCKED = {
    "run": PROJECT["dependencies"],
    "dev": PROJECT["dependencies"] + EXTRAS["dev"] + EXTRAS["docs"],
    "release": CONFIGURATION["dependency-groups"]["release"] + CONFIGURATION["build-system"]["requires"],
}


@pytest.mark.parametrize("name", LOCKED)
def test_every_dependency_is_locked_at_a_version_that_is_allowed(name):
    packages = locked(name)
    for requirement in map(Requirement, LOCKED[name]):
        versions = packages.get(canonicalize_name(requirement.name))
        assert versions, f"{requirement.name} is not in scripts/locked/{name}.txt; run scripts/lock.sh"
        outside = [v for v in versions if not requirement.specifier.contains(v, prereleases=True)]
        assert not outside, f"{requirement} is locked at {outside}; run scripts/lock.sh"


def test_every_extra_is_documented():
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w[\w-]*)` \|", page, re.M)) == sorted(PROJECT["optional-dependencies"])


def test_the_workflow_tests_every_python_that_the_package_names():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == named
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    for command in commands:
        assert os.access(ROOT / command.split()[0], os.X_OK), f"the workflow runs {command}, which is no program here"


def test_a_release_is_made_by_actions_that_nobody_can_move():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["build"]["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert len([action for action in used if action.startswith("actions/attest@")]) == 2
    for action in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), f"{action} is named by a tag, which can be moved"
    assert [step["run"] for step in steps if "run" in step] == ["scripts/release.sh dist"]


def test_changelog_and_citation_name_the_version():
    version = Version(dpmcmc.__version__)
    assert f"version: {dpmcmc.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    first = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert first
    assert first[1] == "Unreleased" if version.is_devrelease else first[1].startswith(f"{version}, ")


#: Run in a folder of its own, with the wheel's files alone on the path.
OUTSIDE = """
import pathlib, sys, dpmcmc
from dpmcmc.cli.commands import main
assert pathlib.Path(dpmcmc.__file__).parent.parent == pathlib.Path(sys.argv[1]), dpmcmc.__file__
for name in ("digits_bnn", "numpyro_poisson"):
    assert main(["plan", name]) == 0, name
assert main(["run", "adult", "--quiet", "--out", "here", "--set", "run={steps: 48, burn_in: 0.5, chains: 1}"]) == 0
assert main(["verify", "here/privacy.json"]) == 0
assert not list(pathlib.Path().glob("experiments*"))
"""


@pytest.mark.slow
def test_the_wheel_runs_from_an_empty_folder(tmp_path):
    def run(*command, **keys):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **keys)
        assert done.returncode == 0, done.stdout + done.stderr

    run(sys.executable, "-m", "hatchling", "build", "--directory", tmp_path / "dist", cwd=ROOT)
    wheel, sdist = *(tmp_path / "dist").glob("*.whl"), *(tmp_path / "dist").glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    place, empty = tmp_path / "installed", tmp_path / "empty"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", place, wheel)
    empty.mkdir()
    run(sys.executable, "-c", OUTSIDE, place, cwd=empty, env=dict(os.environ, PYTHONPATH=str(place)))
