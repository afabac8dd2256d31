"""Write docs/proofs.md: each guarantee, its proof, and the tests and faults that hold it. ``scripts/docs.sh`` calls it.

A claim stands in the docstring, or in the comment, that proves it:

    Claim: One record moves the sum of clipped gradients by at most C.
    Proof: vectors are cut to C and added as integers.
    Held by: test_neighbours_differ, test_query.py::test_rows, "clip missing"

``Held by`` names tests, with their file where two files have one of that name, and planted faults in quotation marks.
``Assumed`` in the place of ``Claim`` is trusted and not proved, so it has no ``Proof``. Refused are a claim without a
test, a name that is no test and no fault, and a file that has a proof and no claim.

python -m scripts.proofs          write
python -m scripts.proofs --check  write nothing; exit 1 where a claim cannot be listed
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.architecture import summary

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "proofs.md"
#: Rooms in the order of the page: from the records to all that is spent on them.
ROOMS = (
    "dpmcmc.targets",
    "dpmcmc.privacy.query",
    "dpmcmc.privacy.accounting",
    "dpmcmc.privacy.calibration",
    "dpmcmc.mechanisms",
    "dpmcmc.privacy.ledger",
    "dpmcmc.engine",
)
FIELD = re.compile(r"(Claim|Assumed|Proof|Held by): +(\S.*)")
PROOF = re.compile(r"\bProof[.,:] ")
NAME = re.compile(r'"([^"]+)"|(?:(test_\w+\.py)::)?(test_\w+)')

HEAD = """# Proofs, and what holds them

This page is for a reviewer who wants the proof of a guarantee, and the test that fails if the code is something else.
`python -m scripts.proofs` makes it from the docstrings that prove each claim.

