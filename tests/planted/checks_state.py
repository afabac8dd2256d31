"""What outlives a step: ledgers, checkpoints, and the files of a run."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.data.partitions import find_partitions
from dpmcmc.engine import kept_partitions, sizes
from dpmcmc.engine import partitions as partitioned_room
from dpmcmc.engine import result as result_room
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.self_test import MiscompiledError
from dpmcmc.engine.workers import LostPartition, workers
from dpmcmc.errors import InputError
from dpmcmc.privacy import Ledger, OverBudget
from dpmcmc.privacy.ledger import BrokenChain, LedgerError, file
from dpmcmc.storage import checkpoint
from dpmcmc.storage.cache import UnsafeCache
from dpmcmc.storage.run_folder import RunFolder
from dpmcmc.targets import Custom
from tests.data import test_partitions
from tests.ledger import test_ledger_filter
from tests.planted import Scene, require
from tests.planted.checks_accounting import DELTA, one_event

#: ε of a ledger, and the noise multiplier of a run that takes more than half of it.
_BUDGET, _HALF = 1.0, 5.0


def _ledger(scene: Scene, epsilon: float = _BUDGET) -> Ledger:
    path = scene.folder / "budget.ledger"
    path.unlink(missing_ok=True)
    terms = {"num_records": None, "adjacency": "zero_out", "epsilon": epsilon, "delta": DELTA}
    return Ledger.init(path, name="test", filter="gdp", **terms)


def _folder(scene: Scene) -> Path:
    """A new folder."""
    return Path(tempfile.mkdtemp(dir=scene.folder))


def _stopped(done: int, total: int) -> None:
    """Progress of a run that somebody stops."""
    raise RuntimeError("stopped")


# Ledgers.


def every_entry_of_a_ledger_is_there(scene: Scene) -> None:
    """A ledger that lost an entry, or had one edited, is refused by whoever opens it next."""
    book = _ledger(scene)
    try:
        for i in range(3):
            book.settle(book.reserve(one_event("gaussian", 30.0), f"run {i}"), "released")
        book.check()
        found = Ledger(book.path).state()
    except (BrokenChain, LedgerError) as error:
        require(False, str(error))
    require(len(found.runs) == 3, f"{len(found.runs)} of 3 runs are in the ledger")


def two_runs_cannot_take_the_same_budget(scene: Scene) -> None:
    """Of two runs that each need more than half, one is refused, even where both asked before either was admitted."""
    book = _ledger(scene)
    half = one_event("gaussian", _HALF)
    real, entered, admitted = file.change, [], []

    @contextlib.contextmanager
    def late(path: Any) -> Any:
        """The first to come to the transaction lets the other one through it before."""
        if not entered:
            entered.append(True)
            with contextlib.suppress(OverBudget):
                admitted.append(Ledger(path).reserve(half, "rival"))
        with real(path) as transaction:
            yield transaction

    file.change = late  # type: ignore[assignment]
    try:
        with contextlib.suppress(OverBudget):
            admitted.append(book.reserve(half, "first"))
    finally:
        file.change = real
    require(admitted, "a run that fits was refused")
    state = book.state()
    require(len(admitted) == 1, f"two runs were admitted: {state.spent:.3g} of {state.terms.budget:.3g} is spent")


def a_ledger_is_locked_under_every_name(scene: Scene) -> None:
    """While one process changes it, nobody else does, also by a name that the file was given meanwhile."""
    book = _ledger(scene)
    other = book.path.with_name("moved.ledger")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file, "_PATIENCE", 0.05)
        with file.change(book.path):
            book.path.rename(other)
            try:
                with file.change(other):
                    entered = True
            except LedgerError:
                entered = False
            other.rename(book.path)
    require(not entered, "two processes changed one ledger at a time, by two names")


def a_ledger_with_two_hard_links_is_refused(scene: Scene) -> None:
    """A copy that breaks the link, as an editor or a backup makes it, would be a second budget."""
    book = _ledger(scene)
    other = book.path.with_name("other.ledger")
    other.hardlink_to(book.path)
    try:
        for path in (book.path, other):
            try:
                Ledger(path)
            except LedgerError:
                continue
            require(False, f"{path.name} was opened, and the ledger has two names")
    finally:
        other.unlink()


class _Killed(BaseException):
    """A kill, after which nothing is written."""


def _kill_after(patch: pytest.MonkeyPatch, last: int) -> None:
    count = itertools.count()

    def limited(name: str, real: Any) -> None:
        def call(handle: int, *arguments: Any) -> Any:
            if next(count) > last:
                raise _Killed
            return real(handle, *(argument[:300] if name == "write" else argument for argument in arguments))

        patch.setattr(os, name, call)

    for name in ("write", "fsync", "ftruncate"):
        limited(name, getattr(os, name))


def a_kill_leaves_a_ledger_whole(scene: Scene) -> None:
    """Whichever write of a change is the last, the ledger holds every entry from before."""
    book = _ledger(scene)
    book.reserve(one_event("gaussian", 30.0), "before")
    before, whole = book.history(), book.path.read_bytes()
    for last in range(40):
        book.path.write_bytes(whole)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(_Killed):
            _kill_after(patch, last)
            book.reserve(one_event("gaussian", 30.0), "killed")
        try:
            found = book.history()
        except LedgerError as error:
            require(False, str(error))
        require(found[: len(before)] == before, "a kill changed entries that were there")


def adaptive_analysts_stay_within_the_budget(scene: Scene) -> None:
    """Whatever is chosen in the light of earlier results, Σ of the divergence at the ledger's one order stays below."""
    (scene.folder / "analysts").mkdir(exist_ok=True)
    over = test_ledger_filter.overspending_paths(scene.folder / "analysts")
    require(over == 0, f"{over} of 4 analysts spend more than the budget")


