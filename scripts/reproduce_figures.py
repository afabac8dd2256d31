"""Makes every figure: ``python scripts/reproduce_figures.py [--quick] [--out DIR]``.

Each one in a folder and a process of its own, whose memory goes back when it ends. One that was stopped goes on from
its finished cells when this is started again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer ε and repeats, shorter chains; every method")
    parser.add_argument(
        "--out", default="runs/figures", metavar="DIR", help="folder of folders (default: runs/figures)"
    )
    arguments = parser.parse_args()
    # Results of a quick run are another configuration's.
    out = Path(arguments.out).resolve() / ("quick" if arguments.quick else "full")
    jobs = [["experiments.fig3_1", "--out", str(out / "fig3_1")]]
    jobs += [
        ["experiments.fig3_2", "--panel", panel, "--out", str(out / f"fig3_2_{panel}")]
        for panel in ("two_normals", "abalone", "adult")
    ]
    jobs.append(["experiments.headline", "--results", str(out / "fig3_2_adult"), "--out", str(out / "headline")])
    jobs += [
        [f"experiments.{name}", "--out", str(out / name)]
        for name in ("fig4_2", "fig5_1", "fig_pdp_1", "fig_per_record", "coverage")
    ]
    failed = []
    for job in jobs:
        print(f"== {' '.join(job)}", flush=True)
        started = time.perf_counter()
        quick = ["--quick"] if arguments.quick else []
        code = subprocess.run([sys.executable, "-m", *job, *quick], cwd=ROOT, check=False).returncode
        print(f"   {time.perf_counter() - started:.0f} s, exit code {code}", flush=True)
        if code:
            failed.append(" ".join(job))
    for job in failed:
        print(f"failed: {job}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