Each claim is proved in the file that is named, in the docstring or comment that the claim stands in. Its tests
fail if the code is not what the proof is about. A planted fault is a mistake that is put into the real code, and that
named checks must see ([how](trust.md#planted-faults)). Most tests replay neighbouring records under the same keys, or
compare with a closed form or an accountant that is not ours.

{claims} claims rest on {tests} tests and {faults} planted faults. The other faults are in files, schemas, estimators
and messages ([SECURITY.md](../SECURITY.md)).
"""
ASSUMED = """## Trusted libraries and systems

No proof here covers this. The tests look at it as far as a test can, and the self-test looks at each compiled program
before it sees a record (`dpmcmc/engine/self_test.py`).
"""


class Claim(NamedTuple):
    """One claim, as its docstring states it.

    Attributes:
        file: path from the root.
        sentence: the claim.
        proof: how it is proved, in a sentence; empty of what is assumed.
        tests: names by file.
        faults: planted ones.
    """

    file: str
    sentence: str
    proof: str
    tests: dict[str, list[str]]
    faults: list[str]


class Wrong(Exception):
    """A claim that cannot be listed, with where and why."""


@functools.cache
def tests() -> dict[str, list[str]]:
    """Name of a test -> the files that have one."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    return found


@functools.cache
def faults() -> frozenset[str]:
    """Names of the planted faults."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests" / "planted").glob("faults_*.py"))
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return frozenset(
        call.args[0].value
        for call in calls
        if getattr(call.func, "id", "") == "Fault" and isinstance(call.args[0], ast.Constant)
    )


def fields(text: str) -> Iterator[dict[str, str]]:
    """The fields of each claim of a file: a field goes on until an empty line, or the next one."""
    entry: dict[str, str] = {}
    name = ""
    for raw in text.splitlines():
        line = raw.strip().removeprefix("#").strip().removesuffix('"""')
        mark = FIELD.fullmatch(line)
        if mark and (mark[1] in ("Claim", "Assumed") or name):
            name = mark[1]
            if name in ("Claim", "Assumed"):
                if entry:
                    yield entry
                entry = {}
            entry[name] = mark[2]
        elif name and line:
            entry[name] += " " + line
        else:
            name = ""
    if entry:
        yield entry


def claim(file: str, entry: dict[str, str]) -> Claim:
    """Make a claim of its fields.

    Raises:
        Wrong: a field that is missing, or a name that is no test and no fault.
    """
    sentence = entry.get("Claim") or entry["Assumed"]
    where = f"{file}: {sentence!r}"
    if ("Proof" in entry) != ("Claim" in entry):
        raise Wrong(f"{where} needs a Proof if it is a Claim, and none if it is Assumed")
    held = entry.get("Held by", "")
    if rest := NAME.sub("", held).replace(",", "").strip():
        raise Wrong(f"{where} is held by {rest!r}, which is no name of a test and no fault in quotation marks")
    of_file: dict[str, list[str]] = {}
    planted = []
    for fault, given, test in NAME.findall(held):
        if fault:
            if fault not in faults():
                raise Wrong(f"{where} names the fault {fault!r}, which is not planted")
            planted.append(fault)
            continue
        files = [path for path in tests().get(test, []) if not given or path.endswith(f"/{given}")]
        if len(files) != 1:
            said = "is in " + " and ".join(files) if files else "is in no file"
            raise Wrong(f"{where} names {test}, which {said}")
        of_file.setdefault(files[0], []).append(test)
    if not of_file:
        raise Wrong(f"{where} names no test")
    return Claim(file, sentence, entry.get("Proof", ""), of_file, planted)


def claims(files: Iterable[tuple[str, str]]) -> list[Claim]:
    """All claims of files, given as (path from the root, text).

    Raises:
        Wrong: also where a file has a proof and no claim.
    """
    found, wrong = [], []
    for file, text in files:
        entries = list(fields(text))
        if PROOF.search(text) and not entries:
            wrong.append(f"{file}: has a proof and no claim")
        for entry in entries:
            try:
                found.append(claim(file, entry))
            except Wrong as error:
                wrong.append(str(error))
    if wrong:
        raise Wrong("\n".join(wrong))
    return found


def sources() -> Iterator[tuple[str, str]]:
    """Files of the package, in the order of their names."""
    for path in sorted((ROOT / "dpmcmc").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def room(file: str) -> str:
    """The room of a file.

    Raises:
        Wrong: no room of the page.
    """
    module = file.removesuffix(".py").replace("/", ".")
    for name in ROOMS:
        if module.startswith(f"{name}."):
            return name
    raise Wrong(f"{file}: has a claim, and lies in no room of {', '.join(ROOMS)}")


def shown(one: Claim) -> str:
    """Markdown of a claim."""
    lines = [f"**{one.sentence}**", ""]
    if one.proof:
        lines.append(f"* Proof, in `{one.file}`: {one.proof}")
    for file, names in sorted(one.tests.items()):
        lines.append(f"* `{file}`: " + ", ".join(f"`{name}`" for name in names))
    if one.faults:
        lines.append("* Planted: " + "; ".join(one.faults))
    return "\n".join(lines)


def page() -> str:
    """The whole page.

    Raises:
        Wrong: a claim that cannot be listed.
    """
    found = claims(sources())
    proved = [one for one in found if one.proof]
    head = HEAD.format(
        claims=len(proved),
        tests=len({(file, name) for one in proved for file, names in one.tests.items() for name in names}),
        faults=len({name for one in proved for name in one.faults}),
    )
    parts = [head]
    rooms = [room(one.file) for one in proved]
    for name in ROOMS:
        if name in rooms:
            parts.append(f"## `{name.replace('.', '/')}`\n\n{summary(name)}\n")
            parts += [shown(one) + "\n" for one, its in zip(proved, rooms, strict=True) if its == name]
    parts.append(ASSUMED)
    parts += [shown(one) + "\n" for one in found if not one.proof]
    return "\n".join(parts).replace("``", "`")


def main() -> int:
    """Write the page, or only make it."""
    try:
        wanted = page()
    except Wrong as error:
        print(error, file=sys.stderr)
        return 1
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
