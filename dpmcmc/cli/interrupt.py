"""Ctrl-C at any moment of a command: one sentence and exit code 130.

Python raises KeyboardInterrupt wherever the main thread is when SIGINT comes. Three places need care. While the
libraries are imported, nobody catches it. In a garbage collector's callback (JAX has one), in a
``__del__``, or under somebody's bare ``except``, it is swallowed, and the run goes on to its end. After the command is
done, it breaks the interpreter's own shutdown.

An interrupted import is worse: a compiled module may turn the exception into another one, or crash the process.

So a signal ends the process at once while the command line is read. While a command runs it is raised as soon as no
import is under way, and again until it is being handled. After the command it is ignored, since the exit code is
decided.

In the first hundredths of a second, before the package is imported, Ctrl-C still shows Python's traceback.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

#: Exit code of a command that the user stopped, as shells have it.
STOPPED = 130
#: Seconds after which an interrupt that was swallowed is raised again.
_AGAIN = 0.2


def while_importing() -> None:
    """Let SIGINT end the process while it loads, until its command begins."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL) and _in_main_thread():
        signal.signal(signal.SIGINT, _leave)


@contextlib.contextmanager
def heeded() -> Iterator[_Command]:
    """Raise KeyboardInterrupt inside on SIGINT, and again if it is swallowed.

    A handler that the caller has set stays.
    """
    before = signal.getsignal(signal.SIGINT) if _in_main_thread() else None
    command = _Command(sys._getframe(2))  # beyond __enter__
    if before not in (signal.default_int_handler, _leave):
        yield command
        return
    signal.signal(signal.SIGINT, command.interrupt)
    sys.unraisablehook = command.unraisable
    try:
        yield command
    finally:
        command.running = False
        if command.alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, command.alarm)
        signal.signal(signal.SIGINT, signal.SIG_IGN if before is _leave else before)
        sys.unraisablehook = command.hook
        # Where eval() of a text let a KeyboardInterrupt through, Python ends the process by SIGINT, whoever caught it
        # further out. The next eval() of a text takes that back.
        eval("0")
        if command.waiting:
            raise KeyboardInterrupt


class _Command:
    """Handlers of one command; silent once it is not running.

    Attributes:
        caller: frame that the command is called from.
        running: whether it runs.
        stopped: whether SIGINT has come.
        waiting: whether it waits for the end of an import.
        hook: of Python, for exceptions that nobody can catch.
        alarm: handler of the timer before it was taken; None where it was not.
    """

    def __init__(self, caller: FrameType) -> None:
        self.caller = caller
        self.running = True
        self.stopped = False
        self.waiting = False
        self.hook = sys.unraisablehook
        self.alarm: Any = None

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT, and the timer that repeats it: raise KeyboardInterrupt, unless that is being handled.

        The timer starts at the first SIGINT, since the caller may use it.
        """
        repeated = number != signal.SIGINT
        if not self.running or (repeated and _being_handled()):
            return
        self.stopped = True
        repeats = os.name == "posix"
        if repeats and self.alarm is None:
            self.alarm = signal.signal(signal.SIGALRM, self.interrupt) or signal.SIG_DFL
            signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
        self.waiting = repeats and self._importing(frame)
        if not self.waiting:
            raise KeyboardInterrupt

    def _importing(self, frame: FrameType | None) -> bool:
        """Whether the command is importing a module."""
        while frame is not None and frame is not self.caller:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return False

    def unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """Print no traceback of a swallowed Ctrl-C: it comes again."""
        if not isinstance(what.exc_value, KeyboardInterrupt):
            self.hook(what)


def _being_handled() -> bool:
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"error: stopped by the user before anything was done.\n")
    os._exit(STOPPED)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
