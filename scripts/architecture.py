"""Write two tables of docs/architecture.md, from the code and its contracts.

The table of rooms has their order from the contract. The table of one minibatch has the files that a reader of one step
reads, and how many lines they have; more than the limit are refused.

python scripts/architecture.py          write
python scripts/architecture.py --check  exit 1 where the page is out of date, or a step is longer than its limit
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
ROOMS = "<!-- rooms: scripts/architecture.py writes this table -->", "<!-- end of rooms -->"
MINIBATCH = "<!-- minibatch: scripts/architecture.py writes this table -->", "<!-- end of minibatch -->"
#: One step of private SGLD on logistic regression with Poisson batches, from keys to the new position.
STEP = {
    "engine/program.py": "the steps of a chunk: one `lax.scan` over select, query, step",
    "privacy/query/chacha.py": "random words of the step, from its keys",
    "privacy/query/selection.py": "select the records of the step",
    "privacy/query/integer_noise.py": "the noise, in integers",
    "privacy/query/query.py": "clip, sum, add noise, add the prior's gradient",
    "privacy/query/label_blind.py": "the weight that clips a record's gradient",
    "targets/logistic.py": "the residual of logistic regression, and the longest one of any label",
    "targets/linear_predictor.py": "the sum of the clipped gradients of a linear model, in closed form",
    "privacy/query/exact_sums.py": "the sum, exact in integers",
    "targets/gaussian_prior.py": "the prior",
    "samplers/langevin.py": "the learning rate, and the noise that Langevin dynamics has of its own",
    "samplers/sgld.py": "move the position",
}
#: Files that a step passes through and a reader does not need: protocols, axes of devices, ways for one platform.
PASSED = {
    *("engine/mesh.py", "engine/recorded.py", "samplers/base.py", "samplers/schedules.py"),
    *(f"privacy/query/{name}.py" for name in ("per_record_gradients", "platforms", "randomness")),
    *("privacy/query/rows_in_place.py", "targets/generalised_linear.py"),
}
MOST_FILES = 12
MOST_LINES = 5200
#: Section of a docstring that shows the use of a class, and nothing of what a step does.
EXAMPLE = re.compile(r"\n+ +Example:\n(?: {8}.*\n)+")


def rooms() -> list[str]:
    """Rooms from the top down, as the first contract of pyproject.toml lists them; no single files."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [name.strip() for layer in layers for name in layer.split("|")]
    return [name for name in names if (ROOT / name.replace(".", "/")).is_dir()]


def summary(room: str) -> str:
    """First line of a room's docstring."""
    text = (ROOT / room.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]


def table() -> str:
    """Markdown: room, what it is for."""
    rows = [f"| `{room.removeprefix('dpmcmc.')}` | {summary(room)} |" for room in rooms()]
    return "\n".join(["| room | what it is for |", "|---|---|", *rows])


def lines_of_step() -> int:
    """Lines of the files that one step takes, docstrings and proofs included."""
    texts = ((ROOT / "dpmcmc" / file).read_text(encoding="utf-8") for file in STEP)
    return sum(len(EXAMPLE.sub("\n", text).splitlines()) for text in texts)


def step_table() -> str:
    """Markdown: the files of one step in the order in which it takes them, and their lines."""
    lines = ["| step | file |", "|---|---|"]
    lines += [f"| {at}. {does} | `dpmcmc/{file}` |" for at, (file, does) in enumerate(STEP.items(), 1)]
    count = f"These {len(STEP)} files have {lines_of_step():,} lines, docstrings and proofs included, examples left out"
    return "\n".join([*lines, "", f"{count} (at most {MOST_FILES} files and {MOST_LINES:,} lines)."])


def replaced(page: str, marks: tuple[str, str], text: str) -> str:
    """The page with this text between two marks."""
    begin, end = marks
    before, rest = page.split(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def main() -> int:
    """Write or compare."""
    if len(STEP) > MOST_FILES or lines_of_step() > MOST_LINES:
        print(
            f"one step takes {len(STEP)} files and {lines_of_step()} lines, over {MOST_FILES} files or {MOST_LINES} "
            "lines: move what a reader of one step does not need into a file of its own",
            file=sys.stderr,
        )
        return 1
    page = PAGE.read_text(encoding="utf-8")
    wanted = replaced(replaced(page, ROOMS, table()), MINIBATCH, step_table())
    if "--check" in sys.argv[1:]:
        if wanted != page:
            print("docs/architecture.md is out of date: run python scripts/architecture.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
