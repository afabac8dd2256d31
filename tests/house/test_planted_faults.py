"""Every planted fault is caught by each check that is said to catch it, and the healthy code passes all of them."""

import functools
import sys
from pathlib import Path

import pytest

from tests.planted import Caught, Fault, Scene, faults_accounting, where
from tests.planted.catalogue import FAULTS, table

ROOT = Path(__file__).resolve().parents[2]
CHECKS = list(dict.fromkeys(check for fault in FAULTS for check in fault.checks))


def forget(fault: Fault) -> None:
    """Empty the caches that a fault may have filled, or be kept from by: compiled programs, and accountants'."""
    rooms = ["dpmcmc.engine.compilation"]
    if fault in faults_accounting.FAULTS:
        rooms += [name for name in sys.modules if name.startswith("dpmcmc.privacy.")]
    for name in rooms:
        for item in list(vars(sys.modules[name]).values()):
            if isinstance(item, functools._lru_cache_wrapper):
                item.cache_clear()


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> Scene:
    return Scene(tmp_path_factory.mktemp("healthy"))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_healthy_code_passes_every_check(check, healthy):
    check(healthy)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_caught(fault, tmp_path, monkeypatch):
    forget(fault)
    try:
        fault.plant(monkeypatch)
        scene = Scene(tmp_path)
        for check in fault.checks:
            with pytest.raises(Caught):
                check(scene)
    finally:
        monkeypatch.undo()
        forget(fault)


def test_faults_have_names_of_their_own():
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) > 100


def test_the_printed_table_has_a_row_for_each_fault():
    _, _, *rows = table().splitlines()
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [fault.name for fault in FAULTS]


def test_checks_are_where_the_table_says():
    for check in CHECKS:
        file, _, name = where(check).partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
