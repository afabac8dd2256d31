"""Pages with cells, tutorials, how-tos and explanations: cells parse, and the code of other libraries runs.

The site's build runs the cells (``scripts/docs.sh``). Code of another library runs here, where that is installed.
"""

import ast
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tutorials", "how-to", "explanation")
PAGES = sorted(
    page
    for page in (ROOT / "docs").rglob("*.md")
    if page.parent.name in FOLDERS or "file_format: mystnb" in page.read_text(encoding="utf-8")
)
CELL = re.compile(r"^```\{code-cell\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
THEIRS = re.compile(r"^<!-- theirs: (\w+) -->\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells(text):
    """Yield the Python of every cell, without its options; cells of a shell are left out."""
    for cell in CELL.findall(text):
        code = re.sub(r"\A(:[\w-]+:.*\n)+\n*", "", textwrap.dedent(cell))
        if not code.startswith("%%bash"):
            yield code


def their_blocks():
    return [(page, *block) for page in PAGES for block in THEIRS.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_cells_of_a_page_parse_and_its_first_lines_are_a_title_and_a_paragraph(page):
    text = page.read_text(encoding="utf-8")
    for code in cells(text):
        ast.parse(code)
    assert ("file_format: mystnb" in text) == bool(CELL.search(text)), "a page with cells says so in its first lines"
    body = re.sub(r"\A---\n.*?^---\n", "", text, flags=re.MULTILINE | re.DOTALL).strip()
    assert re.match(r"# .+\n\n[A-Z]", body)


def test_code_of_other_libraries_is_found():
    assert {library for _, library, _ in their_blocks()} == {"blackjax", "diffprivlib"}


#: Whether a library's answer is that of the same task here.
RIGHT = {
    "blackjax": lambda names: np.abs(names["draws"].mean(axis=0) - [2, -2, 1, 0]).max() < 0.6,
    "diffprivlib": lambda names: np.abs(names["coefficients"] - [2, -2, 1, 0]).max() < 0.6,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("page", "library", "code"), their_blocks(), ids=lambda value: value if str(value).isalpha() else ""
)
def test_the_other_library_s_code_runs(page, library, code):
    """After the cell that makes the page's records, which both sides share."""
    pytest.importorskip(library)
    names = {}
    task = next(cells(page.read_text(encoding="utf-8")))
    exec(task, names)
    exec(code, names)
    assert RIGHT[library](names)
