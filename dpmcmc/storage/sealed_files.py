"""Files of arrays that begin with their SHA-256, so that a part of one is never taken for the whole."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np

from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.regular_file import read_bytes


def seal(path: Path, arrays: dict[str, np.ndarray], last: bool = True) -> str:
    """Write a file that only its owner reads, and return its digest; ``last`` as of ``write_atomically``."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    digest = hashlib.sha256(buffer.getvalue())
    whole = digest.digest() + buffer.getvalue()
    write_atomically(path, lambda temporary: temporary.write_bytes(whole), 0o600, last)
    return digest.hexdigest()


def unseal(path: Path) -> tuple[str, dict[str, np.ndarray]] | None:
    """(digest, arrays) of a file that is whole, else None."""
    try:
        whole = read_bytes(path)
    except OSError:
        return None
    if hashlib.sha256(whole[32:]).digest() != whole[:32]:
        return None
    try:
        with np.load(io.BytesIO(whole[32:]), allow_pickle=False) as file:
            return whole[:32].hex(), dict(file)
    except (ValueError, TypeError, AttributeError):
        return None
