"""Measure the size of the code against its limits; exit 1 and one line per finding beyond them.

python scripts/house.py

Lines of code are lines that hold a token: no blank line, comment or docstring counts. All limits and all exceptions,
each with its reason, are below.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "dpmcmc"
#: Most lines of code of the package, and most lines with an annotation ``: Any``.
CODE, ANY = 27_000, 40
#: Most lines of a function without its docstring, parameters of a function without self, lines of a file.
FUNCTION, PARAMETERS, FILE = 60, 7, 700

_OPTIONS = "each parameter is an option of the command"
_CONTRACT = "keyword arguments of the public contract"
#: Functions that may have more parameters.
MANY_PARAMETERS = {
    "audit/procedure.py:audit": _CONTRACT,
    "cli/audit.py:attack": _OPTIONS,
    "cli/ledger.py:init": _OPTIONS,
    "cli/run.py:run": _OPTIONS,
    "cli/suggest.py:suggest": _OPTIONS,
    "engine/life.py:sample": _CONTRACT,
    "estimators/fitting.py:fit": _CONTRACT,
    "planning/making.py:plan": _CONTRACT,
    "privacy/accounting/account.py:account": _CONTRACT,
    "privacy/calibration/__init__.py:calibrate": _CONTRACT,
    "privacy/interactive/above_threshold.py:__init__": _CONTRACT,
    "privacy/interactive/early_stopping.py:__init__": _CONTRACT,
    "privacy/ledger/ledger.py:init": _CONTRACT,
}
#: Functions that may be longer.
LONG_FUNCTIONS = {}
#: Files that may be longer.
LONG_FILES = {}

_EMPTY = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstring(node: Documented) -> range:
    """Return the lines of a node's docstring, empty where it has none."""
    first = node.body[0] if node.body else None
    if ast.get_docstring(node, clean=False) is None or first is None:
        return range(0)
    return range(first.lineno, (first.end_lineno or first.lineno) + 1)


def code_lines(source: str) -> set[int]:
    """Return the lines of a module that hold code."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _EMPTY:
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Documented):
            found -= set(docstring(node))
    return found


def function_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function from ``def`` on, without its docstring."""
    return (node.end_lineno or node.lineno) - node.lineno + 1 - len(docstring(node))


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters of a function, self and cls left out."""
    given = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(given) - (bool(given) and given[0] in ("self", "cls"))


def beyond(name: str, source: str) -> Iterator[tuple[dict[str, str], str, str]]:
    """Yield (list of its exceptions, place, sentence) of each file and function of a module that is over a limit."""
    if (length := len(source.splitlines())) > FILE:
        yield LONG_FILES, name, f"{name} has {length} lines; {FILE} are allowed"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        place = f"{name}:{node.name}"
        if (length := function_length(node)) > FUNCTION:
            yield LONG_FUNCTIONS, place, f"{place} has {length} lines without its docstring; {FUNCTION} are allowed"
        if (count := parameters(node)) > PARAMETERS:
            yield MANY_PARAMETERS, place, f"{place} has {count} parameters; {PARAMETERS} are allowed"


def main() -> int:
    """Print the totals and every finding; 0 where there is none."""
    sources = {str(p.relative_to(PACKAGE)): p.read_text(encoding="utf-8") for p in sorted(PACKAGE.rglob("*.py"))}
    code = sum(len(code_lines(source)) for source in sources.values())
    loose = sum(re.search(r": Any\b", line) is not None for source in sources.values() for line in source.splitlines())
    print(f"{code} lines of code (at most {CODE}); {loose} lines with ': Any' (at most {ANY})")
    over = [each for name, source in sources.items() for each in beyond(name, source)]
    found = [sentence for listed, place, sentence in over if place not in listed]
    for listed in (MANY_PARAMETERS, LONG_FUNCTIONS, LONG_FILES):
        for place in sorted(set(listed) - {place for kind, place, _ in over if kind is listed}):
            print(f"an exception that is no longer needed: {place}")
    found += [f"{code} lines of code; {CODE} are allowed"] * (code > CODE)
    found += [f"{loose} lines with ': Any'; {ANY} are allowed"] * (loose > ANY)
    print(*found, sep="\n", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
