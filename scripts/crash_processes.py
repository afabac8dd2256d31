"""Kill one of several processes at every commit and around every call of the ledger, resume, and compare.

    python scripts/crash_processes.py
    python scripts/crash_processes.py --first 3 --every 7

A run of two processes is charged to a ledger. Points are counted in each process: on process 0 before and after each
call that the checkpoint or the ledger gets, on process 1 before and after each call that waits for process 0. At each
point in turn the process gets SIGKILL, the other has to end by itself, and the run is resumed, by turns on two
processes of one device and on one process of two devices. It is checked that the run ends with the draws of one that
was left alone, that the ledger holds one charge for it, and that no key is left behind. Exit code 1 where anything is
wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from dpmcmc.cli import run as run_command
from dpmcmc.cli import saved
from dpmcmc.cli.commands import main as command
from dpmcmc.engine import agreement, life, processes, sizes
from dpmcmc.privacy import Ledger
from dpmcmc.privacy.query import randomness
from dpmcmc.storage import checkpoint
from dpmcmc.storage.checkpoint import Checkpoint

CONFIG = """
name: crash
data: {name: two_normals}
target: {name: logistic_regression, prior_scale: 3.0}
sampler: {name: sghmc, step_size: 2.0, friction: 0.5}
sampling: {scheme: poisson, batch_size: 20}
privacy: {epsilon: 0.05, delta: 1.0e-6, adjacency: replace_one, clip: 0.5, ledger: ledger.db}
run: {steps: 200, chains: 2, burn_in: 0.25, thin: 4, mesh: {chain: 1, data: 2}}
"""
#: Calls of process 0 that a kill may come before or after.
OF_FIRST = {
    Checkpoint: ("begin", "note", "start", "commit", "remove"),
    Ledger: ("reserve", "identify", "begin", "settle"),
}
#: Calls that every process makes.
OF_ALL = ("of_first", "said_by_first", "keys_of_first")
TOGETHER = 2
#: Seconds that a start may take, and that a process may be silent.
_PATIENCE = 400
_HEARTBEAT = 40


class Points:
    """Points that a process passes, at one of which it is killed.

    Args:
        at: number of the point, from 1; 0 kills at none.
        told: file that holds the number of points passed, at the end.
    """

    def __init__(self, at: int, told: Path) -> None:
        self._at = at
        self._told = told
        self._passed = 0

    def passed(self, where: str) -> None:
        """Pass a point."""
        self._passed += 1
        self._told.write_text(f"{self._passed} {where}")
        if self._passed == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str) -> None:
        """Make a point before a function of a module or class, and one after."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def call(*given: Any, **named: Any) -> Any:
            self.passed(f"before {name}")
            result = real(*given, **named)
            self.passed(f"after {name}")
            return result

        setattr(owner, name, call)


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="crash-processes-"))
    (folder / "crash.yaml").write_text(CONFIG)
    terms = {"name": "crash", "num_records": 1000, "adjacency": "replace_one", "epsilon": 3, "delta": 1e-4}
    Ledger.init(folder / "ledger.db", **terms)  # type: ignore[arg-type]
    started = time.perf_counter()
    alone = folder / "alone"
    codes = start(folder, ["--out", str(alone), str(folder / "crash.yaml")], TOGETHER)
    if any(codes):
        raise SystemExit(f"without a kill it ends with {codes}: {said(folder)}")
    seconds = time.perf_counter() - started
    totals = [int((folder / f"points-{who}").read_text().split()[0]) for who in range(TOGETHER)]
    assert np.ptp(_draws(alone)) > 0
    print(f"{totals} points of the processes, {seconds:.1f} s for a run", flush=True)
    wrong: list[str] = []
    runs = 1
    for who, total in enumerate(totals):
        for at in range(arguments.first, total + 1, arguments.every):
            runs += 1
            found = _killed(folder, who, at, TOGETHER - runs % TOGETHER)
            wrong += found
            print(f"  process {who}, point {at} of {total}: {'; '.join(found) or 'right'}", flush=True)
    wrong += _wrong_in(Ledger(folder / "ledger.db"), runs)
    print(f"{runs - 1} kills, {len(wrong)} wrong")
    print("\n".join(wrong) or "every run ended with the draws of a run left alone, and was charged once")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description="Kill one of several processes at every point, and resume.")
    out.add_argument("--every", type=int, default=1, help="look at every so many-th point alone")
    out.add_argument("--first", type=int, default=1, help="begin at this point")
    out.add_argument("--folder", help="where to work (default: a temporary folder)")
    return out


