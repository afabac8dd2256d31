"""Measure the size and the shape of the code beside its budgets, which stand in ``pyproject.toml``.

python scripts/house.py            print every measure and its budget
python scripts/house.py --check    say what is wrong, nothing else; exit 1 where something is
python scripts/house.py --lower    lower every budget in pyproject.toml to what is measured; none is raised

A node is a node of Python's syntax tree: packing lines does not change their number. Code in strings counts too. A line
of code holds a token: no blank line, comment or docstring counts. A circle is a set of files that import each other,
also inside functions and for type checkers. A joint is a comment rule that glues a second module onto a file.

A budget that is too small is raised in ``pyproject.toml``, in a commit of its own that says why.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import io
import math
import re
import sys
import textwrap
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Folders whose nodes have budgets.
HOUSES = ("dpmcmc", "experiments", "scripts")
#: Folders of the package in which every folder is a room of its own.
WINGS = ("dpmcmc/privacy", "dpmcmc/mechanisms")

_EMPTY = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
#: A sentence or a YAML line may parse as Python, but has none of these.
_STATEMENTS = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While),
    *(ast.If, ast.With, ast.Try, ast.Lambda),
)
_JOINT = re.compile(r"^\s*# ?[-=~#]{5,}", re.MULTILINE)
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


def strings(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of a module, with a name in place of each value that is put into one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "value" for part in node.values)


def nodes_in_string(text: str) -> int:
    """Return how many syntax nodes a string of Python code has, 0 where it is something else."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError):
        return 0
    found = list(ast.walk(tree))
    return len(found) if any(isinstance(node, _STATEMENTS) for node in found) else 0


def count_nodes(tree: ast.AST) -> int:
    """Return how many syntax nodes a module has, those of code in its strings among them."""
    return sum(1 for _ in ast.walk(tree)) + sum(nodes_in_string(text) for text in strings(tree))


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
    """A Python file of a house: its path from the root, its source and its syntax tree."""

    path: str
    source: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The name by which it is imported."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        """The folder whose budget it takes from: a house, a folder of a house, or a folder of a wing."""
        folders = self.path.split("/")[:-1]
        return "/".join(folders[: 3 if "/".join(folders[:2]) in WINGS else 2])


@functools.cache
def modules_of(house: Path) -> tuple[Module, ...]:
    """Return the Python files of a house."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(house.rglob("*.py"))}
    return tuple(
        Module(path.relative_to(house.parent).as_posix(), text, ast.parse(text)) for path, text in sources.items()
    )


def circles_of(package: tuple[Module, ...]) -> list[list[str]]:
    """Return the sets of the package's modules that import each other."""
    names = [module.name for module in package]
    return circles({module.name: imported(module.tree, names) - {module.name} for module in package})


def measure_rooms() -> dict[str, int]:
    """Return the syntax nodes of each room."""
    rooms: Counter[str] = Counter()
    for house in HOUSES:
        for module in modules_of(ROOT / house):
            rooms[module.room] += count_nodes(module.tree)
    return dict(sorted(rooms.items()))


def measure_whole() -> dict[str, float]:
    """Return the measures of the repository that have a budget; nodes a line and probes are those of the package."""
    package = modules_of(ROOT / "dpmcmc")
    lines = sum(len(code_lines(module.source)) for module in package)
    tests = [len(module.source.splitlines()) for module in modules_of(ROOT / "tests")]
    others = [len(module.source.splitlines()) for house in HOUSES for module in modules_of(ROOT / house)]
    made = {ROOT / "docs" / "config.md", ROOT / "docs" / "proofs.md"}  # by scripts/docs.sh, not in git
    pages = {ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - made
    nodes = sum(sum(1 for _ in ast.walk(module.tree)) for module in package)
    return {
        "nodes a line": math.ceil(100 * nodes / max(lines, 1)) / 100,
        "lines of the longest file": max(*tests, *others),
        "getattr and hasattr": sum(probes(module.tree) for module in package),
        "lines of tests": sum(tests),
        "words of docs": sum(len(path.read_text(encoding="utf-8").split()) for path in pages),
    }


def read_budgets() -> tuple[dict[str, float], dict[str, int]]:
    """Return the budgets of the repository and those of the rooms."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["house"]
    rooms = table.pop("nodes")
    return table, rooms


def broken_contracts() -> str:
    """Return what ``lint-imports`` says where an import contract is broken, "" where all are kept."""
    from importlinter import cli

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = cli.lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    return said.getvalue() if code else ""


def faults() -> Iterator[str]:
    """Yield a sentence for each thing that is wrong."""
    whole, rooms = read_budgets()
    for measured, budgets, unit in ((measure_whole(), whole, ""), (measure_rooms(), rooms, " nodes")):
        for name, value in measured.items():
            budget = budgets.get(name, 0)
            if value > budget:
                yield f"{name}: {value:,}{unit}, where the budget in pyproject.toml is {budget:,}. Delete first."
        for name in budgets.keys() - measured.keys():
            yield f"{name}: pyproject.toml has a budget for it, but it is not there."
    for circle in circles_of(modules_of(ROOT / "dpmcmc")):
        yield "these files import each other in a circle: " + ", ".join(circle)
    for house in (*HOUSES, "tests"):
        for module in modules_of(ROOT / house):
            if _JOINT.search(module.source):
                yield f"{module.path}: a comment rule glues a second module onto it. Split it."


def lower_budgets() -> None:
    """Write what is measured into ``pyproject.toml`` wherever it is less than the budget."""
    file = ROOT / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    whole, rooms = read_budgets()
    for name, value in {**measure_whole(), **measure_rooms()}.items():
        if value < {**whole, **rooms}.get(name, 0):
            text = re.sub(rf'^"{re.escape(name)}" = .*$', f'"{name}" = {value}', text, flags=re.MULTILINE)
    file.write_text(text, encoding="utf-8")


def show() -> None:
    """Print every measure beside its budget."""
    whole, rooms = read_budgets()
    for name, value in measure_whole().items():
        print(f"{name:<32} {value:>9,}   budget {whole.get(name, 0):>9,}")
    measured = measure_rooms()
    for house in HOUSES:
        mine = [name for name in measured if name.split("/")[0] == house]
        print(f"\n{'nodes of ' + house:<32} {sum(measured[name] for name in mine):>9,}")
        for name in mine:
            print(f"  {name:<30} {measured[name]:>9,}   budget {rooms.get(name, 0):>9,}")


def main(words: list[str] | None = None) -> int:
    """Print, check or lower; 1 where a check finds something."""
    parser = argparse.ArgumentParser(description="Measure the code beside its budgets.")
    parser.add_argument("--check", action="store_true", help="say what is wrong; exit 1 where something is")
    parser.add_argument("--lower", action="store_true", help="lower the budgets to what is measured")
    options = parser.parse_args(words)
    if options.lower:
        lower_budgets()
    if not options.check:
        show()
        return 0
    found = [*faults(), *filter(None, [broken_contracts()])]
    for sentence in found:
        print(sentence, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
