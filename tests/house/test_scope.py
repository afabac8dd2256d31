"""``tests/scope.csv`` lists everything that 0.2 offered as keep, moved or gone, and that is what is there.

A row has a kind, a name, the decision, the place where a moved thing went (or what to use instead of one that is gone),
and its users before the decision: folders with the number of files that named it. A new name gets a row.
"""

import csv
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from dpmcmc.cli.commands import COMMANDS
from dpmcmc.config.shipped import list_shipped
from tests import public_names
from tests.house import test_sources

ROOT = Path(__file__).resolve().parents[2]
with (ROOT / "tests" / "scope.csv").open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


def benchmark_methods():
    """Return the names of the benchmark's methods, read from the files that list them: their libraries are extras."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "experiments/benchmark/methods").glob("*.py"))
    return {row["name"] for row in ROWS if row["kind"] == "benchmark method" and f'"{row["name"]}"' in text}


PRESENT = {
    "name": public_names.names,
    "config": lambda: [Path(name).stem for name in list_shipped()],
    "figure": lambda: [path.stem for path in (ROOT / "configs" / "figures").glob("*.yaml")],
    "benchmark method": benchmark_methods,
    "command": lambda: list(COMMANDS),
    "sources row": lambda: [row[0] for row in test_sources.ROWS],
}


@pytest.mark.parametrize("kind", PRESENT)
def test_what_is_there_is_what_the_list_keeps(kind):
    kept = [row["name"] for row in ROWS if row["kind"] == kind and row["decision"] == "keep"]
    assert len(kept) == len(set(kept))
    assert set(PRESENT[kind]()) == set(kept)


def test_decisions_are_three_and_name_a_place():
    for row in ROWS:
        assert row["kind"] in PRESENT
        assert row["decision"] in ("keep", "moved", "gone")
        if row["decision"] != "keep":
            assert row["place"]


@pytest.mark.parametrize("place", sorted({row["place"] for row in ROWS if row["decision"] == "moved"}))
def test_what_moved_is_a_script_of_its_own(place):
    """It has a command, and neither the package nor another experiment's settings lend it one."""
    module = place.removesuffix(".py").replace("/", ".")
    assert importlib.util.find_spec(module) is not None
    assert callable(importlib.import_module(module).main)


def test_the_package_imports_no_experiment():
    for path in (ROOT / "dpmcmc").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) experiments\b", path.read_text(encoding="utf-8"), re.MULTILINE), path
