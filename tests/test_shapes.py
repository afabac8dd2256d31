"""Shapes that signatures state hold where the functions run, and a wrong one is caught."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tests.shapes", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_arrays_have_the_shapes_that_signatures_state():
    done = run()
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_a_wrong_shape_is_caught():
    """Planted: a residual of one row fewer than the records."""
    done = run("wrong")
    assert done.returncode == 1
    assert "linear_sum" in done.stderr
    assert "jaxtyping" in done.stderr
