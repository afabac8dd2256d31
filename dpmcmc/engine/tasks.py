"""A queue of tasks that survives a kill: workers take the tasks, and each outcome comes once it is known.

``dpmcmc sweep`` and the experiments run on it. A task is whatever one call of a function computes::

    with Table(out, columns=("design", "N", "coverage"), key=("design", "N"), about={"version": 3}) as table:
        missing = [task for task in tasks if not table.has(task)]
        for task, row in outcomes(measured, missing, workers=2):   # row: what measured(task) returns, or Lost
            table.add([row])

``measured`` is a function of a module and its argument is pickled, so that another process can call it. Outcomes come
in the order in which tasks end. Nothing is tried twice: a task whose worker died comes as :class:`Lost`, and the caller
decides. The same program started again finds the rows that ``out`` has (``results_table.py``).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from dataclasses import dataclass
from typing import Any, TypeVar

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
