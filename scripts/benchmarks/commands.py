"""Runs a configuration as a user does, ``dpmcmc run``, in a process of its own, and measures that process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Measured:
    """A process that has ended.

    Attributes:
        seconds: from its start to its end.
        peak_bytes: the most memory it held (``ru_maxrss``).
        cpu_seconds: of all its threads.
        wall_seconds: what the run itself says: ``calibrate``, ``compile``, ``run``; empty for another command.
        failure: the last line it wrote to stderr where it failed, else None.
    """

    seconds: float
    peak_bytes: int
    cpu_seconds: float = 0.0
    wall_seconds: dict[str, float] = field(default_factory=dict)
    failure: str | None = None


def run_config(config: str, cache: Path) -> Measured:
    """Run a configuration of ``configs/`` in a new folder, with compiled programs kept in ``cache``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        measured = process(["-m", "dpmcmc.run", f"configs/{config}.yaml", "--quiet", "--out", str(out)], cache)
        if measured.failure is not None:
            return measured
        wall = json.loads((out / "metrics.json").read_text()).get("wall_seconds", {})
    return dataclasses.replace(measured, wall_seconds=wall)


#: A new process is charged with the memory of the one that started it, so a small one stands between.
_LAUNCH = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
seconds = time.perf_counter() - started
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([status, seconds, used.ru_maxrss, used.ru_utime + used.ru_stime]))
"""


def process(arguments: list[str], cache: Path) -> Measured:
    """Run this Python with these arguments; modules are kept as bytecode, as Python does unless it is told not to."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCH, sys.executable, *arguments],
        cwd=ROOT,
        env=environment | {"DPMCMC_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    status, seconds, peak, cpu = json.loads(done.stdout)
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    unit = 1 if sys.platform == "darwin" else 1024
    return Measured(seconds, peak * unit, cpu, failure=last if status else None)