_TINY = Custom(lambda key: jnp.zeros(2), lambda p: -0.5 * jnp.sum(p**2), lambda p, r: -r["g"] @ p)
_RECORDS = {"g": np.ones((6, 2), np.float32)}


def _tiny(steps: int = 9) -> Any:
    privacy = dpmcmc.Privacy(epsilon=2.0, delta=DELTA, adjacency="zero_out")
    return dpmcmc.plan(_TINY, num_records=6, sampler=dpmcmc.SGLD(step_size=1.0), steps=steps, privacy=privacy)


def a_run_that_read_records_stays_charged(scene: Scene) -> None:
    """Also where it was stopped in the middle: what it computed may have been seen."""
    book = _ledger(scene, 50.0)
    for progress in (None, _stopped):
        spent = book.state().spent
        with contextlib.suppress(RuntimeError):
            dpmcmc.sample(_tiny(), _RECORDS, ledger=book, progress=progress)
        how = "finished" if progress is None else "was stopped"
        require(book.state().spent > spent, f"a run that {how} is not charged")


def _reserved(scene: Scene) -> tuple[Ledger, Reservation]:
    """A ledger, and one reservation in it."""
    book = _ledger(scene, 50.0)
    return book, Reservation(book, _tiny().guarantee, "one run")


def a_reservation_is_for_one_run(scene: Scene) -> None:
    """Whoever has a copy: the ledger says whether a run has begun under it."""
    book, held = _reserved(scene)
    twin = copy.deepcopy(held)
    released = 0
    for one in (held, twin):
        with contextlib.suppress(LedgerError):
            one.start(_tiny().guarantee)
            released += 1
    charged = sum(len(run.charges) for run in book.state().runs)
    require(released == charged, f"{released} runs began for {charged} charge")


def a_run_that_has_begun_is_not_void(scene: Scene) -> None:
    """Whoever asks for it, as long as it runs and after a crash."""
    book, held = _reserved(scene)
    held.start(_tiny().guarantee)
    with contextlib.suppress(LedgerError):
        book.settle(held.receipt, "void")
    require(book.state().spent > 0, "a run that has begun was given back")


