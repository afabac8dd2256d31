"""Checkpoints: what a run needs to go on after it was stopped, in an owner-only folder.

    run.json                    what is run, on which platform and records, its name and its keys
    stage-0.bin                 what the first stage of the plan released, where that is a release
    draws-00003.bin             draws of the chain kept since the commit before, where there are any
    state-0.bin, state-1.bin    the two latest commits of the chain, in turn

Each stage of a plan has commits of its own: a release has one, which ``run.json`` names with its SHA-256, and a chain
has many. A commit is whole or not there: draws first, then the state that names them, each with its SHA-256, each
renamed into place. So a kill, a full disk or a loss of power loses the steps since the last commit and nothing else.

**Going on.** Nothing of a run is released before it is done. The run makes again all that was not committed, on the
same platform and the same records with the same keys, so that it is the same to the last bit and costs nothing. On
another platform the same noise would fall on a query that rounds differently, and cancel in the difference if the first
outcome were ever seen. On other records it would cancel, too. So both are refused, and what was spent stays spent.

**Copies.** Keys, the run's name (128 random bits) and the digest of its records are written at once, before the ledger
says that a run of this name has begun. A copy of the folder has all three, so it makes the same bits, and the ledger
knows it by its name: it costs nothing. A copy from before has none of them: its own name is another, and is refused.

Keys are in ``run.json`` until the last commit, and erased with it. The records are known by a keyed digest: a bare hash
of private data could be searched for. Both stay, for a finished run must not answer for others: it is confidential too.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.storage.arrays import seal, unseal
from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.commit import CommittedDraws, Point, arrays_of_pieces
from dpmcmc.storage.files import read_json
from dpmcmc.storage.fingerprint import Described, fingerprint, plan_digest, platform
from dpmcmc.storage.leaves import from_text, plain, to_text
from dpmcmc.storage.lock import lock, still_names
from dpmcmc.storage.pytree import PyTree

#: Version of ``run.json``.
VERSION = 4


def check_run(run: Any) -> None:
    """Raise ValueError, KeyError, AttributeError or TypeError unless it holds what this version writes."""
    if run["version"] != VERSION:
        raise InputError("another version")
    run.get("notes", {}).get("")
    if "plan" not in run:
        return
    bytes.fromhex(run["records_key"]), run["name"].encode()
    for words in run["keys"] or []:
        np.asarray(words, np.uint32)
    for number, stage in run["stages"].items():
        int(number), stage["digest"].encode(), bool(stage["last"])
    if not isinstance(run["secret"], bool):
        raise InputError("other keys")
    run["platform"], run["records"]


#: A commit may cost this share of the time until the next.
_OVERHEAD = 0.01


#: Added to the name of a folder that is being removed.
REMOVED = "-removed"


class CheckpointError(InputError):
    """A checkpoint that this run cannot go on from; one sentence."""


class Checkpoint:
    """The checkpoint of one run.

    Args:
        folder: made if it is not there; readable by its owner alone.

    Raises:
        CheckpointError: another process has it; it holds something else, or a checkpoint of another version.
        OSError: it cannot be made.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        # Two processes with one set of keys, on two platforms, would subtract each other's noise.
        self._lock: int | None = _locked(self.folder.with_name(self.folder.name + ".lock"))
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        #: Keys and facts of the new run that :meth:`keys` was asked for last; None of a run that goes on.
        self.new: dict[str, Any] | None = None
        self.folder.mkdir(exist_ok=True, mode=0o700)
        self._commit_seconds = 0.0
        self._since = 0.0
        path = self.folder / "run.json"
        self._run: dict[str, Any] = {"version": VERSION}
        if path.exists():
            try:
                self._run = read_json(path)
                check_run(self._run)
            except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
                raise CheckpointError(
                    f"{path}: is not a checkpoint of this version; what it charged stays charged, start a new run"
                ) from None
            for left in self._leftovers():
                left.unlink()
        elif any(path for path in self.folder.iterdir() if path not in set(self._leftovers())):
            raise CheckpointError(
                f"{self.folder}: holds files that are no checkpoint; give a folder that is new or empty"
            )

    def _leftovers(self) -> list[Path]:
        """Files of writes that were killed."""
        return [path for name in ("run.json", "stage-", "state-", "draws-") for path in self.folder.glob(f".{name}*")]

    def close(self) -> None:
        """Let another process have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def begun(self) -> bool:
        """Whether a run has keys here, so that it may have computed something from a record."""
        return "plan" in self._run

    @property
    def name(self) -> str | None:
        """Name of the run, by which the ledger knows that it has begun; None before its keys are here."""
        return self._run.get("name")

    def note(self, **facts: object) -> None:
        """Keep facts of the caller's, JSON values, with the run."""
        self._run.setdefault("notes", {}).update(facts)
        self._save()

    def read_note(self, name: str) -> Any:
        """A fact kept by :meth:`note`, or None."""
        return self._run.get("notes", {}).get(name)

    def check(self, plan: Described) -> None:
        """Refuse another plan than what was started, if anything was.

        Raises:
            CheckpointError: it is another.
        """
        if self.begun and self._run["plan"] != plan_digest(plan):
            raise CheckpointError(
                f"{self.folder}: was begun with another plan; go on with the plan it was begun with, or start a new run"
            )

    def keys(
        self,
        plan: Described,
        data: PyTree,
        streams: PyTree,
        secret: bool,
        mesh: tuple[int, int] | None = None,
        workers: str = "",
    ) -> PyTree:
        """Return the keys of the run that was started here, or fresh ones for a new run; nothing is written.

        Args:
            plan: what runs.
            data: its records.
            streams: pytree of fresh JAX keys.
            secret: whether they are.
            mesh: devices along the chains and along the records, another of which is another platform; None: no mesh.
            workers: digest of how other processes round records, another of which is another platform; empty: none do.

        Raises:
            CheckpointError: another plan, other records, another kind of key or another platform than what was started;
                or the end of a run that is done is lost.
        """
        # A different device layout changes the order of rounding.
        layout = platform() if mesh is None else f"{platform()} {mesh}"
        here = f"{layout} {workers}" if workers else layout
        self.new = None
        if not self.begun:
            key = secrets.token_bytes(32)
            self.new = {
                "plan": plan_digest(plan),
                "name": secrets.token_hex(16),
                "stages": {},
                "records_key": key.hex(),
                "records": fingerprint(key, data),
                "platform": here,
                "secret": secret,
                "keys": to_text(streams),
            }
            return streams
        self.check(plan)
        if self._run["records"] != fingerprint(bytes.fromhex(self._run["records_key"]), data):
            raise self._cannot_go_on("was begun on other records", "go on with the records it was begun with")
        if self._run["secret"] != secret:
            noise = "secret" if self._run["secret"] else "known"
            raise self._cannot_go_on(f"was begun with {noise} noise", "go on with the same")
        if self._run["keys"] is None:
            if not self._whole:
                raise self._cannot_go_on("has lost the end of its run, which is done", "put the file back")
            return streams
        if self._run["platform"] != here:
            raise self._cannot_go_on(
                "was begun on another platform, where the same keys make other bits",
                "go on where it was begun, with the same versions, devices and settings",
            )
        try:
            return from_text(self._run["keys"], streams)
        except (ValueError, TypeError):
            raise self._cannot_go_on("holds keys of another kind of run", "put the file back") from None

    def _cannot_go_on(self, why: str, mend: str) -> CheckpointError:
        return CheckpointError(f"{self.folder}: {why}; what it was to spend is spent: {mend}, or start a new run")

    def begin(self, new: dict[str, Any] | None) -> None:
        """Keep the keys of a new run, which computes from records after that.

        Args:
            new: :attr:`new` after its call of :meth:`keys`; None of a run that goes on, whose keys are here.

        Raises:
            CheckpointError: another start has begun its run here since that call.
        """
        if new is None:
            return
        if self.begun:
            raise CheckpointError(
                f"{self.folder}: another start has begun its run here meanwhile, and a checkpoint is for one run; give "
                "another folder"
            )
        whole = self._run | new
        self._save(whole)
        self._run = whole

    def commit_stage(self, stage: int, arrays: dict[str, np.ndarray], last: bool) -> None:
        """Commit what a stage released, which is not made again.

        Args:
            stage: its number in the plan.
            arrays: that it released, by name.
            last: whether it is the last stage; its keys are then erased.
        """
        digest = seal(self.folder / _stage(stage), arrays)
        self._run["stages"][str(stage)] = {"digest": digest, "last": last}
        if last:
            self._run["keys"] = None
        self._save()

    def load_stage(self, stage: int) -> dict[str, np.ndarray] | None:
        """Return the arrays that :meth:`commit_stage` was given for a stage; None: the stage is made, or made again.

        Raises:
            CheckpointError: they were committed, and are lost, and steps that are kept rest on them.
        """
        known = self._run.get("stages", {}).get(str(stage))
        if known is None:
            return None
        found = unseal(self.folder / _stage(stage))
        if found is not None and found[0] == known["digest"]:
            return found[1]
        if not any(self.folder.glob("state-*")):
            return None
        raise CheckpointError(
            f"{self.folder}: has lost what its run released first ({_stage(stage)}), on which its steps rest; what it "
            "charged stays charged, start a new run"
        )

    @property
    def _whole(self) -> bool:
        """Whether the last commit of a run that is done is here."""
        last = [int(stage) for stage, known in self._run["stages"].items() if known["last"]]
        if last:
            return self.load_stage(last[0]) is not None
        point = self.point()
        return point is not None and point.complete

    def point(self) -> Point | None:
        """The last commit of the chain that is whole, or None."""
        states = [path for path in (self.folder / f"state-{at}.bin" for at in (0, 1)) if path.exists()]
        found = [point for point in map(self._state, states) if point is not None]
        found.sort(key=lambda point: -point.number)
        self._since = time.perf_counter()
        return next((point for point in found if point.read_pieces(self.folder)), None)

    def start(self, shape: tuple[int, int], chains: int) -> Point:
        """Commit the beginning of a run of so many chains."""
        started = time.perf_counter()
        point = Point(shape=shape, norms=[0.0] * chains)
        self._write(point)
        self._since = time.perf_counter()
        self._commit_seconds = self._since - started
        return point

    def due(self) -> bool:
        """Whether to commit now, which then costs little."""
        return time.perf_counter() - self._since > self._commit_seconds / _OVERHEAD

    def commit(
        self,
        point: Point,
        step: int,
        states: PyTree,
        draws: CommittedDraws,
        steps: int,
        seconds: float,
        last: bool,
    ) -> None:
        """Make what a run has done last.

        Args:
            point: the commit before; moved to where the run is now.
            step: the next step of the chains.
            states: of the chains, a pytree; not looked at where they are done.
            draws: what is kept of them.
            steps: in all.
            seconds: that the run has taken.
            last: whether the chains are the last stage; the keys are then erased when they are done.
        """
        started = time.perf_counter()
        fresh = [[np.asarray(leaf) for leaf in jax.tree.leaves(piece)] for piece in draws.pieces[len(point.pieces) :]]
        point.pieces += fresh
        if fresh:
            name = f"draws-{point.number + 1:05d}.bin"
            point.files.append((name, seal(self.folder / name, arrays_of_pieces(fresh), last=False)))
        point.seconds = seconds
        point.norms = [float(norm) for norm in draws.norms]
        point.complete = step >= steps
        leaves = [] if point.complete else jax.tree.leaves(states)
        point.states = [np.asarray(plain(leaf)) for leaf in leaves] or None
        point.step = step
        point.number += 1
        self._write(point)
        if point.complete and last:
            self._run["keys"] = None
            self._save()
        self._since = time.perf_counter()
        self._commit_seconds = self._since - started

    def remove(self) -> None:
        """Take the checkpoint away: at once by its name, so that no kill leaves a part that a run would begin in."""
        gone = self.folder.with_name(self.folder.name + REMOVED)
        self.folder.rename(gone)
        for path in gone.rglob("run.json"):  # the keys first
            path.unlink()
        shutil.rmtree(gone)
        self.folder.with_name(self.folder.name + ".lock").unlink(missing_ok=True)
        self.close()

    def _save(self, run: dict[str, Any] | None = None) -> None:
        text = json.dumps(self._run if run is None else run)
        write_atomically(self.folder / "run.json", lambda path: path.write_text(text), 0o600)

    def _write(self, point: Point) -> None:
        seal(self.folder / f"state-{point.number % 2}.bin", point.arrays())

    def _state(self, path: Path) -> Point | None:
        """A commit without its draws; None where it is not whole."""
        found = unseal(path)
        return None if found is None else Point.of(found[1])


def _stage(stage: int) -> str:
    """Return the name of the file of what a stage released."""
    return f"stage-{stage}.bin"


@contextlib.contextmanager
def open_checkpoint(checkpoint: Checkpoint | str | Path | None) -> Iterator[Checkpoint | None]:
    """The checkpoint of a folder, for as long as it is needed; one that the caller opened is the caller's to close."""
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        yield checkpoint
        return
    own = Checkpoint(checkpoint)
    try:
        yield own
    finally:
        own.close()


def _locked(path: Path) -> int:
    """A handle of a file that no other process may lock; let go when it is closed, or the process ends."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock(handle)
            if still_names(path, handle):  # else a run that is done has removed it meanwhile
                return handle
        except BlockingIOError:
            os.close(handle)
            raise CheckpointError(f"{path}: another process is running this; wait for it, or stop it") from None
        except OSError as error:
            os.close(handle)
            raise CheckpointError(
                f"{path}: cannot be locked ({error.strerror}), so two processes could use the same keys; keep the "
                "confidential folder on a local disk"
            ) from None
        except BaseException:  # Ctrl-C: another try in this process finds it unlocked
            os.close(handle)
            raise
        os.close(handle)
