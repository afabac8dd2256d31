"""Time and memory of a noise-aware release of a table in partitions, beside one process that holds the table.

python scripts/measure_partitions.py [--rows 1e5 1e6 1e7] [--steps 32] [--partitions 64] [--folder DIR] [--keep-mb 480]

Tables of 20 columns are generated as Parquet files, and removed at the end. Each release is made in a process of its
own, whose workers have one thread each: by one worker of Dask, by two, and whole, by one process that reads the files
into memory first. Seconds are those of ``dpmcmc.sample``, of reading and checking the rows too. Beside them stand the
processor seconds of the busiest worker and of the driver, which a machine that does other work changes less. It prints
the peak memory of a worker, the time of two workers over that of one, the exponent of the time of one worker in N, and
the time of one worker over that of the process that holds the table: of seconds, and in brackets of processor seconds.
"""

from __future__ import annotations

import argparse
import itertools
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
    """Make one release; print its seconds, its processor seconds, and the peak memory of its workers, in MiB."""
    import warnings

    import dpmcmc
    from dpmcmc.data import Levels, Range, Schema
    from dpmcmc.data.table_files import read_table_files

    warnings.simplefilter("ignore")
    schema = Schema({f"x{k}": Range(-1, 1) for k in range(FEATURES)} | {"y": Levels([0, 1])}, label="y")
    mechanism = dpmcmc.mechanisms.NoiseAware(draws=100, steps=steps)
    target = dpmcmc.targets.LogisticRegression()
    plan = mechanism.plan(target, num_records=rows, epsilon=1.0, delta=1e-8, schema=schema)
    driver = os.getpid()
    if workers is None:
        start = time.perf_counter()
        busy = busy_seconds(driver)
        dpmcmc.sample(plan, read_table_files(folder), key=3)
        found = {"seconds": time.perf_counter() - start, "busy": busy_seconds(driver) - busy, "peak": peak(driver)}
        print(json.dumps(found))
        return
    import distributed

    with (
        distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        processes = list(client.run(began).values())
        before = {process: busy_seconds(process) for process in (driver, *processes)}
        start = time.perf_counter()
        dpmcmc.sample(plan, folder, key=3, engine=client)
        seconds = time.perf_counter() - start
        busy = {process: busy_seconds(process) - spent for process, spent in before.items()}
        busiest = busy.pop(driver) + max(busy.values())
        print(json.dumps({"seconds": seconds, "busy": busiest, "peak": max(map(peak, processes))}))


def began() -> int:
    """Import what a worker needs, which every worker does once; return the process."""
    import dpmcmc.engine.partitions
    import dpmcmc.mechanisms  # noqa: F401

    return os.getpid()


def peak(process: int) -> float:
    """Return the most memory that a process has held, in MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def busy_seconds(process: int) -> float:
    """Return the processor seconds that a process has had."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(folder: Path, rows: int, given: argparse.Namespace, arm: str, keep: int) -> dict[str, float]:
    """Return what one release took, made by a process of its own."""
    command = [sys.executable, __file__, "--release", str(folder), str(rows), str(given.steps), str(ARMS[arm] or 0)]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    where = {"JAX_PLATFORMS": "cpu", "DPMCMC_KEEP_MB": str(keep), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=os.environ | one_thread | where, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    told = f"{found['seconds']:8.1f} s  {found['busy']:8.1f} s of a processor  peak {found['peak']:6.0f} MiB"
    print(f"{rows:>10,} rows  {arm:<12} kept {keep:>4} MiB  {told}", flush=True)
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time releases of a table in partitions.")
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 1e6, 1e7])
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="for the tables; None: a temporary one")
    parser.add_argument("--keep-mb", type=int, nargs="+", default=[480])
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--release", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.release is not None:
        folder, *numbers = given.release
        rows, steps, workers = map(int, numbers)
        release(Path(folder), rows, steps, workers or None)
        return 0
    made = Path(tempfile.mkdtemp(dir=given.folder, prefix="dpmcmc-partitions-"))
    found: dict[tuple[str, int], dict[str, float]] = {}
    try:
        for rows in map(int, given.rows):
            folder = made / str(rows)
            generate(folder, rows, given.partitions)
            for keep in given.keep_mb:
                for arm in given.arms:
                    found.setdefault((arm, rows), measured(folder, rows, given, arm, keep))
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    counts = sorted({rows for _, rows in found})

    def ratio(one: tuple[str, int], other: tuple[str, int], power: float = 1.0) -> str:
        if one not in found or other not in found:
            return "not measured"
        wall, busy = (found[one][name] / found[other][name] for name in ("seconds", "busy"))
        if power != 1.0:
            wall, busy = math.log(wall) * power, math.log(busy) * power
        return f"{wall:.2f} ({busy:.2f})"

    for rows in counts:
        one, two, whole = ((arm, rows) for arm in ARMS)
        print(f"{rows:>10,} rows: two workers over one {ratio(two, one)}; one worker over whole {ratio(one, whole)}")
    for fewer, more in itertools.pairwise(counts):
        exponent = ratio(("one worker", more), ("one worker", fewer), 1 / math.log(more / fewer))
        print(f"exponent of the time in N from {fewer:,} to {more:,}: {exponent}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
