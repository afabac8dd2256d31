"""Measure the size and the shape of the code; exit 1 where files of the package import each other in a circle.

python scripts/house.py

It prints a table of measures beside the goals. Lines of code are lines that hold a token: no blank line, comment or
docstring counts. Nodes are those of Python's syntax tree, which packing lines does not change. A circle counts every
import, also those inside functions and those for type checkers. The contracts between rooms are checked by
``lint-imports``.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Goal of each measure, in the order in which they are printed.
GOALS = {
    "AST nodes": 220_000,
    "lines of code": None,
    "nodes a line": 9.0,
    "files": 150,
    "lines of the longest file": 700,
    "circles of imports": 0,
    "getattr and hasattr": 60,
    "lines of tests": 30_000,
    "words of docs": 35_000,
}

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


def probes(tree: ast.AST) -> int:
    """Return how often a module calls ``getattr`` or ``hasattr``."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(isinstance(called, ast.Name) and called.id in ("getattr", "hasattr") for called in calls)


def imported(tree: ast.AST, modules: Iterable[str]) -> set[str]:
    """Return which of the package's modules a module imports, anywhere and for whatever reason."""
    known = set(modules)
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found & known


def circles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the sets of modules that reach each other, sorted."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        seen: set[str] = set()
        waiting = list(arrows[start])
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting.extend(arrows.get(module, ()))
        reached[start] = seen
    found = {frozenset(other for other in seen if start in reached[other]) for start, seen in reached.items()}
    return sorted(sorted(circle) for circle in found if circle)


@dataclass(frozen=True)
class Module:
    """A file of the package: its dotted name, its source and its syntax tree."""

    name: str
    source: str
    tree: ast.Module


def modules_of(package: Path) -> list[Module]:
    """Return the files of a package."""
    found = []
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        source = path.read_text(encoding="utf-8")
        found.append(Module(name, source, ast.parse(source)))
    return found


def measured(modules: list[Module], circle_count: int) -> dict[str, float]:
    """Return every measure of ``GOALS``."""
    nodes = sum(sum(1 for _ in ast.walk(module.tree)) for module in modules)
    lines = sum(len(code_lines(module.source)) for module in modules)
    tests = (ROOT / "tests").rglob("*.py")
    pages = (ROOT / "docs").rglob("*.md")
    return {
        "AST nodes": nodes,
        "lines of code": lines,
        "nodes a line": round(nodes / lines, 2),
        "files": len(modules),
        "lines of the longest file": max(len(module.source.splitlines()) for module in modules),
        "circles of imports": circle_count,
        "getattr and hasattr": sum(probes(module.tree) for module in modules),
        "lines of tests": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tests),
        "words of docs": sum(len(path.read_text(encoding="utf-8").split()) for path in pages),
    }


def main() -> int:
    """Print the measures and every circle; 0 where there is none."""
    modules = modules_of(ROOT / "dpmcmc")
    names = [module.name for module in modules]
    arrows = {module.name: imported(module.tree, names) - {module.name} for module in modules}
    found = circles(arrows)
    for name, value in measured(modules, len(found)).items():
        goal = GOALS[name]
        print(f"{name:<26} {value:>9,}" + ("" if goal is None else f"   goal: at most {goal:,}"))
    for circle in found:
        print("these files import each other in a circle: " + ", ".join(circle), file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
