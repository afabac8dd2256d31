"""A queue of tasks for workers, whose outcomes come once they are known; ``dpmcmc sweep`` and the experiments use it.

A task is whatever one call of a function computes::

    with Table(out, columns=("design", "N", "coverage"), key=("design", "N"), about={"version": 3}) as table:
        missing = [task for task in tasks if not table.has(task)]
        for task, row in outcomes(measured, missing, workers=2):   # row: what measured(task) returns, or Lost
            table.add([row])

``measured`` is a function of a module and its argument is pickled, so that another process can call it. A task whose
worker died comes as :class:`Lost`, and the caller decides. The same program started again finds the rows that ``out``
has (``results_table.py``).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

_Task = TypeVar("_Task")
_Out = TypeVar("_Out")
#: Environment of a worker: one thread, and not most of an accelerator's memory at once, which others share.
_WORKER = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


@dataclass(frozen=True)
class Lost:
    """The outcome of a task whose worker died, or whose executor gave it up: nobody knows how far it came.

    Attributes:
        why: class of the executor's error.
    """

    why: str


def outcomes(
    work: Callable[[_Task], _Out],
    tasks: Iterable[_Task],
    *,
    workers: int = 1,
    executor: Executor | None = None,
) -> Iterator[tuple[_Task, _Out | Lost]]:
    """Yield (task, what ``work`` returns for it, or :class:`Lost`) as tasks end.

    Args:
        work: function of a module. An error that it raises ends the whole, and is raised here.
        tasks: taken in their order; each is pickled.
        workers: processes of one thread each; 1: this process.
        executor: whatever else carries out calls, in place of own processes.
    """
    if workers == 1 and executor is None:
        for task in tasks:
            yield task, work(task)
        return
    with contextlib.ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(Processes(workers))
        running = {executor.submit(_answered, work, task): task for task in tasks}
        stack.callback(lambda: [future.cancel() for future in running])
        for future in as_completed(running):
            try:
                outcome, raised = future.result()
            except Exception as error:  # the executor's: the work's own come as values
                yield running[future], Lost(type(error).__name__)
                continue
            if raised is not None:
                raise raised
            yield running[future], outcome


def _answered(work: Callable[[_Task], _Out], task: _Task) -> tuple[Any, Exception | None]:
    """Return (what the work returns, None), or (None, its error)."""
    try:
        return work(task), None
    except Exception as error:
        return None, error


class Processes(ThreadPoolExecutor):
    """Threads with a process each, so that a process that dies takes its own task alone; another takes its place.

    Args:
        count: of the processes; each has its share of the cores.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._pools = [_pool(number, count) for number in range(count)]
        self._free: SimpleQueue[int] = SimpleQueue()
        for number in range(count):
            self._free.put(number)

    def submit(self, work: Callable[..., _Out], /, *given: Any, **named: Any) -> Future[_Out]:
        """Call a function of a module in a process that is free."""
        return super().submit(self._call, work, *given, **named)

    def _call(self, work: Callable[..., _Out], *given: Any, **named: Any) -> _Out:
        number = self._free.get()
        try:
            return self._pools[number].submit(work, *given, **named).result()
        except BrokenExecutor:
            self._pools[number] = _pool(number, len(self._pools))
            raise
        finally:
            self._free.put(number)

    def __enter__(self) -> Processes:
        # A process reads these when it starts, which is at its first task.
        self._before = dict(os.environ)
        flags = self._before.get("XLA_FLAGS", "")
        os.environ.update(_WORKER | {"XLA_FLAGS": f"{flags} {_WORKER['XLA_FLAGS']}".strip()})
        return self

    def __exit__(self, *raised: object) -> None:
        """End the processes, also in the middle of a task."""
        self.shutdown(wait=False, cancel_futures=True)
        for pool in self._pools:
            for process in (pool._processes or {}).values():
                process.kill()
        self.shutdown()
        os.environ.clear()
        os.environ.update(self._before)


def _pool(number: int, count: int) -> ProcessPoolExecutor:
    """Return an executor of one process, the ``number``-th of ``count``."""
    spawned = multiprocessing.get_context("spawn")  # JAX does not survive a fork
    return ProcessPoolExecutor(1, spawned, _begin_worker, (number, count))


def _begin_worker(number: int, count: int) -> None:
    """Leave Ctrl-C to the process that started this one, end with that process, and stay on a share of its cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[number::count] or cores)
