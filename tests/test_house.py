"""The size of the code and the plainest rules of English hold, and the scripts that say so find what breaks them."""

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


def test_a_long_function_a_long_file_and_many_parameters_are_found():
    body = "    x = 1\n" * 60
    assert not list(house.beyond("a.py", f'def f(a, b, c, d, e, f, g):\n    """One.\n\n    Two.\n    """\n{body[10:]}'))
    ((listed, place, said),) = house.beyond("a.py", f"def f():\n{body}")
    assert (listed is house.LONG_FUNCTIONS, place) == (True, "a.py:f")
    assert said == "a.py:f has 61 lines without its docstring; 60 are allowed"
    ((listed, place, said),) = house.beyond("a.py", "class A:\n    def f(self, a, b, c, d, e, f, g, *, h): ...\n")
    assert (listed is house.MANY_PARAMETERS, place) == (True, "a.py:f")
    assert said == "a.py:f has 8 parameters; 7 are allowed"
    ((listed, place, said),) = house.beyond("a.py", "x = 1\n" * 701)
    assert (listed is house.LONG_FILES, place, said) == (True, "a.py", "a.py has 701 lines; 700 are allowed")


def test_an_exception_without_its_reason_in_the_list_fails(monkeypatch, capsys):
    """Every kind of finding counts once its exception is gone."""
    for listed in (house.MANY_PARAMETERS, house.LONG_FUNCTIONS, house.LONG_FILES):
        assert all(listed.values())
    monkeypatch.setattr(house, "FUNCTION", 5)
    assert house.main() == 1
    assert "lines without its docstring; 5 are allowed" in capsys.readouterr().err


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
