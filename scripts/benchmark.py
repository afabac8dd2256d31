"""dpmcmc against what users would otherwise run, and against itself: one run, ratios of programs taken in turn.

    python scripts/benchmark.py                                        # everything, on the CPU; about half an hour
    python scripts/benchmark.py --only comparators growth --quick      # small sizes, seconds
    python scripts/benchmark.py --device gpu --out tables.md --out tables.json

Prints tables as Markdown. ``--out FILE.md`` replaces each section between its markers, or appends it; ``--out
FILE.json`` writes every number. Libraries that are not installed (``pip install '.[bench]'``) are named and skipped.
Absolute times are those of one machine on one day; read the ratios (docs/performance.md says how).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

SECTIONS = (
    "batches",
    "comparators",
    "steps",
    "growth",
    "compiling",
    "main_job",
    "memory",
    "host",
    "safeguards",
    "networks",
)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works, not to quote")
    parser.add_argument("--repeats", type=int, help="of each program, in turn with the others")
    parser.add_argument("--out", type=Path, action="append", default=[], help="a .md or .json file; may be repeated")
    parser.add_argument("--torch-python", default="", help="a Python that has Opacus, if not this one")
    arguments = parser.parse_args(argv)
    for path in arguments.out:
        if path.suffix not in (".md", ".json"):
            parser.error(f"--out {path}: a table is written as .md or .json")
    if arguments.repeats is not None and arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parsed(argv)
    # JAX chooses its device when it is first imported.
    os.environ["JAX_PLATFORMS"] = {"cpu": "cpu", "gpu": "cuda,cpu"}[arguments.device]
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for ``experiments``, which is not installed
    from benchmarks import machine, problem, report

    size = problem.QUICK if arguments.quick else problem.Size()
    size = dataclasses.replace(size, torch_python=arguments.torch_python)
    if arguments.repeats is not None:
        size = dataclasses.replace(size, repeats=arguments.repeats)
    sections, machines, texts = {}, {}, {}
    for name in arguments.only:
        described = machine.describe(size)
        sections[name] = importlib.import_module(f"benchmarks.{name}").tables(size)
        described["load average before and after"][1] = machine.load()
        machines[name] = described
        texts[name] = report.section_markdown(sections[name], described)
        print(texts[name], end="\n\n", flush=True)
        # After every section, so that a run that is stopped has written what it measured.
        for path in arguments.out:
            if path.suffix == ".md":
                report.put_into_document(path, arguments.device, {name: texts[name]})
            else:
                report.write_json(path, sections, machines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
