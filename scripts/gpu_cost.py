"""Print how much the engine's programs cost on a GPU, by the code that its compiler makes; no GPU is needed.

    python scripts/gpu_cost.py                # the table of all programs
    python scripts/gpu_cost.py "one chain"    # some of the programs, and each operation of a step

Needs the extra ``gpu-check``. ``tests/house/test_gpu_compile.py`` asserts on the same numbers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from gpu_programs.programs import PROGRAMS, Program, Unavailable, compiled  # noqa: E402

HEADER = """\
| program | operations a step | conditionals | bytes a step | necessary | ÷ necessary | rows twice | temporaries, MB |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def row(name: str, program: Program) -> str:
    """A line of the table; ``rows twice`` is the least ratio of operations of XLA (``Program.least``)."""
    cost = program.cost
    ratio = cost.bytes / program.necessary
    least = "–" if program.least is None else f"{program.least / program.necessary:.2f}"
    numbers = f"{cost.operations:.1f} | {cost.conditionals:.2f} | {cost.bytes:,.0f} | {program.necessary:,}"
    return f"| {name} | {numbers} | {ratio:.2f} | {least} | {program.temporaries / 1e6:.1f} |"


def operations(program: Program) -> str:
    """Operations of a step with the bytes of each, as lines."""
    module = program.module
    where = {each.name: (each, name) for name, inside in module.computations.items() for each in inside.values()}
    found = [(count, *where[name]) for name, count in module.operations(program.step).items()]
    return "\n".join(
        f"{count:4d} × {module.moved(each, within):13,d} bytes  {each.opcode} {each.shape[:60]}  {each.op_name[-60:]}"
        for count, each, within in found
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 2 where this machine cannot compile for the GPU."""
    names = list(sys.argv[1:] if argv is None else argv)
    for name in names:
        if name not in PROGRAMS:
            print(f"no program {name!r}; there are {', '.join(PROGRAMS)}", file=sys.stderr)
            return 2
    try:
        programs = {name: compiled(PROGRAMS[name]()) for name in names or PROGRAMS}
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(HEADER)
    for name, program in programs.items():
        print(row(name, program))
    for name in names:
        print(f"\n{name}, a step:\n{operations(programs[name])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
