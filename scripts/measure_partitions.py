"""Time and memory of a noise-aware release of a table in partitions, beside one process that holds the table.

python scripts/measure_partitions.py [--rows 1e5 1e6 1e7] [--steps 32] [--partitions 64] [--folder DIR] [--keep-mb 512]

Tables of 20 columns are generated as Parquet files, and removed at the end. Each release is made in a process of its
own, whose workers have one thread each: by one worker process, by two, and whole, by one process that reads the files
into memory first. Seconds are those of ``dpmcmc.sample``, of reading and checking the rows too. It prints the peak
memory of a worker, the time of two workers over that of one, the exponent of the time of one worker in N, and the time
of one worker over that of the process that holds the table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

FEATURES = 20
#: Ways to make the release: name, and number of workers; None: the process holds the table.
ARMS = {"one worker": 1, "two workers": 2, "whole": None}


def generate(folder: Path, rows: int, partitions: int) -> None:
    """Write a table whose label follows two of its columns."""
    import numpy as np
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    for number, count in enumerate(np.diff(np.linspace(0, rows, partitions + 1).astype(int))):
        rng = np.random.default_rng(number)
        x = rng.uniform(-1, 1, (count, FEATURES)).astype(np.float32)
        chance = 1 / (1 + np.exp(2 * (x[:, 1] - x[:, 0])))
        y = (rng.uniform(size=count) < chance).astype(np.int8)
        columns = {f"x{k}": x[:, k] for k in range(FEATURES)} | {"y": y}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{number:03}.parquet")


def release(folder: Path, rows: int, steps: int, workers: int | None) -> None:
    """Make one release, and print its seconds and the peak memory of its workers, in MiB."""
    import warnings

    import dpmcmc
    from dpmcmc.data import Levels, Range, Schema
    from dpmcmc.data.columnar import table
    from dpmcmc.engine.workers import Pool
    from dpmcmc.engine.workers import workers as started

    warnings.simplefilter("ignore")
    schema = Schema({f"x{k}": Range(-1, 1) for k in range(FEATURES)} | {"y": Levels([0, 1])}, label="y")
    mechanism = dpmcmc.mechanisms.NoiseAware(draws=100, steps=steps)
    target = dpmcmc.targets.LogisticRegression()
    plan = mechanism.plan(target, num_records=rows, epsilon=1.0, delta=1e-8, schema=schema)
    if workers is None:
        start = time.perf_counter()
        dpmcmc.sample(plan, table(folder), key=3)
        print(json.dumps({"seconds": time.perf_counter() - start, "peak": peak(os.getpid())}))
        return
    with started(f"processes:{workers}") as pool:
        assert isinstance(pool, Pool)
        processes = pool.results(began, range(workers), [""] * workers)
        start = time.perf_counter()
        dpmcmc.sample(plan, folder, key=3, engine=pool)
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "peak": max(map(peak, processes))}))


def began(number: int) -> int:
    """Import what a worker needs, which every worker does once; return the process."""
    import dpmcmc.engine.partitions
    import dpmcmc.mechanisms  # noqa: F401

    return os.getpid()


def peak(process: int) -> float:
    """Return the most memory that a process has held, in MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measured(folder: Path, rows: int, given: argparse.Namespace, arm: str, keep: int) -> dict[str, float]:
    """Return what one release took, made by a process of its own."""
    command = [sys.executable, __file__, "--release", str(folder), str(rows), str(given.steps), str(ARMS[arm] or 0)]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    where = {"JAX_PLATFORMS": "cpu", "DPMCMC_KEEP_MB": str(keep), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=os.environ | one_thread | where, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{rows:>10,} rows  {arm:<12} kept {keep:>4} MiB  {found['seconds']:8.1f} s  peak {found['peak']:6.0f} MiB")
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time releases of a table in partitions.")
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 1e6, 1e7])
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="for the tables; None: a temporary one")
    parser.add_argument("--keep-mb", type=int, nargs="+", default=[512])
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--release", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.release is not None:
        folder, *numbers = given.release
        rows, steps, workers = map(int, numbers)
        release(Path(folder), rows, steps, workers or None)
        return 0
    made = Path(tempfile.mkdtemp(dir=given.folder, prefix="dpmcmc-partitions-"))
    seconds: dict[tuple[str, int], float] = {}
    try:
        for rows in map(int, given.rows):
            folder = made / str(rows)
            generate(folder, rows, given.partitions)
            for keep in given.keep_mb:
                for arm in given.arms:
                    found = measured(folder, rows, given, arm, keep)
                    seconds.setdefault((arm, rows), found["seconds"])
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    counts = sorted({rows for _, rows in seconds})
    for rows in counts:
        alone = seconds.get(("one worker", rows), math.nan)
        two, whole = (seconds.get((arm, rows), math.nan) for arm in ("two workers", "whole"))
        print(f"{rows:>10,} rows: two workers over one {two / alone:.2f}; one worker over whole {alone / whole:.2f}")
    if len(counts) > 1 and "one worker" in given.arms:
        first, last = counts[0], counts[-1]
        ratio = seconds["one worker", last] / seconds["one worker", first]
        print(f"exponent of the time in N: {math.log(ratio) / math.log(last / first):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
