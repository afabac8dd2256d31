"""A fault at every system call that touches a run's folder: charged at most once, nothing released without its cost.

    python scripts/fault_sweep.py
    python scripts/fault_sweep.py --jobs run ledger --faults ENOSPC --every 5 --real 0

A shim (``fault_shim.c``, made with gcc and loaded by LD_PRELOAD) counts the calls of open, write, fsync, rename,
unlink, mkdir, flock, ftruncate, link and chmod below a folder that holds the ledger, the checkpoint and what is
published. At the n-th call, for every n:

    ENOSPC, EIO   that call fails
    cut           that call fails, after half of a write, and all after it: the disk is as SIGKILL leaves it there
    SIGINT        the process gets the signal

These take place in one process, whose programs are compiled once. ``--real K`` sends SIGKILL, SIGTERM and SIGINT to
processes of their own, at K points of each job. After each fault the job is begun again, or resumed. It is checked that
the ledger is whole and holds one charge, and that no draw lies without a ``privacy.json``. Nothing may end with a
traceback or exit code 70. The second start must come to its end, with the draws of a run of the same keys that was left
alone, bit for bit. Exit code 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

_SHIM = Path(__file__).with_name("fault_shim.c")
_COUNT, _FAIL, _CUT, _SIGNAL = range(4)
FAULTS = {
    "ENOSPC": (_FAIL, errno.ENOSPC),
    "EIO": (_FAIL, errno.EIO),
    "cut": (_CUT, errno.EIO),
    "SIGINT": (_SIGNAL, int(signal.SIGINT)),
}
REAL = ("SIGKILL", "SIGTERM", "SIGINT")
#: Seconds that a process of its own may take.
_PATIENCE = 120
N = 40


@dataclass
class Ended:
    """How one start ended.

    Attributes:
        code: exit code, or 1 after an exception.
        said: what was printed, or the exception.
        wrong: why it may not end so; empty where it may.
    """

    code: int
    said: str
    wrong: str = ""


class Job:
    """One way to spend from a ledger in a folder."""

    #: Charges that one start followed by a second may leave; a start without a checkpoint is a run of its own.
    charges = 1

    def prepare(self, folder: Path) -> None:
        """Write what the job needs."""
        _ledger(folder)

    def start(self, folder: Path) -> Ended:
        """Do it."""
        raise NotImplementedError

    def again(self, folder: Path) -> Ended:
        """Do it once more, or go on."""
        return self.start(folder)


class Run(Job):
    """``dpmcmc run``, which goes on when it is given again."""

    def prepare(self, folder: Path) -> None:
        """Write records and a config beside the folder that is watched."""
        import numpy as np

        super().prepare(folder)
        np.savez(folder.parent / "mine.npz", **_records())
        (folder.parent / "mine.yaml").write_text(_CONFIG.format(ledger=folder / "budget.db"))

    def start(self, folder: Path) -> Ended:
        """Begin in ``out``."""
        return _command("run", str(folder.parent / "mine.yaml"), "--out", str(folder / "out"))


class Sample(Job):
    """``dpmcmc.sample(ledger=, checkpoint=, out=)``."""

    def start(self, folder: Path) -> Ended:
        """Run the plan, or go on."""
        import dpmcmc

        given = {"checkpoint": folder / "kept", "out": folder / "out", "ledger": folder / "budget.db"}
        return _call(lambda: dpmcmc.sample(_plan(), _records(), **given))


class Fit(Job):
    """``dpmcmc.fit(...)`` and ``save``."""

    charges = 2

    def start(self, folder: Path) -> Ended:
        """Fit, and save."""
        import dpmcmc
        from dpmcmc.data import Levels, Range, Schema

        schema = Schema({"a": Range(-1.0, 1.0), "y": Levels([0, 1])}, label="y")
        table = _records()
        columns = {"a": table["x"][:, 0].astype(float), "y": table["y"]}

        def fitted() -> None:
            result = dpmcmc.fit("y ~ a", columns, schema, epsilon=1.0, ledger=folder / "budget.db")
            shutil.rmtree(folder / "out", ignore_errors=True)
            result.save(folder / "out")

        return _call(fitted)


class Books(Job):
    """``dpmcmc ledger init``, ``show`` and ``history``, and a run that is reserved, begun and settled by hand."""

    def prepare(self, folder: Path) -> None:
        """Nothing is there."""

    def start(self, folder: Path) -> Ended:
        """Each command in turn, until one is refused; a ledger that is there is gone on with."""
        book = folder / "budget.db"
        if not book.exists():
            made = _command("ledger", "init", str(book), "--epsilon", "3", "--delta", "1e-3", "--num-records", str(N))
            if made.code:
                return made
        spent = _call(lambda: _by_hand(book))
        for command in ("show", "history"):
            if spent.code:
                return spent
            spent = _command("ledger", command, str(book))
        return spent


JOBS: dict[str, Job] = {"run": Run(), "sample": Sample(), "fit": Fit(), "ledger": Books()}

_CONFIG = """
name: mine
data: {{path: mine.npz, num_records: 40, row_bound: 1.0}}
target: {{name: logistic_regression, prior_scale: 1.0}}
sampler: {{name: sgld, step_size: 0.5}}
sampling: {{scheme: full}}
privacy: {{epsilon: 1.0, delta: 1.0e-4, ledger: {ledger}}}
run: {{steps: 8, burn_in: 0.5}}
"""


def _records() -> dict[str, Any]:
    import numpy as np

    x = (np.random.default_rng(0).normal(size=(N, 2)) / 8).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}


def _plan() -> Any:
    import dpmcmc

    target = dpmcmc.targets.LogisticRegression(1.0, num_features=2, row_bound=1.0)
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=1e-4)
    return dpmcmc.plan(target, num_records=N, sampler=dpmcmc.SGLD(step_size=0.5), steps=8, burn_in=4, privacy=privacy)


def _ledger(folder: Path) -> None:
    from dpmcmc.privacy.ledger import Ledger

    terms = {"num_records": N, "adjacency": "replace_one", "epsilon": 6.0, "delta": 2e-3}
    Ledger.init(folder / "budget.db", name="people", **terms)  # type: ignore[arg-type]


def _by_hand(path: Path) -> None:
    """A run of this name is reserved, begun and settled, once."""
    from dpmcmc.privacy import account
    from dpmcmc.privacy.accounting.sampling import Full
    from dpmcmc.privacy.ledger import Ledger

    book = Ledger(path)
    guarantee = account(50.0, steps=1, sampling=Full(), num_records=N, delta=1e-6)
    receipt = book.find("by hand") or book.reserve(guarantee, "by hand")
    if book.is_open(receipt):
        book.begin(receipt, "by hand")
        book.settle(receipt, "released")


def _know_keys() -> None:
    """Draw the same keys at each start, so that a run can be compared with one that was left alone."""
    from dpmcmc.privacy.query import randomness

    source = random.Random(0)
    randomness.secrets = type("Known", (), {"token_bytes": staticmethod(source.randbytes)})  # type: ignore[assignment]


def drawn(folder: Path) -> str:
    """Return a digest of the draws in ``out``; empty where none are there."""
    import xarray

    path = folder / "out" / "draws.nc"
    if not path.exists():
        return ""
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        values = [node[name].values.tobytes() for node in tree.subtree for name in sorted(node.data_vars)]
    return hashlib.sha256(b"".join(values)).hexdigest()


def _command(*words: str) -> Ended:
    """A command line in this process."""
    _know_keys()
    from dpmcmc.cli.commands import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(list(words))
        except BaseException as error:  # none may come out
            return Ended(1, repr(error), f"raised {error!r}")
    text = said.getvalue()
    wrong = "exit code 70" if code == 70 else "a traceback" if "Traceback" in text else ""
    return Ended(code, text, wrong)


def _call(function: Callable[[], object]) -> Ended:
    """A call of the library; it may raise what it says it does."""
    _know_keys()
    from dpmcmc.errors import InputError

    try:
        function()
    except (InputError, OSError, KeyboardInterrupt) as error:
        return Ended(1, repr(error))
    except BaseException as error:
        return Ended(1, repr(error), f"raised {error!r}")
    return Ended(0, "")


class Shim:
    """The loaded shim."""

    def __init__(self) -> None:
        self._shim = ctypes.CDLL(None)
        self._shim.fault_disarm.restype = ctypes.c_long
        self._shim.fault_place.restype = ctypes.c_char_p
        self._shim.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]

    @contextlib.contextmanager
    def armed(self, folder: Path, at: int, how: tuple[int, int]) -> Iterator[None]:
        """Inside, the ``at``-th call below a folder meets a fault."""
        self.count = 0
        self._shim.fault_arm(os.fsencode(folder), at, *how)
        try:
            yield
        finally:
            self.count = self._shim.fault_disarm()

    @property
    def place(self) -> str:
        """Name of the call that met the fault."""
        return self._shim.fault_place().decode()


@dataclass
class Tally:
    """Points of one job under one fault, and what was wrong at them."""

    job: str
    fault: str
    points: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, at: int, call: str, found: list[str]) -> None:
        """Count a point."""
        self.points += 1
        self.wrong += [f"{self.job}, {self.fault} at {at} ({call}): {one}" for one in found]

    def printed(self) -> Tally:
        """Print the row of the table, and return it."""
        print(f"{self.job:<8} {self.fault:<28} {self.points:>6} {len(self.wrong):>6}", flush=True)
        return self


@contextlib.contextmanager
def _folder(job: Job) -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="fault-sweep-")).resolve()
    try:
        (top / "watched").mkdir()
        job.prepare(top / "watched")
        yield top / "watched"
    finally:
        shutil.rmtree(top, ignore_errors=True)


def found_wrong(job: Job, folder: Path, first: Ended, second: Ended, alone: str) -> list[str]:
    """Return the faults of what a fault and a second start have left."""
    from dpmcmc.privacy.ledger import Ledger, LedgerError

    wrong = [f"the first start ended with {first.wrong}: {first.said[-300:]}"] if first.wrong else []
    done = "already holds a run that is done" in second.said
    if (second.code and not done) or second.wrong:
        wrong.append(f"the second start ended with {second.wrong or second.code}: {second.said[-300:]}")
    elif drawn(folder) != alone:
        wrong.append("other draws than the run that was left alone")
    try:
        book = Ledger(folder / "budget.db")
        book.check()
        charged = sum(run.outcome != "void" for run in book.state().runs)
        if charged > job.charges:
            wrong.append(f"{charged} charges")
    except LedgerError as error:
        wrong.append(f"the ledger: {error}")
    return wrong + _uncovered(folder)


def _uncovered(folder: Path) -> list[str]:
    """Released numbers without their cost."""
    computed = ("draws.nc", "trace.npz", "evidence.npz", "metrics.json", "report.html")
    found = [path for name in computed for path in folder.rglob(name)]
    return [f"{path.name} lies without privacy.json" for path in found if not (path.parent / "privacy.json").exists()]


def sweep(shim: Shim, name: str, fault: str, every: int, alone: str) -> Tally:
    """Every n-th point of a job under a fault, in this process."""
    job = JOBS[name]
    tally = Tally(name, fault)
    at = 1
    while True:
        with _folder(job) as folder:
            with shim.armed(folder, at, FAULTS[fault]):
                first = job.start(folder)
            if not shim.place:
                return tally.printed()
            call = shim.place
            left = _uncovered(folder)
            if fault == "cut":
                first.wrong = ""  # nobody is left to say it
            # ``sample`` returns a result that it cannot save: nothing lies in ``out`` then, and the same call saves it.
            second = first if first.code == 0 and (not alone or drawn(folder)) else job.again(folder)
            tally.add(at, call, left + found_wrong(job, folder, first, second, alone))
        at += every


def really(shim: Shim, name: str, sent: str, points: int) -> Tally:
    """Signals to processes of their own, which are forked before JAX begins."""
    job = JOBS[name]
    tally = Tally(name, f"{sent}, a process each")
    with _folder(job) as folder:
        _in_child(lambda: _counted(shim, job, folder))
        total = int((folder / "count").read_text())
        alone = drawn(folder)
    for at in sorted({max(1, round((i + 0.5) * total / points)) for i in range(points)}):
        with _folder(job) as folder:

            def start(folder: Path = folder, at: int = at) -> int:
                with shim.armed(folder, at, (_SIGNAL, int(getattr(signal, sent)))):
                    return _told(job.start(folder))

            code = _in_child(start)
            left = _uncovered(folder)
            first = Ended(code, "", "exit code 70" if code == 70 else "")
            second = first
            if code:
                second = Ended(_in_child(lambda folder=folder: _told(job.again(folder))), "")
            tally.add(at, f"of {total}", left + found_wrong(job, folder, first, second, alone))
    return tally.printed()


def _told(ended: Ended) -> int:
    if ended.code or ended.wrong:
        print(f"    {ended.wrong or ended.code}: {ended.said[-300:].strip()}", file=sys.stderr)
    return 70 if ended.wrong else ended.code


def _counted(shim: Shim, job: Job, folder: Path) -> int:
    with shim.armed(folder, 0, (_COUNT, 0)):
        _told(job.start(folder))
    (folder / "count").write_text(str(shim.count))
    return 0


def _in_child(work: Callable[[], int]) -> int:
    """Exit code of work in a process of its own."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(_PATIENCE)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(argv: list[str] | None = None) -> int:
    """Sweep, and print a table."""
    arguments = _parser().parse_args(argv)
    if not hasattr(ctypes.CDLL(None), "fault_arm"):
        return _with_shim()
    shim = Shim()
    warnings.simplefilter("ignore")
    _warm(arguments.jobs)
    print(f"{'job':<8} {'fault':<28} {'points':>6} {'wrong':>6}")
    tallies = [really(shim, job, sent, arguments.real) for job in arguments.jobs for sent in REAL if arguments.real]
    for job in arguments.jobs if arguments.faults else ():
        with _folder(JOBS[job]) as folder:  # compiled once
            left = JOBS[job].start(folder)
            alone = drawn(folder)
        if left.code:
            raise SystemExit(f"{job}: without a fault it ends with {left.code}: {left.said}")
        tallies += [sweep(shim, job, fault, arguments.every, alone) for fault in arguments.faults]
    print(f"{'all':<8} {'':<28} {sum(t.points for t in tallies):>6} {sum(len(t.wrong) for t in tallies):>6}")
    wrong = [one for tally in tallies for one in tally.wrong]
    print("\n".join(wrong))
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description="A fault at every system call that touches a run's folder.")
    out.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    out.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))
    out.add_argument("--every", type=int, default=1, help="look at every so many-th point alone")
    out.add_argument("--real", type=int, default=8, help="points at which processes of their own get signals")
    return out


def _with_shim() -> int:
    """This script again, with the shim loaded."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise SystemExit("gcc: there is none, and the shim is made with it; install it.")
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder) / "fault_shim.so"
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", shim, _SHIM, "-ldl"], check=True)
        again = [sys.executable, *sys.orig_argv[1:]]
        return subprocess.run(again, env=os.environ | {"LD_PRELOAD": str(shim)}, check=False).returncode


def _warm(jobs: list[str]) -> None:
    """Import what the jobs use, without a picture and without scores of records."""
    from dpmcmc.privacy import ledger

    assert ledger
    if set(jobs) == {"ledger"}:
        return
    from dpmcmc.cli import run, saved
    from dpmcmc.engine import sizes
    from dpmcmc.report import pictures
    from dpmcmc.storage import checkpoint

    assert run
    saved.diagnose = lambda *_: ({}, None)
    pictures.Pictures.begin = lambda *_: None  # type: ignore[method-assign]
    sizes._CHUNK_STEPS = 2
    checkpoint._OVERHEAD = 1e9


if __name__ == "__main__":
    sys.exit(main())
