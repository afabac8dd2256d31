"""Kill runs at random moments, resume them, and compare with runs that were left alone.

    python scripts/crash_test.py --kills 200

Every run is charged to one ledger. Figures and diagnostics are left out, so that kills fall where keys, draws and
budget are at stake. Reported: kills, where they fell, runs whose draws differ in a bit from those of
the same keys without a kill, files that cannot be read, and what the ledger holds against what it should.
Exit code 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from dpmcmc.cli import run as run_command
from dpmcmc.privacy import Ledger
from dpmcmc.privacy.query import randomness

_SAID = Path(tempfile.mkdtemp(prefix="crash-said-")) / "said.txt"

CONFIG = """
name: crash
data: {{name: two_normals}}
target: {{name: logistic_regression, prior_scale: 3.0}}
sampler: {{name: sghmc, step_size: 2.0, friction: 0.5}}
sampling: {{scheme: poisson, batch_size: 20}}
privacy: {{epsilon: 0.05, delta: 1.0e-6, adjacency: replace_one, clip: 0.5, ledger: {ledger}}}
run: {{steps: {steps}, chains: 2, burn_in: 0.25, thin: 4}}
"""


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="crash-"))
    config = folder / "crash.yaml"
    config.write_text(CONFIG.format(ledger="ledger.db", steps=arguments.steps))
    choose = random.Random(arguments.seed)
    Ledger.init(folder / "ledger.db", name="crash", num_records=1000, adjacency="replace_one", epsilon=3, delta=1e-4)
    _run(0, ["--out", str(folder / "warm"), str(config)])  # compiled programs are kept
    started = time.perf_counter()
    _run(0, ["--out", str(folder / "plain"), str(config)])
    seconds = time.perf_counter() - started
    runs = 2
    kills = 0
    wrong = []
    phases = Counter()
    while kills < arguments.kills:
        runs += 1
        seed = 1000 + runs
        out = folder / f"run-{runs}"
        command = ["--out", str(out), str(config)]
        for _ in range(choose.choice((1, 1, 2, 3))):
            code = _run(seed, command, choose.uniform(0.05, 1.02) * seconds)
            if code != -signal.SIGKILL:
                break
            kills += 1
            phases[_phase(out)] += 1
            wrong += [f"run {runs}: {path} is not whole" for path in _broken(out)]
            Ledger(folder / "ledger.db").check()
            if (out / "config.yaml").exists():
                command = ["--resume", str(out)]
            else:
                _clear(out)
        if code == -signal.SIGKILL:
            code = _run(seed, command)
        if code != 0 and "done" not in _said(out):
            wrong.append(f"run {runs}: exit code {code}: {_SAID.read_text().splitlines()[-1:]}")
        left_alone = folder / "alone"
        _run(seed, ["--out", str(left_alone), "--set", "privacy.ledger=null", str(config)])
        if _draws(out) != _draws(left_alone):
            wrong.append(f"run {runs}: other draws than the run that was left alone")
        if (out / "confidential" / "checkpoint").exists():
            wrong.append(f"run {runs}: keys were left behind")
        _clear(left_alone)
        _clear(out)
    print(f"{kills} kills of {runs - 2} runs, {seconds:.1f} s each when left alone; in {dict(phases)}")
    wrong += _wrong_in(Ledger(folder / "ledger.db"), runs)
    print("\n".join(wrong) or "every run ended with the draws of a run left alone; every file and the ledger are right")
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description="Kill runs at random moments and resume them.")
    out.add_argument("--kills", type=int, default=200)
    out.add_argument("--steps", type=int, default=60_000)
    out.add_argument("--seed", type=int, default=0, help="of the moments")
    out.add_argument("--folder", help="where to work (default: a temporary folder)")
    return out


def _run(seed: int, command: list[str], kill_after: float | None = None) -> int:
    """Exit code of the run command in a process of its own, killed after so many seconds."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _known_entropy(seed)
        for name in ("_draw_chains", "_draw_predictions"):
            setattr(run_command.ConfiguredRun, name, lambda *_: None)
        run_command.ConfiguredRun._confidential = lambda *_: ({}, None)
        # Messages of a run are kept, for the ones that go wrong.
        with open(_SAID, "w") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = command(["run", *command])
        os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _known_entropy(seed: int) -> None:
    """The same keys for the run that is killed and for the one that is left alone."""
    source = random.Random(seed)
    randomness.secrets = type("Known", (), {"token_bytes": staticmethod(source.randbytes)})


def _phase(out: Path) -> str:
    """Return the phase that the run was in."""
    if not (out / "confidential" / "checkpoint" / "run.json").exists():
        return "before" if not (out / "metrics.json").exists() else "after"
    state = json.loads((out / "confidential" / "checkpoint" / "run.json").read_bytes())
    if "plan" not in state:
        return "reserved"
    return "sampling" if state["keys"] else "saving"


def _broken(out: Path) -> list[Path]:
    """Files that are there and cannot be read."""
    wrong = []
    for path in out.rglob("*.json"):
        try:
            json.loads(path.read_bytes())
        except ValueError:
            wrong.append(path)
    return wrong


def _said(out: Path) -> str:
    return "done" if (out / "metrics.json").exists() and not (out / "confidential" / "checkpoint").exists() else ""


def _draws(out: Path) -> str:
    import xarray

    if not (out / "draws.nc").exists():
        return f"none in {out}"
    with xarray.open_datatree(out / "draws.nc", engine="h5netcdf") as tree:
        return hashlib.sha256(tree["posterior"]["theta"].values.tobytes()).hexdigest()


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _wrong_in(ledger: Ledger, runs: int) -> list[str]:
    """Return the faults of the ledger after so many runs, each charged once."""
    ledger.check()
    state = ledger.state()
    released = [run for run in state.runs if run.outcome == "released"]
    costs = {run.charges[0] for run in state.runs}
    wrong = [f"ledger: run {run.id} is {run.outcome}" for run in state.runs if run.outcome == "open"]
    wrong += [f"ledger: run {run.id} was charged {len(run.charges)} times" for run in released if len(run.charges) != 1]
    if len(released) != runs:
        wrong.append(f"ledger: holds {len(released)} reservations that were spent, and {runs} runs released")
    if len(costs) != 1 or abs(state.spent - runs * next(iter(costs))[0]) > 1e-9 * state.spent:
        wrong.append(f"ledger: {state.spent:.6g} is spent by {runs} runs of {costs}")
    if state.spent > state.terms.budget:
        wrong.append(f"ledger: {state.spent:.6g} is spent of {state.terms.budget:.6g}")
    print(f"ledger: {len(released)} reservations of {runs} runs, {state.spent:.6g} of {state.terms.budget:.6g} spent")
    if wrong:
        wrong += [f"ledger: {run.label}: {run.outcome}" for run in state.runs]
    return wrong


if __name__ == "__main__":
    sys.exit(main())
