"""One thread for linear algebra on the host.

The matrices here have some hundred rows. At these sizes the threads of a BLAS wait for each other, and beside other
work they spin: a run then takes several times the CPU time of one thread.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

_lock = threading.Lock()
#: Calls of :func:`one_blas_thread` that have not ended, of all threads, and the limit that they share.
_inside = 0
_limit: Any = None


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Do linear algebra on one thread; also a decorator.

    The number of threads belongs to the process. So the first of several calls sets it, from whatever thread, and the
    last that ends gives the caller's number back.
    """
    global _inside, _limit
    with _lock:
        if not _inside:
            _limit = _controller().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _limit.restore_original_limits()


@functools.cache
def _controller() -> Any:
    import scipy.linalg  # noqa: F401  # SciPy's BLAS is found once it is loaded, as NumPy's
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
