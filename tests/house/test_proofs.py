"""docs/proofs.md: every claim names a proof, tests that exist, and faults that are planted.

Shapes that signatures state hold where the functions run, and a wrong one is caught.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import proofs
from scripts.proofs import Wrong, claims
from tests.planted.catalogue import FAULTS

HELD = 'test_proofs.py::test_the_page_is_the_docstrings, "clip missing"'


def file(**changes: str) -> list[tuple[str, str]]:
    """A file with one claim; ``held`` and the others replace its fields, and an empty one leaves it out."""
    fields = {"Claim": "Something holds.", "Proof": "by a theorem.", "Held by": HELD} | changes
    text = "\n".join(f"# {name}: {value}" for name, value in fields.items() if value)
    return [("dpmcmc/privacy/query/query.py", f'"""One idea.\n\n{text}\n"""\n')]


def test_the_page_is_the_docstrings():
    text, found = proofs.page(), claims(proofs.sources())
    assert len(found) > 50
    assert all(one.sentence.replace("``", "`") in text and one.file in text for one in found if one.proof)


def test_the_names_of_faults_are_those_of_the_catalogue():
    assert proofs.faults() == {fault.name for fault in FAULTS}


def test_a_claim_goes_on_over_lines_and_ends_with_a_paragraph():
    (one,) = claims(file(Claim="Something holds,\n# and this too."))
    assert one.sentence == "Something holds, and this too."
    assert one.proof == "by a theorem."
    assert one.tests == {"tests/house/test_proofs.py": ["test_the_page_is_the_docstrings"]}
    assert one.faults == ["clip missing"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Held by": "test_that_was_renamed"}, "is in no file"),
        ({"Held by": "test_rows_that_are_not_finite_contribute_exactly_zero"}, "is in .* and "),
        ({"Held by": f'{HELD}, "clip forgotten"'}, "not planted"),
        ({"Held by": '"clip missing"'}, "names no test"),
        ({"Held by": ""}, "names no test"),
        ({"Held by": f"{HELD}, the audit"}, "no name of a test"),
        ({"Proof": ""}, "needs a Proof"),
    ],
)
def test_a_claim_that_nothing_holds_is_refused(changes, message):
    with pytest.raises(Wrong, match=message):
        claims(file(**changes))


def test_a_proof_without_a_claim_is_refused():
    with pytest.raises(Wrong, match="has a proof and no claim"):
        claims([("dpmcmc/privacy/query/query.py", '"""One idea.\n\nIt holds. Proof: by a theorem.\n"""\n')])
    with pytest.raises(Wrong, match="lies in no room"):
        proofs.room("dpmcmc/report/page.py")


ROOT = Path(__file__).resolve().parents[2]


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
