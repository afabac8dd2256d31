"""Pictures of a run, drawn by a separate process while its draws are scored.

Matplotlib takes more than a second to import and to draw, and JAX leaves one of two cores idle for most of a short run.
The command forks the process before it loads anything else, when it has one thread and holds no record. The process
gets the numbers of a picture through a pipe, returns a PNG, opens no file, and ends with the command.

Without such a process (on another system than Linux, on one core, in a run that is called from Python), or where it
fails, the command draws the pictures itself, which takes longer.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection

from dpmcmc.storage.released_files import DRAWN
from dpmcmc.storage.run_folder import RunFolder

#: A picture: its function in ``figures.py``, and the arguments of that after the file.
Job = tuple[str, tuple[object, ...]]

#: The process that draws, where there is one.
_drawer: Connection | None = None


def start_drawing() -> None:
    """Fork the process that draws; to be called while there is one thread."""
    global _drawer
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        return
    # Both processes need it, and SciPy's part of it is slow to import.
    import dpmcmc.privacy.accounting  # noqa: F401

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    # Ctrl-C is for the command, which then ends the process that draws: it is never delivered there.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with contextlib.suppress(OSError), there:
        context.Process(target=_draw_what_comes, args=(here, there), daemon=True).start()
        _drawer = here
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _draw_what_comes(other_end: Connection, pipe: Connection) -> None:
    """Draw pictures as they come, and send all of them back when asked; end with the command."""
    other_end.close()  # or this process would not notice the end of the command
    with contextlib.suppress(Exception):  # the command then draws them itself, and reports what fails
        pipe.recv()
        import dpmcmc.report.figures  # noqa: F401

        pictures = []
        while (job := pipe.recv()) is not None:
            pictures.append(_png(*job))
        pipe.send(pictures)


def _png(name: str, arguments: tuple[object, ...]) -> bytes:
    from dpmcmc.report import figures

    picture = io.BytesIO()
    getattr(figures, name)(picture, *arguments)
    return picture.getvalue()


class Pictures:
    """Pictures of one run. A later picture replaces an earlier one of the same name.

    Args:
        wanted: whether any is drawn. The pictures of a short run take longer than the run.
    """

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted
        self._jobs: list[Job] = []
        self._captions: dict[str, str] = {}
        _send("a run begins")

    def begin(self, name: str, caption: str, *arguments: object) -> None:
        """Have a picture drawn.

        Args:
            name: of its file, and of the function in ``figures.py`` that draws it.
            caption: on the page of the run; empty where it is not shown there.
            arguments: of the function, after the file: plain numbers, NumPy's arrays, words.
        """
        if not self._wanted:
            return
        self._jobs.append((name, arguments))
        self._captions[name] = caption
        _send(self._jobs[-1])

    def save(self, folder: RunFolder) -> dict[str, bytes]:
        """Write the pictures, and return those of the page by caption."""
        drawn = _returned()
        if len(drawn) != len(self._jobs):
            drawn = [_png(*job) for job in self._jobs]
        found = {name: picture for (name, _), picture in zip(self._jobs, drawn, strict=True)}
        for name, picture in found.items():
            folder.write(f"figures/{name}.png", picture)
        return {self._captions[name]: found[name] for name in DRAWN if self._captions.get(name)}


def _send(message: object) -> None:
    global _drawer
    if _drawer is not None:
        try:
            _drawer.send(message)
        except Exception:  # the process has ended, or the message cannot be sent
            _drawer = None


def _returned() -> list[bytes]:
    """Return the pictures of the other process; none where there is no such process."""
    _send(None)
    with contextlib.suppress(OSError, EOFError):
        return [] if _drawer is None else _drawer.recv()
    return []
