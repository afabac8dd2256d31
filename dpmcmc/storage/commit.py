"""How far a run has got: what one commit of a checkpoint says, as arrays for its file.

When a commit is made, and where its files lie, is for ``checkpoint.py`` to say.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from dpmcmc.storage.arrays import unseal
from dpmcmc.storage.pytree import PyTree

#: Begin the names of arrays of states, and of pieces.
_STATE, _PIECE = "state/", "piece/"


def arrays_of_pieces(pieces: list[list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the leaves of pieces by name."""
    return {f"{_PIECE}{j}/{k}": leaf for j, leaves in enumerate(pieces) for k, leaf in enumerate(leaves)}


def pieces_of(arrays: dict[str, np.ndarray]) -> list[list[np.ndarray]]:
    """Return pieces of the arrays that :func:`arrays_of_pieces` gave."""
    found: dict[int, dict[int, np.ndarray]] = {}
    for name, leaf in arrays.items():
        j, k = map(int, name.removeprefix(_PIECE).split("/"))
        found.setdefault(j, {})[k] = leaf
    return [[found[j][k] for k in sorted(found[j])] for j in sorted(found)]


class CommittedDraws(Protocol):
    """Everything that a commit keeps of the chains.

    Attributes:
        pieces: kept draws of each chunk that has some, pytrees.
        norms: of the last positions, (chains,).
    """

    pieces: list[PyTree]
    norms: np.ndarray


@dataclass
class Point:
    """How far a run has got, as its last commit says.

    Attributes:
        number: of the commit.
        complete: whether the chains have done their steps.
        step: the next one.
        shape: (places for chains, steps in a chunk); a resumed run keeps them.
        states: leaves of the states, or None where none is taken or left to take.
        norms: last norm of every chain.
        pieces: leaves of each piece of the draws.
        seconds: of running so far.
        files: names and digests of the files that hold them.
    """

    number: int = 0
    complete: bool = False
    step: int = 0
    shape: tuple[int, int] = (0, 0)
    states: list[np.ndarray] | None = None
    norms: list[float] = field(default_factory=list)
    pieces: list[list[np.ndarray]] = field(default_factory=list)
    seconds: float = 0.0
    files: list[tuple[str, str]] = field(default_factory=list)

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of its file: all but the pieces, which lie in files of their own."""
        body = dataclasses.asdict(dataclasses.replace(self, states=None, pieces=[]))
        arrays = {"body": np.frombuffer(json.dumps(body).encode(), np.uint8)}
        return arrays | {f"{_STATE}{i}": leaf for i, leaf in enumerate(self.states or [])}

    def read_pieces(self, folder: Path) -> bool:
        """Read the draws that the commit names from its checkpoint's folder; return whether they are whole."""
        self.pieces = []
        for name, digest in self.files:
            held = unseal(folder / name)
            if held is None or held[0] != digest:
                return False
            self.pieces += pieces_of(held[1])
        return True

    def whole(self) -> dict[str, np.ndarray]:
        """Arrays of it and of its pieces, as another process takes them."""
        return self.arrays() | arrays_of_pieces(self.pieces)

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Point | None:
        """Point that :meth:`arrays` or :meth:`whole` gave the arrays of; None where it is not of this version."""
        try:
            point = cls(**json.loads(arrays["body"].tobytes()))
        except (ValueError, KeyError, TypeError):
            return None
        if len(point.shape) != 2 or min(point.shape) < 1:
            return None
        point.shape = (point.shape[0], point.shape[1])
        point.states = [leaf for name, leaf in arrays.items() if name.startswith(_STATE)] or None
        point.pieces = pieces_of({name: leaf for name, leaf in arrays.items() if name.startswith(_PIECE)})
        point.files = [(name, digest) for name, digest in point.files]
        return point