def _killed(folder: Path, who: int, at: int, resume_with: int) -> list[str]:
    """Return what is wrong with a run of which a process is killed at a point, and which is resumed."""
    out = folder / f"run-{who}-{at}"
    words = ["--out", str(out), str(folder / "crash.yaml")]
    codes = start(folder, words, TOGETHER, who, at)
    where = f"process {who} killed {(folder / f'points-{who}').read_text()}"
    if codes[who] != -signal.SIGKILL:
        return [f"{where}: it ended with {codes}: {said(folder)}"]
    if codes[1 - who] == -signal.SIGALRM:
        return [f"{where}: the other did not end"]
    wrong = []
    if (out / "draws.nc").exists() and not (out / "privacy.json").exists():
        wrong.append(f"{where}: draws lie without their cost")
    done = not (out / "confidential" / "checkpoint").exists() and (out / "metrics.json").exists()
    if not done:
        if (out / "config.yaml").exists():
            words = ["--resume", str(out)]
        else:
            shutil.rmtree(out, ignore_errors=True)
        codes = start(folder, words, resume_with)
        if any(codes):
            return [*wrong, f"{where}: resumed, it ended with {codes}: {said(folder)}"]
    if not np.array_equal(_draws(out), _draws(folder / "alone")):
        wrong.append(f"{where}: other draws than the run that was left alone")
    if (out / "confidential" / "checkpoint").exists():
        wrong.append(f"{where}: keys were left behind")
    shutil.rmtree(out)
    return wrong


def start(folder: Path, words: list[str], count: int, kill: int = -1, at: int = 0) -> list[int]:
    """Exit codes of so many processes that run a command, of which one is killed at a point.

    Args:
        folder: of messages.
        words: after ``dpmcmc run``.
        count: processes; the devices of all together are two.
        kill: which is killed.
        at: its point.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    sys.stdout.flush()
    children = []
    for who in range(count):
        child = os.fork()
        if child == 0:
            work = functools.partial(_one_of, folder, words, count, who, at if who == kill else 0)
            _child(work, folder / f"said-{who}", address, count, who)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _child(work: Callable[[], int], messages: Path, address: str, count: int, who: int) -> None:
    signal.alarm(_PATIENCE)
    names = (processes.COORDINATOR, processes.PROCESSES, processes.PROCESS)
    os.environ.update(zip(names, (address, str(count), str(who)), strict=True))
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={TOGETHER // count}"
    with open(messages, "w") as stream:
        # C++ writes there too.
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            code = work()
            stream.flush()
    os._exit(code)


def _one_of(folder: Path, words: list[str], count: int, who: int, at: int) -> int:
    points = Points(at, folder / f"points-{who}")
    if who == 0:
        _known_entropy(0)
        for owner, names in OF_FIRST.items():
            for name in names:
                points.around(owner, name)
    else:
        for name in OF_ALL:
            for room in (agreement, life, run_command):
                if hasattr(room, name):
                    points.around(room, name)
    processes._HEARTBEAT = _HEARTBEAT
    # Commits after every chunk, of which there are a few; no pictures and no scores of records.
    sizes._CHUNK_STEPS = 50
    checkpoint._OVERHEAD = 1e9
    saved.diagnose = lambda *_: ({}, None)
    run_command.ConfiguredRun._draw_run = lambda *_: None
    run_command.ConfiguredRun._draw_predictions = lambda *_: None
    code = command(["run", *words, *(["--distributed"] if count > 1 else [])])
    if count > 1 and code == 0:
        jax.distributed.shutdown()  # as at the end of a process: waits for the others
    return code


def _known_entropy(seed: int) -> None:
    """The same keys for the run that is killed and for the one that is left alone."""
    source = random.Random(seed)
    randomness.secrets = type("Known", (), {"token_bytes": staticmethod(source.randbytes)})


def said(folder: Path) -> list[str]:
    """Return the last words of the processes."""
    return [path.read_text()[-300:] for path in sorted(folder.glob("said-*"))]


def _draws(out: Path) -> np.ndarray:
    import xarray

    with xarray.open_datatree(out / "draws.nc", engine="h5netcdf") as tree:
        return np.asarray(tree["path"]["theta"].values)


def _wrong_in(ledger: Ledger, runs: int) -> list[str]:
    """Return the faults of the ledger after so many runs, each charged once."""
    ledger.check()
    state = ledger.state()
    released = [run for run in state.runs if run.outcome == "released"]
    wrong = [f"ledger: run {run.id} is open" for run in state.runs if run.outcome == "open"]
    wrong += [f"ledger: run {run.id} was charged {len(run.charges)} times" for run in released if len(run.charges) != 1]
    if len(released) != runs:
        wrong.append(f"ledger: holds {len(released)} reservations that were spent, and {runs} runs released")
    print(f"ledger: {len(released)} reservations of {runs} runs, each charged once")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
