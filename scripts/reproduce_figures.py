"""Makes every figure: ``python scripts/reproduce_figures.py [--quick] [--out DIR] [--jobs N]``.

Each one in a folder and a process of its own, whose memory goes back when it ends; N of them at a time, each on cores
of its own. One that was stopped goes on from its finished cells when this is started again, and one that is finished is
left alone: its folder has a file ``finished``. ``times.csv`` and the last lines say what each took; docs/figures.md has
the measured ones.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
    return [f"experiments.{name}", *folder]


class Cores:
    """Hands each job a share of this process's cores."""

    def __init__(self, jobs: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.free = [set(cores[i::jobs]) for i in range(min(jobs, len(cores)))]
        self.lock = threading.Lock()

    def run(self, name: str, out: Path, quick: bool) -> int:
        """Make one figure, unless it is finished; returns the exit code."""
        done = out / name / "finished"
        if done.exists():
            print(f"== {name}: finished before", flush=True)
            return 0
        with self.lock:
            cores = self.free.pop()
        line = [sys.executable, "-m", *command(name, out), *(["--quick"] if quick else [])]
        started = time.perf_counter()
        process = subprocess.Popen(line, cwd=ROOT)
        os.sched_setaffinity(process.pid, cores)
        _, status, used = os.wait4(process.pid, 0)
        with self.lock:
            self.free.append(cores)
        # ``process`` does not know that it was waited for.
        code = process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
        (out / name).mkdir(parents=True, exist_ok=True)
        with (out / name / "spent").open("a") as file:  # a line for each time that it was started
            file.write(f"{seconds:.1f} {used.ru_utime + used.ru_stime:.1f}\n")
        if code == 0:
            done.touch()
        print(f"== {name}: {seconds:.0f} s, exit code {code}", flush=True)
        return code


def report(names: Iterable[str], out: Path) -> None:
    """Print, and write to ``times.csv``, the seconds and CPU seconds that each figure took, all its starts together."""
    rows = []
    for name in (name for name in names if (out / name / "spent").exists()):
        starts = [line.split() for line in (out / name / "spent").read_text().splitlines()]
        rows.append((name, *(sum(float(start[i]) for start in starts) for i in (0, 1))))
    rows.append(("all", *(sum(row[i] for row in rows) for i in (1, 2))))
    lines = [f"{name},{seconds:.0f},{cpu:.0f}" for name, seconds, cpu in rows]
    (out / "times.csv").write_text("\n".join(["figure,seconds,cpu_seconds", *lines, ""]))
    for name, seconds, cpu in rows:
        print(f"{name:<20} {seconds:6.0f} s  {cpu:6.0f} s of CPU")


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
    cores = Cores(max(1, arguments.jobs))
    started = time.perf_counter()
    with ThreadPoolExecutor(len(cores.free)) as pool:
        names = ["fig3_2_adult", "fig3_2_abalone", *NAMES]
        codes = dict(zip(names, pool.map(lambda name: cores.run(name, out, arguments.quick), names), strict=True))
    codes["headline"] = cores.run("headline", out, arguments.quick)
    for name, code in codes.items():
        if code:
            print(f"failed: {name}", file=sys.stderr)
    report(codes, out)
    print(f"{time.perf_counter() - started:.0f} s in all")
    return 1 if any(codes.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
