"""Write the table of rooms in docs/architecture.md: their order from the contract, their imports from the code.

python scripts/architecture.py          write
python scripts/architecture.py --check  exit 1 where the page is out of date
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: scripts/architecture.py writes this table -->", "<!-- end of rooms -->"


def rooms() -> list[str]:
    """Rooms from the top down, as the first contract of pyproject.toml lists them; no single files."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [name.strip() for layer in layers for name in layer.split("|")]
    return [name for name in names if (ROOT / name.replace(".", "/")).is_dir()]


def room_of(module: str, known: list[str]) -> str | None:
    """The innermost room that holds a module."""
    inside = [room for room in known if module == room or module.startswith(room + ".")]
    return max(inside, key=len, default=None)


def imported(path: Path) -> set[str]:
    """Modules that a file imports, those for type checkers left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checking = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in checking:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def summary(room: str) -> str:
    """First line of a room's docstring."""
    text = (ROOT / room.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]


def table() -> str:
    """Markdown: room, what it is for, which rooms it imports."""
    known = rooms()
    lines = ["| room | what it is for | imports |", "|---|---|---|"]
    for room in known:
        folder = ROOT / room.replace(".", "/")
        own = [path for path in folder.rglob("*.py")]
        used = {room_of(module, known) for path in own for module in imported(path)} - {room, None}
        arrows = ", ".join(f"`{name.removeprefix('dpmcmc.')}`" for name in known if name in used)
        lines.append(f"| `{room.removeprefix('dpmcmc.')}` | {summary(room)} | {arrows or 'none'} |")
    return "\n".join(lines)


def main() -> int:
    """Write or compare."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if "--check" in sys.argv[1:]:
        if wanted != page:
            print("docs/architecture.md is out of date: run python scripts/architecture.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
