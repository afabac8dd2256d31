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


class CommittedDraws(Protocol):
    """Everything that a commit keeps of one chain.

    Attributes:
        pieces: kept draws of each chunk, pytrees.
        norm: of the last position.
    """

    pieces: list[PyTree]
    norm: float


@dataclass
class Point:
    """How far a run has got, as its last commit says.

    Attributes:
        number: of the commit.
        block: first chain of the block that is running.
        step: its next step.
        until: step that it may reach before the next commit.
        shape: (chains in a block, steps in a chunk); a resumed run keeps them.
        states: leaves of the block's states, or None where it has not started.
        norms: last norm of every chain.
        pieces: per chain the leaves of each piece of its draws.
        seconds: of running so far.
        files: names and digests of the files that hold them.
        sure: whether no later commit was lost.
    """

    number: int = 0
    block: int = 0
    step: int = 0
    until: int = 0
    shape: tuple[int, int] = (0, 0)
    states: list[np.ndarray] | None = None
    norms: list[float] = field(default_factory=list)
    pieces: list[list[list[np.ndarray]]] = field(default_factory=list)
    seconds: float = 0.0
    files: list[tuple[str, str]] = field(default_factory=list)
    sure: bool = True

    @property
    def complete(self) -> bool:
        """Whether every chain has done its steps."""
        return self.block >= len(self.norms)

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays of its file: all but the pieces, which lie in files of their own."""
        body = dataclasses.asdict(dataclasses.replace(self, states=None, pieces=[]))
        arrays = {"body": np.frombuffer(json.dumps(body).encode(), np.uint8)}
        return arrays | {f"state/{i}": leaf for i, leaf in enumerate(self.states or [])}

    def read_pieces(self, folder: Path) -> bool:
        """Read the draws that the commit names from its checkpoint's folder; return whether they are whole."""
        self.pieces = [[] for _ in self.norms]
        for name, digest in self.files:
            held = unseal(folder / name)
            if held is None or held[0] != digest:
                return False
            grouped: dict[tuple[int, int], list[np.ndarray]] = {}
            for key, leaf in held[1].items():
                i, j, _ = (int(part) for part in key.split("/"))
                grouped.setdefault((i, j), []).append(leaf)
            for (i, _), leaves in grouped.items():
                self.pieces[i].append(leaves)
        return True

    def whole(self) -> dict[str, np.ndarray]:
        """Arrays of it and of its pieces, as another process takes them; see :meth:`of_whole`."""
        pieces = {
            f"piece/{i}/{j}/{k}": leaf
            for i, own in enumerate(self.pieces)
            for j, leaves in enumerate(own)
            for k, leaf in enumerate(leaves)
        }
        return self.arrays() | pieces

    @classmethod
    def of_whole(cls, arrays: dict[str, np.ndarray]) -> Point:
        """Point that :meth:`whole` gave the arrays of."""
        names = [name for name in arrays if name.startswith("piece/")]
        pieces = {name: arrays[name] for name in names}
        point = cls.of({name: arrays[name] for name in arrays if name not in pieces})
        assert point is not None  # it was made by this version
        point.pieces = [[] for _ in point.norms]
        for name, leaf in pieces.items():
            i, j, _ = (int(part) for part in name.split("/")[1:])
            own = point.pieces[i]
            own += [[] for _ in range(len(own), j + 1)]
            own[j].append(leaf)
        return point

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> Point | None:
        """Point that a file's arrays say, without its pieces; None where it is not of this version."""
        try:
            point = cls(**json.loads(arrays.pop("body").tobytes()))
        except (ValueError, KeyError, TypeError):
            return None
        if len(point.shape) != 2 or min(point.shape) < 1:
            return None
        point.shape = (point.shape[0], point.shape[1])
        point.states = [arrays[f"state/{i}"] for i in range(len(arrays))] or None
        point.files = [(name, digest) for name, digest in point.files]
        return point
