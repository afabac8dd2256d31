"""Stamps of files: by them a reader notices that a file has changed while it was read.

Nobody sets the time of a file's last change (ctime): a rewrite that keeps size and time of writing changes it too. A
stamp is no digest: it does not tell what a file holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from dpmcmc.errors import DataError

#: Facts that a file is known by: its device and number there, its size, and the times of its last writing and change;
#: none of a file that cannot be looked at.
Stamps: TypeAlias = dict[Path, tuple[int, ...]]


def stamps_of(paths: Iterable[Path]) -> Stamps:
    """Return what these files are known by; a link stands for the file that it leads to."""
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        at = path.stat()
    except OSError:
        return ()
    return at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns


def check_unchanged(before: Stamps) -> None:
    """Refuse files that are not what they were.

    Raises:
        DataError: one has changed.
    """
    for path, stamp in before.items():
        if _stamp(path) != stamp:
            raise DataError(f"{path} has changed since it was first looked at: start again when nothing writes to it.")
