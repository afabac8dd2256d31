"""Every promise of SECURITY.md names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def table():
    """Promise -> what its row names as tests."""
    section = (ROOT / "SECURITY.md").read_text(encoding="utf-8").split("## Each promise and the test that holds it")[1]
    rows = re.findall(r"^\| (.+?) \| (`.+`) \|$", section.split("\n## ")[0], re.MULTILINE)
    return {promise: re.findall(r"`([^`]+)`", tests) for promise, tests in rows}


def functions_of(path):
    """Names of the test functions of a file, which is parsed and not imported."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_each_promise_names_tests_that_exist():
    found = table()
    assert len(found) > 20
    for promise, names in found.items():
        assert names, promise
        for name in names:
            path, separator, function = name.partition("::")
            assert separator, name
            assert function in functions_of(ROOT / path), f"{promise}: {name}"


def test_a_name_that_is_gone_is_found():
    assert "test_that_was_renamed" not in functions_of(ROOT / "tests" / "test_security_page.py")
    assert "test_a_name_that_is_gone_is_found" in functions_of(ROOT / "tests" / "test_security_page.py")
