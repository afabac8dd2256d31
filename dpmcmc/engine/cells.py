"""A queue of cells that survives a kill: workers take the cells, and each row is in the table once it is known.

``dpmcmc sweep`` and the experiments run on it. A cell is whatever one call of a function computes::

    with Table(out, columns=("design", "N", "coverage"), key=("design", "N"), about={"version": 3}) as table:
        missing = [cell for cell in cells if not table.has(cell)]
        for cell, row in outcomes(measured, missing, workers=2):   # row: what measured(cell) returns, or Lost
            table.add([row])

``measured`` is a function of a module and its argument is pickled, so that another process can call it. Outcomes come
in the order in which cells end. Nothing is tried twice: a cell whose worker died comes as :class:`Lost`, and the caller
decides. The same program started again finds the rows that ``out`` has.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from dpmcmc.errors import InputError, printable
from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.files import open_text, read_table
from dpmcmc.storage.lock import lock
from dpmcmc.storage.released_files import ABOUT, RESULTS

# ------------------------------------------------------------------------------------
# The table: a CSV in a folder that one process at a time writes.

Row = dict[str, Any]
#: File that holds the lock.
LOCK = ".lock"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder, to which one process at a time may write.

    Raises:
        InputError: another process holds it, or it cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
    except OSError as error:
        raise InputError(f"--out: {folder} cannot be made ({error.strerror}); give another folder") from None
    with file:
        try:
            lock(file.fileno())
        except OSError:
            raise InputError(
                f"--out: another run is writing to {folder}; wait for it, or give another folder"
            ) from None
        try:
            yield
        finally:
            if os.listdir(folder) == [LOCK]:  # nothing came of it
                (folder / LOCK).unlink()


class Table:
    """``results.csv`` in a folder; a reader, and a run that was killed, see all rows of an :meth:`add` or none.

    Args:
        folder: made if it is not there.
        columns: of the table.
        key: columns that tell a row from all others.
        about: JSON values that all rows depend on; a folder that was made about others is refused.
        file: name of the table.

    Raises:
        InputError: the folder holds rows about something else, or no such table; :meth:`__enter__`: another process
            writes to it.
    """

    def __init__(
        self,
        folder: str | Path,
        columns: Sequence[str],
        key: Sequence[str],
        about: Mapping[str, Any] | None = None,
        file: str = RESULTS,
    ) -> None:
        self.folder = Path(folder)
        self.path = self.folder / file
        self.columns = tuple(columns)
        self._key = tuple(key)
        self._about = about
        self._rows: dict[tuple[str, ...], Row] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(alone(self.folder))
            if self._about is not None:
                self._check_about(self._about)
            if self.path.exists():
                for row in read_rows(self.path, self.columns):
                    self._rows[self._key_of(row)] = row
            self._open = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()

    @property
    def rows(self) -> list[Row]:
        """Rows in the order in which they were first added; every value is a text, empty where there is none."""
        return list(self._rows.values())

    def has(self, cell: Mapping[str, Any]) -> bool:
        """Whether the table has the row of a cell, given by the columns of the key."""
        return self._key_of(cell) in self._rows

    def row(self, cell: Mapping[str, Any]) -> Row | None:
        """Return the row of a cell, or None."""
        return self._rows.get(self._key_of(cell))

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows, each in the place of one with its key; they are on the disk when this returns."""
        for row in rows:
            self._rows[self._key_of(row)] = {name: text_of(row.get(name)) for name in self.columns}
        text = csv_of(self.columns, self._rows.values())
        write_atomically(self.path, lambda path: path.write_bytes(text.encode()))

    def arrange(self, order: Callable[[list[Row]], list[Row]]) -> None:
        """Write the rows in the order that a function returns them in."""
        self._rows = {self._key_of(row): row for row in order(self.rows)}
        self.add([])

    def _key_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the key of a row; 1, 1.0 and a text of either are one value of it."""
        values = (number_of(row[name]) for name in self._key)
        return tuple(
            str(int(value)) if isinstance(value, float) and value.is_integer() else text_of(value) for value in values
        )

    def _check_about(self, about: Mapping[str, Any]) -> None:
        path = self.folder / ABOUT
        now = json.loads(json.dumps(about))
        if not path.exists():
            text = json.dumps(now, indent=1)
            write_atomically(path, lambda temporary: temporary.write_text(text))
            return
        before = read_table(path)
        if not before:
            raise InputError(f"--out: {path} is damaged; give another folder, or remove that one")
        changed = difference(before, now)
        if changed:
            raise InputError(
                f"--out: {self.folder} holds results of another configuration ({changed}); give another folder, or "
                "remove that one"
            )


def text_of(value: object) -> str:
    """Return a value as a table writes it: seven digits of a number, nothing for None, a text that is no formula."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.7g}"
    text = printable(str(value), "\n")
    formula = text[:1] in _FORMULA and not isinstance(number_of(text), float)
    return f"'{text}" if formula else text


#: Signs by which a spreadsheet takes a text for a formula; an apostrophe before them says that it is none.
_FORMULA = ("=", "+", "-", "@")