def of_copies_from_before_a_run_one_begins(scene: Scene) -> None:
    """Each would draw keys of its own, and one charge pays for one of them."""
    book, held = _reserved(scene)
    kept, twin = (_folder(scene) / name for name in ("kept", "twin"))
    released = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(_Stop):
        patch.setattr(checkpoint.Checkpoint, "begin", _stopped_here)
        dpmcmc.sample(_tiny(), _RECORDS, ledger=held, checkpoint=kept)
    shutil.copytree(kept, twin)
    for folder in (kept, twin):
        with contextlib.suppress(LedgerError):
            dpmcmc.sample(_tiny(), _RECORDS, ledger=held, checkpoint=folder)
            released += 1
    charged = sum(len(run.charges) for run in book.state().runs)
    require(released == charged, f"{released} copies released for {charged} charge")


def records_of_others_are_refused_under_any_reservation(scene: Scene) -> None:
    """Also where the caller has reserved."""
    book, held = _reserved(scene)
    dpmcmc.sample(_tiny(), _RECORDS, ledger=book)
    others = {name: 0.5 * leaf for name, leaf in _RECORDS.items()}
    with contextlib.suppress(LedgerError):
        dpmcmc.sample(_tiny(), others, ledger=held)
        require(False, "one budget paid for two data sets")


def nothing_that_is_kept_lies_in_what_is_published(scene: Scene) -> None:
    """A run that is stopped leaves its keys, and they are not in its folder."""
    out = _folder(scene)

    with contextlib.suppress(RuntimeError, ValueError):
        dpmcmc.sample(_tiny(), _RECORDS, out=out, checkpoint=out / "kept", progress=_stopped)
    require(not list(out.rglob("run.json")), "keys lie in the folder that is published")


def a_run_executes_what_its_program_says(scene: Scene) -> None:
    """No program that somebody else could have put in the cache, and none that takes other steps under a known key."""
    try:
        dpmcmc.sample(_tiny(), _RECORDS)
    except (MiscompiledError, UnsafeCache) as error:
        require(False, str(error))


# Runs that are stopped.


class _Stop(BaseException):
    """A kill."""


def _stopped_here(*_: Any) -> None:
    raise _Stop


def _refused_with_its_keys(scene: Scene, how: Callable[[pytest.MonkeyPatch], dict[str, Any]], why: str) -> None:
    """Require that a run that was stopped after three steps does not go on where something else is given."""
    folder = _folder(scene)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "_CHUNK_STEPS", 3)
        with contextlib.suppress(_Stop):
            dpmcmc.sample(_tiny(), _RECORDS, checkpoint=folder, progress=_stopped_here)
        with contextlib.suppress(checkpoint.CheckpointError):
            dpmcmc.sample(_tiny(), how(patch), checkpoint=folder)
            require(False, why)


def a_run_that_moves_is_refused(scene: Scene) -> None:
    """On another platform the same noise would meet a query that rounds differently, and cancel."""

    def moved(patch: pytest.MonkeyPatch) -> dict[str, Any]:
        patch.setattr(checkpoint, "platform", lambda: "elsewhere")
        return _RECORDS

    _refused_with_its_keys(scene, moved, "a run went on elsewhere with the keys that it had")


def a_run_on_other_records_is_refused(scene: Scene) -> None:
    """The same noise on two data sets cancels in the difference of their draws."""
    others = {name: 0.5 * leaf for name, leaf in _RECORDS.items()}
    _refused_with_its_keys(scene, lambda patch: others, "a run went on with other records and the keys that it had")


# Files.


def _made(steps: int = 9) -> result_room.Result:
    """A result, whose cost grows with the steps."""
    made, draws = _tiny(steps), np.zeros((1, 9, 2), np.float32)
    return result_room.Result(made, draws, draws, None, made.guarantee, {"compile": 1.0, "run": 1.0})


