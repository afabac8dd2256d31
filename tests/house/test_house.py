"""The size of the code and the plainest rules of English hold, and the scripts that say so find what breaks them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import english  # noqa: E402
import house  # noqa: E402


def test_sentences_are_plain():
    """``scripts/test.sh`` runs ``house.py --check``; this runs the other rule of the repository."""
    command = [sys.executable, ROOT / "scripts" / "english.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lines_of_code_are_neither_blank_nor_comment_nor_docstring():
    source = '"""Module.\n\nMore.\n"""\n\n# why\nx = """a\nb"""  # here\n'
    source += '\n\ndef f():\n    """Doc."""\n    return (\n        1\n    )\n'
    assert house.code_lines(source) == {7, 8, 11, 13, 14, 15}


def test_probes_are_calls_of_getattr_and_hasattr():
    assert house.probes(ast.parse("getattr(a, b)\nif hasattr(a, 'c'):\n    a.getattr(b)\n")) == 2


def test_imports_for_types_and_inside_functions_count():
    source = "from a import b\nif TYPE_CHECKING:\n    from a.c import D\ndef f():\n    import e\nimport numpy\n"
    assert house.imported(ast.parse(source), ["a", "a.b", "a.c", "e"]) == {"a.b", "a.c", "e"}


def test_circles_are_found_and_chains_are_not():
    assert house.circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    arrows = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}}
    assert house.circles(arrows) == [["a", "b", "c"], ["d", "e"]]


def test_code_in_strings_counts_and_prose_and_yaml_do_not():
    program = "import sys\nprint(sys.path)\n"
    assert house.nodes_in_string(program) == sum(1 for _ in ast.walk(ast.parse(program)))
    for text in ("clip: norm", "a = b", "privacy.epsilon=1", "return", "dpmcmc.plan(target)", "no code here"):
        assert house.nodes_in_string(text) == 0
    plain, formatted = ast.parse("x = 'import sys'"), ast.parse("x = f'import {name}'")
    assert house.count_nodes(plain) == 5 + 3
    assert house.count_nodes(formatted) > sum(1 for _ in ast.walk(formatted))


#: Text of the only file of a small repository, and what is said of it; the budget is ten nodes and three lines.
SMALL = [
    ("x = 1\n", ""),
    ("x = [1, 2, 3, 4, 5]\n", "dpmcmc: 11 nodes, where the budget in pyproject.toml is 10. Delete first."),
    ("x = 'import os; f()'\n", "dpmcmc: 12 nodes, where the budget in pyproject.toml is 10. Delete first."),
    ("x = 1\n\n\n\n", "lines of the longest file: 4, where the budget in pyproject.toml is 3. Delete first."),
    ("x = 1\n# -----\n", "dpmcmc/a.py: a comment rule glues a second module onto it. Split it."),
    ("import dpmcmc.a\n", ""),
]
BUDGETS = """
[tool.house]
"nodes a line" = 99
"lines of the longest file" = 3
"getattr and hasattr" = 0
"lines of tests" = 1
"words of docs" = 0
[tool.house.nodes]
"dpmcmc" = 10
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Return a function that makes a repository of one file and returns what is wrong with it."""
    (tmp_path / "dpmcmc").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("x = 1\n")
    (tmp_path / "README.md").write_text("")
    (tmp_path / "pyproject.toml").write_text(BUDGETS)
    monkeypatch.setattr(house, "ROOT", tmp_path)

    def find(files):
        house.modules_of.cache_clear()
        for name, text in files.items():
            (tmp_path / "dpmcmc" / name).write_text(text)
        return list(house.faults())

    yield find
    house.modules_of.cache_clear()


@pytest.mark.parametrize(("text", "said"), SMALL)
def test_what_is_past_its_budget_or_glued_is_said(text, said, small):
    assert small({"a.py": text}) == ([said] if said else [])


def test_a_circle_a_room_without_budget_and_a_budget_without_room_are_said(small, tmp_path):
    assert small({"a.py": "import dpmcmc.b\n", "b.py": "import dpmcmc.a\n"}) == [
        "these files import each other in a circle: dpmcmc.a, dpmcmc.b"
    ]
    (tmp_path / "dpmcmc" / "a.py").rename(tmp_path / "scripts.py")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "dpmcmc" / "b.py").rename(tmp_path / "scripts" / "b.py")
    assert small({}) == [
        "scripts: 3 nodes, where the budget in pyproject.toml is 0. Delete first.",
        "dpmcmc: pyproject.toml has a budget for it, but it is not there.",
    ]


def test_budgets_are_lowered_and_never_raised(small, tmp_path):
    small({"a.py": "x = 1\n"})
    house.lower_budgets()
    assert house.read_budgets()[1] == {"dpmcmc": 5}
    small({"a.py": "x = [1, 2]\n"})
    house.lower_budgets()
    assert house.read_budgets()[1] == {"dpmcmc": 5}


WORDS = "a " * 30
#: Findings in a module, and its source.
MODULES = [
    *((1, text) for word in ("Of", "What", "That", "And", "Which") for text in (
        f'"""{word} it is."""\n', f'"""One. {word} two."""\n', f'"""One.\n\n{word} two.\n"""\n', f"x = 1  # {word} x\n",
        f"#: {word} x\nx = 1\n", f"# one\n# two. {word}\n# three\n", f"x = 1  # {word.lower()} it is\n",
        f'raise ValueError("no. {word} not")\n', f'print(f"{{x}} no. {word} not {{y}}")\n',
    )),
    (0, '"""One, of which two. Often that. Android, and so on."""\nx = f"{y}of {z}"\n# one that\n# of two\n'),
    # A docstring that begins as the rest of a sentence, and a module's.
    *((1, f'def f():\n    """{first} it."""\n') for first in ("By", "Where", "For", "Its")),
    *((0, f'"""{first} it."""\n\n\ndef f():\n    """Forget the past."""\n') for first in ("By", "Where", "For", "Its")),
    # Sentences beyond fifty words; formulas, tables and entries of a section are no part of the sentence before them.
    (1, f'"""One.\n\n{WORDS}{WORDS}\n"""\n'),
    (1, f'"""One.\n\nArgs:\n    b: {WORDS}\n        {WORDS}\n"""\n'),
    (0, f'"""One.\n\n{WORDS}\n\n    {WORDS}\n\n``b``  {WORDS}\n``c``  {WORDS}\n\n* {WORDS}\n* {WORDS}\n\n'
        f'Args:\n    b: {WORDS}\n    c: {WORDS}\n"""\n'),
    # Words that people hardly use.
    (1, '"""It holds, but for one."""\n'),
    (1, '"""It is small, whence the bound."""\n'),
]  # fmt: skip
#: Findings in a page, and its text.
PAGES = [
    *((1, text) for word in ("Of", "What", "That", "And", "Which") for text in (
        f"# {word} it is\n", f"* {word} it is\n", f"| a | {word} b |\n", f"One:\n**{word}** two.\n",
    )),
    (0, "One that\nof two.\n\n```\n# What\n```\n\n    What\n\n`What` is code.\n"),
    # Sentences beyond forty words.
    (1, "a " * 40 + "a."),
    (0, "a " * 39 + "a. " + "A " * 39 + "a."),
    (1, "It holds, but for one."),
    (1, "It is small, whence the bound."),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "table"), [("py", MODULES), ("md", PAGES)])
def test_the_rules_of_english_find_what_breaks_them_and_nothing_else(kind, table, tmp_path, monkeypatch):
    monkeypatch.setattr(english, "ROOT", tmp_path)
    file = tmp_path / f"a.{kind}"
    find = english.module_findings if kind == "py" else english.page_findings
    for count, text in table:
        file.write_text(text)
        assert len(list(find(file))) == count, text
