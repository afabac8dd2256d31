"""Calibrations remembered on disk, keyed by all their inputs and by the versions and source that computed them."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.cache import cache_folder, make_private, refuse_unsafe
from dpmcmc.storage.versions import installed

_PACKAGES = ("dpmcmc", "numpy", "scipy")


def recall(inputs: dict[str, object]) -> float | None:
    """The remembered noise multiplier, or None. The caller accounts it again before use.

    Raises:
        UnsafeCache: somebody else can change what is remembered.
    """
    path = _path(inputs)
    try:
        saved = json.loads(path.read_text())
        return float(saved["noise_multiplier"]) if saved["inputs"] == _full(inputs) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(inputs: dict[str, object], noise_multiplier: float) -> None:
    """Save atomically. A cache that cannot be written costs time, never a run."""
    path = _path(inputs)
    try:
        make_private(path.parent)
        text = json.dumps({"inputs": _full(inputs), "noise_multiplier": noise_multiplier})
        write_atomically(path, lambda temporary: temporary.write_text(text), 0o600)
    except OSError:
        return


def _full(inputs: dict[str, object]) -> dict[str, object]:
    versions = {name: installed(name) for name in _PACKAGES}
    return json.loads(json.dumps({**inputs, "versions": versions, "source": _source()}))


@functools.cache
def _source() -> str:
    """Digest of the code that computes a calibration, so that an edited checkout forgets what it knew."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _path(inputs: dict[str, object]) -> Path:
    digest = hashlib.sha256(json.dumps(_full(inputs), sort_keys=True).encode()).hexdigest()
    path = cache_folder() / "calibrations" / f"{digest[:32]}.json"
    for part in (path.parent, path):
        refuse_unsafe(part, "DPMCMC_CACHE")
    return path