def _is_read(folder: Path) -> bool:
    """Whether a folder is loaded as a result, or verified."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        try:
            dpmcmc.load(folder)
        except InputError:
            return main(["verify", str(folder / "privacy.json")]) == 0
    return True


def a_folder_is_one_result(scene: Scene) -> None:
    """Whoever saves over a result is refused, and the result stays."""
    folder = _made().save(_folder(scene))
    before = (folder / "privacy.json").read_bytes()
    with contextlib.suppress(InputError):
        _made(steps=3).save(folder)
    require((folder / "privacy.json").read_bytes() == before, "a result was saved over another")


def files_of_two_results_are_not_taken_for_one(scene: Scene) -> None:
    """A file of another run, beside a privacy.json that says less than it cost, is refused by load and verify."""
    folder, other = (_made(steps).save(_folder(scene)) for steps in (3, 9))
    (folder / "plan.json").write_bytes((other / "plan.json").read_bytes())
    require(not _is_read(folder), "a folder that mixes two runs passes for one")


def what_a_kill_leaves_of_a_result_is_not_read(scene: Scene) -> None:
    """A disk that fills up before the last file leaves no folder that is loaded."""
    folder, write = _folder(scene), RunFolder.write

    def full(self: RunFolder, name: str, content: Any) -> None:
        if name == "report.html":
            raise OSError("the disk is full")
        write(self, name, content)

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(OSError):
        patch.setattr(RunFolder, "write", full)
        _made().save(folder)
    require(not _is_read(folder), "half a result passes for a whole one")


def nothing_is_saved_among_keys(scene: Scene) -> None:
    """A result is not saved into a folder of a run's checkpoint, which whoever publishes it would publish too."""
    kept = _folder(scene) / "kept"

    with contextlib.suppress(RuntimeError):
        dpmcmc.sample(_tiny(), _RECORDS, checkpoint=kept, progress=_stopped)
    with contextlib.suppress(InputError):
        _made().save(kept / "out")
    require(not (kept / "out").exists(), "a result lies among the keys of a run")


def no_keys_come_to_lie_in_a_result(scene: Scene) -> None:
    """A run that is stopped leaves its keys, and they are not in the folder of an earlier result."""
    folder = _made().save(_folder(scene))

    with contextlib.suppress(RuntimeError, InputError):
        dpmcmc.sample(_tiny(), _RECORDS, checkpoint=folder / "kept", progress=_stopped)
    require(not list(folder.rglob("run.json")), "keys lie in the folder of a result")


def no_draw_is_there_without_its_cost(scene: Scene) -> None:
    """Where the disk fills up while a result is saved, what is left of it is the cost, or nothing."""
    one, folder = _made(), _folder(scene)

    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(OSError, InputError):
        patch.setattr(RunFolder, "json", full)
        one.save(folder)
    require(not (folder / "draws.nc").exists(), "draws were saved, and nothing says what they cost")


# Tables in partitions.


def _first_twice(results: Any, do: Any, shares: Any, names: Any) -> Any:
    return results(do, [shares[0], shares[0]], names)


def no_record_counts_twice(scene: Scene) -> None:
    """Two names of one file are refused, and so are a file that changes between two passes and a wrong worker."""
    half = test_partitions.N // 2
    for happens in ("link", "rewrite", "worker"):
        files = test_partitions.cut(_folder(scene) / "people", test_partitions.TABLE, [half])
        if happens == "link":
            (files / "1.parquet").unlink()
            (files / "1.parquet").symlink_to(files / "0.parquet")
        with contextlib.suppress(InputError, LostPartition), pytest.MonkeyPatch.context() as patch, workers() as crew:
            patch.setenv(kept_partitions.KEEP_MB, "0")
            table = find_partitions(files, test_partitions.SCHEMA)
            records = partitioned_room.PartitionedRecords(table, crew)
            records = records.checked(test_partitions.fine, test_partitions.N)
            if happens == "rewrite":
                shutil.copyfile(files / "0.parquet", files / "1.parquet")
            if happens == "worker":
                patch.setattr(crew, "results", functools.partial(_first_twice, crew.results))
            records.total(test_partitions.Squares())
            require(False, f"records count twice after a {happens}")
