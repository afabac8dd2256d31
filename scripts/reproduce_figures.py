"""Makes every figure: ``python scripts/reproduce_figures.py [--quick] [--out DIR] [--jobs N]``.

Each one in a folder and a process of its own, whose memory goes back when it ends; N of them at a time, each on cores
of its own. One that was stopped goes on from its finished rows when this is started again, and one that is finished is
left alone, unless its folder was removed. ``times.csv`` and the last lines say what each took; docs/figures.md has the
measured ones.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from dpmcmc.engine.results_table import Table
from dpmcmc.engine.tasks import outcomes

ROOT = Path(__file__).resolve().parent.parent
#: Columns of ``times.csv``; seconds are those of all starts of a figure.
COLUMNS = ("figure", "seconds", "cpu_seconds", "exit_code")
#: Longest first; the headline reads two of the others.
NAMES = (
    "fig3_1",
    "coverage",
    "fig3_2_two_normals",
    "bandits",
    "sparsity",
    "efficiency",
    "recommender",
    "fig_per_record",
    "adaptive_answers",
    "adaops",
    "fig5_1",
    "fig4_2",
    "fig_pdp_1",
    "private_map",
    "already_private",
)


def command(name: str, out: Path) -> list[str]:
    """Return the command line of one figure, in a folder of its own."""
    folder = ["--out", str(out / name)]
    if name == "headline":
        sources = ["--results", str(out / "fig3_2_adult"), "--coverage", str(out / "coverage" / "results.csv")]
        return ["experiments.headline", *sources, *folder]
    if name.startswith("fig3_2_"):
        return ["experiments.fig3_2", "--panel", name.removeprefix("fig3_2_"), *folder]
    moved = (ROOT / "experiments" / "sources" / f"{name}.py").is_file()
    return [f"experiments.sources.{name}" if moved else f"experiments.{name}", *folder]


def made(line: list[str]) -> tuple[int, float, float]:
    """Carry out a command line on the cores of this thread; return (exit code, seconds, seconds of CPU)."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", *line], cwd=ROOT)
    _, status, used = os.wait4(process.pid, 0)
    # ``process`` does not know that it was waited for.
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, time.perf_counter() - started, used.ru_utime + used.ru_stime


def make(names: Sequence[str], out: Path, quick: bool, jobs: int, times: Table) -> None:
    """Make figures that are not finished, so many at a time; each start of one adds to its times."""
    cores = sorted(os.sched_getaffinity(0))
    free: SimpleQueue[set[int]] = SimpleQueue()
    for at in range(min(jobs, len(cores))):
        free.put(set(cores[at::jobs]))
    missing = []
    for name in names:
        before = times.row({"figure": name})
        if before is not None and before["exit_code"] == "0" and (out / name).is_dir():
            print(f"== {name}: finished before", flush=True)
        else:
            missing.append(name)
            times.add([{"figure": name, "seconds": 0, "cpu_seconds": 0} if before is None else before])
    work = functools.partial(_made, out=out, quick=quick)
    with ThreadPoolExecutor(free.qsize(), initializer=lambda: os.sched_setaffinity(0, free.get())) as pool:
        for name, (code, *took) in outcomes(work, missing, executor=pool):
            before = times.row({"figure": name})
            spent = [float(before[key]) + one for key, one in zip(("seconds", "cpu_seconds"), took, strict=True)]
            times.add([{"figure": name, "seconds": spent[0], "cpu_seconds": spent[1], "exit_code": code}])
            print(f"== {name}: {took[0]:.0f} s, exit code {code}", flush=True)


def _made(name: str, out: Path, quick: bool) -> tuple[int, float, float]:
    return made([*command(name, out), *(["--quick"] if quick else [])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer ε and repeats, shorter chains; every method")
    parser.add_argument(
        "--out", default="runs/figures", metavar="DIR", help="folder of folders (default: runs/figures)"
    )
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="figures at a time (default: 2)")
    arguments = parser.parse_args()
    # Results of a quick run are another configuration's.
    out = Path(arguments.out).resolve() / ("quick" if arguments.quick else "full")
    started = time.perf_counter()
    names = ["fig3_2_adult", "fig3_2_abalone", *NAMES]
    with Table(out, COLUMNS, ("figure",), file="times.csv") as times:
        make(names, out, arguments.quick, max(1, arguments.jobs), times)
        make(["headline"], out, arguments.quick, 1, times)  # reads two of the others
        rows = times.rows
    for row in rows:
        print(f"{row['figure']:<20} {float(row['seconds']):6.0f} s  {float(row['cpu_seconds']):6.0f} s of CPU")
    for row in rows:
        if row["exit_code"] != "0":
            print(f"failed: {row['figure']}", file=sys.stderr)
    print(f"{time.perf_counter() - started:.0f} s in all")
    return 1 if any(row["exit_code"] != "0" for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
