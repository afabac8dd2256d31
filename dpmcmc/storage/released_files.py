"""Files of one result: their names, and the SHA-256 digests of them that ``privacy.json`` states.

    "files": null                       the run has not ended; nothing in the folder is a result yet
    "files": {"draws.nc": "5f0c…", …}   it has: these files, and no other of a released name

``privacy.json`` is written twice, before the first and after the last of the others (``run_folder.py``). So a kill at
any moment leaves a folder that says that it is unfinished, or a whole result. The digests are those of the bytes that
the writer had in hand: where two writers share a folder, the mixture is refused.

Digests are functions of released files, which hold public facts and privatised values alone. Files of
``confidential/`` have none. Nothing is written here.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from dpmcmc.errors import InputError
from dpmcmc.storage.files import open_regular, read_table

#: The file that states the digests, and its key of them.
PRIVACY, KEY = "privacy.json", "files"
#: Names of a released file: what is stated before a record is read, and what is computed. Pictures have any name.
STATED = ("config.yaml", "plan.json")
COMPUTED = ("draws.nc", "evidence.npz", "metrics.json", "report.html", "trace.npz")
PICTURES = "figures"
#: Names of the pictures, in the order of the page.
DRAWN = (
    "traces",
    "temperature",
    "epsilon_delta",
    "calibration",
    "predictions",
)
#: Folder of a run folder that is never published, and names of what it holds.
CONFIDENTIAL = "confidential"
CHECKPOINT = "checkpoint"
HELD = ("diagnostics.json", "failure.json", "per_record.csv")
#: Names of tables and of what is written beside them, by sweeps and by the experiments.
RESULTS, ABOUT = "results.csv", "about.json"
TABLES = (
    *(RESULTS, ABOUT, "summary.csv", "comparison.csv", "predictive.csv"),
    *("beside.csv", "choose.csv", "noise_multipliers.csv", "losses.md", "ranks.png"),
)
#: The config of a run, which a user's own may be called too.
CONFIG = "config.yaml"


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def list_released(folder: Path) -> tuple[str, ...]:
    """Return the names of the released files that lie in a folder, beside ``privacy.json``."""
    pictures = folder / PICTURES
    drawn = sorted(path.name for path in pictures.iterdir()) if pictures.is_dir() else []
    names = (
        *STATED,
        *COMPUTED,
        *(f"{PICTURES}/{name}" for name in drawn if not name.startswith(".")),
    )
    return tuple(name for name in names if os.path.lexists(folder / name))


def has_ended(said: dict[str, Any]) -> bool:
    """Whether a ``privacy.json`` is of a run that has ended, as far as it tells."""
    return said.get(KEY, {}) is not None


def is_sealed(folder: Path) -> bool:
    """Whether a folder holds a whole result, as far as its ``privacy.json`` tells."""
    return isinstance(read_table(folder / PRIVACY).get(KEY), dict)


def discrepancy(folder: Path, said: dict[str, Any]) -> str | None:
    """Return a clause on the first file that is not as ``privacy.json`` says; None: there is none.

    Args:
        folder: that it lies in.
        said: its content.

    Raises:
        OSError: a file cannot be read.
    """
    lying = list_released(folder)
    if not has_ended(said):
        computed = [name for name in lying if name not in STATED]
        return f"{computed[0]} lies beside it, and the run has not ended" if computed else None
    stated = said.get(KEY)
    if not isinstance(stated, dict):
        return "it states no digests of its files, so they may be of other runs"
    for name in (*lying, *sorted(stated)):
        if name not in stated:
            return f"{_shown(name)} is not a file of this result"
        if name not in lying:
            return f"{_shown(name)} is missing"
        with open_regular(folder / name) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != stated[name]:
            return f"{_shown(name)} is not the file that was released"
    return None


def check_result(folder: Path, said: dict[str, Any]) -> None:
    """Refuse a folder that is no whole result.

    Raises:
        InputError: its run has not ended, or a file is missing, changed, or of another result.
        OSError: a file cannot be read.
    """
    if not has_ended(said):
        raise InputError(
            f"{folder}: the run in it has not ended, or was stopped while it was saved; go on with it, or save the "
            "result again",
            "folder",
        )
    wrong = discrepancy(folder, said)
    if wrong is not None:
        raise InputError(
            f"{folder}: {wrong}; get the whole folder again from where it was released",
            "folder",
        )


def is_left_over(name: str) -> bool:
    """Whether a name is of a write that was killed."""
    return any(name.startswith(f".{each}.") for each in (PRIVACY, *STATED, *COMPUTED))


def _shown(name: object) -> str:
    """Return the name of a file, or a quotation of what is none; the file that says it may be a stranger's."""
    known = isinstance(name, str) and (name in (*STATED, *COMPUTED) or name.startswith(f"{PICTURES}/"))
    return str(name)[:80] if known else repr(name)[:80]
