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


@pytest.mark.parametrize("word", ["Of", "What", "That", "And", "Which"])
def test_a_sentence_that_begins_with_such_a_word_is_found(word, tmp_path, monkeypatch):
    monkeypatch.setattr(english, "ROOT", tmp_path)
    file = tmp_path / "a.py"
    for source in (
        f'"""{word} it is."""\n',
        f'"""One. {word} two."""\n',
        f'"""One.\n\n{word} two.\n"""\n',
        f"x = 1  # {word} x\n",
        f"#: {word} x\nx = 1\n",
        f"# one\n# two. {word}\n# three\n",
        f"x = 1  # {word.lower()} it is\n",
        f'raise ValueError("no. {word} not")\n',
        f'print(f"{{x}} no. {word} not {{y}}")\n',
    ):
        file.write_text(source)
        assert len(list(english.module_findings(file))) == 1, source
    page = tmp_path / "a.md"
    for text in (f"# {word} it is\n", f"* {word} it is\n", f"| a | {word} b |\n", f"One:\n**{word}** two.\n"):
        page.write_text(text)
        assert len(list(english.page_findings(page))) == 1, text


def test_sentences_with_their_subject_first_and_code_are_let_through(tmp_path, monkeypatch):
    monkeypatch.setattr(english, "ROOT", tmp_path)
    file, page = tmp_path / "a.py", tmp_path / "a.md"
    file.write_text(
        '"""One, of which two. Often that. Android, and so on."""\nx = f"{y}of {z}"\n# one that\n# of two\n'
    )
    page.write_text("One that\nof two.\n\n```\n# What\n```\n\n    What\n\n`What` is code.\n")
    assert not list(english.module_findings(file))
    assert not list(english.page_findings(page))


def test_a_sentence_beyond_forty_words_is_found_in_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(english, "ROOT", tmp_path)
    page = tmp_path / "a.md"
    page.write_text("a " * 40 + "a.")
    assert len(list(english.page_findings(page))) == 1
    page.write_text("a " * 39 + "a. " + "A " * 39 + "a.")
    assert not list(english.page_findings(page))


@pytest.mark.parametrize("first", ["By the same conversion.", "Where it lies.", "For people.", "Its root."])
def test_a_docstring_that_begins_as_the_rest_of_a_sentence_is_found(first, tmp_path, monkeypatch):
    monkeypatch.setattr(english, "ROOT", tmp_path)
    file = tmp_path / "a.py"
    file.write_text(f'def f():\n    """{first}"""\n')
    assert len(list(english.module_findings(file))) == 1
    file.write_text(f'"""{first}"""\n\n\ndef f():\n    """Forget the past."""\n')
    assert not list(english.module_findings(file))


def test_a_sentence_beyond_fifty_words_is_found_in_a_docstring(tmp_path, monkeypatch):
    """Formulas, tables and entries of a section are no part of the sentence before them."""
    monkeypatch.setattr(english, "ROOT", tmp_path)
    file = tmp_path / "a.py"
    file.write_text('"""One.\n\n' + "a " * 50 + 'a.\n"""\n')
    assert len(list(english.module_findings(file))) == 1
    half = "a " * 30
    file.write_text(
        f'"""One.\n\n{half}\n\n    {half}\n\n``b``  {half}\n``c``  {half}\n\n'
        f'* {half}\n* {half}\n\nArgs:\n    b: {half}\n    c: {half}\n"""\n'
    )
    assert not list(english.module_findings(file))
    file.write_text(f'"""One.\n\nArgs:\n    b: {half}\n        {half}\n"""\n')
    assert len(list(english.module_findings(file))) == 1


@pytest.mark.parametrize("words", ["It holds, but for one.", "It is small, whence the bound."])
def test_words_that_people_hardly_use_are_found(words, tmp_path, monkeypatch):
    monkeypatch.setattr(english, "ROOT", tmp_path)
    file, page = tmp_path / "a.py", tmp_path / "a.md"
    file.write_text(f'"""{words}"""\n')
    page.write_text(words)
    assert len(list(english.module_findings(file))) == len(list(english.page_findings(page))) == 1
