"""Planted faults: each is put into the real code, and a check that the healthy code passes must see it.

``faults_*``  what goes wrong, how it comes about, how it is planted;  ``checks_*``  what sees it, each a claim about
the real code;  ``benches``  small plans and neighbouring records that checks look at, replayed by ``tests/replay.py``

``python -m tests.planted`` prints all of them; ``docs/trust.md`` says what they are for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.planted.benches import BENCHES, Observed, observe


class Caught(AssertionError):
    """What a check raises, so that no other failure passes for it."""


def require(condition: Any, sentence: str) -> None:
    """Raise Caught with a sentence unless a condition holds."""
    if not condition:
        raise Caught(sentence)


class Scene:
    """What checks look at.

    Args:
        folder: of its own, for files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, Observed] = {}

    def see(self, bench: str) -> Observed:
        """What a bench's plan does, on all its records; made once a scene."""
        if bench not in self._seen:
            self._seen[bench] = observe(BENCHES[bench])
        return self._seen[bench]


Check = Callable[[Scene], None]
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: short.
        story: what goes wrong and how that comes about, one sentence.
        plant: puts it into the real code.
        checks: that see it, each by itself.
    """

    name: str
    story: str
    plant: Plant
    checks: tuple[Check, ...]


def where(check: Check) -> str:
    """``file::check``."""
    return f"{check.__module__.replace('.', '/')}.py::{check.__name__}"
