"""Pictures of a run, drawn by a process of their own while the run is computed and judged.

Matplotlib takes a second and more to import and to draw, and JAX leaves one of two cores idle for most of a short run.
The process is forked from the command before anything else is loaded, when it has one thread and holds no record. It
gets the numbers of a picture through a pipe, returns a PNG, and opens no file. It ends with the command.

Where there is no such process (another system than Linux, one core, a run that is called from Python), or it fails,
pictures are drawn here: only their time differs.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection

from dpmcmc.storage.run_folder import RunFolder

#: A picture: its function in ``figures.py``, and the arguments of that after the file.
Job = tuple[str, tuple[object, ...]]

#: The process that draws, where there is one.
_beside: Connection | None = None


def draw_beside() -> None:
    """Fork the process that draws; to be called while there is one thread."""
    global _beside
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        return
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    # Ctrl-C is for the command, which then ends the process that draws: it is never delivered there.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with contextlib.suppress(OSError), there:
        context.Process(target=_draw_what_comes, args=(here, there), daemon=True).start()
        _beside = here
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _draw_what_comes(other_end: Connection, pipe: Connection) -> None:
    """Draw until the command is gone, and return all pictures when asked for them."""
    other_end.close()  # or its end would not be seen
    with contextlib.suppress(Exception):  # the command draws them itself, and says what fails
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


#: Pictures in the order of a page.
_ORDER = ("traces", "temperature", "epsilon_delta", "calibration", "predictions")


class Pictures:
    """Pictures of one run; of several of one name the last."""

    def __init__(self) -> None:
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
        return {self._captions[name]: found[name] for name in _ORDER if self._captions.get(name)}


def _send(message: object) -> None:
    global _beside
    if _beside is not None:
        try:
            _beside.send(message)
        except Exception:  # it has ended, or the message is nothing that can be sent
            _beside = None


def _returned() -> list[bytes]:
    """Return what the other process has drawn; nothing where there is none."""
    _send(None)
    with contextlib.suppress(OSError, EOFError):
        return [] if _beside is None else _beside.recv()
    return []
