"""Files that are complete or absent, even after a kill, a full disk or a loss of power.

The caller says what is written, and who may read it: ``run_folder.py`` does so for a run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object], mode: int = 0o644, last: bool = True) -> None:
    """Call ``write(temporary_path)`` beside ``path``, then rename; nothing is left behind on failure.

    The content reaches the disk before the name does, and the name before this returns.

    Args:
        path: of the file.
        write: fills the file it is given.
        mode: who may read the file: everybody by default.
        last: whether to flush the folder too. The flush after the last of several files puts all their names on disk.

    Raises:
        OSError: the file could not be written; what stood at ``path`` before still does.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        os.chmod(temporary, mode)
        _flush(temporary, os.O_RDWR)
        os.replace(temporary, path)
        if last:
            flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def flush_folder(path: Path) -> None:
    """Flush the names in a folder to the disk; on Windows, where a folder cannot be opened, renaming is durable."""
    if os.name != "nt":
        _flush(path, os.O_RDONLY)


def _flush(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
