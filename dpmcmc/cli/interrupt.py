"""Ctrl-C: one sentence and exit code 130.

While a command runs, Ctrl-C is Python's KeyboardInterrupt. An import that it interrupts may turn it into another error,
or crash. So the process ends at once while the command line is read and the command's libraries are imported. After
the command Ctrl-C is ignored, since the exit code is decided.

In the first hundredths of a second, before the package is imported, Ctrl-C still shows Python's traceback.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

#: Exit code of a command that the user stopped, as shells have it.
STOPPED = 130


def leave_while_importing() -> None:
    """Let SIGINT end the process until :func:`interrupt_from_now_on`."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL) and _in_main_thread():
        signal.signal(signal.SIGINT, _leave)


def interrupt_from_now_on() -> None:
    """Let SIGINT raise KeyboardInterrupt, as Python does; a handler that the caller has set stays."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _interrupt)


def ignore_from_now_on() -> None:
    """Ignore SIGINT, which would break the interpreter's own shutdown; a handler that the caller has set stays."""
    if signal.getsignal(signal.SIGINT) in (_leave, _interrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error is a KeyboardInterrupt, or what a library made of one."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or was_interrupted(error.__context__))


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"error: stopped by the user before anything was done.\n")
    os._exit(STOPPED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
