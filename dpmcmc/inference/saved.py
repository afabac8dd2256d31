"""Released arrays and JSON facts in one ``.npz`` file of a run folder."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.storage.regular_file import read_bytes

Saved = TypeVar("Saved")


def packed(arrays: dict[str, np.ndarray], facts: dict[str, object]) -> bytes:
    """Return a file that holds both."""
    out = io.BytesIO()
    leaves: dict[str, Any] = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays}
    np.savez(out, **leaves)
    return out.getvalue()


def unpacked(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return arrays and facts of :func:`packed`."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = dict(file)
    return arrays, json.loads(arrays.pop("facts").tobytes())


def loaded(path: Path, made: Callable[[bytes], Saved], who: str) -> Saved:
    """Return what ``made`` makes of a file's bytes.

    Args:
        path: of the file.
        made: raises where they are not what it knows.
        who: sentence on which runs have the file.

    Raises:
        ValueError: there is none, or it is of another version.
    """
    if not path.exists():
        raise InputError(f"{path}: is not there; {who}", "folder")
    try:
        return made(read_bytes(path))
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise InputError(f"{path}: is no {path.stem} of this version of dpmcmc", "folder") from None
