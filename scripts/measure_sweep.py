"""Measure a sweep: against single runs, two workers of one thread against one, and the share that its ledger takes.

python scripts/measure_sweep.py [--cells 80] [--rounds 2] [--singles 3]

Cells are runs of SGLD on 20,000 generated rows with 20 features, eight values of epsilon. Every sweep charges a ledger.
Rounds alternate between one worker and two, and the least time of each counts, since other programs only add to it. The
ledger's share is the time within calls of ``Ledger`` over that of the whole sweep, in one process. A single run is a
process ``dpmcmc run`` of one cell, which finds compiled programs in the cache on disk, as the sweep does.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml
from benchmarks.commands import process

import dpmcmc
from dpmcmc.privacy import Ledger

N, D = 20_000, 20
#: Methods of a ledger that a run calls.
_CALLS = ("__init__", "reserve", "find", "identify", "begin", "settle", "give_back")


def grid(folder: Path, cells: int) -> Path:
    """Write the records, a ledger and a grid of so many cells; return its path."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D)) / 4
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    y = (rng.random(N) < 1 / (1 + np.exp(-4 * x[:, 0]))).astype(np.int32)
    np.savez(folder / "rows.npz", x=x.astype(np.float32), y=y)
    terms = {"num_records": N, "adjacency": "replace_one", "epsilon": 2.0, "delta": 1e-5}
    Ledger.init(folder / "people.ledger", name="people", **terms)
    body = {
        "name": "measured",
        "data": {"path": "rows.npz", "num_records": N, "num_features": D, "row_bound": 1.0},
        "target": {"name": "logistic_regression", "prior_scale": 1.0},
        "sampler": {"name": "sgld", "step_size": 0.5},
        "sampling": {"scheme": "full"},
        "privacy": {"epsilon": 1.0, "delta": 1e-9, "clip": 1.0, "ledger": "people.ledger"},
        "run": {"steps": 2000},
        "sweep": {
            "over": {"privacy.epsilon": [0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15]},
            "repeats": cells // 8,
        },
    }
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    return path


def single_seconds(count: int) -> float:
    """Return the median seconds of a process that runs one cell."""
    times = []
    with tempfile.TemporaryDirectory() as name:
        body = yaml.safe_load(grid(Path(name), 8).read_text())
        body["privacy"]["epsilon"] = body.pop("sweep")["over"]["privacy.epsilon"][0]
        config = Path(name) / "one.yaml"
        config.write_text(yaml.safe_dump(body, sort_keys=False))
        for at in range(count + 1):
            command = ["-m", "dpmcmc.run", str(config), "--quiet", "--out", f"{name}/run{at}"]
            done = process(command, Path(name) / "cache")
            assert done.failure is None, done.failure
            times.append(done.seconds)
    return statistics.median(times[1:])  # the first one compiles


def seconds(cells: int, workers: int | None) -> float:
    """Return the seconds of a sweep."""
    with tempfile.TemporaryDirectory() as name:
        path = grid(Path(name), cells)
        started = time.perf_counter()
        done = dpmcmc.sweep(path, out=Path(name) / "out", workers=workers)
        assert done.complete
        return time.perf_counter() - started


@contextlib.contextmanager
def timed() -> Iterator[list[float]]:
    """Yield a list that gets the seconds of each outermost call of a ledger."""
    spent: list[float] = []
    within = [False]
    before = {name: getattr(Ledger, name) for name in _CALLS}

    def wrapped(method):  # type: ignore[no-untyped-def]
        @functools.wraps(method)
        def call(*given, **named):  # type: ignore[no-untyped-def]
            if within[0]:
                return method(*given, **named)
            within[0] = True
            started = time.perf_counter()
            try:
                return method(*given, **named)
            finally:
                spent.append(time.perf_counter() - started)
                within[0] = False

        return call

    for name, method in before.items():
        setattr(Ledger, name, wrapped(method))
    try:
        yield spent
    finally:
        for name, method in before.items():
            setattr(Ledger, name, method)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=80, help="a multiple of eight")
    parser.add_argument("--rounds", type=int, default=2, help="sweeps of each kind")
    parser.add_argument("--singles", type=int, default=3, help="processes of one run each")
    given = parser.parse_args()
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(given.rounds):
        for workers, times in found.items():
            times.append(seconds(given.cells, workers))
            print(f"{given.cells} cells on {workers} worker{'s' * (workers > 1)}: {times[-1]:.1f} s", flush=True)
    print(f"two workers / one: {min(found[2]) / min(found[1]):.2f}")
    single = single_seconds(given.singles)
    with timed() as spent:
        whole = seconds(given.cells, None)
    print(f"{given.cells} cells in one process: {whole:.1f} s; a single run: {single:.1f} s")
    print(f"a sweep / single runs: {whole / (given.cells * single):.3f}")
    share = sum(spent) / whole
    print(f"ledger: {sum(spent):.2f} s of {whole:.1f} s in {len(spent)} calls, {100 * share:.1f} %")


if __name__ == "__main__":
    main()
