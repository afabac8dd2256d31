"""Workers of a Dask scheduler for a sweep, ``--on dask://HOST:PORT``.

Its links carry the path of a config's folder and the worker's answer, and nothing of the records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from dpmcmc.cli.refusals import CommandError
from dpmcmc.engine.workers import connected, is_cluster

#: Seconds that the scheduler of ``--on`` may take to answer.
_ANSWER = 10.0


@contextlib.contextmanager
def connect_cluster(url: str) -> Iterator[tuple[Executor, int]]:
    """Yield (an executor of the scheduler at ``dask://HOST:PORT``, threads of its workers)."""
    if not is_cluster(url):
        raise CommandError(f"--on: {url!r} is not dask://HOST:PORT or tls://HOST:PORT of a Dask scheduler.")
    with connected(url, "--on", _ANSWER) as client:
        client.run_on_scheduler(_try_once)
        threads = sum(client.nthreads().values())
        if not threads:
            raise CommandError(f"--on: {url} has no worker; start some with dask worker.")
        yield client.get_executor(pure=False, retries=0), threads


def _try_once(dask_scheduler: Any) -> None:
    """Let a scheduler give a task up when its first worker dies."""
    dask_scheduler.allowed_failures = 0
