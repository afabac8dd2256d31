"""Ctrl-C at any moment of a command: one sentence and exit code 130.

Python raises KeyboardInterrupt wherever the main thread is when SIGINT comes. Three places need care. While the
libraries are imported, nobody catches it. In a garbage collector's callback (JAX has one), in a
``__del__``, or under somebody's bare ``except``, it is swallowed, and the run goes on to its end. After the command is
done, it breaks the interpreter's own shutdown.

An interrupted import is worse: a compiled module may turn the exception into another one, or crash the process.

So a signal ends the process at once while a command loads. While a command runs it is raised as soon as no import is
under way, and again until it is being handled. After the command it is ignored, since the exit code is decided.

In the first hundredths of a second, before the package is imported, Ctrl-C still shows Python's traceback.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, MethodType
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
def loading() -> Iterator[None]:
    """Let SIGINT end the process while a command loads more, if the process belongs to the command alone."""
    before = signal.getsignal(signal.SIGINT) if _in_main_thread() else None
    command = before.__self__ if isinstance(before, MethodType) else None
    if not isinstance(command, _Command) or not command.alone:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def heeded() -> Iterator[_Command]:
    """Raise KeyboardInterrupt inside on SIGINT, and again if it is swallowed.

    A handler that the caller has set stays.
    """
    before = signal.getsignal(signal.SIGINT) if _in_main_thread() else None
    command = _Command(alone=before is _leave, caller=sys._getframe(2))  # beyond __enter__
    if before not in (signal.default_int_handler, _leave):
        yield command
        return
    hook = sys.unraisablehook
    sys.unraisablehook = command.unraisable
    command.hook = hook
    signal.signal(signal.SIGINT, command.interrupt)
    try:
        command.running = True
        yield command
    finally:
        command.running = False
        command.disarm()
        signal.signal(signal.SIGINT, signal.SIG_IGN if before is _leave else before)
        sys.unraisablehook = hook
        # Where eval() of a text let a KeyboardInterrupt through, Python ends the process by SIGINT, whoever caught it
        # further out. The next eval() of a text takes that back.
        eval("0")
        if command.waiting:
            raise KeyboardInterrupt


_REPEATS = os.name == "posix"


class _Command:
    """Handlers of one command; silent once it is not running.

    Attributes:
        alone: whether the process belongs to the command and ends with it.
        caller: frame that the command is called from.
        stopped: whether SIGINT has come.
        waiting: whether it waits for the end of an import.
    """

    def __init__(self, alone: bool, caller: FrameType) -> None:
        self.alone = alone
        self.caller = caller
        self.running = False
        self.stopped = False
        self.waiting = False
        self.hook: Callable[[sys.UnraisableHookArgs], object] = sys.__unraisablehook__
        self._alarm: Any = None

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT: raise KeyboardInterrupt, and go on raising it if it is swallowed."""
        if self.running:
            self.stopped = True
            self._arm()
            self._raise_unless_importing(frame)

    def again(self, number: int, frame: FrameType | None) -> None:
        """Raise again some time after SIGINT, unless it is being handled."""
        if self.running and not _being_handled():
            self._raise_unless_importing(frame)

    def _raise_unless_importing(self, frame: FrameType | None) -> None:
        self.waiting = _REPEATS and self._importing(frame)
        if not self.waiting:
            raise KeyboardInterrupt

    def _importing(self, frame: FrameType | None) -> bool:
        """Whether the command is importing a module."""
        while frame is not None and frame is not self.caller:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return False

    def _arm(self) -> None:
        """Start the timer that calls :meth:`again` until the command ends. It starts at the first SIGINT, since the
        caller may use the timer."""
        if _REPEATS and self._alarm is None:
            self._alarm = signal.signal(signal.SIGALRM, self.again) or signal.SIG_DFL
            signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)

    def disarm(self) -> None:
        """Release the timer, if it was taken."""
        if self._alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._alarm)

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
