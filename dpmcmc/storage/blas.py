"""One thread for linear algebra on the host.

The matrices here have some hundred rows. At these sizes the threads of a BLAS wait for each other, and beside other
work they spin: a run then takes several times the CPU time of one thread.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_lock = threading.Lock()
#: Calls of :func:`one_blas_thread` that have not ended, of all threads, and what they found at first.
_inside = 0
_before: list[int] = []


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Do linear algebra on one thread.

    Most libraries have one number of threads for the whole process. The first of several calls sets it, from whatever
    thread, and the last that ends gives the caller's number back. Others have a number for each thread (MKL, OpenMP),
    and there every call sets and gives back its own.
    """
    global _inside, _before
    libraries = _libraries()
    with _lock:
        own = [library.get_num_threads() for library in libraries]
        _before = _before if _inside else own
        _inside += 1
        for library in libraries:
            _set(library, 1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            for library, mine, first in zip(libraries, own, _before, strict=True):
                if _of_thread(library):
                    _set(library, mine)
                elif not _inside:
                    _set(library, first)


def on_one_blas_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that does its linear algebra on one thread."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        with one_blas_thread():
            return function(*arguments, **named)

    return call


@functools.cache
def _libraries() -> tuple[Any, ...]:
    import scipy.linalg  # noqa: F401  # its library is found once it is loaded, as NumPy's
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().lib_controllers
    return tuple(library for library in found if library.user_api == "blas")


def _of_thread(library: Any) -> bool:
    """Whether each thread has a number of its own."""
    layer = getattr(library, "threading_layer", "")
    return layer == "openmp" or library.internal_api == "mkl"


def _set(library: Any, number: int) -> None:
    # Later versions of threadpoolctl let one thread alone set the number, until it is released.
    release = getattr(library, "clear_controlling_thread", lambda force: None)
    release(force=True)
    library.set_num_threads(number)
    release(force=True)
