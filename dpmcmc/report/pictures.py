"""Pictures of a run, drawn by a separate process while the run is computed.

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
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from dpmcmc.privacy.accounting.events import round_up
from dpmcmc.report.figures import STYLE, plain
from dpmcmc.storage.files import RunFolder

if TYPE_CHECKING:
    from dpmcmc.diagnostics.per_record.account import PerRecord


#: A picture: its function in ``figures.py``, and the arguments of that after the file.
Job = tuple[str, tuple[object, ...]]

#: The process that draws, where there is one.
_drawer: Connection | None = None


def start_drawing() -> None:
    """Fork the process that draws; to be called while there is one thread."""
    global _drawer
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        return
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
    with contextlib.suppress(
        Exception
    ):  # the command then draws them itself, and reports what fails
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
    """Pictures of one run. A later picture replaces an earlier one of the same name."""

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
        found = {
            name: picture for (name, _), picture in zip(self._jobs, drawn, strict=True)
        }
        for name, picture in found.items():
            folder.write(f"figures/{name}.png", picture)
        return {
            self._captions[name]: found[name]
            for name in _ORDER
            if self._captions.get(name)
        }


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


# ------------------------------------------------------------------------------------
# Histogram of what a run cost each record, coloured by how often it was clipped. CONFIDENTIAL.


_BINS = 60


def plot(path: Path, account: PerRecord, promised: float, title: str) -> None:
    """Save a picture that only its owner can read; ``promised`` is the ε of the run's guarantee."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.8), layout="constrained")
        axis = figure.subplots()
        shown = histogram(
            axis, account.epsilon, account.clipped_share, account.worst_case, promised
        )
        axis.set_xlabel(f"ε of a record at δ = {account.delta:.3g}, {account.adjacency}")
        axis.set_title(plain(title))
        figure.colorbar(shown, ax=axis, label="share of steps in which it was clipped")
        path.touch(mode=0o600)
        figure.savefig(path)


def histogram(
    axis: Axes, epsilon: np.ndarray, clipped: np.ndarray, worst: float, promised: float
) -> ScalarMappable:
    """Draw bars of records by ε in the colour of their mean clipped share, and name the mean and both bounds.

    Returns the map of a colour bar.

    Args:
        axis: of Matplotlib.
        epsilon: ε_i, (N,).
        clipped: share of steps in which each was clipped, (N,).
        worst: ε of a record that is clipped at every step, by the accountant of ``epsilon``.
        promised: ε of the run's guarantee.
    """
    edges = np.linspace(0, max(worst, promised, float(epsilon.max())) * 1.02, _BINS + 1)
    counts, _ = np.histogram(epsilon, edges)
    total, _ = np.histogram(epsilon, edges, weights=clipped)
    shown = ScalarMappable(Normalize(0, 1), colormaps["viridis"])
    colours = shown.to_rgba(total / np.maximum(counts, 1))
    axis.bar(
        edges[:-1],
        counts,
        np.diff(edges),
        align="edge",
        color=colours,
        edgecolor="white",
        linewidth=0.3,
    )
    # A bar of a few records is visible, and names are above the bars, each at its own height.
    axis.set_yscale("log")
    axis.set_ylim(0.7, counts.max() * 40)
    axis.set_ylabel("records")
    said = (
        (worst, "-", "clipped at every step"),
        (promised, "--", "the run's guarantee"),
        (epsilon.mean(), ":", "mean"),
    )
    for line, (value, dashes, name) in enumerate(said):
        height = 0.97 - 0.06 * line  # below the earlier names, which the line would cross
        axis.axvline(value, ymax=height + 0.02, color="C3", ls=dashes, lw=1.7)
        side, by = ("right", -4) if value > edges[-1] / 2 else ("left", 4)
        place = (value, height), (by, 0), ("data", "axes fraction"), "offset points"
        axis.annotate(
            f"{name}: {round_up(float(value), 3)}",
            *place,
            color="C3",
            fontsize=8.5,
            ha=side,
            va="center",
        )
    return shown
