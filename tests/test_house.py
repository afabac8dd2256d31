"""The size of the code and the plainest rules of English hold, and the scripts that say so find what breaks them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import english  # noqa: E402
import house  # noqa: E402


@pytest.mark.parametrize("script", ["house", "english"])
def test_the_repository_keeps_the_rule(script):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / f"{script}.py"], capture_output=True, text=True, check=False
    )
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


def test_a_circle_fails(monkeypatch, capsys, tmp_path):
    package = tmp_path / "dpmcmc"
    package.mkdir()
    (package / "a.py").write_text("from dpmcmc import b\n")
    (package / "b.py").write_text("def f():\n    from dpmcmc.a import x\n")
    monkeypatch.setattr(house, "ROOT", tmp_path)
    assert house.main() == 1
    assert "import each other in a circle: dpmcmc.a, dpmcmc.b" in capsys.readouterr().err
    (package / "b.py").write_text("x = 1\n")
    assert house.main() == 0


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
