"""Cost of the ledger and the checkpoint to a run, as a share of its time.

    python scripts/measure_overhead.py configs/adult.yaml [--repeats 5]

Each run is the whole command, in this process, charged to a new ledger. The time spent inside the ledger and the
checkpoint is added up, so that the share is not the difference of two noisy runs. The first run compiles, and is left
out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from dpmcmc import config
from dpmcmc.cli.commands import main as command
from dpmcmc.config import file as config_file
from dpmcmc.engine.reservation import Reservation
from dpmcmc.privacy import Ledger
from dpmcmc.storage.checkpoint import Checkpoint


class Clock:
    """Adds up the time inside some methods, those that call each other once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def watch(self, owner: type, names: list[str]) -> None:
        """Time these methods of a class."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, method):  # type: ignore[no-untyped-def]
        def timed(*arguments, **more):  # type: ignore[no-untyped-def]
            if self._inside:
                return method(*arguments, **more)
            self._inside = True
            started = time.perf_counter()
            try:
                return method(*arguments, **more)
            finally:
                self._inside = False
                self.seconds += time.perf_counter() - started

        return timed


def main() -> int:
    out = argparse.ArgumentParser(description="Measure the overhead of ledger and checkpoint.")
    out.add_argument("config")
    out.add_argument("--repeats", type=int, default=5)
    arguments = out.parse_args()
    plan = config.make_plan(config_file.load(arguments.config))
    assert plan.guarantee is not None
    kept = Clock()
    charged = Clock()
    kept.watch(Checkpoint, ["__init__", "keys", "begin", "point", "start", "commit", "note", "remove"])
    charged.watch(Reservation, ["__init__", "identify", "start", "settle"])
    shares = []
    for repeat in range(arguments.repeats + 1):
        folder = Path(tempfile.mkdtemp(prefix="overhead-"))
        promise = plan.guarantee
        Ledger.init(
            folder / "ledger.db",
            name="overhead",
            num_records=plan.num_records,
            adjacency=promise.adjacency,
            epsilon=2 * promise.epsilon,
            delta=promise.delta,
        )
        kept.seconds = charged.seconds = 0.0
        started = time.perf_counter()
        words = [arguments.config, "--out", str(folder / "run"), "--set", f"privacy.ledger={folder / 'ledger.db'}"]
        if command(["run", *words, "--quiet"]):
            return 1
        seconds = time.perf_counter() - started
        if repeat:
            shares.append((kept.seconds / seconds, charged.seconds / seconds, seconds))
    for name, column in zip(("checkpoint", "ledger"), zip(*shares, strict=True), strict=False):
        print(f"{name:<12} {100 * statistics.median(column):.2f} % of the run (median of {len(column)})")
    print(f"{'run':<12} {statistics.median(s for *_, s in shares):.1f} s, without the start of Python")
    return 0


if __name__ == "__main__":
    sys.exit(main())
