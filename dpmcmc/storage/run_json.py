"""``run.json`` of a checkpoint: its version, and whether it holds what this version writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpmcmc.errors import InputError

VERSION = 1


def check_run(run: Any) -> None:
    """Raise ValueError, KeyError, AttributeError or TypeError unless it holds what this version writes."""
    if run["version"] != VERSION:
        raise InputError("another version")
    run.get("notes", {}).get("")
    if "plan" not in run:
        return
    bytes.fromhex(run["records_key"])
    for event in run["again"]:
        event.items()
    for words in run["keys"] or []:
        np.asarray(words, np.uint32)
    if not isinstance(run["secret"], bool):
        raise InputError("other keys")
    run["platform"], run["records"], run.get("origin", "").encode(), [name.encode() for name in run.get("claims", [])]
