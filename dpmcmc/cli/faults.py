"""Exceptions that nobody meant to raise: the traceback goes to a private file, one sentence to the terminal.

A traceback may quote records, so it is never printed. ``refusals.py`` tells what a user can mend.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from pathlib import Path

_folder: Path | None = None


def keep_in(folder: Path | None) -> None:
    """Set the folder that tracebacks go to: the ``confidential/`` of a run, or None for a temporary one."""
    global _folder
    _folder = folder


def write_fault(error: BaseException) -> str:
    """Write the traceback where only its owner reads it; the sentence quotes nothing, as errors may quote records."""
    kind = type(error).__name__
    try:
        where = _write(error)
    except OSError as reason:
        return (
            f"a fault of dpmcmc, not of your input ({kind}), whose traceback could not be written ({reason.strerror}); "
            "please report it"
        )
    return (
        f"a fault of dpmcmc, not of your input ({kind}): its traceback is in {where}; please report it as SECURITY.md "
        "asks, after a look that the file quotes no private values"
    )


def _write(error: BaseException) -> Path:
    text = "".join(traceback.format_exception(error))
    in_place = _folder is not None and _folder.is_dir()
    handle, name = tempfile.mkstemp(
        prefix="fault-",
        suffix=".txt",
        dir=_folder if in_place else tempfile.mkdtemp(prefix="dpmcmc-"),
    )
    with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:  # mkstemp: owner only
        stream.write(text)
    return Path(name)
