"""Find sentences that begin with Of, What, That, And or Which, overlong and old-fashioned ones, and rests of them.

A docstring of a function or class says what it is or does, so its first word is no preposition or adverb ("By the same
conversion.", "Where it lies."): such a line needs the sentence before it, which is not there.

python scripts/english.py   exit 1 and one line per finding

Read are docstrings, comments and messages of the package and the experiments, and the Markdown pages. Docstrings of
tests are left out: they are claims, and many are one phrase.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("dpmcmc", "experiments", "scripts")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/*/*.md")
#: Most words of a sentence of a page; of a docstring, where formulas count too.
WORDS, DOCSTRING_WORDS = 40, 50
BAD_START = re.compile(r"(?:^|(?<=[.!?;:]\s)|(?<=[.!?]\)\s))(Of|What|That|And|Which)\b(?!')")
BAD_LINE = re.compile(r"^(of|what|that|and|which)\b")
REST = re.compile(
    r"(By|From|As|For|To|Where|While|Within|Whatever|Its|Always|Also|In|At|With|See|Until|Because|Like|When|Under)\b"
)
#: Lines of a docstring that are no prose: a formula or an example, a row of a table.
NO_PROSE = re.compile(r"\s{4,}\S.*|\S+(\s\S+)?\s{2,}\S.*")
#: Words that people hardly use today; a letter of each stands in brackets, so that this line is no finding.
OLD = re.compile(r"\b(bu[t] for|whenc[e]|wherei[n]|thereo[f]|in the ligh[t] of)\b", re.IGNORECASE)
SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):")
#: A new unit of text: a list item, or an entry of a section.
UNIT = re.compile(r"\s*(?:[*-]|\d+\.)\s|\s{4}[\w, ]+: ")
END = re.compile(r"(?<=[.!?:;])\s+(?=[^a-z])|(?<=[.!?]\))\s+")


def findings(text: str, start: bool = True) -> list[str]:
    """Return the beginnings of sentences of one text that break the rule; ``start``: the text begins a sentence."""
    text = " ".join(text.split())
    begins = [text[m.start() :][:60] for m in BAD_START.finditer(text) if start or m.start()]
    return begins + [f"{m[0]!r}: say except, after or of which" for m in OLD.finditer(text)]


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the joined text of every run of comment lines."""
    lines = io.StringIO(source).readline
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(lines):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            if block and not (alone and token.start[0] == last + 1):
                yield first, " ".join(block)
                block = []
            first = first if block else token.start[0]
            last = token.start[0]
            block.append(token.string.lstrip("# "))
    if block:
        yield first, " ".join(block)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring: prose, list items and entries of its sections."""
    block: list[str] = []
    section = False
    for line in [*inspect.cleandoc(text).splitlines(), ""]:
        new = not line.strip() or UNIT.match(line) or SECTION.match(line)
        if block and (new or (not section and NO_PROSE.fullmatch(line))):
            yield from END.split(" ".join(block))
            block = []
        section = bool(SECTION.match(line)) or (section and line.startswith(" "))
        if line.strip() and (section or not NO_PROSE.fullmatch(line)):
            block.append(line.strip())


def docstring_findings(node: ast.AST) -> Iterator[str]:
    """Yield what is wrong with the docstring of a module, a class or a function."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    text = ast.get_docstring(node) or ""
    if not isinstance(node, ast.Module) and REST.match(text):
        yield f"{text[:60]!r} begins as the rest of a sentence"
    for sentence in sentences(text):
        if (words := len(re.findall(r"\w[^\s]*", sentence))) > DOCSTRING_WORDS:
            yield f"{words} words: {sentence[:60]}"


def module_findings(path: Path) -> Iterator[str]:
    """Yield one line per finding in the docstrings, comments and messages of a module."""
    source = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values[1:]}
    for node in ast.walk(tree):
        for found in docstring_findings(node):
            yield f"{name}:{getattr(node, 'lineno', 1)}: {found}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for paragraph in re.split(r"\n\s*\n", node.value):
                for found in findings(paragraph, start=id(node) not in inside):
                    yield f"{name}:{node.lineno}: {found}"
    for line, text in comments(source):
        for found in findings(text) or ([text[:60]] if BAD_LINE.match(text) else []):
            yield f"{name}:{line}: {found}"


def blocks(page: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every paragraph, list item, heading and table cell; code and HTML left out."""
    fenced = False
    block: list[str] = []
    first = 0
    for number, line in enumerate([*page.splitlines(), ""], 1):
        fenced ^= line.startswith("```")
        new = re.match(r"\s*(?:[*-]|\d+\.|#+|>)\s", line)
        code = fenced or (line.startswith(("```", "    ", "<!--")) and not (block and line.strip()))
        if block and (not line.strip() or new or line.startswith("|") or code):
            yield first, " ".join(block)
            block = []
        if code or not line.strip() or set(line) <= set("|-: "):
            continue
        if line.startswith("|"):
            for cell in line.strip("|").split("|"):
                yield number, plain(cell)
            continue
        first = first if block else number
        block.append(plain(line[new.end() :] if new else line))


def plain(text: str) -> str:
    """Return Markdown as words: code, links and emphasis without their marks."""
    text = re.sub(r"`[^`]*`", "CODE", text)
    return re.sub(r"\*\*|\]\([^)]*\)|\[|<br>", "", text).strip()


def page_findings(path: Path) -> Iterator[str]:
    """Yield one line per finding in a Markdown page."""
    name = path.relative_to(ROOT)
    for line, text in blocks(path.read_text(encoding="utf-8")):
        for found in findings(text):
            yield f"{name}:{line}: {found}"
        for sentence in END.split(text):
            words = re.findall(r"\w[^\s]*", sentence)
            if len(words) > WORDS:
                yield f"{name}:{line}: {len(words)} words: {sentence[:60]}"


def main() -> int:
    """Print every finding; 0 where there is none."""
    found = [f for room in MODULES for path in sorted((ROOT / room).rglob("*.py")) for f in module_findings(path)]
    found += [f for pattern in PAGES for path in sorted(ROOT.glob(pattern)) for f in page_findings(path)]
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
