"""Messages between the processes of one run: all have the same plan, and process 0 says what only it knows.

``processes.py`` connects them; nothing here starts or ends one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dpmcmc.engine.mesh import on_host
from dpmcmc.errors import InputError, SaidByFirst
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.arrays import arrays_of
from dpmcmc.storage.checkpoint import Checkpoint
from dpmcmc.storage.commit import CommittedDraws, Point
from dpmcmc.storage.fingerprint import fingerprint, plan_digest, platform
from dpmcmc.storage.leaves import from_text, plain, to_text
from dpmcmc.storage.pytree import PyTree


def several() -> bool:
    """Whether this is one of several processes; begins no work of JAX where it is not."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def check_alike(secret: bool, plan: Plan, records: PyTree, mesh: Mesh | None) -> None:
    """Refuse processes that are not about to do the same.

    Args:
        secret: whether the keys are.
        plan, records, mesh: what this process is about to run.

    Raises:
        ValueError: on every process, where they differ.
    """
    if not several():
        return
    own = {
        "versions, processors, flags and code": platform(own=False),
        "plan": plan_digest(plan),
        "kind of key": repr(secret),
        "records": fingerprint(b"", records),
        "mesh": repr(None if mesh is None else tuple(mesh.shape.values())),
    }
    texts = np.array([list(fact.encode().ljust(64)) for fact in own.values()], np.uint8)
    every = multihost_utils.process_allgather(texts)
    differ = [name for at, name in enumerate(own) if np.any(every[:, at] != every[0, at])]
    if differ:
        raise InputError(
            f"distributed: the processes differ in their {', and in their '.join(differ)}; start all of them alike, on "
            "machines alike"
        )


#: Bytes that process 0 sends at once; what is longer follows.
_HEAD = 1024
_LENGTH = 8
_FAILED = "failed"
_SAID = "said"
_Told = TypeVar("_Told")
_Arrays = dict[str, np.ndarray]


def of_first(work: Callable[[], _Arrays]) -> _Arrays:
    """Do something on process 0, and return on every process what came of it, once it is done.

    Args:
        work: returns arrays by name; called on process 0 alone.

    Raises:
        SaidByFirst: on the others, where the work failed on process 0, which raises its own error.
    """
    if not several():
        return work()
    failure: Exception | None = None
    content = b""
    if jax.process_index() == 0:
        try:
            arrays = work()
        except Exception as error:
            failure = error
            arrays = {_FAILED: _as_bytes([_exit_code(error), str(error)])}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        content = buffer.getvalue()
    told = _sent(content)
    if failure is not None:
        raise failure
    found = arrays_of(told)
    if _FAILED in found:
        code, sentence = json.loads(found[_FAILED].tobytes())
        raise SaidByFirst(sentence, code)
    return found


def said_by_first(work: Callable[[], _Told]) -> _Told:
    """Do as :func:`of_first`, for work that returns a value that JSON can hold."""
    if not several():
        return work()
    said = of_first(lambda: {_SAID: _as_bytes(work())})
    value: _Told = json.loads(said[_SAID].tobytes())
    return value


def keys_of_first(work: Callable[[], Streams], own: Streams) -> Streams:
    """Do as :func:`of_first`, for work that returns keys of the kind of this process's own."""
    if not several():
        return work()
    keys: Streams = from_text(said_by_first(lambda: to_text(work())), own)
    return keys


def every_process(own: np.ndarray) -> np.ndarray:
    """Return the arrays that all processes hold, each of the same shape, along a first axis.

    Args:
        own: of 32 bits or fewer a number, which JAX does not narrow.
    """
    if not several():
        return own[None]
    return np.asarray(multihost_utils.process_allgather(own), own.dtype)


def _as_bytes(value: object) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _exit_code(error: Exception) -> int:
    """Exit code of a command that ends with this error."""
    return int(getattr(error, "code", 2 if isinstance(error, InputError) else 1))


def _sent(content: bytes) -> bytes:
    """Bytes of process 0, on every process."""
    head = len(content).to_bytes(_LENGTH, "little") + content[: _HEAD - _LENGTH]
    told = _broadcast(head, _HEAD)
    length = int.from_bytes(told[:_LENGTH], "little")
    if length <= _HEAD - _LENGTH:
        return told[_LENGTH : _LENGTH + length]
    # A power of two: a program is compiled for each size.
    return _broadcast(content, 1 << (length - 1).bit_length())[:length]


def _broadcast(content: bytes, size: int) -> bytes:
    padded = np.frombuffer(content.ljust(size, b"\0"), np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8).tobytes()


class CheckpointOfFirst:
    """The checkpoint of a run of several processes, which process 0 keeps; every process calls each method.

    A commit is made after all have handed over what they hold, and none goes on before it is made.

    Args:
        own: the checkpoint, on process 0; None on the others.
        folder: of the checkpoint, as process 0 names it.
    """

    def __init__(self, own: Checkpoint | None, folder: str) -> None:
        self._own = own
        self.folder = Path(folder)

    @property
    def _kept(self) -> Checkpoint:
        assert self._own is not None  # asked for on process 0 alone
        return self._own

    def point(self) -> Point | None:
        """Return the last commit; see :meth:`Checkpoint.point`."""

        def found() -> _Arrays:
            point = self._kept.point()
            return {} if point is None else point.whole()

        arrays = of_first(found)
        return Point.of(arrays) if arrays else None

    def start(self, shape: tuple[int, int], chains: int) -> Point:
        """Commit the beginning; see :meth:`Checkpoint.start`."""
        point = Point.of(of_first(lambda: self._kept.start(shape, chains).whole()))
        assert point is not None  # it was made by this version
        return point

    def due(self) -> bool:
        """Whether to commit, by the clock of process 0; see :meth:`Checkpoint.due`."""
        return said_by_first(lambda: self._kept.due())

    def commit(
        self,
        point: Point,
        step: int,
        states: PyTree,
        draws: CommittedDraws,
        steps: int,
        seconds: float,
        last: bool,
    ) -> None:
        """Commit what all hold; the point moves on process 0 alone. See :meth:`Checkpoint.commit`."""
        whole = on_host(jax.tree.map(plain, states))

        def committed() -> None:
            self._kept.commit(point, step, whole, draws, steps, seconds, last)

        said_by_first(committed)

    def load_stage(self, stage: int) -> _Arrays | None:
        """Return what a stage released, or None; see :meth:`Checkpoint.load_stage`."""
        found: list[_Arrays] = []

        def known() -> bool:
            arrays = self._kept.load_stage(stage)
            found.extend([] if arrays is None else [arrays])
            return bool(found)

        return of_first(lambda: found[0]) if said_by_first(known) else None

    def commit_stage(self, stage: int, arrays: _Arrays, last: bool) -> None:
        """Commit what a stage released, which every process has alike; see :meth:`Checkpoint.commit_stage`."""
        said_by_first(lambda: self._kept.commit_stage(stage, arrays, last))


#: The checkpoint of a run, of one process or of several.
Kept: TypeAlias = Checkpoint | CheckpointOfFirst
