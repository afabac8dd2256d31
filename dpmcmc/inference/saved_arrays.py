"""Released arrays and JSON facts in one ``.npz`` file of a run folder."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.storage.arrays import arrays_of
from dpmcmc.storage.files import read_bytes

Saved = TypeVar("Saved")
#: Key of what stands for an array in the JSON text.
ARRAY_KEY = "array of this file"


def packed(facts: dict[str, object]) -> bytes:
    """Return a file that holds JSON values, with arrays among them at any depth."""
    arrays: list[np.ndarray] = []

    def place(leaf: np.ndarray) -> dict[str, str]:
        arrays.append(leaf)
        return {ARRAY_KEY: f"arr_{len(arrays) - 1}"}  # NumPy's name of an array without one

    text = json.dumps(facts, default=place)
    out = io.BytesIO()
    np.savez(out, *arrays, facts=np.frombuffer(text.encode(), np.uint8))
    return out.getvalue()


def unpacked(content: bytes) -> dict[str, Any]:
    """Return what :func:`packed` took."""
    arrays = arrays_of(content)
    text = arrays["facts"].tobytes()
    return json.loads(
        text,
        object_hook=lambda found: arrays[found[ARRAY_KEY]] if ARRAY_KEY in found else found,
    )


def loaded(path: Path, made: Callable[[bytes], Saved], who: str) -> Saved:
    """Return what ``made`` makes of a file's bytes.

    Args:
        path: of the file.
        made: raises where they are not what it knows.
        who: sentence on which runs have the file.

    Raises:
        ValueError: there is none, or it is damaged or of another version.
    """
    if not path.exists():
        raise InputError(f"{path}: is not there; {who}", "folder")
    try:
        return made(read_bytes(path))
    except Exception:  # whatever a damaged archive makes zipfile, zlib and NumPy raise
        said = f"{path}: is damaged, or no {path.stem} of this version of dpmcmc; get the run's folder again"
        raise InputError(said, "folder") from None