def number_of(value: object) -> object:
    """Return the number that a text is, or what was given."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def numbers(row: Mapping[str, Any]) -> Row:
    """Return a row with its numbers as numbers, and without its empty values."""
    return {name: number_of(value) for name, value in row.items() if value != ""}


def csv_of(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table as CSV."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: text_of(row.get(name)) for name in columns} for row in rows)
    return out.getvalue()


def read_rows(path: Path, columns: Sequence[str], option: str = "--out") -> list[Row]:
    """Return the rows of a table as texts.

    Raises:
        InputError: it cannot be read, or lacks a column; named by the option that it was found by.
    """
    try:
        with open_text(path, newline="") as file:
            table = csv.DictReader(file)
            missing = set(columns) - set(table.fieldnames or ())
            rows = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{option}: {path} cannot be read ({reason}); make it anew") from None
    if missing:
        raise InputError(f"{option}: {path} has no column {', '.join(sorted(missing))}; make it anew")
    return rows


def difference(before: Any, now: Any, where: str = "") -> str:
    """Return the first place where two trees of plain values differ, in words; empty where they do not."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in [*before, *(name for name in now if name not in before)]:
            path = f"{where}.{name}" if where else str(name)
            if name not in before or name not in now:
                return f"{path} was {'there' if name in before else 'not there'} before"
            found = difference(before[name], now[name], path)
            if found:
                return found
        return ""
    return "" if before == now else f"{where} was {before!r}, and is {now!r}"


# ------------------------------------------------------------------------------------
# Workers. One that dies takes its own cell with it and no other, and a new one takes its place.

_Task = TypeVar("_Task")
_Out = TypeVar("_Out")

#: Environment of a worker of one thread.
_ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
#: Environment of every worker that shares an accelerator: JAX would take most of its memory at once.
_SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@dataclass(frozen=True)
class Lost:
    """The outcome of a cell whose worker died, or whose executor gave it up: nobody knows how far it came.

    Attributes:
        why: class of the executor's error.
    """

    why: str


def outcomes(
    work: Callable[[_Task], _Out],
    tasks: Iterable[_Task],
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    sent: Callable[[_Task], object] = lambda task: None,
) -> Iterator[tuple[_Task, _Out | Lost]]:
    """Yield (task, what ``work`` returns for it, or :class:`Lost`) as tasks end.

    Args:
        work: function of a module. An error that it raises ends the whole, and is raised here.
        tasks: taken in their order; each is pickled.
        workers: processes of one thread, each on a core of its own; of an executor, how many tasks it gets at a time.
            None: this process, or as many as the executor says that it has workers.
        executor: whatever else carries out calls. It must not try a task again.
        sent: called here with a task before it is sent.
    """
    waiting = deque(tasks)
    if executor is None and workers is None:
        while waiting:
            task = waiting.popleft()
            sent(task)
            yield task, work(task)
        return
    with contextlib.ExitStack() as stack:
        slots: list[_Slot]
        if executor is None:
            stack.enter_context(_environment(_ONE_THREAD | _SHARED))
            slots = [
                stack.enter_context(contextlib.closing(_Own(cores)))
                for cores in _shares(min(workers or 1, max(1, len(waiting))))
            ]
        else:
            room = workers or getattr(executor, "_max_workers", None) or 1
            slots = [_Slot(executor)] * room
        yield from _carried_out(work, waiting, slots, sent)


def _carried_out(
    work: Callable[[_Task], _Out],
    waiting: deque[_Task],
    slots: list[_Slot],
    sent: Callable[[_Task], object],
) -> Iterator[tuple[_Task, _Out | Lost]]:
    free = deque(slots)
    running: dict[Future[Any], tuple[_Task, _Slot]] = {}
    try:
        while waiting or running:
            while waiting and free:
                task = waiting.popleft()
                slot = free.popleft()
                sent(task)
                running[slot.submit(work, task)] = (task, slot)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task, slot = running.pop(future)
                free.append(slot)
                try:
                    outcome, raised = future.result()
                except Exception as error:  # the executor's: the work's own come as values
                    slot.lost()
                    yield task, Lost(type(error).__name__)
                    continue
                if raised is not None:
                    raise raised
                yield task, outcome
    finally:
        for future in running:
            future.cancel()


class _Slot:
    """Room for one task at a time in an executor of the caller's."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, work: Callable[[_Task], Any], task: _Task) -> Future[Any]:
        """Send a task."""
        return self._executor.submit(_answered, work, task)

    def lost(self) -> None:
        """Take note that the executor has lost a task."""


class _Own(_Slot):
    """One process of one thread, which is started anew when it has died."""

    def __init__(self, cores: frozenset[int]) -> None:
        self._cores = cores
        self._started()

    def _started(self) -> None:
        self._executor: ProcessPoolExecutor = ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin_worker,
            initargs=(self._cores,),
        )

    def lost(self) -> None:
        """Put a new process in the place of one that has died."""
        self.close()
        self._started()

    def close(self) -> None:
        """End the process, also in the middle of a task."""
        processes = list((self._executor._processes or {}).values())
        for process in processes:
            process.kill()
        self._executor.shutdown(wait=True, cancel_futures=True)


def _answered(work: Callable[[_Task], _Out], task: _Task) -> tuple[Any, Exception | None]:
    """Return (what the work returns, None), or (None, its error)."""
    try:
        return work(task), None
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return None, RuntimeError(f"{type(error).__name__}: {error}")
        return None, error


def _begin_worker(cores: frozenset[int]) -> None:
    """Leave Ctrl-C to the process that started this one, end with that process, and stay on these cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _shares(workers: int) -> list[frozenset[int]]:
    """Return the cores of each worker, of those that this process may use; empty where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return [frozenset()] * workers
    cores = sorted(os.sched_getaffinity(0))
    if workers > len(cores):
        return [frozenset(cores)] * workers
    return [frozenset(cores[at::workers]) for at in range(workers)]


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile; the user's own XLA flags stay."""
    before = {name: os.environ.get(name) for name in wanted}
    flags = before.get("XLA_FLAGS")
    os.environ.update(wanted)
    if flags:
        os.environ["XLA_FLAGS"] = f"{flags} {wanted['XLA_FLAGS']}"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
